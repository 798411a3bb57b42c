"""Q9. Product type profit measure: profit by nation and year.

    SELECT nation, o_year, sum(amount) AS sum_profit
    FROM (
        SELECT n_name AS nation, year(o_orderdate) AS o_year,
               l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
        FROM part, supplier, lineitem, partsupp, orders, nation
        WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey
          AND p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey
          AND p_name LIKE '%green%') AS profit
    GROUP BY nation, o_year
"""

from pyspark.sql import functions as F


def query(part, supplier, lineitem, partsupp, orders, nation):
    sellers = (
        supplier.join(nation, F.col("s_nationkey") == F.col("n_nationkey"))
        .select("s_suppkey", F.col("n_name").alias("nation"))
    )
    amount = (
        F.col("l_extendedprice") * (1 - F.col("l_discount"))
        - F.col("ps_supplycost") * F.col("l_quantity")
    )
    return (
        lineitem.join(part.where("p_name LIKE '%green%'"),
                      F.col("l_partkey") == F.col("p_partkey"))
        .join(partsupp, (F.col("l_partkey") == F.col("ps_partkey"))
              & (F.col("l_suppkey") == F.col("ps_suppkey")))
        .join(orders, F.col("l_orderkey") == F.col("o_orderkey"))
        .join(sellers, F.col("l_suppkey") == F.col("s_suppkey"))
        .groupBy("nation", F.year("o_orderdate").alias("o_year"))
        .agg(F.sum(amount).alias("sum_profit"))
    )
