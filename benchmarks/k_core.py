"""The 5-core of a graph under changes, beside a plain Spark loop in the same session, and GraphX.

    python benchmarks/k_core.py                           # 1M nodes / 5M edges
    python benchmarks/k_core.py --large --graphx          # and 10M / 50M, with fewer changes

Load a random graph from Parquet, then replace edges: each replacement is one removal and one
insertion at a logical time of its own, and a number of them is processed in one physical step.
Every row is a fresh dataflow that makes all replacements, in batches of one size; a row that takes
too long is stopped, and says how far it came. Seconds of ours and of the others come from one run,
so quote their ratios: absolute times depend on the machine.

The graph is taken as undirected and simple. The plain loop, and GraphX, are given the simple graph:
our load makes it, and their time does not have it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from typing import Any

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
from plain_graphs import BASELINES, LIMIT, GraphX, K
from pyspark_diff import DiffFrame, graphs

#: The graph of ``--large``, and its one row.
LARGE = (10_000_000, 50_000_000, [(1_000, 10_000)])


class Core(Program):
    """The edges of the k-core."""

    small = (60, 200)

    def define(self, edges: DiffFrame) -> DiffFrame:
        """The k-core."""
        return graphs.k_core(edges, K)

    @staticmethod
    def expected(edges: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """The k-core by hand."""
        core = {(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]}
        while True:
            degrees = Counter(node for edge in core for node in edge)
            left = {edge for edge in core if min(degrees[node] for node in edge) >= K}
            if left == core:
                return Counter(core)
            core = left


def ratios(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What the runs over one graph are judged by."""
    plain, load = result["plain_mean_seconds"], load_seconds(result)
    rows = [ratio("load / plain", load, plain)]
    for row in result["rows"]:
        if row["median_ms"] is None:
            continue
        batch = row["rounds_per_batch"]
        if batch > 1:
            rows.append(ratio(f"a batch of {batch:,} / load", row["median_ms"] / 1e3, load))
    one = complete(result, 1)
    if one is not None:
        rows.append(ratio("plain / one replacement", plain, one["median_ms"] / 1e3))
    graphx = result.get("graphx", {}).get("seconds")
    if graphx:
        rows.append(ratio("load / GraphX", load, graphx))
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="*", type=size, metavar="NODES:EDGES",
                        default=[(1_000_000, 5_000_000)])
    parser.add_argument("--large", action="store_true", help="load 10M nodes, 50M edges as well")
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
    parser.add_argument("--json", default="benchmarks/results/k_core.json")
    parser.add_argument("--folder", help="where generated graphs go; a temporary one if not given")
    options = parser.parse_args()
    baseline = BASELINES["k_core"]
    spark = pyspark_diff.session("benchmark k-core")
    spark.sparkContext.setLogLevel("ERROR")
    wanted = shapes(options.changes, options.rows, options.singles)
    todo = [(*found, wanted) for found in options.sizes]
    if options.large:
        todo.append(LARGE)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        graphx = GraphX(folder, options.limit) if options.graphx else None
        for runner in ("local", "spark"):
            verify(spark, Core, folder, runner)  # warms the Python workers as well
        warm = write_graph(os.path.join(folder, "warm"), 100, 500, 200)
        run_graph(spark, Core, baseline, warm, shapes(200, [20, 200], 20), options.limit)
        for nodes, edges, rows in todo:
            graph = write_graph(folder, nodes, edges, max(end for _, end in rows))
            print(f"{nodes:,} nodes, {edges:,} edges", flush=True)
            result = run_graph(
                spark, Core, baseline, graph, rows, options.limit, options.recompute
            )
            if graphx is not None:
                result["graphx"] = run_graphx(
                    graphx, baseline, graph, warm, result, rows, options.recompute
                )
            result["ratios"] = ratios(result)
            results.append(result)
            save(options.json, {"k": K, "changes": options.changes, "runs": results})
    for result in results:
        print(f"\n{result['nodes']:,} nodes, {result['edges']:,} edges")
        print(f"plain Spark {result['plain_seconds']} s\n")
        show_rows(result)
        print(table(result["ratios"]))
    if not all_right(results):
        raise SystemExit("a row differs from plain Spark's answer")


if __name__ == "__main__":
    main()
