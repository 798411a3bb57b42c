"""Q6. Forecasting revenue change: the cost of some discounts.

    SELECT sum(l_extendedprice * l_discount) AS revenue
    FROM lineitem
    WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
      AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
"""

from pyspark.sql import functions as F


def query(lineitem):
    return (
        lineitem.where("l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'")
        .where("l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24")
        .agg(F.sum(F.col("l_extendedprice") * F.col("l_discount")).alias("revenue"), empty=True)
    )
