SELECT region, sum(amount) AS revenue, count(*) AS orders
FROM {{ source('bronze', 'orders') }} JOIN {{ source('bronze', 'customers') }} USING (customer)
GROUP BY region
