-- comment: Units sold of each product, which two other views read
SELECT product, sum(quantity) AS sold FROM gold.order_lines GROUP BY product
