select o_w_id, count(*) filter (where o_carrier_id is null) as waiting, count(*) filter (where
o_carrier_id is not null) as sent from orders group by o_w_id
