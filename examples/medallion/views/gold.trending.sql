-- comment: Clicks of the trailing 24 hours
SELECT product, count(*) AS clicks, count(DISTINCT customer) AS customers
FROM bronze.clickstream
JOIN bronze.hours ON date_trunc('hour', at) = hour
WHERE is_recent
GROUP BY product
