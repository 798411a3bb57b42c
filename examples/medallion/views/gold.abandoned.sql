-- comment: Carts of the trailing 24 hours whose product the customer has not bought in them
SELECT customer, product
FROM (
  SELECT DISTINCT customer, product
  FROM bronze.clickstream JOIN bronze.hours ON date_trunc('hour', at) = hour
  WHERE kind = 'cart' AND is_recent
) carts
LEFT ANTI JOIN (
  SELECT customer, product
  FROM gold.order_lines JOIN bronze.hours ON date_trunc('hour', at) = hour WHERE is_recent
) bought USING (customer, product)
