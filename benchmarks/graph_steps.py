"""The cost of one changed edge for each algorithm of `pyspark_diff.graphs`, against a new load.

    python benchmarks/graph_steps.py                      # 100k nodes / 1M edges
    python benchmarks/graph_steps.py --only bfs k_core

The benchmark loads a random graph, then replaces one edge per step. At the end it loads the final
graph into a new dataflow of the same program. The answers must be equal, and the seconds of that
load are the time from scratch. Algorithms that do more than follow edges have a smaller graph.
Absolute times depend on the machine: quote ratios.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any, Callable

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from measure import save, seconds, table
from pyspark_diff import Dataflow, DiffFrame, graphs, session

SEED = 20
ROOT = [0]


def components(edges: DiffFrame) -> DiffFrame:
    """Connected components, by messages."""
    return graphs.pregel(
        edges, initial={"component": F.col("node")}, aggregate=F.min("msg"),
        to_dst=F.col("src.component"), to_src=F.col("dst.component"),
        update={"component": F.least("component", "msg")},
    )


Algorithm = Callable[[DiffFrame], DiffFrame]
#: Each algorithm, and the divisors of the nodes and edges of its graph.
ALGORITHMS: dict[str, tuple[Algorithm, int, int]] = {
    "degrees": (graphs.degrees, 1, 1),
    "reachability": (lambda edges: graphs.reachability(edges, ROOT), 1, 1),
    "bfs": (lambda edges: graphs.bfs(edges, ROOT), 1, 1),
    "shortest_paths": (lambda edges: graphs.shortest_paths(edges, ROOT), 1, 1),
    "connected_components": (graphs.connected_components, 1, 1),
    "strongly_connected_components": (graphs.strongly_connected_components, 1, 1),
    "k_core": (lambda edges: graphs.k_core(edges, 10), 1, 1),
    "triangles": (graphs.triangles, 10, 10),
    "local_clustering": (graphs.local_clustering, 10, 10),
    "find": (lambda edges: graphs.find(edges, "(a)-[e]->(b); !(b)-[]->(a)"), 10, 10),
    "pregel": (components, 10, 10),
    "pagerank": (lambda edges: graphs.pagerank(edges, rounds=5), 10, 10),
    "label_propagation": (graphs.label_propagation, 10, 10),
    # If most nodes reach most others, the answer is all pairs.
    "transitive_closure": (graphs.transitive_closure, 10, 125),
}


def loaded(flow: Dataflow, algorithm: Algorithm, rows: np.ndarray) -> tuple[Any, DiffFrame, float]:
    """Load edges into a program. Return its session, its answer, and the seconds of the load."""
    edges, edges_in = flow.input("edges", "src long, dst long, weight long")
    answer = algorithm(edges).keep()

    def load() -> None:
        edges_in.insert(pa.table(dict(zip(("src", "dst", "weight"), rows.T))))
        flow.advance_to(1)

    return edges_in, answer, seconds(load)[0]


def digest(answer: DiffFrame, at: int) -> tuple[int, int]:
    """Return the number of records, and the sum of their hashes."""
    row = answer.at(at).selectExpr(
        "count(*)", f"sum(CAST(xxhash64({', '.join(answer.columns)}) AS DECIMAL(38, 0)))"
    ).first()
    assert row is not None
    return row[0], int(row[1] or 0)


def measure(
    spark: SparkSession, name: str, nodes: int, edges: int, steps: int
) -> dict[str, Any]:
    """Measure the row of an algorithm."""
    algorithm, fewer_nodes, fewer_edges = ALGORITHMS[name]
    nodes, edges = max(20, nodes // fewer_nodes), max(20, edges // fewer_edges)
    choice = np.random.default_rng(SEED)
    rows = np.column_stack([
        *choice.integers(0, nodes, (2, edges + steps)), choice.integers(1, 10, edges + steps)
    ])
    took = []
    with Dataflow(spark) as flow:
        edges_in, answer, load = loaded(flow, algorithm, rows[:edges])
        for step in range(steps):
            def replace() -> None:
                edges_in.remove([tuple(rows[step].tolist())])
                edges_in.insert([tuple(rows[edges + step].tolist())])
                flow.advance_to(step + 2)

            took.append(seconds(replace)[0])
        digest_of_steps = digest(answer, steps)
    with Dataflow(spark) as flow:
        _, answer, scratch = loaded(flow, algorithm, rows[steps:])
        if digest(answer, 0) != digest_of_steps:
            raise AssertionError(f"{name}: the steps and the load from scratch differ")
    median = statistics.median(took)
    return {
        "algorithm": name, "nodes": nodes, "edges": edges, "records": digest_of_steps[0],
        "load_seconds": round(load, 2), "scratch_seconds": round(scratch, 2),
        "median_ms": round(median * 1e3, 1), "min_ms": round(min(took) * 1e3, 1),
        "max_ms": round(max(took) * 1e3, 1), "scratch_over_step": round(scratch / median),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--json", default="benchmarks/results/graph_steps.json")
    arguments = parser.parse_args()
    spark = session("graph steps", memory="2g", conf={"spark.ui.enabled": False})
    spark.sparkContext.setLogLevel("ERROR")
    rows = []
    for name in arguments.only:
        measure(spark, name, 1_000, 5_000, 3)  # compiles kernels and warms the JVM
        rows.append(measure(spark, name, arguments.nodes, arguments.edges, arguments.steps))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        save(arguments.json, {"steps": arguments.steps, "algorithms": rows})
    print(table(rows))
    spark.stop()


if __name__ == "__main__":
    main()
