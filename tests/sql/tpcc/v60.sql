with recursive chain as (select o_id, o_c_id, 0 as depth from orders where o_id = 1 union all
select o.o_id, o.o_c_id, depth + 1 from orders o join chain c on o.o_id = c.o_c_id where depth <
3) select * from chain
