"""Progress and cancellation of a breadth-first search that Spark loads.

    python benchmarks/live.py            # 1M nodes / 10M edges
    python benchmarks/live.py --quick    # 10k nodes / 100k edges

The first part measures how often progress moves, and the longest time without a move. The second
part cancels a step during the load. It measures how long the step takes to end, and whether it
leaves files. The third part measures a load with and without the bridge, which reads Spark's state.

The runs with and without the bridge take turns, so quote their ratio: absolute times depend on the
machine.
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

#: Seconds between two reads of the progress.
LOOK = 0.05


@contextmanager
def fed(spark: SparkSession, graph: Graph, root: str) -> Iterator[Dataflow]:
    """Yield a dataflow with the graph as input, before its first step."""
    with Dataflow(spark, runner="spark", root=root) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        graphs.bfs(edges, roots).keep("distances")
        roots_in.insert([(ROOT,)])
        edges_in.insert(spark.read.parquet(graph.path))
        for session_in in (edges_in, roots_in):
            session_in.advance_to(1)
        yield flow


def watched(spark: SparkSession, graph: Graph, root: str) -> dict[str, Any]:
    """Measure how progress moves during the load."""
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
        # The numbers of the running step without the clock.
        live = [(at, progress._replace(seconds=0.0)) for at, progress in looks if progress.running]
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
            "frontier_ahead": sum(progress.frontier != start for _, progress in live),
        }


def _numbers(progress: Progress) -> list[float]:
    return [value for value in progress if isinstance(value, (int, float))]


def _counts(progress: Progress) -> Progress:
    """Return progress without the task seconds, which only show that tasks run."""
    return progress._replace(task_seconds=0.0)


def cancelled(spark: SparkSession, graph: Graph, root: str, after: float) -> dict[str, Any]:
    """Cancel a step after some seconds, and measure how long it takes to end."""
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
    """Return the seconds of the load, with or without the bridge."""
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
        loaded(spark, graph, root, True)  # compiles kernels
        result: dict[str, Any] = {"nodes": nodes, "edges": edges}
        pairs = [
            (loaded(spark, graph, root, True), loaded(spark, graph, root, False))
            for _ in range(arguments.pairs)
        ]
        spark.conf.set("spark.pyspark_diff.bridge", "true")
        result["watched"] = watched(spark, graph, root)
        moments = np.linspace(0, result["watched"]["seconds"], arguments.cancels + 2)[1:-1]
        result["cancelled"] = [cancelled(spark, graph, root, float(at)) for at in moments]
        ratios = sorted(with_ / without for with_, without in pairs)
        result["with_over_without"] = {
            "median": round(float(np.median(ratios)), 3), "least": round(ratios[0], 3),
            "most": round(ratios[-1], 3), "seconds": [[round(s, 2) for s in p] for p in pairs],
        }
    print(table([result["watched"]]))
    print(table(result["cancelled"]))
    print("load with the bridge over without:", result["with_over_without"])
    if arguments.json:
        save(arguments.json, result)


if __name__ == "__main__":
    main()
