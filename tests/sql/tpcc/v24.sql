select o_id, o_w_id, o_d_id from orders except select no_o_id, no_w_id, no_d_id from new_order
