select c_id, c_last, h_amount from history right join customer on h_c_id = c_id and h_c_w_id =
c_w_id
