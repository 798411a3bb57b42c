"""Run by ci/databricks with a client of Databricks: imports, plans and answers over Connect.

It builds the plan of each example, and runs the examples that need no JVM, with their answers.

    python tests/databricks_program.py sc://HOST:PORT
"""

import importlib
import pkgutil
import sys
import tempfile
import traceback
from pathlib import Path

import pyspark
from example_plans import DELTA_RUNS, PLANS, RUNS, WITHOUT
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow, graphs
from pyspark_diff.graphs import GraphDiff

ORDERS = [(i, i % 3, float(i)) for i in range(20)]
CUSTOMERS = [(0, "a"), (1, "b"), (2, "a")]


def imports(spark):
    for module in pkgutil.walk_packages(pyspark_diff.__path__, "pyspark_diff."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in pyspark_diff.__all__:
        getattr(pyspark_diff, name)
    assert "Spark Connect" in str(pyspark_diff.doctor(spark))


def operators(spark, runner):
    with Dataflow(spark, root=tempfile.mkdtemp(), runner=runner, buckets=2) as flow:
        orders, orders_in = flow.input("orders", "id long, customer long, amount double", key="id")
        customers, customers_in = flow.input(
            "customers", "customer long, region string", key="customer")
        edges, edges_in = flow.input("edges", "src long, dst long")
        orders.join(customers, "customer").groupBy("region").agg(
            F.sum("amount").alias("amount"), F.count("*").alias("n")).keep("regions")
        orders.where(F.col("amount") > 2).select(
            "id", (F.col("amount") * 2).alias("double")).keep("doubled")
        graphs.connected_components(edges).keep("parts")
        vertices = customers.withColumnRenamed("customer", "id")
        GraphDiff(vertices, edges).inDegrees.keep("degrees")
        orders.groupBy("customer").reduce(lambda key, rows: [(len(rows),)], "n int").keep("sizes")
        orders_in.upsert(ORDERS)
        customers_in.upsert(CUSTOMERS)
        edges_in.insert([(1, 2), (2, 0), (5, 6)])
        flow.advance_to(1)
        assert rows(flow["regions"]) == {("a", 120.0, 13), ("b", 70.0, 7)}, rows(flow["regions"])
        assert rows(flow["parts"]) == {(1, 0), (2, 0), (0, 0), (5, 5), (6, 5)}
        assert {(1, 0), (0, 1), (2, 1)} & rows(flow["degrees"]) == {(0, 1), (2, 1)}
        edges_in.remove([(2, 0)])
        orders_in.delete([(1,)])
        flow.advance_to(2)
        assert rows(flow["regions"]) == {("a", 120.0, 13), ("b", 69.0, 6)}
        assert rows(flow["parts"]) == {(1, 1), (2, 1), (5, 5), (6, 5)}
        assert rows(flow["sizes"]) == {(0, 7), (1, 6), (2, 6)}
        assert len(rows(flow["doubled"])) == 17
        assert "join" in str(flow.explain())


def sql(spark):
    with Dataflow(spark, root=tempfile.mkdtemp(), buckets=2) as flow:
        orders_in = flow.input("orders", "id long, customer long, amount double", key="id")[1]
        flow.sql(
            "SELECT customer, sum(amount) AS amount, row_number() OVER (ORDER BY customer) AS n "
            "FROM orders WHERE id < 6 GROUP BY customer").keep("sums")
        orders_in.upsert(ORDERS)
        flow.advance_to(1)
        assert rows(flow["sums"]) == {(0, 3.0, 1), (1, 5.0, 2), (2, 7.0, 3)}


def store(spark):
    def program(flow):
        flow.input("words", "word string")[0].count().keep("counts")

    path = tempfile.mkdtemp()
    for time in 1, 2:
        with Dataflow.open(path, program, spark=spark, buckets=2) as flow:
            flow.session("words").insert([("a",), ("a",)])
            flow.advance_to(time)
            assert rows(flow["counts"]) == {("a", 2 * time)}


def examples(spark):
    failed = []
    delta = DELTA_RUNS if "delta" in spark.conf.get("spark.sql.extensions", "") else {}
    for name, build in {**PLANS, **RUNS, **delta}.items():
        try:
            build(spark, Path(tempfile.mkdtemp()))
        except Exception:
            traceback.print_exc()
            failed.append(name)
    for name, reason in WITHOUT.items():
        print(f"without a plan, {name}: {reason}", file=sys.stderr)
    print(f"built {len(PLANS)} plans, ran {len(RUNS) + len(delta)} examples, of {len(DELTA_RUNS)} "
          f"with Delta {len(delta)}; failed: {failed or 'none'}", file=sys.stderr, flush=True)
    assert not failed and len(delta) == len(DELTA_RUNS), failed


def rows(collection):
    return set(map(tuple, collection.at().collect()))


def main(address):
    spark = SparkSession.builder.remote(address).getOrCreate()
    print(f"version: {pyspark.__version__}", flush=True)
    parts = {
        "imports": imports, "driver": lambda spark: operators(spark, "local"),
        "executors": lambda spark: operators(spark, "spark"), "SQL": sql, "store": store,
        "examples": examples,
    }
    for name, run in parts.items():
        try:
            run(spark)
        except Exception as error:
            traceback.print_exc()
            print(f"{name}: {type(error).__name__}", flush=True)
        else:
            print(f"{name}: right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
