-- comment: Each line of an order with its product
SELECT i.item, i.`order`, i.product, o.customer, o.status, o.at, i.quantity,
  i.quantity * i.price * (1 - i.discount) AS amount, p.supplier, p.category
FROM bronze.items i
JOIN bronze.orders o ON i.`order` = o.`order`
JOIN bronze.products p ON i.product = p.product
