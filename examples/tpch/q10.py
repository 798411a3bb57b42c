"""Q10. Returned item reporting: the customers who sent back the most.

    SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal,
           n_name, c_address, c_phone, c_comment
    FROM customer, orders, lineitem, nation
    WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
      AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01'
      AND l_returnflag = 'R' AND c_nationkey = n_nationkey
    GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
    ORDER BY revenue DESC, c_custkey
    LIMIT 20
"""

from pyspark.sql import functions as F


def query(customer, orders, lineitem, nation):
    revenue = (
        orders.where("o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01'")
        .join(lineitem.where("l_returnflag = 'R'"), F.col("o_orderkey") == F.col("l_orderkey"))
        .groupBy("o_custkey")
        .agg(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("revenue"))
    )
    return (
        revenue.join(customer, F.col("o_custkey") == F.col("c_custkey"))
        .join(nation, F.col("c_nationkey") == F.col("n_nationkey"))
        .select("c_custkey", "c_name", "revenue", "c_acctbal", "n_name", "c_address", "c_phone",
                "c_comment")
        .top_k(20, [F.col("revenue").desc(), "c_custkey"])
    )
