"""Q18. Large volume customers: the orders of the largest quantities.

    SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice,
           sum(l_quantity) AS sum_qty
    FROM customer, orders, lineitem
    WHERE o_orderkey IN (
              SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
      AND c_custkey = o_custkey AND o_orderkey = l_orderkey
    GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
    ORDER BY o_totalprice DESC, o_orderdate, o_orderkey
    LIMIT 100
"""

from pyspark.sql import functions as F


def query(customer, orders, lineitem):
    large = (
        lineitem.groupBy("l_orderkey").agg(F.sum("l_quantity").alias("sum_qty"))
        .where("sum_qty > 300")
    )
    return (
        orders.join(large, F.col("o_orderkey") == F.col("l_orderkey"))
        .join(customer, F.col("o_custkey") == F.col("c_custkey"))
        .select("c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "sum_qty")
        .top_k(100, [F.col("o_totalprice").desc(), "o_orderdate", "o_orderkey"])
    )
