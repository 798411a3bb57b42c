"""Skew: one key with most of the rows, and many operators of which a row touches one.

    python benchmarks/skew.py                       # 22 and 10 million rows, 1,000 operators
    python benchmarks/skew.py --only hot operators  # some of the three parts
    python benchmarks/skew.py --rows 220000 --hot-rows 100000 --operators 1 10 --json skew.json

*dimension*: facts of which ten of eleven have one key are joined with a dimension of a thousand
rows and summed in a hundred groups. The dimension's row of that key changes, and with it 20 million
joined rows; at last they are handed over, all of them. What is held at once is set by
``spark.pyspark_diff.pieceRows``, and a key that is more than a piece is spread by a hint.

*hot*: one key has half of the rows. How many are the work of one task, with the hint and without?

*operators*: a step of one row in a dataflow of many inputs, each with an aggregate of its own.

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
#: The factor of the hot key before it changes, and after.
BEFORE, AFTER = 3, 5


@dataclass(frozen=True)
class Star:
    """Facts of which one key has many, and a dimension: the rows of both, and the key's."""

    path: str
    rows: int
    hot: int
    keys: int

    def write(self) -> None:
        """The facts in random order, no two alike, as Parquet."""
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
        """The rows of the dimension, that of the hot key with such a factor."""
        k = np.arange(self.keys)
        return pa.table({"k": k, "factor": np.where(k == KEY, factor, k % 10 + 1)})


def valued(facts: Any, dimension: Any) -> Any:
    """What each fact is worth, as a frame or a collection."""
    value = (F.col("amount") * F.col("factor")).alias("value")
    return facts.join(dimension, "k").select("g", "amount", value)


def summed(pairs: Any) -> Any:
    return pairs.groupBy("g").agg(F.sum("value").alias("s"), F.count("*").alias("n"))


def plain(spark: SparkSession, star: Star) -> tuple[float, list[Row], list[Row]]:
    """Seconds of plain Spark from scratch, and its answers before the change and after it."""
    facts, took, answers = spark.read.parquet(star.path), [], []
    for factor in (BEFORE, AFTER):
        pairs = valued(facts, spark.createDataFrame(star.dimension(factor)))
        one, answer = seconds(summed(pairs).collect)
        took.append(one)
        answers.append(sorted(answer))
    return statistics.median(took), *answers


class Work:
    """A dataflow over a star. It holds state: a time, and what was handed over last."""

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
        """The row of the dimension that most facts meet."""
        self._dimension.upsert([(KEY, AFTER)])
        self._step()

    def _step(self) -> None:
        self._time += 1
        for given in (self._facts, self._dimension):
            given.advance_to(self._time)
        self.flow.step()

    def check(self, was: list[Row], now: list[Row], rows: int) -> None:
        """Refuse a wrong answer, or another number of rows that were handed over."""
        rise = sum(row.s for row in now) - sum(row.s for row in was)
        if self._sums is None and self._handed != (rows, rise):
            raise SystemExit("what was handed over is not what plain Spark's answers differ by")
        if self._sums is not None and sorted(self._sums.at().collect()) != now:
            raise SystemExit("the sums differ from plain Spark's")

    def largest(self) -> int:
        """Rows of the facts in the largest bucket, which is the work of one task."""
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
    """The load and the change, checked."""
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
    found = {
        "answer": "all rows" if whole else "sums", "hint": "yes" if hint else "no",
        "piece_rows": pieces or "default", **options, "rows_changed": star.hot,
        "largest_bucket": largest, "load_seconds": round(load, 2),
        "change_seconds": round(change, 3), "load_peak_gib": loading.gigabytes().get("total"),
        "peak_gib": changing.gigabytes(),
    }
    print(found, flush=True)
    return found


def run_dimension(
    spark: SparkSession, star: Star, pieces: list[int], runner: str
) -> list[dict[str, Any]]:
    """The sums with each setting, then all joined rows."""
    star.write()
    took, *answers = plain(spark, star)
    one = partial(run, spark, star, tuple(answers), runner=runner)
    rows = [one(hint=hint, pieces=most) for most in (*pieces, None) for hint in (True, False)]
    rows.append(one(hint=False, whole=True))
    beside = {"plain_seconds": round(took, 2)}
    return [{**row, **beside, "over_plain": round(row["change_seconds"] / took, 2)} for row in rows]


def run_hot(spark: SparkSession, star: Star, buckets: int, runner: str) -> list[dict[str, Any]]:
    """With the hint and without it, and in one bucket."""
    star.write()
    _, *answers = plain(spark, star)
    rows = [
        run(spark, star, tuple(answers), hint=hint, buckets=number, runner=one)
        for one in dict.fromkeys((runner, "spark"))
        for number, hint in ((buckets, True), (buckets, False), (1, False))
    ]
    spread = rows[0]["largest_bucket"]
    return [{**row, "times_the_hinted": round(row["largest_bucket"] / spread, 2)} for row in rows]


def run_operators(spark: SparkSession, numbers: list[int], steps: int) -> list[dict[str, Any]]:
    """Medians of steps of one row; the dataflows take turns, so that all meet the same machine."""
    flows = []
    for number in numbers:
        flow, inputs, sums = Dataflow(spark), [], []
        for name in range(number):
            rows, given = flow.input(f"in{name}", "k long, v long")
            sums.append(rows.groupBy("k").agg(F.sum("v").alias("s")).keep(f"out{name}"))
            inputs.append(given)
        inputs[0].insert([(k, k) for k in range(1000)])
        for given in inputs:
            given.advance_to(1)
        flow.step()
        flows.append((flow, inputs[0], sums[0], []))

    def one(flow: Dataflow, given: Any, turn: int) -> None:
        given.insert([(turn % 1000, 1)])
        given.advance_to(turn + 2)
        flow.step()

    for turn in range(steps):
        for flow, given, _, took in flows:
            took.append(seconds(partial(one, flow, given, turn))[0] * 1e3)
    wanted = [(k, k + len(range(k, steps, 1000))) for k in range(1000)]
    found: list[dict[str, Any]] = []
    for number, (flow, _, sums, took) in zip(numbers, flows):
        # The other inputs stay at time 1, and so does what can be read of them.
        if sorted(map(tuple, sums.at(steps).collect())) != wanted:
            raise SystemExit("the sums of the operator that was touched are wrong")
        flow.close()
        middle = statistics.median(took[steps // 6:])  # the first ones warm up
        row = {"operators": number, "median_ms": round(middle, 2), "max_ms": round(max(took), 2)}
        found.append({**row, "over_first": round(middle / (found or [row])[0]["median_ms"], 2)})
    return found


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
    given = parser.parse_args()
    spark = pyspark_diff.session("skew")
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        def star(name: str, rows: int, hot: int, keys: int) -> Star:
            return Star(os.path.join(folder, f"{name}.parquet"), rows, hot, keys)

        # Compiles kernels, and warms the JVM and the Python workers.
        run_dimension(spark, star("warm", 20_000, 10_000, 100), [1_000], given.runner)
        if "hot" in given.only:
            run_hot(spark, star("warm", 200_000, 100_000, 2_000), given.buckets, given.runner)
        print("warm", flush=True)
        if "dimension" in given.only:
            facts = star("dimension", given.rows, given.rows * 10 // 11, given.keys)
            found["dimension"] = run_dimension(spark, facts, given.piece_rows, given.runner)
        if "hot" in given.only:
            rows = given.hot_rows
            facts = star("hot", rows, rows // 2, max(100, rows // 100))
            found["hot"] = run_hot(spark, facts, given.buckets, given.runner)
    if "operators" in given.only:
        found["operators"] = run_operators(spark, given.operators, given.steps)
    for part in found.values():
        print("\n" + table(part))
    save(given.json, found)
    spark.stop()


if __name__ == "__main__":
    main()
