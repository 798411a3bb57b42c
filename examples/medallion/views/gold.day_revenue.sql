-- comment: Orders of the trailing 24 hours
SELECT segment, region, sum(amount) AS amount, count(DISTINCT `order`) AS orders
FROM gold.order_lines
JOIN bronze.hours ON date_trunc('hour', at) = hour
JOIN bronze.customers USING (customer)
WHERE is_recent
GROUP BY segment, region
