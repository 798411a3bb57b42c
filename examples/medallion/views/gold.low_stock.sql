-- comment: Products with less stock than their reorder level
SELECT p.product, p.category, p.reorder, stock, p.supplier, country
FROM (SELECT product, sum(quantity) AS stock FROM gold.current_stock GROUP BY product) s
JOIN bronze.products p ON s.product = p.product
JOIN bronze.suppliers u ON p.supplier = u.supplier
WHERE stock < reorder
