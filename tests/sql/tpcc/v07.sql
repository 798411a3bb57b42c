select ol_number, sum(ol_quantity) as sum_qty, sum(ol_amount) as sum_amount, avg(ol_quantity) as
avg_qty, avg(ol_amount) as avg_amount, count(*) as n from order_line where ol_delivery_d >
timestamp '2024-01-02 00:00:00' group by ol_number
