"""Q22. Global sales opportunity: customers with money who have not ordered for long.

    SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal
    FROM (
        SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal
        FROM customer
        WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
          AND c_acctbal > (
              SELECT avg(c_acctbal)
              FROM customer
              WHERE c_acctbal > 0.00
                AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17'))
          AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)) AS custsale
    GROUP BY cntrycode
"""

from pyspark.sql import functions as F


def query(customer, orders):
    here = (
        customer.withColumn("cntrycode", F.substring("c_phone", 1, 2))
        .where("cntrycode IN ('13', '31', '23', '29', '30', '18', '17')")
    )
    average = here.where("c_acctbal > 0").agg(F.avg("c_acctbal").alias("average"))
    return (
        here.join(orders, F.col("c_custkey") == F.col("o_custkey"), "left_anti")
        .crossJoin(average.hint("broadcast"))
        .where("c_acctbal > average")
        .groupBy("cntrycode")
        .agg(F.count("*").alias("numcust"), F.sum("c_acctbal").alias("totacctbal"))
    )
