"""A maintained Delta view of a 3-way join and an aggregate, against computing the view again.

    python benchmarks/nightly_view.py                  # 10M facts, 1M customers, 100k products
    python benchmarks/nightly_view.py --quick          # 100k facts

Sales, customers and products are Delta tables. Each night updates, inserts and deletes a tenth of a
percent of the sales, and updates a customer and a product. Then one process runs in turn:

    catch_up        read the changes, step, commit, and merge the changes into the view
    plain Spark     join and aggregate the current tables, and overwrite the view

At the end it compares both views. The Delta jars come from ci/delta_jars or --jars. If deltalake is
not installed, or with --spark-only, Spark reads the tables and merges.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import pyspark_diff
from measure import Memory, save, seconds, table
from pyspark_diff import Dataflow
from pyspark_diff.sinks import Epoch, Sink, delta_merge
from pyspark_diff.sources import Reading, Source, delta

#: Properties of the input tables.
FEED = "delta.enableChangeDataFeed=true, delta.enableDeletionVectors=true"


def delta_session(jars: str, memory: str) -> SparkSession:
    """Return a session with Delta."""
    paths = sorted(map(str, Path(jars).glob("*.jar")))
    if not paths:
        raise SystemExit(f"no jars in {jars}: run ci/delta_jars, or name another folder by --jars")
    return pyspark_diff.session("benchmark nightly_view", memory=memory, conf={
        "spark.jars": ",".join(paths),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Delta's default of fifty suits logs of millions of files. Both sides use this number.
        "spark.databricks.delta.snapshotPartitions": 2,
    })


class Night:
    """The tables in a folder, their changes and their views.

    Parameters
    ----------
    spark : SparkSession
    folder : str
    sizes : dict
        Rows by table.
    """

    def __init__(self, spark: SparkSession, folder: str, sizes: dict[str, int]):
        self.spark, self.folder, self.sizes = spark, folder, sizes
        self.phases: dict[str, float] = {}
        self.next = sizes["sales"]

    def name(self, table: str) -> str:
        return f"delta.`{self.folder}/{table}`"

    def make(self) -> None:
        """Create the initial tables."""
        customers, products = self.sizes["customers"], self.sizes["products"]
        for name, columns, count in (
            ("sales", self.sale(customers, products), self.sizes["sales"]),
            ("customers", ["id AS customer", "pmod(xxhash64(id), 25) AS region"], customers),
            ("products", ["id AS product", "pmod(xxhash64(id), 40) AS category"], products),
        ):
            rows = self.spark.range(0, count, 1, 8).selectExpr(*columns)
            schema = ", ".join(f"{name} {kind}" for name, kind in rows.dtypes)
            self.spark.sql(f"CREATE TABLE {self.name(name)} ({schema}) USING delta "
                           f"TBLPROPERTIES ({FEED})")
            rows.write.format("delta").mode("append").save(f"{self.folder}/{name}")

    def sale(self, customers: int, products: int, seed: int = 0) -> list[str]:
        return [
            "id", f"pmod(xxhash64(id, {seed}, 1), {customers}) AS customer",
            f"pmod(xxhash64(id, {seed}, 2), {products}) AS product",
            f"CAST(pmod(xxhash64(id, {seed}, 3), 365) AS INT) AS day",
            f"pmod(xxhash64(id, {seed}, 4), 10000) AS cents",
        ]

    def changes(self, number: int) -> None:
        """Change a tenth of a percent of the sales, half by updates, and a row per other table."""
        many = self.sizes["sales"] // 1000
        chosen = self.spark.range(many).selectExpr(
            f"CASE WHEN id % 4 = 0 THEN {self.next} + id "
            f"ELSE pmod(xxhash64(id, {number}), {self.sizes['sales']}) END AS id", "id % 4 AS what",
        ).dropDuplicates(["id"]).selectExpr(
            *self.sale(self.sizes["customers"], self.sizes["products"], number), "what"
        )
        self.next += many
        chosen.createOrReplaceTempView("chosen")
        self.spark.sql(
            f"MERGE INTO {self.name('sales')} AS t USING chosen AS s ON t.id = s.id "
            "WHEN MATCHED AND what = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET t.cents = s.cents "
            "WHEN NOT MATCHED AND what = 0 THEN INSERT (id, customer, product, day, cents) "
            "VALUES (id, customer, product, day, cents)"
        )
        for name, column in ("customers", "region"), ("products", "category"):
            self.spark.sql(
                f"UPDATE {self.name(name)} SET {column} = pmod({column} + 1, 25) "
                f"WHERE {name[:-1]} = {number * 7919 % self.sizes[name]}"
            )

    def view(self, sales: Any, customers: Any, products: Any) -> Any:
        """Return the view of collections or of frames."""
        joined = sales.join(products, "product").join(customers, "customer")
        return joined.groupBy("region", "category", "day").agg(
            F.sum("cents").alias("cents"), F.count("*").alias("sales")
        )

    def program(self, flow: Dataflow) -> None:
        """The dataflow."""
        tables = [
            flow.source(name, Timed(delta(f"{self.folder}/{name}"), self.phases))
            for name in ("sales", "customers", "products")
        ]
        target = delta_merge(f"{self.folder}/view", key=["region", "category", "day"])
        self.view(*tables).sink("view", TimedSink(target, self.phases))

    def plain(self) -> None:
        """Compute the view from the current tables with Spark, and write it."""
        tables = [self.read(name) for name in ("sales", "customers", "products")]
        self.view(*tables).write.format("delta").mode("overwrite").save(f"{self.folder}/plain")

    def read(self, name: str) -> DataFrame:
        return self.spark.read.table(self.name(name))

    def check(self) -> int:
        """Raise an error if the views differ. Return the number of their rows."""
        maintained, plain = self.read("view"), self.read("plain")
        maintained = maintained.select(plain.columns)
        if maintained.exceptAll(plain).union(plain.exceptAll(maintained)).count():
            raise SystemExit("the maintained view differs from plain Spark's")
        return plain.count()


class Timed(Source):
    """A source that adds the seconds of its reads to a phase."""

    def __init__(self, source: Source, phases: dict[str, float]):
        self._source, self._phases = source, phases
        self.key, self.is_whole = source.key, source.is_whole

    def columns(self, spark: SparkSession) -> T.StructType:
        return self._source.columns(spark)

    def read(self, spark: SparkSession, offset: Any) -> Reading | None:
        took, reading = seconds(lambda: self._source.read(spark, offset))
        self._phases["read"] = self._phases.get("read", 0) + took
        return reading


class TimedSink(Sink):
    """A sink that records the seconds of its last write in a phase."""

    def __init__(self, sink: Sink, phases: dict[str, float]):
        self._sink, self._phases = sink, phases

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        self._sink.check(schema, spark)

    def write(self, epoch: Epoch) -> None:
        self._phases["merge"] = seconds(lambda: self._sink.write(epoch))[0]


def measured(night: Night, rounds: int) -> list[dict[str, Any]]:
    """Measure nights: `catch_up`, then plain Spark, in turns."""
    rows = []
    with Dataflow.open(f"{night.folder}/store", night.program, spark=night.spark) as flow:
        load, _ = seconds(flow.catch_up)
        print(f"first night: {load:.1f} s", flush=True)
        for number in range(1, rounds + 1):
            night.changes(number)
            night.phases.clear()
            took, _ = seconds(flow.catch_up)
            read, merge = night.phases["read"], night.phases["merge"]
            plain, _ = seconds(night.plain)
            rows.append({
                "night": number, "catch_up_s": round(took, 2), "read_s": round(read, 2),
                "step_and_commit_s": round(took - read - merge, 2), "merge_s": round(merge, 2),
                "plain_s": round(plain, 2), "ratio": round(plain / took, 1),
            })
            print(rows[-1], flush=True)
        print(f"the same rows in both views: {night.check():,}", flush=True)
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sales", type=int, default=10_000_000)
    parser.add_argument("--customers", type=int, default=1_000_000)
    parser.add_argument("--products", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jars", default=str(Path(sys.prefix) / "delta"))
    parser.add_argument("--memory", default="4g", help="heap of the driver")
    parser.add_argument("--folder", help="where tables go; a temporary one if not given")
    parser.add_argument("--spark-only", action="store_true", help="as if there were no deltalake")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.spark_only:
        sys.modules["deltalake"] = None  # type: ignore[assignment]
    if options.quick:
        options.sales, options.customers, options.products = 100_000, 10_000, 1_000
    spark = delta_session(options.jars, options.memory)
    spark.sparkContext.setLogLevel("ERROR")
    sizes = {name: getattr(options, name) for name in ("sales", "customers", "products")}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, Memory() as memory:
        night = Night(spark, folder, sizes)
        night.make()
        print(f"tables made: {time.perf_counter() - started:.1f} s", flush=True)
        rows = measured(night, options.rounds)
    print(table(rows))
    ratio = statistics.median(row["ratio"] for row in rows)
    print(f"median ratio {ratio:.1f}; memory {memory.gigabytes()} GiB")
    if options.json:
        save(options.json, {"sizes": sizes, "nights": rows, "ratio": ratio,
                            "memory_gib": memory.gigabytes()})


if __name__ == "__main__":
    main()
