"""Q17. Small-quantity-order revenue: the loss without small orders of a part.

    SELECT sum(l_extendedprice) / 7.0 AS avg_yearly
    FROM lineitem, part
    WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX'
      AND l_quantity < (
          SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)
"""

from pyspark.sql import functions as F


def query(lineitem, part):
    lines = lineitem.join(
        part.where("p_brand = 'Brand#23' AND p_container = 'MED BOX'"),
        F.col("l_partkey") == F.col("p_partkey"),
    ).select("p_partkey", "l_quantity", "l_extendedprice")
    usual = lines.groupBy("p_partkey").agg(F.avg("l_quantity").alias("avg_quantity"))
    return (
        lines.join(usual, "p_partkey")
        .where("l_quantity < 0.2 * avg_quantity")
        .agg((F.sum("l_extendedprice") / F.expr("7.0")).alias("avg_yearly"),
             empty=True)
    )
