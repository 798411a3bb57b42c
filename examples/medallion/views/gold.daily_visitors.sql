-- comment: Distinct customers and clicks of a day
SELECT to_date(at) AS day, kind, count(DISTINCT customer) AS customers, count(*) AS clicks
FROM bronze.clickstream GROUP BY to_date(at), kind
