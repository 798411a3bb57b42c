"""The cost of a store: commits, and the start of the next application.

    python benchmarks/durable.py                 # degrees of 10M nodes / 50M edges
    python benchmarks/durable.py --quick         # 10k nodes / 50k edges

Steps of one row with and without a store take turns in one process, over a small graph and a large
graph: quote their ratio. A second process measures the time from `open` to the end of a step of one
row, and compares it with the load of the same state. The last part makes a thousand commits, and
samples the number of files and the time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from pyspark.sql import SparkSession

import pyspark_diff
from degrees import Changes, distribution, write_graph
from measure import save, seconds, table
from pyspark_diff import Dataflow

#: Measured steps of one row, with a store and as many without.
STEPS = 300
#: Commits of the long run, and the commits after which it takes a sample.
COMMITS, LOOKS = 1000, (100, 250, 500, 750, 1000)


def program(flow: Dataflow) -> None:
    """Define the distribution of degrees."""
    edges, _ = flow.input("edges", "src long, dst long")
    distribution(edges, total=False).keep("degrees")


def load(flow: Dataflow, spark: SparkSession, path: str) -> float:
    """Load a graph, and return the seconds of the step."""
    def first() -> None:
        flow.session("edges").insert(spark.read.parquet(path))
        flow.advance_to(1)

    return seconds(first)[0]


def step_ms(flow: Dataflow, changes: Changes) -> float:
    """Return the milliseconds of a step of one removal and one insertion."""
    rows = changes.take(1)

    def step() -> None:
        flow.session("edges").update(rows)
        flow.advance_to(changes.time)

    return seconds(step)[0] * 1e3


def paired(spark: SparkSession, folder: str, nodes: int, edges: int) -> dict[str, Any]:
    """Measure steps with and without a store, in turns."""
    path = write_graph(folder, nodes, edges)
    store = os.path.join(folder, f"store-{nodes}")
    with Dataflow.open(store, program, spark=spark) as lasting, Dataflow(spark) as passing:
        program(passing)
        loads = [load(lasting, spark, path), load(passing, spark, path)]
        both = [(lasting, Changes(path, nodes)), (passing, Changes(path, nodes))]
        took: list[list[float]] = [[], []]
        for _ in range(STEPS):
            for times, (flow, changes) in zip(took, both):
                times.append(step_ms(flow, changes))
        state = sum(trace.size for trace in lasting._state.traces.values())
    with_, without = map(statistics.median, took)
    again = reopened(store, path, nodes)
    return {
        "nodes": nodes, "edges": edges, "state_mb": round(state / 1e6, 1),
        "step_ms": round(without, 2), "with_commit_ms": round(with_, 2),
        "commit_over_none": round(with_ / without, 2),
        "load_s": round(loads[1], 2), "load_with_commit_s": round(loads[0], 2),
        "open_s": round(again["open"], 2), "open_and_step_s": round(again["both"], 2),
        "going_on_over_load": round(again["both"] / loads[0], 4),
    }


def reopened(store: str, path: str, nodes: int) -> dict[str, float]:
    """Return the seconds of another process to open the store, and to end a step."""
    process = subprocess.run(
        [sys.executable, __file__, "--go-on", store, path, str(nodes)], check=True,
        stdout=subprocess.PIPE, text=True,
    )
    durations: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return durations


def go_on(store: str, path: str, nodes: int) -> None:
    """Open the store in the second process, run a step, and print the seconds."""
    spark = pyspark_diff.session("benchmark durable")
    spark.range(1).collect()  # Spark is up
    opened, flow = seconds(lambda: Dataflow.open(store, program, spark=spark))
    with flow:
        changes = Changes(path, nodes)
        changes.time = flow.session("edges").time()
        stepped = step_ms(flow, changes) / 1e3
    print(json.dumps({"open": opened, "both": opened + stepped}))


def long_run(spark: SparkSession, folder: str) -> list[dict[str, Any]]:
    """Measure samples of a thousand commits."""
    path, store = write_graph(folder, 1_000, 5_000), os.path.join(folder, "long")
    rows, took = [], []
    with Dataflow.open(store, program, spark=spark) as flow:
        load(flow, spark, path)
        changes = Changes(path, 1_000)
        for number in range(1, COMMITS + 1):
            took.append(step_ms(flow, changes))
            if number in LOOKS:
                files = [os.path.join(at, name) for at, _, names in os.walk(store)
                         for name in names]
                rows.append({
                    "commits": number,
                    "median_ms_of_last_50": round(statistics.median(took[-50:]), 2),
                    "longest_ms_of_last_50": round(max(took[-50:]), 2),
                    "files": len(files),
                    "kb": round(sum(map(os.path.getsize, files)) / 1e3),
                })
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", default=["10000:50000", "10000000:50000000"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", help="where graphs and stores go; a temporary one if not given")
    parser.add_argument("--go-on", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.go_on:
        go_on(options.go_on[0], options.go_on[1], int(options.go_on[2]))
        return
    spark = pyspark_diff.session("benchmark durable")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        paired(spark, folder, 100, 1000)  # compiles kernels and warms the JVM
        sizes = options.sizes[:1] if options.quick else options.sizes
        pairs = [paired(spark, folder, *map(int, size.split(":"))) for size in sizes]
        print(table(pairs))
        rows = long_run(spark, folder)
        print(table(rows))
    if options.json:
        save(options.json, {"pairs": pairs, "long": rows})


if __name__ == "__main__":
    main()
