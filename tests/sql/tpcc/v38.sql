select s_w_id, count(distinct s_i_id) as low from stock where s_quantity < 15 and s_i_id in
(select ol_i_id from order_line join district on ol_w_id = d_w_id and ol_d_id = d_id where ol_o_id
>= d_next_o_id - 20) group by s_w_id
