-- comment: Sales of a category in a week, and in four weeks
SELECT category, week, amount, sum(amount) OVER (
    PARTITION BY category ORDER BY week ROWS BETWEEN 3 PRECEDING AND CURRENT ROW
  ) AS four_weeks
FROM (SELECT category, week, sum(amount) AS amount FROM gold.weekly GROUP BY category, week)
