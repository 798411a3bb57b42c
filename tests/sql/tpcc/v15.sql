select c_id, c_last from customer where not exists (select 1 from orders where o_c_id = c_id and
o_w_id = c_w_id)
