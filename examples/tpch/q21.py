"""Q21. Suppliers who kept orders waiting, when they alone were late.

    SELECT s_name, count(*) AS numwait
    FROM supplier, lineitem l1, orders, nation
    WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
      AND l1.l_receiptdate > l1.l_commitdate
      AND EXISTS (
          SELECT * FROM lineitem l2
          WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
      AND NOT EXISTS (
          SELECT * FROM lineitem l3
          WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
            AND l3.l_receiptdate > l3.l_commitdate)
      AND s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA'
    GROUP BY s_name
    ORDER BY numwait DESC, s_name
    LIMIT 100
"""

from pyspark.sql import functions as F


def query(supplier, lineitem, orders, nation):
    lines = lineitem.select(
        "l_orderkey", "l_suppkey", F.expr("l_receiptdate > l_commitdate").alias("late"))
    # For each late order: the number of its late suppliers, and of all its suppliers.
    waiting = (
        lines.groupBy("l_orderkey")
        .agg(F.countDistinct("l_suppkey").alias("suppliers"),
             F.countDistinct(F.when(F.col("late"), F.col("l_suppkey"))).alias("to_blame"))
        .where("suppliers > 1 AND to_blame = 1")
        .join(orders.where("o_orderstatus = 'F'"), F.col("l_orderkey") == F.col("o_orderkey"))
        .select("o_orderkey")
    )
    return (
        lines.where("late")
        .join(supplier, F.col("l_suppkey") == F.col("s_suppkey"))
        .join(nation.where("n_name = 'SAUDI ARABIA'"),
              F.col("s_nationkey") == F.col("n_nationkey"))
        .join(waiting, F.col("l_orderkey") == F.col("o_orderkey"))
        .groupBy("s_name")
        .agg(F.count("*").alias("numwait"))
        .top_k(100, [F.col("numwait").desc(), "s_name"])
    )
