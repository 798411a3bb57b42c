select i_id, i_name, s_w_id, s_quantity from item join stock on i_id = s_i_id where s_quantity =
(select min(x.s_quantity) from stock x where x.s_i_id = i_id)
