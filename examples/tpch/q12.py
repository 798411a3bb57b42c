"""Q12. Shipping modes and order priority: late items, and the urgency of their orders.

    SELECT l_shipmode,
           sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END)
               AS high_line_count,
           sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END)
               AS low_line_count
    FROM orders, lineitem
    WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
      AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
      AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
    GROUP BY l_shipmode
"""

from pyspark.sql import functions as F


def query(orders, lineitem):
    urgent = F.col("o_orderpriority").isin("1-URGENT", "2-HIGH")
    return (
        lineitem.where("l_shipmode IN ('MAIL', 'SHIP')")
        .where("l_commitdate < l_receiptdate AND l_shipdate < l_commitdate")
        .where("l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'")
        .join(orders, F.col("l_orderkey") == F.col("o_orderkey"))
        .groupBy("l_shipmode")
        .agg(
            F.sum(F.when(urgent, 1).otherwise(0)).alias("high_line_count"),
            F.sum(F.when(~urgent, 1).otherwise(0)).alias("low_line_count"),
        )
    )
