"""A breadth-first search that is loaded through Spark while somebody looks on, and cancels.

    python benchmarks/live.py            # 1M nodes / 10M edges
    python benchmarks/live.py --quick    # 10k nodes / 100k edges

How often progress moves, and what the longest time is in which it does not; how long a step takes
to end when it is cancelled at some moments of the load, and whether it leaves files; and what a
step costs with the bridge that looks into Spark, and without it. The runs with and without it take
turns, so quote their ratio: absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Iterator

import numpy as np
from pyspark.sql import SparkSession

from graph_data import Graph, size, write_graph
from measure import save, seconds, table
from plain_graphs import ROOT
from pyspark_diff import Dataflow, Progress, StepCancelledError, graphs
from pyspark_diff.spark.session import session

#: Seconds between two looks.
LOOK = 0.05


@contextmanager
def fed(spark: SparkSession, graph: Graph, root: str) -> Iterator[Dataflow]:
    """A dataflow that has the graph, and has not stepped yet."""
    with Dataflow(spark, runner="spark", root=root) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        graphs.bfs(edges, roots).keep("distances")
        roots_in.insert([(ROOT,)])
        edges_in.insert(spark.read.parquet(graph.path))
        for given in (edges_in, roots_in):
            given.advance_to(1)
        yield flow


def watched(spark: SparkSession, graph: Graph, root: str) -> dict[str, Any]:
    """How progress moves."""
    with fed(spark, graph, root) as flow:
        running = flow.step_async()
        began = time.monotonic()
        looks: list[tuple[float, Progress]] = []
        while not running.done():
            looks.append((time.monotonic() - began, flow.progress()))
            time.sleep(LOOK)
        running.wait()
        took = time.monotonic() - began
        start = looks[0][1].frontier  # nothing is complete before the commit
        # What is seen of the step while it runs: all its numbers, but not the clock.
        live = [(at, seen._replace(seconds=0.0)) for at, seen in looks if seen.running]
        pairs = list(zip(live, live[1:]))
        moves = [at for (_, old), (at, new) in pairs if old != new]
        moved = [at for (_, old), (at, new) in pairs if _counts(old) != _counts(new)]
        return {
            "seconds": round(took, 2),
            "moves_per_second": round(len(moves) / took, 1),
            "longest_rest_seconds": round(max(np.diff([0, *moves, took])), 2),
            "of_counts_alone": round(max(np.diff([0, *moved, took])), 2),
            "times_back": sum(
                any(n < o for o, n in zip(_numbers(old), _numbers(new)))
                for (_, old), (_, new) in pairs
            ),
            "frontier_ahead": sum(seen.frontier != start for _, seen in live),
        }


def _numbers(progress: Progress) -> list[float]:
    return [value for value in progress if isinstance(value, (int, float))]


def _counts(progress: Progress) -> Progress:
    """Without the time that tasks have run, which tells that they run, and no more."""
    return progress._replace(task_seconds=0.0)


def cancelled(spark: SparkSession, graph: Graph, root: str, after: float) -> dict[str, Any]:
    """How long a step takes to end that is cancelled after some seconds."""
    with fed(spark, graph, root) as flow:
        before, frontier = _files(root), flow.progress().frontier
        running = flow.step_async()
        time.sleep(after)
        doing = flow.progress()
        took, ended = seconds(running.cancel)
        try:
            running.wait()
        except StepCancelledError:
            pass
        left = sorted(_files(root) - before)
        time.sleep(3)
        late = sorted(_files(root) - before)
        return {
            "after": round(after, 2), "at": doing.operator, "iterations": doing.iterations,
            "ended": ended, "seconds": round(took, 2), "files_left": len(left),
            "files_3_seconds_later": len(late),
            "as_it_was": flow.progress().frontier == frontier,
        }


def _files(root: str) -> set[str]:
    return {os.path.join(at, name) for at, _, names in os.walk(root) for name in names}


def loaded(spark: SparkSession, graph: Graph, root: str, bridge: bool) -> float:
    """Seconds of the load, with the bridge or without."""
    spark.conf.set("spark.pyspark_diff.bridge", str(bridge).lower())
    with fed(spark, graph, root) as flow:
        return seconds(flow.step)[0]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=size, metavar="NODES:EDGES", default=(1_000_000, 10_000_000))
    parser.add_argument("--cancels", type=int, default=6, metavar="N")
    parser.add_argument("--pairs", type=int, default=5, metavar="N",
                        help="loads with the bridge and without it")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    nodes, edges = (10_000, 100_000) if arguments.quick else arguments.size
    spark = session("live")
    with tempfile.TemporaryDirectory() as folder:
        graph = write_graph(os.path.join(folder, "graph"), nodes, edges, 1)
        root = os.path.join(folder, "state")
        os.mkdir(root)
        loaded(spark, graph, root, True)  # what is compiled first
        found: dict[str, Any] = {"nodes": nodes, "edges": edges}
        pairs = [
            (loaded(spark, graph, root, True), loaded(spark, graph, root, False))
            for _ in range(arguments.pairs)
        ]
        spark.conf.set("spark.pyspark_diff.bridge", "true")
        found["watched"] = watched(spark, graph, root)
        moments = np.linspace(0, found["watched"]["seconds"], arguments.cancels + 2)[1:-1]
        found["cancelled"] = [cancelled(spark, graph, root, float(at)) for at in moments]
        ratios = sorted(with_ / without for with_, without in pairs)
        found["with_over_without"] = {
            "median": round(float(np.median(ratios)), 3), "least": round(ratios[0], 3),
            "most": round(ratios[-1], 3), "seconds": [[round(s, 2) for s in p] for p in pairs],
        }
    print(table([found["watched"]]))
    print(table(found["cancelled"]))
    print("load with the bridge over without:", found["with_over_without"])
    if arguments.json:
        save(arguments.json, found)


if __name__ == "__main__":
    main()
