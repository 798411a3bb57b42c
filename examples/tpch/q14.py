"""Q14. Promotion effect: the share of promoted parts in a month's revenue.

    SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%'
                             THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
           / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
    FROM lineitem, part
    WHERE l_partkey = p_partkey
      AND l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'
"""

from pyspark.sql import functions as F


def query(lineitem, part):
    price = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    promoted = F.when(F.col("p_type").startswith("PROMO"), price).otherwise(0)
    return (
        lineitem.where("l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'")
        .join(part, F.col("l_partkey") == F.col("p_partkey"))
        .agg((100 * F.sum(promoted) / F.sum(price)).alias("promo_revenue"), empty=True)
    )
