select o_id, o_entry_d from orders order by o_entry_d desc, o_id, o_d_id limit 4 offset 2
