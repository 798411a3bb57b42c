select ol_w_id, covar_pop(ol_quantity, ol_amount) as c, skewness(ol_amount) as k from order_line
group by ol_w_id
