"""TPC-H as maintained views, and as plain Spark SQL over cached tables in the same session.

    python benchmarks/tpch.py                             # all queries at scale factor 1; hours
    python benchmarks/tpch.py 3 9 --scale 0.1 --physical 0 100000 --together
    python benchmarks/tpch.py --scale 0.1 --texts         # from SQL text and by operators

The records of all tables come round-robin (`examples/tpch/tpch_stream.py`). Each row measures a new
dataflow that reads the whole stream in steps of a number of rounds, with one time per round or per
step. Then each step deletes or restores an order and its lineitems. Plain Spark computes the query
once, from scratch. Quote ratios: absolute times depend on the machine.

With `--texts`, one run measures each query twice: written with operators, and as the text of
`flow.sql`. New dataflows take turns. Their steps run on the driver only, so the figures are the
least processor time of the driver over the repeats.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pyarrow as pa
from pyspark.sql import SparkSession

import pyspark_diff
from graph_rows import Overrun, at_most
from measure import Memory, save, seconds, table
from plain_graphs import LIMIT
from pyspark_diff import Dataflow

sys.path.append(str(Path(__file__).parent.parent / "examples" / "tpch"))

import run  # noqa: E402
from tpch_stream import CACHE, Stream, generated  # noqa: E402

#: The number of orders that change, one per step.
CHANGED = 30
#: Heap of the JVM, which caches plain Spark's tables.
HEAP = "5g"
#: The column with the order of a row.
ORDER = {"orders": "o_orderkey", "lineitem": "l_orderkey"}
#: How often each form of a query is measured, with --texts.
REPEATS = 3
#: The files of results, without and with --texts.
RESULTS, TEXT_RESULTS = (f"benchmarks/results/{name}.json" for name in ("tpch", "tpch_texts"))


class Answers:
    """Queries over a stream. State: a dataflow, and the number of its output updates.

    Parameters
    ----------
    spark : SparkSession
    flow : Dataflow
    numbers : list of int
        The numbers of the queries.
    stream : Stream
    """

    def __init__(
        self, spark: SparkSession, flow: Dataflow, numbers: list[int], stream: Stream
    ):
        self.flow, self.numbers, self.stream = flow, numbers, stream
        self.shown = 0
        self._write(run.schema_of(stream, spark))
        for number in numbers:
            flow[f"q{number:02}"].inspect(self._count, by_table=True)

    def _write(self, schemas: dict[str, str]) -> None:
        run.program(self.numbers, schemas)(self.flow)

    def _count(self, updates: pa.Table) -> None:
        self.shown += updates.num_rows

    def take(self, physical: int, logical: int) -> None:
        """Feed the whole stream to the dataflow."""
        for first, stop in run.steps(0, self.stream.rounds, physical):
            run.feed(self.flow, self.stream, first, stop, logical)

    def right(self) -> bool:
        """Return whether all answers at the end equal DuckDB's."""
        return all(
            run.agrees(number, self.stream, self.stream.rounds,
                       self.flow[f"q{number:02}"].at().collect())
            for number in self.numbers
        )

    def change(self, clock: Callable[[], float] = time.perf_counter) -> list[float]:
        """Return the seconds of steps that delete or restore an order, by a clock."""
        durations = []
        now = self.flow.session(next(iter(self.stream.changes))).time()
        for updates in self._orders():
            for diff in (-1, 1):
                for name, rows in updates.items():
                    count = rows.num_rows
                    self.flow.session(name).update(
                        rows.append_column("time", pa.array([now] * count, pa.int64()))
                        .append_column("diff", pa.array([diff] * count, pa.int64()))
                    )
                now += 1
                started = clock()
                self.flow.advance_to(now)
                durations.append(clock() - started)
        return durations

    def _orders(self) -> list[dict[str, pa.Table]]:
        """Return orders with their lineitems, or other records if the query reads neither."""
        changes = {name: change for name, change in self.stream.changes.items()
                   if name not in ("nation", "region")}
        ours = {name: key for name, key in ORDER.items() if name in changes}
        if not ours:
            name = max(changes, key=lambda name: changes[name].records.num_rows)
            records = changes[name].records
            stride = records.num_rows // CHANGED
            return [{name: records.slice(n * stride, 1)} for n in range(CHANGED)]
        first = next(iter(ours))
        column = changes[first].records[ours[first]].to_numpy()
        orders = []
        for n in range(CHANGED):
            order = column[n * (column.size // CHANGED)]
            orders.append({
                name: records.filter(pa.array(records[key].to_numpy() == order))
                for name, key in ours.items() for records in [changes[name].records]
            })
        return orders


class Texts(Answers):
    """The same queries, written as their texts."""

    def _write(self, schemas: dict[str, str]) -> None:
        for name, schema in schemas.items():
            self.flow.input(name, schema)
        for number in self.numbers:
            self.flow.sql(run.sql(number)).keep(f"q{number:02}")


def text_row(spark: SparkSession, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the load and a changed order of a query, as text and with operators."""
    forms = {"operators": Answers, "text": Texts}
    least: dict[tuple[str, str], float] = {}
    right = True
    warm = stream_of([number], 0.01, options)
    whole = stream_of([number], options.scale, options)
    for repeat, stream in enumerate([warm, *[whole] * REPEATS]):
        for form, kind in forms.items():
            with Dataflow(spark) as flow:
                answers = kind(spark, flow, [number], stream)
                gc.collect()  # the garbage of the other form
                started = time.process_time()
                answers.take(stream.rounds, stream.rounds)
                load = time.process_time() - started
                change = statistics.fmean(answers.change(time.process_time)) * 1e3
                if repeat < 2:
                    right = right and answers.right()
            if repeat:
                for what, took in (("load", load), ("change", change)):
                    least[what, form] = min(took, least.get((what, form), took))
    row: dict[str, Any] = {"query": number}
    for what, unit in (("load", "seconds"), ("change", "ms")):
        row |= {f"{what}_{unit}_{form}": round(least[what, form], 3) for form in forms}
        row[f"{what}_ratio"] = round(least[what, "text"] / least[what, "operators"], 2)
    return {**row, "right": right}


def text_sum(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of the rows of `text_row`, and their ratios."""
    total: dict[str, Any] = {"query": "sum"}
    for what, unit in (("load", "seconds"), ("change", "ms")):
        operators, text = (
            sum(row[f"{what}_{unit}_{form}"] for row in rows) for form in ("operators", "text")
        )
        total |= {f"{what}_{unit}_operators": round(operators, 3),
                  f"{what}_{unit}_text": round(text, 3),
                  f"{what}_ratio": round(text / operators, 2)}
    return {**total, "right": all(row["right"] for row in rows)}


def compare_texts(spark: SparkSession, numbers: list[int], options: argparse.Namespace) -> None:
    """Measure queries as text and with operators. Print a table, and save the rows."""
    rows: list[dict[str, Any]] = []
    for number in numbers:
        rows.append(text_row(spark, number, options))
        print(rows[-1], flush=True)
    rows.append(text_sum(rows))
    save(options.json or TEXT_RESULTS, {"scale": options.scale, "queries": rows})
    print(table(rows))
    if not rows[-1]["right"]:
        raise SystemExit("an answer differs from DuckDB's")


def one_row(
    spark: SparkSession, numbers: list[int], stream: Stream, physical: int, each_round: bool,
    limit: float, change: bool = False,
) -> dict[str, Any]:
    """Measure the whole stream in a new dataflow."""
    updates = sum(changes.rounds.size for changes in stream.changes.values())
    times = "of each round" if each_round else "one a step"
    row: dict[str, Any] = {"physical": physical, "times": times}
    try:
        with Memory() as memory, at_most(limit), Dataflow(spark) as flow:
            answers = Answers(spark, flow, numbers, stream)
            took, _ = seconds(lambda: answers.take(physical, 1 if each_round else physical))
            row |= {"seconds": round(took, 2), "tuples_per_second": int(updates / took),
                    "shown": answers.shown, "right": answers.right()}
            if change:
                steps = answers.change()
                row["changed_order_ms"] = round(statistics.median(steps) * 1e3, 2)
                row["right"] = row["right"] and answers.right()
    except Overrun:
        row["seconds"] = f"more than {limit:g}"
    return {**row, "peak_gib": memory.gigabytes().get("total")}


def plain_seconds(spark: SparkSession, numbers: list[int], stream: Stream) -> list[float]:
    """Return the seconds of each query from scratch on cached tables, the better of two."""
    frames = {
        name: spark.createDataFrame(changes.before(stream.rounds)).repartition(8).cache()
        for name, changes in stream.changes.items()
    }
    for name, frame in frames.items():
        frame.count()
        frame.createOrReplaceTempView(name)
    try:
        return [
            min(seconds(lambda: spark.sql(run.sql(number)).collect())[0] for _ in range(2))
            for number in numbers
        ]
    finally:
        for frame in frames.values():
            frame.unpersist()


def stream_of(numbers: list[int], scale: float, options: argparse.Namespace) -> Stream:
    """Return the stream of the columns that queries read, at a scale factor."""
    columns = run.columns_of(numbers, generated(scale, options.cache))
    for name, key in ORDER.items():
        if name in columns:
            columns[name] = list(dict.fromkeys([key, *columns[name]]))
    return Stream(scale, columns, options.deletes, options.cache)


def changed_at(
    spark: SparkSession, numbers: list[int], scale: float, options: argparse.Namespace
) -> float:
    """Return the milliseconds of a changed order at another scale factor."""
    stream = stream_of(numbers, scale, options)
    with Dataflow(spark) as flow:
        answers = Answers(spark, flow, numbers, stream)
        answers.take(stream.rounds, stream.rounds)
        return statistics.median(answers.change()) * 1e3


def run_queries(
    spark: SparkSession, numbers: list[int], options: argparse.Namespace,
    plain: list[float] | None = None,
) -> dict[str, Any]:
    """Measure queries in one dataflow, all its rows, and plain Spark unless its time is known."""
    stream = stream_of(numbers, options.scale, options)
    plain = plain or plain_seconds(spark, numbers, stream)
    rows = []
    for physical in dict.fromkeys(
        min(rounds or stream.rounds, stream.rounds) for rounds in options.physical
    ):
        for each_round in (False, True):
            whole = physical == stream.rounds
            row = one_row(
                spark, numbers, stream, physical, each_round, options.limit,
                whole and not each_round,
            )
            row["over_plain"] = (
                round(row["seconds"] / sum(plain), 2) if isinstance(row["seconds"], float) else ""
            )
            rows.append(row)
            print(" ", row, flush=True)
    changed = rows[0].get("changed_order_ms")
    return {
        "queries": numbers,
        "rounds": stream.rounds,
        "plain_seconds": [round(took, 3) for took in plain],
        "plain_over_changed_order": changed and round(sum(plain) / changed * 1e3, 1),
        "rows": rows,
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", type=int, metavar="QUERY", default=[])
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor")
    parser.add_argument("--physical", nargs="*", type=int, metavar="ROUNDS",
                        default=[0, 1_000_000, 100_000, 10_000],
                        help="rounds in a step, one row each; 0 for all at once")
    parser.add_argument("--deletes", action="store_true", help="orders go, and come back")
    parser.add_argument("--together", action="store_true",
                        help="also all these queries in one dataflow")
    parser.add_argument("--smaller", type=float, default=0.1, metavar="SCALE",
                        help="changed orders also at this scale factor; 0 for none")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a row")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where tables are kept")
    parser.add_argument("--texts", action="store_true",
                        help="compare the queries as SQL text with their operators instead")
    parser.add_argument("--json", help=f"the file of results; {RESULTS}, or {TEXT_RESULTS}")
    options = parser.parse_args()
    spark = pyspark_diff.session("benchmark tpch", memory=HEAP)
    spark.sparkContext.setLogLevel("ERROR")
    numbers = options.queries or list(run.QUERIES)
    if options.texts:
        compare_texts(spark, numbers, options)
        return
    results: list[dict[str, Any]] = []
    together: list[dict[str, Any]] = []
    warm = argparse.Namespace(**{**vars(options), "scale": 0.01, "physical": [0, 20_000]})
    for group in [[number] for number in numbers] + [numbers] * options.together:
        print(f"queries {group}, to warm up", flush=True)
        run_queries(spark, group, warm)
        print(f"queries {group}", flush=True)
        whole = len(results) == len(numbers)
        # Plain Spark shares nothing between queries, and cannot cache the columns of all queries.
        known = [took for result in results for took in result["plain_seconds"]] if whole else None
        latest = run_queries(spark, group, options, known)
        changed = latest["rows"][0].get("changed_order_ms")
        if options.smaller and changed:
            latest["changed_order_over_smaller"] = round(
                changed / changed_at(spark, group, options.smaller, options), 2)
        (together if whole else results).append(latest)
        for row, *parts in zip(*(result["rows"] for result in [latest, *results] if whole)):
            took = [part["seconds"] for part in (row, *parts)]
            if all(isinstance(part, float) for part in took):
                row["over_sum"] = round(took[0] / sum(took[1:]), 2)
                print(f"{named(row)}: together {row['over_sum']} of the sum", flush=True)
        save(options.json or RESULTS,
             {"scale": options.scale, "runs": results, "together": together})
    print(table([summary(result) for result in results + together]))
    if not all(row.get("right", True) for result in results + together for row in result["rows"]):
        raise SystemExit("an answer differs from DuckDB's")


def named(row: dict[str, Any]) -> str:
    """Return the label of a row: its rounds per step, and its times."""
    return f"{row['physical']:,} {row['times']}"


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the last table."""
    line: dict[str, Any] = {
        "queries": " ".join(map(str, result["queries"])),
        "plain s": round(sum(result["plain_seconds"]), 2),
    }
    for row in result["rows"]:
        line[named(row)] = row["seconds"]
    return {**line, "changed order ms": result["rows"][0].get("changed_order_ms"),
            "over that at the smaller scale": result.get("changed_order_over_smaller"),
            "plain / changed order": result["plain_over_changed_order"]}


if __name__ == "__main__":
    main()
