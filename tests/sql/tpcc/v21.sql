select o_w_id, o_carrier_id, o_all_local, count(*) as n, grouping_id() as g
from orders group by cube (o_w_id, o_carrier_id), o_all_local
