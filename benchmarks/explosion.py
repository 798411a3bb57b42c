"""A join that explodes, reduced by what follows: many pairs under one key, beside plain Spark.

    python benchmarks/explosion.py             # 10^8 pairs beside plain Spark, 10^9 without it
    python benchmarks/explosion.py --quick     # 10^7 pairs beside plain Spark
    python benchmarks/explosion.py --rows 3000 --alone 0 --json results.json

Two inputs of which all rows have the same key are joined, and the pairs are summed in a hundred
groups; then one row goes. The pairs are never held: memory is that of a piece. Seconds of ours and
of plain Spark come from one run, so quote their ratios: absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from measure import Memory, save, seconds, table
from pyspark_diff import Dataflow
from pyspark_diff.spark.session import session

KEY, GROUPS = 7, 100


def groups(pairs: Any) -> Any:
    """What is asked for, of a frame or a collection of pairs."""
    values = pairs.select((F.col("x") % GROUPS).alias("r"), (F.col("x") + F.col("y")).alias("v"))
    return values.groupBy("r").agg(F.sum("v").alias("s"), F.count("*").alias("n"))


def side(spark: SparkSession, rows: int, name: str) -> DataFrame:
    return spark.range(rows).selectExpr(f"{KEY}L AS k", f"id AS {name}")


def expected(rows: int, gone: int | None = None) -> list[tuple[int, int, int]]:
    """The answer for so many rows on each side, perhaps without one on the left."""
    x = np.delete(np.arange(rows), [] if gone is None else [gone])
    number = np.bincount(x % GROUPS)
    total = np.bincount(x % GROUPS, x).astype(np.int64)  # exact as long as it is below 2**53
    every = rows * (rows - 1) // 2
    found = zip(range(GROUPS), (rows * total + every * number).tolist(), (rows * number).tolist())
    return list(found)


def measure(spark: SparkSession, rows: int, runner: str, beside: bool = True) -> dict[str, Any]:
    """Seconds of the load and of one row that goes, perhaps beside plain Spark, all checked."""
    left, right = side(spark, rows, "x"), side(spark, rows, "y")
    found: dict[str, Any] = {"runner": runner, "pairs": rows * rows}
    if beside:
        plain, answer = seconds(lambda: groups(left.join(right, "k")).collect())
        check(answer, expected(rows))
        found["plain_seconds"] = round(plain, 2)
    with Memory() as memory, Dataflow(spark, runner=runner) as flow:
        lefts, lefts_in = flow.input("lefts", "k long, x long")
        rights, rights_in = flow.input("rights", "k long, y long")
        sums = groups(lefts.join(rights, "k")).keep()

        def step(time: int) -> None:
            for given in (lefts_in, rights_in):
                given.advance_to(time)
                given.flush()
            flow.step()

        lefts_in.insert(left)
        rights_in.insert(right)
        load, _ = seconds(lambda: step(1))
        check(sums.at().collect(), expected(rows))
        lefts_in.remove([(KEY, 5)])
        one, _ = seconds(lambda: step(2))
        check(sums.at().collect(), expected(rows, 5))
    found["load_seconds"] = round(load, 2)
    if beside:
        found["load_over_plain"] = round(load / plain, 2)
    return {**found, "one_row_seconds": round(one, 4), "peak_gib": memory.gigabytes()}


def check(answer: list[Row], wanted: list[tuple[int, int, int]]) -> None:
    """Refuse a wrong answer."""
    if sorted(map(tuple, answer)) != wanted:
        raise AssertionError("the answer is not the sum over all pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000, help="of each side, beside plain Spark")
    parser.add_argument("--alone", type=int, default=31_623, help="the same without it; 0 for none")
    parser.add_argument("--quick", action="store_true", help="--rows 3162 --alone 0")
    parser.add_argument("--runner", choices=["auto", "spark", "local"], default="auto")
    parser.add_argument("--json", default="benchmarks/results/explosion.json")
    arguments = parser.parse_args()
    spark = session("explosion", memory="2g", conf={"spark.ui.enabled": False})
    spark.sparkContext.setLogLevel("ERROR")
    measure(spark, 1000, arguments.runner)  # compiles kernels and warms the JVM
    rows, alone = (3_162, 0) if arguments.quick else (arguments.rows, arguments.alone)
    found = {"beside_plain": measure(spark, rows, arguments.runner)}
    print(table([found["beside_plain"]]), flush=True)
    save(arguments.json, found)
    if alone:
        found["alone"] = measure(spark, alone, arguments.runner, beside=False)
        print(table([found["alone"]]))
        save(arguments.json, found)
    spark.stop()


if __name__ == "__main__":
    main()
