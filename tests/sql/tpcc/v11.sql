select * from (select c_w_id, c_id, c_last, c_balance, row_number() over (partition by c_w_id
order by c_balance desc, c_id, c_last, c_d_id, c_first, c_ytd_payment) as n from customer) where n
<= 3
