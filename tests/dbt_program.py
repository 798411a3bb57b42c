"""Run ``dbt build`` twice over Delta tables that change in between, and once with --full-refresh.

    the table of each model  =  the rows of its query in plain Spark, after each run

ci/dbt runs it, with the Python of an environment that has dbt.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

PROJECT = Path(__file__).parent.parent / "dbt" / "example"
REVENUE = (
    "SELECT region, sum(amount) AS revenue, count(*) AS orders FROM bronze.orders "
    "JOIN bronze.customers USING (customer) GROUP BY region"
)
CHANGES = [
    "INSERT INTO bronze.orders VALUES (5, 1, 95), (6, 3, 300)",
    "DELETE FROM bronze.orders WHERE id = 2",
    "UPDATE bronze.customers SET region = 'south' WHERE customer = 2",
]


def session() -> SparkSession:
    """A session with Delta, from the jars that the variable SPARK_JARS lists."""
    return SparkSession.builder.master("local[2]").config(
        "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension",
    ).config(
        "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    ).config("spark.jars", os.environ["SPARK_JARS"]).config(
        "spark.sql.shuffle.partitions", "2",
    ).config("spark.databricks.delta.snapshotPartitions", "1").config(
        "spark.ui.enabled", "false",
    ).getOrCreate()


def build(*arguments: str) -> dict[str, Any]:
    """Run ``dbt build``; the result of each model and test by its name."""
    place = ["--project-dir", str(PROJECT), "--profiles-dir", str(PROJECT)]
    done = dbtRunner().invoke(["build", *place, "--target-path", os.path.abspath("target"),
                               "--log-path", os.path.abspath("logs"), *arguments])
    if done.exception is not None:
        raise done.exception
    return {result.node.name: result for result in done.result}


def compare(spark: SparkSession) -> None:
    """Compare both targets with their queries."""
    revenue = sorted(spark.table("gold.revenue").collect())
    assert revenue == sorted(spark.sql(REVENUE).collect()), revenue
    best = spark.table("gold.best_regions").where("is_current").select("region", "revenue")
    expected = spark.sql(f"SELECT region, revenue FROM ({REVENUE}) WHERE revenue > 100")
    assert sorted(best.collect()) == sorted(expected.collect()), best.collect()


def main() -> None:
    spark = session()
    spark.sql("CREATE DATABASE bronze")
    feed = "USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    spark.sql(f"CREATE TABLE bronze.orders (id INT, customer INT, amount INT) {feed}")
    spark.sql(f"CREATE TABLE bronze.customers (customer INT, region STRING) {feed}")
    spark.sql("INSERT INTO bronze.customers VALUES (1, 'north'), (2, 'north'), (3, 'south')")
    spark.sql("INSERT INTO bronze.orders VALUES (1, 1, 60), (2, 1, 70), (3, 2, 20), (4, 3, 30)")

    first = build()
    assert {result.status for result in first.values()} <= {"success", "pass"}, first
    compare(spark)
    versions = {name: spark.sql(f"DESCRIBE HISTORY gold.{name}").count()
                for name in ("revenue", "best_regions")}

    again = build()
    assert "no source has changed" in again["revenue"].message, again["revenue"].message
    for name, version in versions.items():
        assert spark.sql(f"DESCRIBE HISTORY gold.{name}").count() == version, name

    for statement in CHANGES:
        spark.sql(statement)
    changed = build()
    assert "5 rows in" in changed["revenue"].message, changed["revenue"].message
    compare(spark)
    assert spark.table("gold.best_regions").where("NOT is_current").count() == 1

    rebuilt = build("--full-refresh")
    assert rebuilt["revenue"].status == "success"
    compare(spark)
    print("dbt built the models four times, and each target equals its query")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOP_STORE"] = f"{folder}/state"
        os.chdir(folder)
        sys.exit(main())
