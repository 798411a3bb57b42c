select c_w_id, c_d_id, c_id, c_last, rank() over (partition by c_w_id, c_d_id order by c_balance
desc) as place from customer
