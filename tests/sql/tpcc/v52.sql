select c_w_id, c_id, c_balance - first_value(c_balance) over (partition by c_w_id order by
c_since, c_id, c_balance) as since_first from customer
