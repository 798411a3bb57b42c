select d_w_id, d_id, (select count(*) from customer where c_w_id = d_w_id and c_d_id = d_id and
c_balance < (select avg(c_balance) from customer c2 where c2.c_credit = 'GC')) as poor from
district
