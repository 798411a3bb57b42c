with a as (select o_w_id, o_c_id, count(*) as n from orders group by o_w_id, o_c_id), b as (select
o_w_id, avg(n) as m from a group by o_w_id) select a.o_w_id, a.o_c_id, n from a join b on a.o_w_id
= b.o_w_id where n > m
