select o_id, o_w_id from orders intersect all select ol_o_id, ol_w_id from order_line
