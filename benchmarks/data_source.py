"""The cost for Spark to read an arrangement by the data source, against Parquet.

    python benchmarks/data_source.py                 # 10M rows
    python benchmarks/data_source.py --quick         # 100k rows

One process reads the same rows in turns from the store and from Parquet files that Spark wrote. The
first query (``noop``) discards the rows: quote the ratio of medians. The second query computes the
maximum of one column, for which Parquet reads no other column. The store has one large batch, and
then also some small batches of later steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from typing import Any, Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_diff
from measure import save, seconds, table
from pyspark_diff import Dataflow

#: Measured reads of each way.
TURNS = 5
#: The collections: a pair of numbers, and a wide row with a text column.
SCHEMAS = {"pairs": "src long, dst long", "orders": "name string, region string, amount double"}


def rows_of(spark: SparkSession, name: str, rows: int) -> DataFrame:
    """Return the rows of a collection."""
    n = F.col("id")
    numbers = spark.range(rows)
    if name == "pairs":
        return numbers.select((n % (rows // 5)).alias("src"), F.xxhash64(n).alias("dst"))
    return numbers.select(
        F.concat(F.lit("order-"), n).alias("name"),
        F.concat(F.lit("region "), n % 50).alias("region"), F.sqrt(n).alias("amount"),
    )


def program(flow: Dataflow) -> None:
    """Keep the input collections."""
    for name, schema in SCHEMAS.items():
        flow.input(name, schema)[0].keep(name)


def used(frame: DataFrame) -> None:
    """Compute all rows, and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def largest(frame: DataFrame) -> None:
    """Compute the maximum of one column."""
    frame.agg(F.max(frame.columns[-1])).collect()


def compared(
    name: str, rows: int, state: str, ways: dict[str, Callable[[], DataFrame]]
) -> dict[str, Any]:
    """Return the seconds of each way, in turns, and the ratio of the store to Parquet."""
    row: dict[str, Any] = {"collection": name, "rows": rows, "state": state}
    for what, do in ("noop", used), ("max", largest):
        took: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(TURNS + 1):
            for way, make_frame in ways.items():
                duration = seconds(lambda: do(make_frame()))[0]
                if turn:  # the first warms
                    took[way].append(duration)
        medians = {way: statistics.median(times) for way, times in took.items()}
        row.update({f"{what}_{way}_s": round(median, 2) for way, median in medians.items()})
        row[f"{what}_ratio"] = round(medians["store"] / medians["parquet"], 2)
    return row


def measured(spark: SparkSession, folder: str, rows: int) -> list[dict[str, Any]]:
    """Measure each collection, after one large step and after some small steps."""
    store = os.path.join(folder, f"store-{rows}")
    reads = []
    with Dataflow.open(store, program, spark=spark) as flow:
        for name in SCHEMAS:
            flow.session(name).insert(rows_of(spark, name, rows))
        flow.advance_to(1)

        def ways(name: str, at: int) -> dict[str, Callable[[], DataFrame]]:
            read = spark.read.format("diff").option("path", store).option("name", name)
            parquet = os.path.join(folder, f"{name}-{rows}-{at}")
            read.load().write.parquet(parquet)
            assert spark.read.parquet(parquet).count() == read.load().count()
            return {"store": read.load, "parquet": lambda: spark.read.parquet(parquet)}

        for name in SCHEMAS:
            reads.append(compared(name, rows, "one batch", ways(name, 1)))
        for time in range(2, 6):
            for name in SCHEMAS:
                flow.session(name).insert(rows_of(spark, name, rows // 1000))
            flow.advance_to(time)
        for name in SCHEMAS:
            reads.append(compared(name, rows, "and four small ones", ways(name, 5)))
    return reads


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", help="where stores and tables go; temporary if not given")
    options = parser.parse_args()
    spark = pyspark_diff.session("benchmark data source")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        reads = measured(spark, folder, 100_000 if options.quick else options.rows)
        print(table(reads))
    if options.json:
        save(options.json, {"reads": reads})


if __name__ == "__main__":
    main()
