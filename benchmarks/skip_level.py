"""Everyone's manager's manager under changes, against plain Spark's self-join in the same session.

    python benchmarks/skip_level.py                       # 10,000 people, then 10,000,000
    python benchmarks/skip_level.py --sizes 100000 --json results.json

The benchmark loads a company from Parquet, in which ``person // 2`` manages a person. Then each
change moves the next person to the manager ``person // 3`` at a separate logical time. One physical
step processes a batch of changes. At the end a new dataflow processes all changes in one step.
Seconds of ours and of plain Spark come from one run, so quote their ratios: absolute times depend
on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from typing import Any, Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_diff
from measure import Memory, save, seconds, table
from plain_graphs import Digest
from pyspark_diff import Dataflow, DiffFrame
from rust_original import Original, add_options, ratios, run_workers, timings

#: Changes in one physical step, and the number of measured steps.
BATCHES = {1: 200, 10: 100, 100: 50, 1_000: 30, 10_000: 10, 100_000: 5}
FILES = 8
#: The number of people in the company of `verify`.
VERIFIED = 5_000


def write_people(folder: str, people: int) -> tuple[str, str]:
    """Write a company, and the updates of all its changes, as Parquet files."""
    paths = [os.path.join(folder, f"{name}-{people}") for name in ("manages", "changes")]
    for path in paths:
        os.makedirs(path)
    ends = np.linspace(0, people, FILES + 1).astype(np.int64)
    for number, (first, end) in enumerate(zip(ends, ends[1:])):
        person = np.arange(first, end)
        manages = pa.table({"manager": person // 2, "person": person})
        tables = [manages, moves(max(int(first), 1), int(end))]
        for path, rows in zip(paths, tables):
            pq.write_table(
                rows, f"{path}/{number}.parquet", use_dictionary=False, compression="none"
            )
    return paths[0], paths[1]


def moves(first: int, end: int) -> pa.Table:
    """Return the updates of changes: at time ``person`` a person gets another manager."""
    person = np.arange(first, end)
    return pa.table(
        {
            "manager": np.concatenate((person // 2, person // 3)),
            "person": np.concatenate((person, person)),
            "time": np.concatenate((person, person)),
            "diff": np.repeat([-1, 1], end - first),
        }
    )


def after(frame: DataFrame, moved: int) -> DataFrame:
    """Return the company after the moves of the people up to ``moved``."""
    manager = F.when(F.col("person") <= moved, F.expr("person DIV 3")).otherwise(F.col("manager"))
    return frame.select(manager.alias("manager"), "person")


def plain(frame: DataFrame) -> int:
    """Return the number of pairs, computed from scratch with plain Spark."""
    on = F.col("a.person") == F.col("b.manager")
    return frame.alias("a").join(frame.alias("b"), on).count()


def skip_levels(manages: DiffFrame) -> DiffFrame:
    """Return the maintained pairs."""
    bosses = manages.toDF("boss", "manager")
    return bosses.join(manages, "manager").select("boss", "person")


class Company:
    """A dataflow that counts the pairs. State: new updates, and the sum of the earlier updates.

    The count is ``"lit"`` or ``"pairs"``. The first counts a constant that Spark evaluates in each
    step, which adds some 20 ms to a small step. The second sums the diffs of all pairs on the
    driver, which costs memory in a large step. A plain count of records is no option: it drops
    unused columns, so most changes cancel before the join. The original always receives the pairs,
    so it compares with ``"pairs"``.
    """

    def __init__(self, flow: Dataflow, count: str):
        self.flow = flow
        self._updates: list[pa.Table] = []
        self._sum = Digest(0, 0)
        self._counted = count == "lit"
        manages, self.session = flow.input("manages", "manager long, person long")
        skip = skip_levels(manages)
        answer = skip.select(F.lit(1).alias("one")).count() if self._counted else skip
        self.probe = answer.inspect(self._updates.append, by_table=True).probe()

    def load(self, frame: DataFrame) -> None:
        """Load all people at time 0."""
        self.session.insert(frame)
        self.step(1)

    def change(self, updates: DataFrame | pa.Table, then: int) -> None:
        """Process changes before a time in one step."""
        self.session.update(updates)
        self.step(then)

    def step(self, then: int) -> None:
        """Process all updates before a time."""
        self.session.advance_to(then)
        self.session.flush()
        self.flow.step_while(lambda: self.probe.less_than(then))

    def add(self) -> None:
        """Add the updates of the last step to the sum, outside the measured time."""
        for updates in self._updates:
            if self._counted:
                counts = updates["count"].to_numpy() * updates["diff"].to_numpy()
                self._sum += Digest(int(np.sum(counts)), 0)
            else:
                self._sum += Digest.of_updates(updates)
        self._updates.clear()

    def pairs(self) -> int:
        """Return the current number of pairs."""
        self.add()
        return self._sum.records

    def digest(self) -> Digest | None:
        """Return the digest of the pairs, or None if the dataflow only counts."""
        self.add()
        return None if self._counted else self._sum


def run(
    spark: SparkSession, original: Original, paths: tuple[str, str], people: int, count: str
) -> dict[str, Any]:
    """Measure the load, all batch sizes, all changes in a new dataflow, and the original."""
    frame, all_changes = (spark.read.parquet(path) for path in paths)
    with Memory() as memory:
        before, expected = seconds(lambda: plain(frame))
        with Dataflow(spark) as flow:
            company = Company(flow, count)
            load_seconds, _ = seconds(lambda: company.load(frame))
            right = company.pairs() == expected
            loaded = company.digest()
            state = sum(trace.size for trace in flow._state.traces.values())
            later, _ = seconds(lambda: plain(frame))
            plain_seconds = statistics.median([before, later])
            rows, moved = batches(company, people, plain_seconds)
            right = right and company.pairs() == plain(after(frame, moved))
            changed = company.digest()
        with Dataflow(spark) as flow:
            company = Company(flow, count)
            again, _ = seconds(lambda: company.load(frame))
            company.add()
            all_seconds, _ = seconds(lambda: company.change(all_changes, people))
            right = right and company.pairs() == plain(after(frame, people))
            finished = company.digest()
    load_median = statistics.median([load_seconds, again])
    print(f"  {people - 1:>7} changes: {all_seconds * 1e3:9.2f} ms", flush=True)
    shapes = [(row["changes"], row["steps"]) for row in rows]
    theirs = run_workers(original, "skip_level", *paths, shapes, (loaded, changed))
    theirs += run_workers(original, "skip_level", *paths, [(people - 1, 1)], (loaded, finished))
    medians = {row["changes"]: row["median_ms"] for row in rows}
    medians[people - 1] = all_seconds * 1e3
    return {
        "people": people,
        "count": count,
        "plain_seconds": [round(before, 2), round(later, 2)],
        "load_seconds": [round(load_seconds, 2), round(again, 2)],
        "load_over_plain": round(load_median / plain_seconds, 2),
        "all_changes_seconds": round(all_seconds, 2),
        "all_changes_over_load": round(all_seconds / load_median, 2),
        "agrees_with_plain": right,
        "state_bytes": state,
        "state_over_raw_columns": round(state / (16 * people), 3),
        "peak_gib": memory.gigabytes(),
        "changes": rows,
        "original": theirs,
        "ratios": ratios(load_median, medians, timings(theirs)),
    }


def batches(
    company: Company, people: int, plain_seconds: float
) -> tuple[list[dict[str, Any]], int]:
    """Measure all batch sizes while there are people to move. Also return the last moved person."""
    rows: list[dict[str, Any]] = []
    next_person = 1
    for changes, repeats in BATCHES.items():
        times, read = [], []
        for _ in range(min(repeats, (people - next_person) // changes)):
            end = next_person + changes
            took, _ = seconds(lambda: company.change(moves(next_person, end), end))
            company.add()
            next_person = end
            times.append(took)
            read.append(company.flow.last_report.rows_in + company.flow.last_report.rows_read)
        if not times:
            continue
        middle = statistics.median(times)
        rows.append(
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
    return rows, next_person - 1


def verify(spark: SparkSession, runner: str) -> None:
    """Compare the pairs of a small company at a few times.

    The number of pairs is not enough: it never changes, because each person has one manager.
    """
    tables: list[pa.Table] = []
    person = np.arange(VERIFIED)
    with Dataflow(spark, runner=runner) as flow:
        manages, session = flow.input("manages", "manager long, person long")
        skip = skip_levels(manages)
        skip.inspect(tables.append, by_table=True)
        probe = skip.probe()
        session.insert(pa.table({"manager": person // 2, "person": person}))
        first = 1
        for end in (1, 2, 3, 50, VERIFIED // 2, VERIFIED):
            if end > first:
                session.update(moves(first, end))
            session.advance_to(end)
            session.flush()
            flow.step_while(lambda: probe.less_than(end))
            first = end
    updates = pa.concat_tables(tables).to_pandas()
    for at in (0, 1, 2, 3, 10, 60, VERIFIED // 2, VERIFIED - 1):
        manager = np.where(person <= at, person // 3, person // 2)
        expected = pd.Series(1, pd.MultiIndex.from_arrays([manager[manager], person]))
        now = updates[updates["time"] <= at].groupby(["boss", "person"])["diff"].sum()
        if not now[now != 0].sort_index().equals(expected.sort_index()):
            raise SystemExit(f"the pairs at time {at} are wrong (runner {runner!r})")


def limits(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the limits of the largest company, as ratios inside this run."""
    small, large = results[0], results[-1]

    def median(result: dict[str, Any], changes: int) -> float | None:
        medians = [row["median_ms"] for row in result["changes"] if row["changes"] == changes]
        return medians[0] / 1e3 if medians else None

    def over(value: float | None, base: float | None) -> float | None:
        return None if value is None or not base else round(value / base, 3)

    at_most: list[tuple[str, float | None, float]] = [
        ("load / plain self-join", large["load_over_plain"], 2.5),
        ("all changes in one step / load", large["all_changes_over_load"], 8),
        (
            "100,000 changes / load",
            over(median(large, 100_000), statistics.median(large["load_seconds"])),
            1 / 8,
        ),
        (
            f"one change, {large['people']:,} / {small['people']:,} people",
            over(median(large, 1), median(small, 1)),
            1.5,
        ),
    ]
    change_speedup = over(statistics.median(large["plain_seconds"]), median(large, 1))
    rows = [_limit(what, value, "at most", limit) for what, value, limit in at_most]
    return [*rows, _limit("plain self-join / one change", change_speedup, "at least", 100)]


def _limit(what: str, value: float | None, way: str, limit: float) -> dict[str, Any]:
    compare: Callable[[float], bool] = (
        (lambda v: v <= limit) if way == "at most" else (lambda v: v >= limit)
    )
    holds = "not measured" if value is None else "yes" if compare(value) else "NO"
    return {"ratio": what, "measured": value, "limit": f"{way} {limit:g}", "holds": holds}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=int, default=[10_000, 10_000_000])
    parser.add_argument("--count", choices=("lit", "pairs"), default="lit",
                        help="count a constant for each pair, or pairs as they come to the driver")
    add_options(parser)
    parser.add_argument("--json", default="benchmarks/results/skip_level.json")
    parser.add_argument("--folder", help="where generated data goes; a temporary one if not given")
    options = parser.parse_args()
    original = Original.built(options.original)
    spark = pyspark_diff.session("benchmark skip level")
    spark.sparkContext.setLogLevel("ERROR")
    results = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        warm = write_people(os.path.join(folder, "warm"), 1000)
        run(spark, Original(), warm, 1000, options.count)  # compiles kernels and warms the JVM
        for runner in ("local", "spark"):
            verify(spark, runner)  # warms the Python workers as well
        for people in options.sizes:
            paths = write_people(folder, people)
            print(f"{people:,} people", flush=True)
            result = run(spark, original, paths, people, options.count)
            results.append(result)
            print(
                f"  load {result['load_seconds']} s = {result['load_over_plain']} x plain Spark "
                f"{result['plain_seconds']} s; all changes {result['all_changes_over_load']} x "
                f"load; peak GiB {result['peak_gib']}; state {result['state_bytes']:,} bytes",
                flush=True,
            )
            if not result["agrees_with_plain"]:
                raise SystemExit("the number of pairs differs from plain Spark's")
    for result in results:
        print(f"\n{result['people']:,} people")
        print(table(result["changes"]))
        if result["ratios"]:
            print(f"\n{table(result['ratios'])}")
    print()
    checks = limits(results)
    print(table(checks))
    save(options.json, {"runs": results, "limits": checks})
    if any(row.get("agrees_with_ours") is False for run in results for row in run["original"]):
        raise SystemExit("the pairs differ from the original's")


if __name__ == "__main__":
    main()
