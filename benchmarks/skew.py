"""Skew: one key with most of the rows, and a step that touches one of many operators.

    python benchmarks/skew.py                       # 22 and 10 million rows, 1,000 operators
    python benchmarks/skew.py --only hot operators  # some of the three parts
    python benchmarks/skew.py --rows 220000 --hot-rows 100000 --operators 1 10 --json skew.json

*dimension*: joins facts with a dimension of a thousand rows, and sums them in a hundred groups. Ten
of eleven facts have one key. The dimension's row of that key changes, and so do 20 million joined
rows. The last run hands over all joined rows. ``spark.pyspark_diff.pieceRows`` limits the rows in
memory, and a hint spreads a key with more rows than a piece.

*hot*: one key has half of the rows. How many rows does one task process, with the hint and without?

*operators*: a step of one row in a dataflow of many inputs. Each input has an aggregate.

Seconds of ours and of plain Spark come from one run, so quote their ratios: absolute times depend
on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

import pyspark_diff
from measure import Memory, save, seconds, table
from pyspark_diff import Dataflow
from pyspark_diff.spark.session import PIECE_ROWS

KEY, GROUPS, PARTS = 7, 100, ("dimension", "hot", "operators")
#: The factor of the hot key before and after the change.
BEFORE, AFTER = 3, 5


@dataclass(frozen=True)
class Star:
    """Sizes of facts and a dimension: `hot` of the `rows` facts have one key of `keys`."""

    path: str
    rows: int
    hot: int
    keys: int

    def write(self) -> None:
        """Write distinct facts in random order as Parquet."""
        random = np.random.default_rng(7)
        k = random.integers(KEY + 1, self.keys, self.rows)
        k[:self.hot] = KEY
        random.shuffle(k)
        g, amount = random.integers(0, GROUPS, self.rows), random.permutation(self.rows)
        pq.write_table(
            pa.table({"k": k, "g": g, "amount": amount}), self.path,
            row_group_size=-(-self.rows // 8), use_dictionary=False, compression="none",
        )

    def dimension(self, factor: int) -> pa.Table:
        """Return the rows of the dimension. The hot key has this factor."""
        k = np.arange(self.keys)
        return pa.table({"k": k, "factor": np.where(k == KEY, factor, k % 10 + 1)})


def valued(facts: Any, dimension: Any) -> Any:
    """Join each fact with its factor and return its value, as a frame or a collection."""
    value = (F.col("amount") * F.col("factor")).alias("value")
    return facts.join(dimension, "k").select("g", "amount", value)


def summed(pairs: Any) -> Any:
    return pairs.groupBy("g").agg(F.sum("value").alias("s"), F.count("*").alias("n"))


def plain(spark: SparkSession, star: Star) -> tuple[float, list[Row], list[Row]]:
    """Return the seconds of plain Spark from scratch, and its answers before and after."""
    facts, took, answers = spark.read.parquet(star.path), [], []
    for factor in (BEFORE, AFTER):
        pairs = valued(facts, spark.createDataFrame(star.dimension(factor)))
        duration, answer = seconds(summed(pairs).collect)
        took.append(duration)
        answers.append(sorted(answer))
    return statistics.median(took), *answers


class Work:
    """A dataflow over a star. State: the time, and the sums of the last inspected updates."""

    def __init__(self, flow: Dataflow, star: Star, hint: bool, whole: bool):
        self.flow, self.star, self._time = flow, star, 0
        facts, self._facts = flow.input("facts", "k long, g long, amount long")
        dimension, self._dimension = flow.input("dimension", "k long, factor long", key="k")
        pairs = valued(facts.hint("skew", "k", KEY) if hint else facts, dimension)
        self._sums = None if whole else summed(pairs).keep()
        self._handed = (0, 0)
        if whole:
            pairs.inspect(self._count, by_table=True)

    def _count(self, updates: pa.Table) -> None:
        products = (np.dot(batch["value"], batch["diff"]) for batch in updates.to_batches())
        self._handed = updates.num_rows, sum(map(int, products))

    def load(self) -> None:
        self._facts.insert(self.flow.spark.read.parquet(self.star.path))
        self._dimension.upsert(self.star.dimension(BEFORE))
        self._step()

    def change(self) -> None:
        """Change the factor of the hot key."""
        self._dimension.upsert([(KEY, AFTER)])
        self._step()

    def _step(self) -> None:
        self._time += 1
        for session in (self._facts, self._dimension):
            session.advance_to(self._time)
        self.flow.step()

    def check(self, was: list[Row], now: list[Row], rows: int) -> None:
        """Refuse a wrong answer, or a wrong number of inspected updates."""
        rise = sum(row.s for row in now) - sum(row.s for row in was)
        if self._sums is None and self._handed != (rows, rise):
            raise SystemExit("the inspected updates differ from plain Spark's change")
        if self._sums is not None and sorted(self._sums.at().collect()) != now:
            raise SystemExit("the sums differ from plain Spark's")

    def largest(self) -> int:
        """Return the number of facts in the largest bucket, which one task processes."""
        traces = self.flow._state.traces.values()
        (facts,) = [trace for trace in traces if trace.rows == self.star.rows]
        buckets = {bucket for batch in facts.batches for bucket in batch.files}
        return max(
            sum(file.rows for batch in facts.batches for file in batch.files.get(bucket, ()))
            for bucket in buckets
        )


def run(
    spark: SparkSession, star: Star, answers: tuple[list[Row], list[Row]], *, hint: bool,
    whole: bool = False, pieces: int | None = None, **options: Any
) -> dict[str, Any]:
    """Measure and check the load and the change."""
    before, after = answers
    if pieces is not None:
        spark.conf.set(PIECE_ROWS, str(pieces))
    with Dataflow(spark, **options) as flow:
        work = Work(flow, star, hint, whole)
        with Memory(0.1) as loading:
            load, _ = seconds(work.load)
        work.check([], before, star.rows)
        largest = work.largest()
        with Memory(0.1) as changing:
            change, _ = seconds(work.change)
        work.check(before, after, 2 * star.hot)
    spark.conf.unset(PIECE_ROWS)
    row = {
        "answer": "all rows" if whole else "sums", "hint": "yes" if hint else "no",
        "piece_rows": pieces or "default", **options, "rows_changed": star.hot,
        "largest_bucket": largest, "load_seconds": round(load, 2),
        "change_seconds": round(change, 3), "load_peak_gib": loading.gigabytes().get("total"),
        "peak_gib": changing.gigabytes(),
    }
    print(row, flush=True)
    return row


def run_dimension(
    spark: SparkSession, star: Star, pieces: list[int], runner: str
) -> list[dict[str, Any]]:
    """Measure the sums with each setting, then all joined rows."""
    star.write()
    took, *answers = plain(spark, star)
    run_star = partial(run, spark, star, tuple(answers), runner=runner)
    rows = [run_star(hint=hint, pieces=most) for most in (*pieces, None) for hint in (True, False)]
    rows.append(run_star(hint=False, whole=True))
    plain_row = {"plain_seconds": round(took, 2)}
    return [
        {**row, **plain_row, "over_plain": round(row["change_seconds"] / took, 2)} for row in rows
    ]


def run_hot(spark: SparkSession, star: Star, buckets: int, runner: str) -> list[dict[str, Any]]:
    """Measure the sums with the hint, without it, and in one bucket."""
    star.write()
    _, *answers = plain(spark, star)
    rows = [
        run(spark, star, tuple(answers), hint=hint, buckets=number, runner=mode)
        for mode in dict.fromkeys((runner, "spark"))
        for number, hint in ((buckets, True), (buckets, False), (1, False))
    ]
    spread = rows[0]["largest_bucket"]
    return [{**row, "times_the_hinted": round(row["largest_bucket"] / spread, 2)} for row in rows]


def run_operators(spark: SparkSession, numbers: list[int], steps: int) -> list[dict[str, Any]]:
    """Return the median time of a step of one row. The dataflows take turns on the machine."""
    flows = []
    for number in numbers:
        flow, inputs, sums = Dataflow(spark), [], []
        for name in range(number):
            rows, session = flow.input(f"in{name}", "k long, v long")
            sums.append(rows.groupBy("k").agg(F.sum("v").alias("s")).keep(f"out{name}"))
            inputs.append(session)
        inputs[0].insert([(k, k) for k in range(1000)])
        for session in inputs:
            session.advance_to(1)
        flow.step()
        flows.append((flow, inputs[0], sums[0], []))

    def change(flow: Dataflow, session: Any, turn: int) -> None:
        session.insert([(turn % 1000, 1)])
        session.advance_to(turn + 2)
        flow.step()

    for turn in range(steps):
        for flow, session, _, took in flows:
            took.append(seconds(partial(change, flow, session, turn))[0] * 1e3)
    wanted = [(k, k + len(range(k, steps, 1000))) for k in range(1000)]
    result: list[dict[str, Any]] = []
    for number, (flow, _, sums, took) in zip(numbers, flows):
        # All other inputs and their results stay at time 1.
        if sorted(map(tuple, sums.at(steps).collect())) != wanted:
            raise SystemExit("the sums of the changed operator are wrong")
        flow.close()
        middle = statistics.median(took[steps // 6:])  # the first ones warm up
        row = {"operators": number, "median_ms": round(middle, 2), "max_ms": round(max(took), 2)}
        result.append({**row, "over_first": round(middle / (result or [row])[0]["median_ms"], 2)})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rows", type=int, default=22_000_000, help="of the dimension's facts")
    parser.add_argument("--keys", type=int, default=1_000, help="of the dimension")
    parser.add_argument("--piece-rows", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--hot-rows", type=int, default=10_000_000, help="half of them of one key")
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--operators", type=int, nargs="+", default=[1, 100, 1_000])
    parser.add_argument("--steps", type=int, default=120, help="of one row, in each dataflow")
    parser.add_argument("--runner", choices=["auto", "spark", "local"], default="auto")
    parser.add_argument("--json", default="benchmarks/results/skew.json")
    options = parser.parse_args()
    spark = pyspark_diff.session("skew")
    spark.sparkContext.setLogLevel("ERROR")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        def star(name: str, rows: int, hot: int, keys: int) -> Star:
            return Star(os.path.join(folder, f"{name}.parquet"), rows, hot, keys)

        # Compiles kernels, and warms the JVM and the Python workers.
        run_dimension(spark, star("warm", 20_000, 10_000, 100), [1_000], options.runner)
        if "hot" in options.only:
            run_hot(spark, star("warm", 200_000, 100_000, 2_000), options.buckets, options.runner)
        print("warm", flush=True)
        if "dimension" in options.only:
            facts = star("dimension", options.rows, options.rows * 10 // 11, options.keys)
            results["dimension"] = run_dimension(spark, facts, options.piece_rows, options.runner)
        if "hot" in options.only:
            rows = options.hot_rows
            facts = star("hot", rows, rows // 2, max(100, rows // 100))
            results["hot"] = run_hot(spark, facts, options.buckets, options.runner)
    if "operators" in options.only:
        results["operators"] = run_operators(spark, options.operators, options.steps)
    for part in results.values():
        print("\n" + table(part))
    save(options.json, results)
    spark.stop()


if __name__ == "__main__":
    main()
