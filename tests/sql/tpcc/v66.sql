select s_w_id, s_i_id from stock where s_quantity < 10 union all select s_w_id, s_i_id from stock
where s_order_cnt > 20 union all select ol_supply_w_id, ol_i_id from order_line where ol_quantity
= 10
