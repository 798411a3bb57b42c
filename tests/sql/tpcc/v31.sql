select c_last, c_first, o_id, ol_number, i_name from customer join orders on o_c_id = c_id and
o_w_id = c_w_id and o_d_id = c_d_id join order_line on ol_o_id = o_id and ol_w_id = o_w_id and
ol_d_id = o_d_id join item on i_id = ol_i_id
