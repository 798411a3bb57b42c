select * from (select o_w_id, o_carrier_id from orders) pivot (count(*) for o_carrier_id in (1 as
one, 2 as two, 3 as three))
