select w_name, d_name, c_last, o_id, i_name, s_quantity from warehouse join district on d_w_id =
w_id join customer on c_w_id = w_id and c_d_id = d_id join orders on o_w_id = w_id and o_d_id =
d_id and o_c_id = c_id join order_line on ol_w_id = w_id and ol_d_id = d_id and ol_o_id = o_id
join item on i_id = ol_i_id join stock on s_i_id = i_id and s_w_id = ol_supply_w_id where w_id <=
3 and d_id <= 3
