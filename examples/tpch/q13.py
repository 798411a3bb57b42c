"""Q13. Customer distribution: how many customers have how many orders.

    SELECT c_count, count(*) AS custdist
    FROM (
        SELECT c_custkey, count(o_orderkey) AS c_count
        FROM customer
        LEFT OUTER JOIN orders
          ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
        GROUP BY c_custkey) AS c_orders
    GROUP BY c_count
"""

from pyspark.sql import functions as F


def query(customer, orders):
    usual = orders.where("o_comment NOT LIKE '%special%requests%'")
    return (
        customer.join(usual, F.col("c_custkey") == F.col("o_custkey"), "left")
        .groupBy("c_custkey").agg(F.count("o_orderkey").alias("c_count"))
        .groupBy("c_count").agg(F.count("*").alias("custdist"))
    )
