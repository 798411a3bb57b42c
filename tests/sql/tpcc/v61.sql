select i_id, i_name, 100 * sum(case when i_data like '%original%' then ol_amount else 0 end) / (1
+ sum(ol_amount)) as share from item join order_line on ol_i_id = i_id group by i_id, i_name
