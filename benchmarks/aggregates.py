"""Aggregates of groups under changes, against plain Spark in the same session.

    python benchmarks/aggregates.py                       # 10,000,000 rows in 1,000,000 groups
    python benchmarks/aggregates.py --rows 100000 --groups 10000 --json results.json

The benchmark loads rows from Parquet, then replaces some: a change removes one row and inserts
another at a separate logical time. The first part computes eight functions of each group. The
second part compares the maximum of all rows as one group with the maximum of each group of ten.
Seconds of ours and of plain Spark come from one run, so quote their ratios: absolute times depend
on the machine.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_diff
from measure import Memory, save, seconds, table
from pyspark_diff import Dataflow, DiffFrame

SCHEMA = "k long, v long, w double"
#: Changes in one physical step, and the number of measured steps.
BATCHES = {1: 200, 1_000: 10}
#: Measured removals and insertions of a maximum.
REPEATS = 30
FILES = 8
#: The number of rows of `verify`. It has a tenth as many groups.
VERIFIED = 10_000


@dataclass(frozen=True)
class Rows:
    """Generated rows on disk, and the rows that changes need.

    Parameters
    ----------
    path : str
    groups : int
    first : pyarrow.Table
        Rows of the first file, which changes replace one after the other.
    largest : pyarrow.Table
        The rows with the greatest ``w`` that are not in ``first``, greatest first.
    """

    path: str
    groups: int
    first: pa.Table
    largest: pa.Table


def functions() -> list[Any]:
    """Return eight mixed functions: counts, sums, extremes, distinct values."""
    return [
        F.count("*").alias("rows"),
        F.sum("v").alias("sum"),
        F.avg("v").alias("avg"),
        F.stddev_samp("w").alias("stddev"),
        F.min("v").alias("min"),
        F.max("v").alias("max"),
        F.countDistinct("v").alias("distinct"),
        F.count_if(F.col("v") > 500).alias("many"),
    ]


def write_rows(folder: str, rows: int, groups: int) -> Rows:
    """Write random rows as Parquet files, equally many in each group."""
    random = np.random.default_rng(7)
    path = os.path.join(folder, f"rows-{rows}-{groups}")
    os.makedirs(path)
    k = random.permutation(np.arange(rows) % groups)
    v = random.integers(0, 1000, rows)
    # No change replaces the maximum.
    w = random.random(rows)
    replaced = min(sum(size * steps for size, steps in BATCHES.items()), rows // 2)
    w[:replaced] /= 2
    rows_table = pa.table({"k": k, "v": v, "w": w})
    ends = np.linspace(0, rows, FILES + 1).astype(np.int64)
    for number, (first, end) in enumerate(zip(ends, ends[1:])):
        pq.write_table(
            rows_table.slice(first, end - first),
            f"{path}/{number}.parquet",
            use_dictionary=False,
            compression="none",
        )
    order = np.argsort(-w)[:REPEATS]
    return Rows(path, groups, rows_table.take(np.arange(replaced)), rows_table.take(order))


class Table:
    """A dataflow over the rows. State: the time, and the number of replaced rows."""

    def __init__(self, flow: Dataflow, rows: Rows, answer: Callable[[DiffFrame], DiffFrame]):
        self.flow, self.rows = flow, rows
        self._random = np.random.default_rng(11)
        self._replaced = 0
        self.time = 1
        collection, self.session = flow.input("rows", SCHEMA)
        self.answer = answer(collection)
        # An ignored output runs the operators, but stores no rows.
        self.probe = self.answer.inspect(lambda updates: None, by_table=True).probe()

    def load(self, frame: DataFrame) -> None:
        """Load all rows at time 0."""
        self.session.insert(frame)
        self.step(1)

    def replacements(self, count: int) -> pa.Table | None:
        """Return the updates of the next changes, one time per change, or None at the end."""
        gone = self.rows.first.slice(self._replaced, count)
        if gone.num_rows < count:
            return None
        self._replaced += count
        times = np.arange(self.time, self.time + count)
        come = pa.table(
            {
                "k": self._random.integers(0, self.rows.groups, count),
                "v": self._random.integers(0, 1000, count),
                "w": self._random.random(count) / 2,
            }
        )
        both = pa.concat_tables([gone, come])
        both = both.append_column("time", pa.array(np.concatenate((times, times))))
        return both.append_column("diff", pa.array(np.repeat([-1, 1], count)))

    def change(self, updates: pa.Table) -> None:
        """Process some changes in one step."""
        self.session.update(updates)
        self.step(self.time + updates.num_rows // 2)

    def change_row(self, row: pa.Table, diff: int) -> None:
        """Insert or remove one row in a separate step."""
        (self.session.insert if diff > 0 else self.session.remove)(row)
        self.step(self.time + 1)

    def step(self, then: int) -> None:
        """Process all updates before a time."""
        self.time = then
        self.session.advance_to(then)
        self.session.flush()
        self.flow.step_while(lambda: self.probe.less_than(then))


def plain(frame: DataFrame) -> None:
    """Compute the eight functions from scratch with plain Spark."""
    frame.groupBy("k").agg(*functions()).write.format("noop").mode("overwrite").save()


def run_mixed(spark: SparkSession, rows: Rows) -> dict[str, Any]:
    """Measure eight functions: the load, then all batch sizes."""
    frame = spark.read.parquet(rows.path)
    with Memory() as memory, Dataflow(spark) as flow:
        work = Table(flow, rows, lambda c: c.groupBy("k").agg(*functions()))
        before, _ = seconds(lambda: plain(frame))
        load_seconds, _ = seconds(lambda: work.load(frame))
        state = sum(trace.size for trace in flow._state.traces.values())
        later, _ = seconds(lambda: plain(frame))
        plain_seconds = statistics.median([before, later])
        measures = []
        for changes, repeats in BATCHES.items():
            times, read = [], []
            for _ in range(repeats):
                updates = work.replacements(changes)
                if updates is None:
                    break
                took, _ = seconds(lambda: work.change(updates))
                times.append(took)
                read.append(flow.last_report.rows_in + flow.last_report.rows_read)
            if not times:
                continue
            middle = statistics.median(times)
            measures.append(
                {
                    "changes": changes,
                    "steps": len(times),
                    "median_ms": round(middle * 1e3, 3),
                    "max_ms": round(max(times) * 1e3, 3),
                    "us_per_change": round(middle / changes * 1e6, 2),
                    "rows_read": int(statistics.median(read)),
                    "plain_over_ours": round(plain_seconds / middle, 1),
                }
            )
            print(f"  {changes:>7} changes: {middle * 1e3:9.2f} ms", flush=True)
    return {
        "plain_seconds": [round(before, 2), round(later, 2)],
        "load_seconds": round(load_seconds, 2),
        "load_over_plain": round(load_seconds / plain_seconds, 2),
        "state_bytes": state,
        "peak_gib": memory.gigabytes(),
        "changes": measures,
    }


def run_maximum(spark: SparkSession, rows: Rows, grouped: bool) -> dict[str, Any]:
    """Measure the maximum of all rows or each group: remove the greatest row, insert a greater."""
    frame = spark.read.parquet(rows.path)

    def answer(collection: DiffFrame) -> DiffFrame:
        greatest = F.max("w").alias("greatest")
        maxima = collection.groupBy("k").agg(greatest) if grouped else collection.agg(greatest)
        return maxima.inspect(tables.append, by_table=True)

    tables: list[pa.Table] = []
    with Memory() as memory, Dataflow(spark) as flow:
        work = Table(flow, rows, answer)
        load_seconds, _ = seconds(lambda: work.load(frame))
        removals, insertions = [], []
        for number in range(rows.largest.num_rows):
            row = rows.largest.slice(number, 1)
            tables.clear()
            took, _ = seconds(lambda: work.change_row(row, -1))
            removals.append(took)
            _expect_gone(tables, row)
        for number in range(rows.largest.num_rows):
            row = rows.largest.slice(number, 1)
            w = pa.array([2.0 + number])
            row = row.set_column(row.column_names.index("w"), "w", w)
            tables.clear()
            took, _ = seconds(lambda: work.change_row(row, 1))
            insertions.append(took)
            if _sum(tables, 2.0 + number) != 1:
                raise SystemExit("a greater row was inserted, and is not the maximum")
    return {
        "groups": rows.groups if grouped else 1,
        "load_seconds": round(load_seconds, 2),
        "remove_maximum_ms": round(statistics.median(removals) * 1e3, 3),
        "insert_maximum_ms": round(statistics.median(insertions) * 1e3, 3),
        "peak_total_gib": memory.gigabytes().get("total"),
    }


def _expect_gone(tables: list[pa.Table], row: pa.Table) -> None:
    if _sum(tables, row["w"][0].as_py()) != -1:
        raise SystemExit("the greatest row was removed, and is still the maximum")


def _sum(tables: list[pa.Table], greatest: float) -> int:
    """Return the sum of the diffs of a maximum in the updates of one step."""
    return sum(
        int(updates["diff"].to_numpy()[updates["greatest"].to_numpy() == greatest].sum())
        for updates in tables
    )


def verify(spark: SparkSession, folder: str, runner: str) -> None:
    """Compare all results with plain Spark's for few rows after some changes."""
    rows = write_rows(os.path.join(folder, f"verify-{runner}"), VERIFIED, VERIFIED // 10)
    frame = spark.read.parquet(rows.path)
    with Dataflow(spark, runner=runner) as flow:
        work = Table(
            flow, rows, lambda c: c.groupBy("k").agg(*functions()).keep()
        )
        work.load(frame)
        count = rows.first.num_rows // 2
        updates = work.replacements(count)
        assert updates is not None
        work.change(updates)
        actual = {row.k: tuple(row) for row in work.answer.at().collect()}
    data = updates.drop_columns(["time", "diff"])
    gone, come = (spark.createDataFrame(data.slice(at, count)) for at in (0, count))
    final = frame.exceptAll(gone).unionAll(come)
    expected = {row.k: tuple(row) for row in final.groupBy("k").agg(*functions()).collect()}
    if actual.keys() != expected.keys() or not all(
        _same(actual[key], expected[key]) for key in expected
    ):
        raise SystemExit(f"the aggregates differ from plain Spark's (runner {runner!r})")


def _same(actual: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Return whether values are equal. Doubles may differ by the order of the sum."""
    return all(
        math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
        if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(actual, expected)
    )


def limits(mixed: dict[str, Any], maxima: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the limits of the run, as ratios inside the run."""
    faster = {row["changes"]: row["plain_over_ours"] for row in mixed["changes"]}
    whole, groups = maxima
    rows = [_limit("load / plain", mixed["load_over_plain"], "at most", 2)]
    if 1_000 in faster:
        rows.append(_limit("plain / 1,000 changes", faster[1_000], "at least", 30))
    for what in ("remove_maximum_ms", "insert_maximum_ms"):
        ratio = round(whole[what] / groups[what], 2)
        name = what.removesuffix("_ms").replace("_", " ")
        rows.append(_limit(f"{name}: all rows / a small group", ratio, "at most", 10))
    return rows


def _limit(what: str, value: float, way: str, limit: float) -> dict[str, Any]:
    holds = value <= limit if way == "at most" else value >= limit
    return {
        "ratio": what,
        "measured": value,
        "limit": f"{way} {limit:g}",
        "holds": "yes" if holds else "NO",
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--json", default="benchmarks/results/aggregates.json")
    parser.add_argument("--folder", help="where generated data goes; a temporary one if not given")
    options = parser.parse_args()
    spark = pyspark_diff.session("benchmark aggregates")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        warm = write_rows(os.path.join(folder, "warm"), 1000, 100)
        run_mixed(spark, warm)  # compiles kernels and warms the JVM
        for grouped in (False, True):
            run_maximum(spark, warm, grouped)
        for runner in ("local", "spark"):
            verify(spark, folder, runner)  # warms the Python workers as well
        rows = write_rows(folder, options.rows, options.groups)
        print(f"eight functions, {options.rows:,} rows, {options.groups:,} groups", flush=True)
        mixed = run_mixed(spark, rows)
        print(
            f"  load {mixed['load_seconds']} s = {mixed['load_over_plain']} x plain Spark "
            f"{mixed['plain_seconds']} s; peak GiB {mixed['peak_gib']}; state "
            f"{mixed['state_bytes']:,} bytes",
            flush=True,
        )
        maxima = []
        for grouped in (False, True):
            maxima.append(run_maximum(spark, rows, grouped))
            print(f"  maximum: {maxima[-1]}", flush=True)
    ratios = limits(mixed, maxima)
    for part in (mixed["changes"], maxima, ratios):
        print("\n" + table(part))
    sizes = {"rows": options.rows, "groups": options.groups}
    save(options.json, {**sizes, "mixed": mixed, "maximum": maxima, "limits": ratios})


if __name__ == "__main__":
    main()
