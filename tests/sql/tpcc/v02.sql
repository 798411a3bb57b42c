select d_w_id, d_id, d_ytd - coalesce((select sum(h_amount) from history where h_w_id = d_w_id and
h_d_id = d_id), 0) as drift from district
