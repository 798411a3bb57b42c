select ol_w_id, ol_d_id, sum(ol_amount) as total from order_line group by grouping sets ((ol_w_id,
ol_d_id), (ol_w_id), ())
