select ol_i_id from order_line except all select s_i_id from stock
