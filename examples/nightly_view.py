"""A view of Delta tables that a job keeps up to date, night after night, also if it is killed.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \\
        --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \\
        --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \\
        examples/nightly_view.py --folder /tmp/shop --night 0

Night 0 makes the tables ``sales``, ``customers`` and ``products`` and loads the view. Each later
night changes some rows, and the view catches up. With ``--killed merged`` the process ends like a
power cut, after the write to the view and before the sink reports it. With ``--killed committed``
it ends after the commit and before the write to the view. The next night continues from there. Each
night that ends compares the view with plain Spark's answer over the tables.
"""

from __future__ import annotations

import argparse
import os

from pyspark.sql import functions as F

import pyspark_diff
from pyspark_diff import Dataflow
from pyspark_diff.sinks import Epoch, Sink, delta_merge
from pyspark_diff.sources import delta

COLUMNS = {
    "sales": "id LONG, customer LONG, product LONG, cents LONG",
    "customers": "customer LONG, region STRING",
    "products": "product LONG, category STRING",
}


def revenue(sales, customers, products):
    """The view, of collections and of frames alike."""
    joined = sales.join(customers, "customer").join(products, "product")
    return joined.groupBy("region", "category").agg(
        F.sum("cents").alias("cents"), F.count("*").alias("sales")
    )


class Killed(Sink):
    """Another sink, before or after which the process ends."""

    def __init__(self, sink: Sink, when: str | None):
        self._sink, self._when = sink, when

    def write(self, epoch: Epoch) -> None:
        if self._when == "committed":
            os._exit(137)
        self._sink.write(epoch)
        if self._when == "merged":
            os._exit(137)


def program(flow: Dataflow, folder: str, killed: str | None = None) -> None:
    """Merge the view of the tables in a folder into another table there."""
    tables = [flow.source(name, delta(f"{folder}/{name}")) for name in COLUMNS]
    view = delta_merge(f"{folder}/revenue", key=["region", "category"])
    revenue(*tables).sink("revenue", Killed(view, killed))


def make(spark, folder, count):
    """Make the tables of the first night."""
    rows = {
        "sales": spark.range(count).selectExpr(
            "id", "id * 31 % 97 AS customer", "id * 17 % 23 AS product", "id % 1000 AS cents"),
        "customers": spark.range(97).selectExpr(
            "id AS customer", "concat('region ', id % 5) AS region"),
        "products": spark.range(23).selectExpr(
            "id AS product", "concat('category ', id % 4) AS category"),
    }
    for name, columns in COLUMNS.items():
        table = f"delta.`{folder}/{name}`"
        spark.sql(f"CREATE TABLE {table} ({columns}) USING delta "
                  "TBLPROPERTIES (delta.enableChangeDataFeed = true)")
        rows[name].writeTo(table).append()


def change(spark, folder, night, count):
    """Change the tables before a night."""
    def sql(statement):
        spark.sql(statement.format(*(f"delta.`{folder}/{name}`" for name in COLUMNS)))

    sql(f"UPDATE {{0}} SET cents = cents + 1 WHERE id % 1000 = {night}")
    sql(f"DELETE FROM {{0}} WHERE id % 1000 = {night + 500}")
    sql(f"INSERT INTO {{0}} SELECT id, id % 97, id % 23, 5 FROM RANGE({count * (night + 1)}, "
        f"{count * (night + 1) + 10})")
    sql(f"UPDATE {{1}} SET region = 'region {night}' WHERE customer = {night}")
    sql(f"DELETE FROM {{2}} WHERE product = {night}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="where the tables and the state are")
    parser.add_argument("--night", type=int, default=0)
    parser.add_argument("--sales", type=int, default=10_000, help="rows at first")
    parser.add_argument("--killed", choices=["committed", "merged"])
    options = parser.parse_args(arguments)
    folder = os.path.abspath(options.folder)
    spark = pyspark_diff.session("nightly view")
    if options.night == 0:
        make(spark, folder, options.sales)
    else:
        change(spark, folder, options.night, options.sales)

    with Dataflow.open(
        f"{folder}/state", lambda flow: program(flow, folder, options.killed), spark=spark
    ) as flow:
        flow.catch_up()
    refreshed = spark.read.table(f"delta.`{folder}/revenue`")
    plain = revenue(*(spark.read.table(f"delta.`{folder}/{name}`") for name in COLUMNS))
    same = sorted(map(tuple, refreshed.collect())) == sorted(map(tuple, plain.collect()))
    print(f"night {options.night}: {refreshed.count()} rows, "
          f"{'as' if same else 'NOT as'} plain Spark computes them")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
