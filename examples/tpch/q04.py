"""Q4. Order priority checking: orders with a late item.

    SELECT o_orderpriority, count(*) AS order_count
    FROM orders
    WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01'
      AND EXISTS (
          SELECT * FROM lineitem
          WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
    GROUP BY o_orderpriority
"""

from pyspark.sql import functions as F


def query(orders, lineitem):
    late = lineitem.where("l_commitdate < l_receiptdate")
    return (
        orders.where("o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01'")
        .join(late, F.col("o_orderkey") == F.col("l_orderkey"), "left_semi")
        .groupBy("o_orderpriority")
        .agg(F.count("*").alias("order_count"))
    )
