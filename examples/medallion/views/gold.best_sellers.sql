-- comment: The five best-selling products of each category
SELECT category, place, product, sold
FROM (
  SELECT category, p.product, sold,
    row_number() OVER (PARTITION BY category ORDER BY sold DESC, p.product) AS place
  FROM gold.sold s JOIN bronze.products p ON s.product = p.product
)
WHERE place <= 5
