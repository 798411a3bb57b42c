select o_w_id, collect_set(o_carrier_id) as carriers, bool_or(o_all_local = 1) as any_local,
max_by(o_id, o_entry_d) is null as none from orders group by o_w_id
