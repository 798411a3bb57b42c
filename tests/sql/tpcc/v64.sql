select o_w_id, o_d_id, o_c_id, o_id from orders o where o_id = (select max(o_id) from orders x
where x.o_w_id = o.o_w_id and x.o_d_id = o.o_d_id and x.o_c_id = o.o_c_id)
