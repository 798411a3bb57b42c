select o_w_id, o_id, o_entry_d, lag(o_entry_d) over (partition by o_w_id order by o_entry_d, o_id,
o_d_id, o_c_id) as before from orders
