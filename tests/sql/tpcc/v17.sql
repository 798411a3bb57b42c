select i_id, i_price from item where i_id not in (select ol_i_id from order_line where ol_quantity
> 5)
