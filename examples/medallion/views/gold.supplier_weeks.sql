-- comment: Sales of a supplier in a week, and in the week before
SELECT supplier, week, amount, lag(amount) OVER (PARTITION BY supplier ORDER BY week) AS before
FROM (SELECT supplier, week, sum(amount) AS amount FROM gold.weekly GROUP BY supplier, week)
