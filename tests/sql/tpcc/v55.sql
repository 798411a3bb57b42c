select o.o_id, l.n from orders o join (select ol_o_id, ol_w_id, count(*) as n from order_line
group by ol_o_id, ol_w_id having count(*) >= 2) l on l.ol_o_id = o.o_id and l.ol_w_id = o.o_w_id
where o.o_entry_d < timestamp '2024-01-03 00:00:00'
