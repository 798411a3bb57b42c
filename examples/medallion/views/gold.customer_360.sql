-- comment: The orders of each customer
SELECT c.customer, segment, region, coalesce(orders, 0) AS orders, products, amount, last
FROM bronze.customers c
LEFT JOIN (
  SELECT customer, count(DISTINCT `order`) AS orders, count(DISTINCT product) AS products,
    sum(amount) AS amount, max(at) AS last
  FROM gold.order_lines GROUP BY customer
) o ON c.customer = o.customer
