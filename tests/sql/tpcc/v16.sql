select i_id, i_name from item where i_id not in (select ol_i_id from order_line where ol_i_id is
not null)
