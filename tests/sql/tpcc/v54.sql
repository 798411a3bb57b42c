select distinct o_w_id, o_d_id from orders where o_ol_cnt between 5 and 15
