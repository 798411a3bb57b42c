"""Q20. Potential part promotion: suppliers with much of a part in stock.

    SELECT s_name, s_address
    FROM supplier, nation
    WHERE s_suppkey IN (
        SELECT ps_suppkey
        FROM partsupp
        WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%')
          AND ps_availqty > (
              SELECT 0.5 * sum(l_quantity)
              FROM lineitem
              WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey
                AND l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'))
      AND s_nationkey = n_nationkey AND n_name = 'CANADA'
"""

from pyspark.sql import functions as F


def query(supplier, nation, partsupp, part, lineitem):
    forest = part.where("p_name LIKE 'forest%'")
    shipped = (
        lineitem.where("l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'")
        .join(forest, F.col("l_partkey") == F.col("p_partkey"), "left_semi")
        .groupBy("l_partkey", "l_suppkey")
        .agg(F.sum("l_quantity").alias("quantity"))
    )
    ample = (
        partsupp.join(shipped, (F.col("ps_partkey") == F.col("l_partkey"))
                      & (F.col("ps_suppkey") == F.col("l_suppkey")))
        .where("ps_availqty > 0.5 * quantity")
    )
    return (
        supplier.join(ample, F.col("s_suppkey") == F.col("ps_suppkey"), "left_semi")
        .join(nation.where("n_name = 'CANADA'"), F.col("s_nationkey") == F.col("n_nationkey"))
        .select("s_name", "s_address")
    )
