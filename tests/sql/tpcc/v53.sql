select c_w_id, c_d_id, avg(c_balance) as b from customer group by c_w_id, c_d_id having
avg(c_balance) > (select avg(c_balance) from customer)
