select h_w_id, cast(h_date as date) as day, sum(h_amount) as paid, sum(sum(h_amount)) over
(partition by h_w_id order by cast(h_date as date)) as running from history group by h_w_id,
cast(h_date as date)
