-- comment: Views, carts, purchases and units sold of each product
SELECT p.product, p.category, `view`, cart, buy, sold
FROM (
  SELECT product, count_if(kind = 'view') AS `view`, count_if(kind = 'cart') AS cart,
    count_if(kind = 'buy') AS buy
  FROM bronze.clickstream GROUP BY product
) c
JOIN bronze.products p ON c.product = p.product
LEFT JOIN gold.sold s ON c.product = s.product
