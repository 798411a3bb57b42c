-- comment: Sales of a week, which two other views read
SELECT category, supplier, date_trunc('week', at) AS week, sum(amount) AS amount,
  sum(quantity) AS quantity
FROM gold.order_lines GROUP BY category, supplier, date_trunc('week', at)
