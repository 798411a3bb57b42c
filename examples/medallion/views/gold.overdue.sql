-- comment: Orders that are open for more than 24 hours
SELECT region, count(*) AS orders, min(at) AS oldest
FROM bronze.orders
JOIN bronze.hours ON date_trunc('hour', at) = hour
JOIN bronze.customers USING (customer)
WHERE status = 'open' AND NOT is_recent
GROUP BY region
