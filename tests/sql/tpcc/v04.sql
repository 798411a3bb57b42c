select o_w_id, o_d_id, max(o_id) as last_order, count(distinct o_c_id) as buyers from orders group
by o_w_id, o_d_id
