"""Q15. Top supplier: the supplier with the most revenue in a quarter.

    WITH revenue AS (
        SELECT l_suppkey AS supplier_no,
               sum(l_extendedprice * (1 - l_discount)) AS total_revenue
        FROM lineitem
        WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01'
        GROUP BY l_suppkey)
    SELECT s_suppkey, s_name, s_address, s_phone, total_revenue
    FROM supplier, revenue
    WHERE s_suppkey = supplier_no
      AND total_revenue = (SELECT max(total_revenue) FROM revenue)
"""

from pyspark.sql import functions as F


def query(supplier, lineitem):
    revenue = (
        lineitem.where("l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01'")
        .groupBy("l_suppkey")
        .agg(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("total_revenue"))
    )
    best = revenue.agg(F.max("total_revenue").alias("total_revenue"))
    return (
        revenue.join(best, "total_revenue")
        .join(supplier, F.col("l_suppkey") == F.col("s_suppkey"))
        .select("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue")
    )
