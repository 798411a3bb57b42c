"""Q5. Local supplier volume: revenue within each nation of a region.

    SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
    FROM customer, orders, lineitem, supplier, nation, region
    WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
      AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey
      AND n_regionkey = r_regionkey AND r_name = 'ASIA'
      AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
    GROUP BY n_name
"""

from pyspark.sql import functions as F


def query(customer, orders, lineitem, supplier, nation, region):
    here = (
        nation.join(region.where("r_name = 'ASIA'"), F.col("n_regionkey") == F.col("r_regionkey"))
        .select("n_nationkey", "n_name")
    )
    suppliers = supplier.join(here, F.col("s_nationkey") == F.col("n_nationkey"))
    return (
        orders.where("o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'")
        .join(customer, F.col("o_custkey") == F.col("c_custkey"))
        .join(lineitem, F.col("o_orderkey") == F.col("l_orderkey"))
        .join(suppliers, (F.col("l_suppkey") == F.col("s_suppkey"))
              & (F.col("c_nationkey") == F.col("s_nationkey")))
        .groupBy("n_name")
        .agg(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("revenue"))
    )
