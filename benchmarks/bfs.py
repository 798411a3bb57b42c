"""Breadth-first search under changes, beside a plain Spark loop in the same session, and GraphX.

    python benchmarks/bfs.py                              # 1k nodes / 2k edges, then 1M / 10M
    python benchmarks/bfs.py --sizes 10000:50000 --changes 10000 --rows 100 10000 --graphx

Load a random graph from Parquet, then replace edges: each replacement is one removal and one
insertion at a logical time of its own, and a number of them is processed in one physical step.
Every row is a fresh dataflow that makes all replacements, in batches of one size; a row that takes
too long is stopped, and says how far it came. Seconds of ours and of the others come from one run,
so quote their ratios: absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import pyspark_diff
from graph_data import size, write_graph
from graph_rows import (
    Program,
    all_right,
    complete,
    load_seconds,
    ratio,
    run_graph,
    run_graphx,
    shapes,
    show_rows,
    verify,
)
from measure import save, table
from plain_graphs import BASELINES, LIMIT, ROOT, GraphX
from pyspark_diff import DiffFrame, graphs


class Distances(Program):
    """Distances from the root, and how many nodes there are at each, as in the original."""

    small = (200, 400)

    def define(self, edges: DiffFrame) -> DiffFrame:
        """Breadth-first search."""
        roots, roots_in = self.flow.input("roots", "node long")
        roots_in.insert([(ROOT,)])
        self.sessions.append(roots_in)
        return graphs.bfs(edges, roots)

    def keep(self) -> None:
        """Keep the distances, and follow the number of nodes at each."""
        super().keep()
        self._nodes: Counter[int] = Counter()
        counts = self.answer.groupBy("distance").count()
        self.probes.append(counts.inspect(self._count, by_table=True).probe())

    def _count(self, updates: pa.Table) -> None:
        distance, count, _, diff = (updates[name] for name in updates.column_names)
        changes = pa.table({"distance": distance, "nodes": _times(count, diff)})
        for found in changes.group_by("distance").aggregate([("nodes", "sum")]).to_pylist():
            self._nodes[found["distance"]] += found["nodes_sum"]

    def counted(self, answer: DataFrame) -> bool:
        """Whether the numbers of nodes that were shown add up to those of the distances."""
        found = {row[0]: row[1] for row in answer.groupBy("distance").count().collect()}
        return found == {distance: nodes for distance, nodes in self._nodes.items() if nodes}

    @staticmethod
    def expected(edges: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """Breadth-first search by hand."""
        following: dict[int, list[int]] = {}
        for src, dst in edges:
            following.setdefault(src, []).append(dst)
        distances, queue = {ROOT: 0}, [ROOT]
        for node in queue:
            for other in following.get(node, []):
                if other not in distances:
                    distances[other] = distances[node] + 1
                    queue.append(other)
        return Counter(distances.items())


def _times(a: pa.ChunkedArray, b: pa.ChunkedArray) -> pa.Array:
    return pa.array(a.to_numpy() * b.to_numpy())


def ratios(result: dict[str, Any], changes: int) -> list[dict[str, Any]]:
    """What the runs over one graph are judged by."""
    plain, load = result["plain_mean_seconds"], load_seconds(result)
    ten, whole = complete(result, changes // 10), complete(result, changes)
    single = complete(result, 1)
    one = single["median_ms"] / 1e3 if single else None
    rows = [
        ratio("load / plain", load, plain),
        ratio("(load + all changes in one batch) / plain", _with_load(whole), plain),
        ratio("ten batches / plain", ten["seconds"] if ten else None, plain),
        ratio("(load + ten batches) / plain", _with_load(ten), plain),
        ratio("plain / one replacement", plain, one),
    ]
    graphx = result.get("graphx", {}).get("seconds")
    if graphx:
        rows.append(ratio("load / GraphX", load, graphx))
        rows.append(ratio("GraphX / one replacement", graphx, one))
    return rows


def _with_load(row: dict[str, Any] | None) -> float | None:
    return row["load_seconds"] + row["seconds"] if row else None


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=size, metavar="NODES:EDGES",
                        default=[(1_000, 2_000), (1_000_000, 10_000_000)])
    parser.add_argument("--changes", type=int, default=1_000_000, help="replacements in each row")
    parser.add_argument("--rows", nargs="*", type=int, metavar="ROUNDS",
                        default=[1_000, 10_000, 100_000, 1_000_000],
                        help="replacements in a batch, one row each")
    parser.add_argument("--singles", type=int, default=50,
                        help="steps of the row with single replacements; 0 for none")
    parser.add_argument("--limit", type=float, default=LIMIT,
                        help="seconds after which a row, or a run of GraphX, is stopped")
    parser.add_argument("--recompute", type=float, default=LIMIT, metavar="SECONDS",
                        help="the same for a row of plain Spark or GraphX; 0 for none of these")
    parser.add_argument("--graphx", action="store_true", help="run GraphX as well")
    parser.add_argument("--json", default="benchmarks/results/bfs.json")
    parser.add_argument("--folder", help="where generated graphs go; a temporary one if not given")
    options = parser.parse_args()
    baseline = BASELINES["bfs"]
    spark = pyspark_diff.session("benchmark bfs")
    spark.sparkContext.setLogLevel("ERROR")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        graphx = GraphX(folder, options.limit) if options.graphx else None
        for runner in ("local", "spark"):
            verify(spark, Distances, folder, runner)  # warms the Python workers as well
        warm = write_graph(os.path.join(folder, "warm"), 100, 300, 200)
        run_graph(spark, Distances, baseline, warm, shapes(200, [20, 200], 20), options.limit)
        for nodes, edges in options.sizes:
            graph = write_graph(folder, nodes, edges, max(options.changes, options.singles))
            print(f"{nodes:,} nodes, {edges:,} edges", flush=True)
            wanted = shapes(options.changes, options.rows, options.singles)
            result = run_graph(
                spark, Distances, baseline, graph, wanted, options.limit, options.recompute
            )
            if graphx is not None:
                result["graphx"] = run_graphx(
                    graphx, baseline, graph, warm, result, wanted, options.recompute
                )
            result["ratios"] = ratios(result, options.changes)
            results.append(result)
            save(options.json, {"changes": options.changes, "runs": results})
    for result in results:
        print(f"\n{result['nodes']:,} nodes, {result['edges']:,} edges")
        print(f"plain Spark {result['plain_seconds']} s\n")
        show_rows(result)
        print(table(result["ratios"]))
    if not all_right(results):
        raise SystemExit("a row differs from plain Spark's answer")


if __name__ == "__main__":
    main()
