"""Q11. Important stock identification: parts that are much of a nation's stock.

    SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
    FROM partsupp, supplier, nation
    WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
    GROUP BY ps_partkey
    HAVING sum(ps_supplycost * ps_availqty) > (
        SELECT sum(ps_supplycost * ps_availqty) * 0.0001
        FROM partsupp, supplier, nation
        WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')
"""

from pyspark.sql import functions as F


def query(partsupp, supplier, nation):
    stock = (
        partsupp.join(supplier, F.col("ps_suppkey") == F.col("s_suppkey"))
        .join(nation.where("n_name = 'GERMANY'"), F.col("s_nationkey") == F.col("n_nationkey"))
        .select("ps_partkey", (F.col("ps_supplycost") * F.col("ps_availqty")).alias("value"))
    )
    least = stock.agg((F.sum("value") * F.expr("0.0001")).alias("least"))
    return (
        stock.groupBy("ps_partkey").agg(F.sum("value").alias("value"))
        .crossJoin(least.hint("broadcast"))
        .where("value > least")
        .drop("least")
    )
