-- comment: The latest stocktake of a product in each warehouse
SELECT stocktake, product, warehouse, quantity, at
FROM (
  SELECT *, row_number() OVER (PARTITION BY product, warehouse ORDER BY at DESC, stocktake DESC) AS place
  FROM bronze.inventory
)
WHERE place = 1
