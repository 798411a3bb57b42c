select c_id, t.total from customer, lateral (select sum(h_amount) as total from history where
h_c_id = c_id and h_c_w_id = c_w_id) t
