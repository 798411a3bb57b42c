select o_c_id, listagg(cast(o_carrier_id as string), ',') within group (order by o_carrier_id) as
carriers from orders group by o_c_id
