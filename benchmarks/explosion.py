"""A join that explodes, reduced by what follows: a billion pairs under one key, beside plain Spark.

    python benchmarks/explosion.py                        # 31,623 x 31,623 rows of one key
    python benchmarks/explosion.py --rows 3000 --json results.json

Two inputs of which all rows have the same key are joined, and the pairs are summed in a hundred
groups; then one row goes. The pairs are never held: memory is that of a piece. Seconds of ours and
of plain Spark come from one run, so quote their ratios: absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from measure import Memory, save, seconds, table
from pyspark_diff import Dataflow
from pyspark_diff.spark.session import session

KEY = 7


def groups(pairs: Any) -> Any:
    """What is asked for, of a frame or a collection of pairs."""
    values = pairs.select((F.col("x") % 100).alias("r"), (F.col("x") + F.col("y")).alias("v"))
    return values.groupBy("r").agg(F.sum("v").alias("s"), F.count("*").alias("n"))


def side(spark: SparkSession, rows: int, name: str) -> DataFrame:
    return spark.range(rows).selectExpr(f"{KEY}L AS k", f"id AS {name}")


def measure(spark: SparkSession, rows: int, runner: str) -> dict[str, Any]:
    """Seconds of the load and of one row that goes, beside plain Spark; checks the answers."""
    left, right = side(spark, rows, "x"), side(spark, rows, "y")
    plain, expected = seconds(lambda: groups(left.join(right, "k")).collect())
    with Memory() as memory, Dataflow(spark, runner=runner) as flow:
        lefts, lefts_in = flow.input("lefts", "k long, x long")
        rights, rights_in = flow.input("rights", "k long, y long")
        answer = groups(lefts.join(rights, "k"))

        def step(time: int) -> None:
            for given in (lefts_in, rights_in):
                given.advance_to(time)
                given.flush()
            flow.step()

        lefts_in.insert(left)
        rights_in.insert(right)
        load, _ = seconds(lambda: step(1))
        same = sorted(map(tuple, answer.at().collect())) == sorted(map(tuple, expected))
        lefts_in.remove([(KEY, 5)])
        one, _ = seconds(lambda: step(2))
        pairs = sum(row.n for row in answer.at().collect())
    if not same or pairs != rows * (rows - 1):
        raise AssertionError("the answer is not that of plain Spark")
    return {
        "runner": runner, "pairs": rows * rows, "plain_seconds": round(plain, 2),
        "load_seconds": round(load, 2), "load_over_plain": round(load / plain, 2),
        "one_row_seconds": round(one, 4), "peak_gib": memory.gigabytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=31_623, help="of each side")
    parser.add_argument("--runner", choices=["auto", "spark", "local"], default="auto")
    parser.add_argument("--json", default="benchmarks/results/explosion.json")
    arguments = parser.parse_args()
    spark = session("explosion", memory="2g", conf={"spark.ui.enabled": False})
    spark.sparkContext.setLogLevel("ERROR")
    measure(spark, 1000, arguments.runner)  # compiles kernels and warms the JVM
    found = measure(spark, arguments.rows, arguments.runner)
    print(table([found]))
    save(arguments.json, found)
    spark.stop()


if __name__ == "__main__":
    main()
