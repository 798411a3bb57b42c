-- comment: Sales by segment, country and category
SELECT segment, country, category, sum(amount) AS amount, count(*) AS lines,
  sum(CASE WHEN status = 'returned' THEN amount ELSE 0 END) AS returned,
  sum(CASE WHEN status = 'open' THEN quantity ELSE 0 END) AS open
FROM gold.order_lines
JOIN bronze.suppliers USING (supplier)
JOIN bronze.customers USING (customer)
GROUP BY segment, country, category
