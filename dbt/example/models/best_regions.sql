{{ config(history='scd2') }}
SELECT region, revenue FROM {{ ref('revenue') }} WHERE revenue > 100
