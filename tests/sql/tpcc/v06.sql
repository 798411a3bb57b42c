select o_w_id, o_d_id, o_id, o_ol_cnt, count(ol_number) as lines from orders left join order_line
on ol_w_id = o_w_id and ol_d_id = o_d_id and ol_o_id = o_id group by o_w_id, o_d_id, o_id,
o_ol_cnt having o_ol_cnt <> count(ol_number)
