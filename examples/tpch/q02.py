"""Q2. Minimum cost supplier: where to order a part in a region.

    SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
    FROM part, supplier, partsupp, nation, region
    WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey
      AND p_size = 15 AND p_type LIKE '%BRASS'
      AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
      AND ps_supplycost = (
          SELECT min(ps_supplycost)
          FROM partsupp, supplier, nation, region
          WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey
            AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
    ORDER BY s_acctbal DESC, n_name, s_name, p_partkey
    LIMIT 100
"""

from pyspark.sql import functions as F


def query(part, supplier, partsupp, nation, region):
    offers = (
        part.where("p_size = 15 AND p_type LIKE '%BRASS'")
        .join(partsupp, F.col("p_partkey") == F.col("ps_partkey"))
        .join(supplier, F.col("ps_suppkey") == F.col("s_suppkey"))
        .join(nation, F.col("s_nationkey") == F.col("n_nationkey"))
        .join(region.where("r_name = 'EUROPE'"), F.col("n_regionkey") == F.col("r_regionkey"))
        .select("s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr", "s_address", "s_phone",
                "s_comment", "ps_supplycost")
    )
    cheapest = offers.top_k(1, "ps_supplycost", per="p_partkey", number="rank")
    return cheapest.drop("ps_supplycost", "rank").top_k(
        100, [F.col("s_acctbal").desc(), "n_name", "s_name", "p_partkey"])
