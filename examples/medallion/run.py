"""Fifteen views over bronze Delta tables, refreshed each hour, and compared with plain Spark.

    python examples/medallion/run.py                         # 20,000 rows, 130 changes an hour
    python examples/medallion/run.py --rows 2000 --changes 100 --hours 2

The views are those of benchmarks/medallion.py, as the .sql files of the folder ``views``. Two more
files have the parts that several views share. Each hour changes the bronze tables by MERGE, DELETE
and UPDATE. One refresh with the policy ``strict`` then changes all targets. After each hour each
target has the rows that plain Spark returns for its query. The session needs Delta: see README.md.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_diff.views.folder import FolderOfViews

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent.parent / "benchmarks"))

from medallion import BEGIN, HOUR, LOADED, TABLES, Shop  # noqa: E402 - after the path

FEED = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
#: The hours whose rows the trailing views read.
RECENT = timedelta(hours=24)


def session() -> SparkSession:
    """A session with Delta, from the jars that the variable SPARK_JARS lists if it is set."""
    builder = SparkSession.builder.appName("medallion").config(
        "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension",
    ).config(
        "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    ).config("spark.databricks.delta.snapshotPartitions", "1").config(
        "spark.sql.shuffle.partitions", "2",
    ).config("spark.sql.session.timeZone", "UTC")
    jars = os.environ.get("SPARK_JARS")
    if jars:
        builder = builder.config("spark.jars", jars)
    return builder.getOrCreate()


def write(spark: SparkSession, name: str, key: str, upserts: pa.Table, deletes: pa.Table) -> None:
    """Change a bronze table."""
    if upserts.num_rows:
        spark.createDataFrame(upserts).createOrReplaceTempView("upserts")
        spark.sql(
            f"MERGE INTO bronze.{name} t USING upserts s ON t.`{key}` = s.`{key}` "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    if deletes.num_rows:
        keys = ", ".join(map(str, deletes.column(0).to_pylist()))
        spark.sql(f"DELETE FROM bronze.{name} WHERE `{key}` IN ({keys})")


def in_utc(rows: pa.Table) -> pa.Table:
    """The rows with times of the type TIMESTAMP, which date_trunc returns."""
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if field.name == "at" else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def load(spark: SparkSession, shop: Shop) -> None:
    """Create the bronze tables, and the hours with their state."""
    for name, rows in shop.tables.items():
        spark.createDataFrame(in_utc(rows)).createOrReplaceTempView("rows")
        spark.sql(f"CREATE TABLE bronze.{name} USING delta {FEED} AS SELECT * FROM rows")
    spark.sql(f"CREATE TABLE bronze.hours (hour TIMESTAMP, is_recent BOOLEAN) USING delta {FEED}")
    spark.sql(
        f"INSERT INTO bronze.hours SELECT hour, hour >= TIMESTAMP '{LOADED - RECENT}' FROM (SELECT "
        f"explode(sequence(TIMESTAMP '{BEGIN}', TIMESTAMP '{LOADED - HOUR}', INTERVAL 1 HOUR)) "
        "AS hour)"
    )


def hour(spark: SparkSession, shop: Shop) -> int:
    """Change the bronze tables by one hour; the number of changed rows."""
    begin, count = shop.now, 2
    for name, (upserts, deletes) in shop.hour().items():
        write(spark, name, TABLES[name][1], in_utc(upserts), deletes)
        count += upserts.num_rows + deletes.num_rows
    spark.sql(
        f"MERGE INTO bronze.hours t USING (SELECT TIMESTAMP '{begin}' AS hour, true AS is_recent "
        f"UNION ALL SELECT TIMESTAMP '{begin - RECENT}', false) s ON t.hour = s.hour "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    return count


def compare(spark: SparkSession, views: FolderOfViews) -> float:
    """Compare each target with its query in plain Spark; the seconds of plain Spark.

    Raises
    ------
    SystemExit
        If a target has other rows.
    """
    took = 0.0
    for view in views.views:
        frame = spark.sql(view.query)
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        took += time.perf_counter() - began
        target = spark.read.table(view.target).select(*[f"`{name}`" for name in frame.columns])
        expected, actual = (Counter(map(repr, rows.collect())) for rows in (frame, target))
        if actual != expected:
            raise SystemExit(
                f"{view.target} has {sum(actual.values())} rows, unlike plain Spark's "
                f"{sum(expected.values())}"
            )
    return took


def run(
    spark: SparkSession, rows: int, changes: int, hours: int, store: str,
    profile: bool = False,
) -> dict[str, Any]:
    """Load, change the tables hour by hour, and compare after each."""
    shop = Shop(rows, changes)
    for name in "bronze", "gold":
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {name}")
    load(spark, shop)
    views = FolderOfViews(spark, HERE / "views", store=store, policy="strict")
    profiler = cProfile.Profile()
    try:
        first = views.refresh()
        compare(spark, views)
        took, plain, writes, counts = [], [], [], []
        for _ in range(hours):
            counts.append(hour(spark, shop))
            if profile:
                profiler.enable()
            done = views.refresh()
            profiler.disable()
            assert not done.recomputed, done.recomputed
            took.append(done.seconds)
            writes.append(sum(report.write_seconds for report in done.views))
            plain.append(compare(spark, views))
            print(f"{shop.now:%d.%m. %H:%M} {done.rows_in} rows in, "
                  f"{sum(done.rows_out.values())} rows out, {took[-1]:.2f} s, of it "
                  f"{writes[-1]:.2f} s to write; plain Spark {plain[-1]:.2f} s", flush=True)
    finally:
        views.close()
    if profile:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(60)
    median = statistics.median
    return {
        "rows": sum(table.num_rows for table in shop.tables.values()),
        "changes": int(median(counts)), "hours": hours, "load_seconds": round(first.seconds, 1),
        "hour_seconds": round(median(took), 2), "write_seconds": round(median(writes), 2),
        "plain_seconds": round(median(plain), 2), "ratio": round(median(plain) / median(took), 2),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="rows of all tables")
    parser.add_argument("--changes", type=int, default=130, help="changes of an hour")
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--profile", action="store_true", help="profile the refreshes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the warehouse of the session
        spark = session()
        print(run(spark, options.rows, options.changes, options.hours, f"{folder}/store",
                  options.profile))


if __name__ == "__main__":
    main()
