select c_w_id, c_last, count(*) as n, min(c_first) as f from customer where c_last like 'BAR%'
group by c_w_id, c_last
