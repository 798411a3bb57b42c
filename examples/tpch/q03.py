"""Q3. Shipping priority: the unshipped orders of the largest value.

    SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue,
           o_orderdate, o_shippriority
    FROM customer, orders, lineitem
    WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
      AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
    GROUP BY l_orderkey, o_orderdate, o_shippriority
    ORDER BY revenue DESC, o_orderdate, l_orderkey
    LIMIT 10
"""

from pyspark.sql import functions as F


def query(customer, orders, lineitem):
    return (
        orders.where("o_orderdate < DATE '1995-03-15'")
        .join(customer.where("c_mktsegment = 'BUILDING'"),
              F.col("o_custkey") == F.col("c_custkey"))
        .join(lineitem.where("l_shipdate > DATE '1995-03-15'"),
              F.col("o_orderkey") == F.col("l_orderkey"))
        .groupBy("l_orderkey", "o_orderdate", "o_shippriority")
        .agg(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("revenue"))
        .select("l_orderkey", "revenue", "o_orderdate", "o_shippriority")
        .top_k(10, [F.col("revenue").desc(), "o_orderdate", "l_orderkey"])
    )
