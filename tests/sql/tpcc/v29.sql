select i_name, sum(ol_amount) as r from item join order_line on i_id = ol_i_id group by i_name
order by r desc, i_name limit 5
