select i_id, coalesce(q.sold, 0) as sold, coalesce(s.left, 0) as left from item left join (select
ol_i_id, sum(ol_quantity) as sold from order_line group by ol_i_id) q on q.ol_i_id = i_id left
join (select s_i_id, sum(s_quantity) as left from stock group by s_i_id) s on s.s_i_id = i_id
