"""A join with many pairs under one key and an aggregate of the pairs, against plain Spark.

    python benchmarks/explosion.py             # 10^8 pairs with plain Spark, 10^9 without it
    python benchmarks/explosion.py --quick     # 10^7 pairs with plain Spark
    python benchmarks/explosion.py --rows 3000 --alone 0 --json results.json

All rows of two inputs have the same key. The dataflow joins the inputs and sums the pairs in a
hundred groups. Then a step removes one row. Memory contains one piece of the pairs at a time.
Seconds of ours and of plain Spark come from one run, so quote their ratios: absolute times depend
on the machine.
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
    """Sum the pairs of a frame or a collection by group."""
    values = pairs.select((F.col("x") % GROUPS).alias("r"), (F.col("x") + F.col("y")).alias("v"))
    return values.groupBy("r").agg(F.sum("v").alias("s"), F.count("*").alias("n"))


def side(spark: SparkSession, rows: int, name: str) -> DataFrame:
    return spark.range(rows).selectExpr(f"{KEY}L AS k", f"id AS {name}")


def expected(rows: int, gone: int | None = None) -> list[tuple[int, int, int]]:
    """Return the answer for a number of rows on each side, minus the left row `gone` if any."""
    x = np.delete(np.arange(rows), [] if gone is None else [gone])
    number = np.bincount(x % GROUPS)
    total = np.bincount(x % GROUPS, x).astype(np.int64)  # exact below 2**53
    y_sum = rows * (rows - 1) // 2
    sums = zip(range(GROUPS), (rows * total + y_sum * number).tolist(), (rows * number).tolist())
    return list(sums)


def measure(spark: SparkSession, rows: int, runner: str, with_plain: bool = True) -> dict[str, Any]:
    """Measure and check the load, the removal of one row and, if requested, plain Spark."""
    left, right = side(spark, rows, "x"), side(spark, rows, "y")
    row: dict[str, Any] = {"runner": runner, "pairs": rows * rows}
    if with_plain:
        plain, answer = seconds(lambda: groups(left.join(right, "k")).collect())
        check(answer, expected(rows))
        row["plain_seconds"] = round(plain, 2)
    with Memory() as memory, Dataflow(spark, runner=runner) as flow:
        lefts, lefts_in = flow.input("lefts", "k long, x long")
        rights, rights_in = flow.input("rights", "k long, y long")
        sums = groups(lefts.join(rights, "k")).keep()

        def step(time: int) -> None:
            for session_in in (lefts_in, rights_in):
                session_in.advance_to(time)
                session_in.flush()
            flow.step()

        lefts_in.insert(left)
        rights_in.insert(right)
        load, _ = seconds(lambda: step(1))
        check(sums.at().collect(), expected(rows))
        lefts_in.remove([(KEY, 5)])
        removal, _ = seconds(lambda: step(2))
        check(sums.at().collect(), expected(rows, 5))
    row["load_seconds"] = round(load, 2)
    if with_plain:
        row["load_over_plain"] = round(load / plain, 2)
    return {**row, "one_row_seconds": round(removal, 4), "peak_gib": memory.gigabytes()}


def check(answer: list[Row], wanted: list[tuple[int, int, int]]) -> None:
    """Refuse a wrong answer."""
    if sorted(map(tuple, answer)) != wanted:
        raise AssertionError("the answer is not the sum over all pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000, help="of each side, with plain Spark")
    parser.add_argument("--alone", type=int, default=31_623, help="the same without it; 0 for none")
    parser.add_argument("--quick", action="store_true", help="--rows 3162 --alone 0")
    parser.add_argument("--runner", choices=["auto", "spark", "local"], default="auto")
    parser.add_argument("--json", default="benchmarks/results/explosion.json")
    arguments = parser.parse_args()
    spark = session("explosion", memory="2g", conf={"spark.ui.enabled": False})
    spark.sparkContext.setLogLevel("ERROR")
    measure(spark, 1000, arguments.runner)  # compiles kernels and warms the JVM
    rows, alone = (3_162, 0) if arguments.quick else (arguments.rows, arguments.alone)
    results = {"beside_plain": measure(spark, rows, arguments.runner)}
    print(table([results["beside_plain"]]), flush=True)
    save(arguments.json, results)
    if alone:
        results["alone"] = measure(spark, alone, arguments.runner, with_plain=False)
        print(table([results["alone"]]))
        save(arguments.json, results)
    spark.stop()


if __name__ == "__main__":
    main()
