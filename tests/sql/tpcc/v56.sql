select year(o_entry_d) as y, month(o_entry_d) as m, sum(ol_amount) as r from orders join
order_line on ol_o_id = o_id and ol_w_id = o_w_id and ol_d_id = o_d_id group by year(o_entry_d),
month(o_entry_d)
