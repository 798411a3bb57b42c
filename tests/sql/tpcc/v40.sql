select c_w_id, percentile(c_balance, 0.5) as middle, stddev_samp(c_balance) as spread from
customer group by c_w_id
