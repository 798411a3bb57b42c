"""Q8. National market share: a nation's share of the sales of a part type in a region.

    SELECT o_year,
           sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share
    FROM (
        SELECT year(o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume,
               n2.n_name AS nation
        FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
        WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey
          AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey
          AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA'
          AND s_nationkey = n2.n_nationkey
          AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
          AND p_type = 'ECONOMY ANODIZED STEEL') AS all_nations
    GROUP BY o_year
"""

from pyspark.sql import functions as F


def query(part, supplier, lineitem, orders, customer, nation, region):
    there = nation.join(
        region.where("r_name = 'AMERICA'"), F.col("n_regionkey") == F.col("r_regionkey"))
    buyers = (
        customer.join(there, F.col("c_nationkey") == F.col("n_nationkey")).select("c_custkey")
    )
    sellers = (
        supplier.join(nation, F.col("s_nationkey") == F.col("n_nationkey"))
        .select("s_suppkey", F.col("n_name").alias("nation"))
    )
    volume = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    return (
        lineitem.join(part.where("p_type = 'ECONOMY ANODIZED STEEL'"),
                      F.col("l_partkey") == F.col("p_partkey"))
        .join(orders.where("o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'"),
              F.col("l_orderkey") == F.col("o_orderkey"))
        .join(buyers, F.col("o_custkey") == F.col("c_custkey"))
        .join(sellers, F.col("l_suppkey") == F.col("s_suppkey"))
        .groupBy(F.year("o_orderdate").alias("o_year"))
        .agg((F.sum(F.when(F.col("nation") == "BRAZIL", volume).otherwise(0)) / F.sum(volume))
             .alias("mkt_share"))
    )
