"""Q19. Discounted revenue: of three kinds of parts, delivered in person by air.

    SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue
    FROM lineitem, part
    WHERE p_partkey = l_partkey
      AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON'
      AND ((p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
            AND l_quantity BETWEEN 1 AND 11 AND p_size BETWEEN 1 AND 5)
        OR (p_brand = 'Brand#23' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
            AND l_quantity BETWEEN 10 AND 20 AND p_size BETWEEN 1 AND 10)
        OR (p_brand = 'Brand#34' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
            AND l_quantity BETWEEN 20 AND 30 AND p_size BETWEEN 1 AND 15))
"""

from pyspark.sql import functions as F

SMALL = """p_brand = 'Brand#12' AND p_size BETWEEN 1 AND 5
    AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')"""
MEDIUM = """p_brand = 'Brand#23' AND p_size BETWEEN 1 AND 10
    AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')"""
LARGE = """p_brand = 'Brand#34' AND p_size BETWEEN 1 AND 15
    AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')"""


def query(lineitem, part):
    least = (
        F.when(F.expr(SMALL), 1).when(F.expr(MEDIUM), 10).when(F.expr(LARGE), 20)
    )
    return (
        lineitem.where("l_shipmode IN ('AIR', 'AIR REG')")
        .where("l_shipinstruct = 'DELIVER IN PERSON'")
        .join(part.withColumn("least", least).where("least IS NOT NULL"),
              F.col("l_partkey") == F.col("p_partkey"))
        .where("l_quantity BETWEEN least AND least + 10")
        .agg(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("revenue"),
             empty=True)
    )
