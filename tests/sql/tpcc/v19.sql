select c_credit, count(*) as n, sum(case when c_balance > 500 then 1 else 0 end) as rich,
avg(c_discount) as discount from customer group by c_credit
