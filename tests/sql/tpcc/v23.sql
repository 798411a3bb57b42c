select c_id from customer where c_w_id = 1 union select o_c_id from orders where o_w_id = 2
