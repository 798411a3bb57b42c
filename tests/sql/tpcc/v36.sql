select o_w_id, o_id, no_o_id from orders full join new_order on o_id = no_o_id and o_w_id =
no_w_id and o_d_id = no_d_id
