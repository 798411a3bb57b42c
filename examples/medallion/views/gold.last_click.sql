-- comment: The latest click of each customer
SELECT click, customer, product, kind, at
FROM (
  SELECT *, row_number() OVER (PARTITION BY customer ORDER BY at DESC, click DESC) AS place
  FROM bronze.clickstream
)
WHERE place = 1
