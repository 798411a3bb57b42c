"""Q16. Parts and suppliers: how many suppliers can deliver parts of some kinds.

    SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt
    FROM partsupp, part
    WHERE p_partkey = ps_partkey
      AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
      AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
      AND ps_suppkey NOT IN (
          SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
    GROUP BY p_brand, p_type, p_size
"""

from pyspark.sql import functions as F


def query(partsupp, part, supplier):
    complaints = supplier.where("s_comment LIKE '%Customer%Complaints%'")
    return (
        part.where("p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'")
        .where("p_size IN (49, 14, 23, 45, 19, 3, 36, 9)")
        .join(partsupp, F.col("p_partkey") == F.col("ps_partkey"))
        .join(complaints, F.col("ps_suppkey") == F.col("s_suppkey"), "left_anti")
        .groupBy("p_brand", "p_type", "p_size")
        .agg(F.countDistinct("ps_suppkey").alias("supplier_cnt"))
    )
