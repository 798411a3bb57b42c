select c_id, case when exists (select 1 from new_order where no_w_id = c_w_id and no_d_id =
c_d_id) then 'waiting' when c_balance > 100 then 'paid' else 'none' end as state from customer
