"""The command line of a benchmark of a graph program.

Each row is a new dataflow with all replacements in batches of one size. A row stops at its time
limit, and reports its progress. Then come the same rows for plain Spark, GraphX if requested, and
the original if it builds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Callable

import pyspark_diff
from graph_data import size, write_graph
from graph_rows import (
    Program,
    all_right,
    original_ratios,
    run_graph,
    run_graphx,
    run_original,
    shapes,
    show_rows,
    verify,
)
from measure import save, table
from plain_graphs import BASELINES, LIMIT, GraphX
from rust_original import Original, add_options


@dataclass(frozen=True)
class Benchmark:
    """A graph program, with its graphs and ratios.

    Parameters
    ----------
    name : str
        Name of the baseline, of the original's program, and of the file of results.
    program : type
    sizes : list of (int, int)
        Nodes and edges of the graphs, unless the command line has others.
    warm : (int, int)
        Nodes and edges of a small first graph.
    ratios : callable
        Returns the ratios of a graph from its result and the number of changes.
    large : (int, int, list of (int, int)), optional
        The graph of ``--large``, and its rows: rounds in a batch, and all rounds.
    also : dict
        Further values for the file of results.
    """

    name: str
    program: type[Program]
    sizes: list[tuple[int, int]]
    warm: tuple[int, int]
    ratios: Callable[[dict[str, Any], int], list[dict[str, Any]]]
    large: tuple[int, int, list[tuple[int, int]]] | None = None
    also: dict[str, Any] = field(default_factory=dict)

    def main(self, doc: str) -> None:
        """Run the benchmark from the command line."""
        options = self._options(doc)
        baseline = BASELINES[self.name]
        original = Original.built(options.original)
        spark = pyspark_diff.session(f"benchmark {self.name}")
        spark.sparkContext.setLogLevel("ERROR")
        wanted = shapes(options.changes, options.rows, options.singles)
        todo = [(*counts, wanted) for counts in options.sizes]
        if self.large and options.large:
            todo.append(self.large)
        results: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            graphx = GraphX(folder, options.limit) if options.graphx else None
            for runner in ("local", "spark"):
                verify(spark, self.program, folder, runner)  # warms the Python workers as well
            warm = write_graph(os.path.join(folder, "warm"), *self.warm, 200)
            run_graph(
                spark, self.program, baseline, warm, shapes(200, [20, 200], 20), options.limit
            )
            for nodes, edges, rows in todo:
                graph = write_graph(
                    folder, nodes, edges, max(end for _, end in rows), skewed=options.skewed
                )
                print(f"{nodes:,} nodes, {edges:,} edges", flush=True)
                result = run_graph(
                    spark, self.program, baseline, graph, rows, options.limit, options.recompute
                )
                if graphx is not None:
                    result["graphx"] = run_graphx(
                        graphx, baseline, graph, warm, result, rows, options.recompute
                    )
                result["original"] = run_original(
                    original, self.name, graph, result, rows, options.limit
                )
                result["ratios"] = self.ratios(result, options.changes) + original_ratios(result)
                results.append(result)
                save(options.json, {
                    **self.also, "skewed": options.skewed, "changes": options.changes,
                    "runs": results,
                })
        for result in results:
            print(f"\n{result['nodes']:,} nodes, {result['edges']:,} edges")
            print(f"plain Spark {result['plain_seconds']} s\n")
            show_rows(result)
            print(table(result["ratios"]))
        if not all_right(results):
            raise SystemExit("a row differs from plain Spark's answer, or from the original's")

    def _options(self, doc: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=doc.splitlines()[0])
        parser.add_argument("--sizes", nargs="*", type=size, metavar="NODES:EDGES",
                            default=self.sizes)
        parser.add_argument("--skewed", action="store_true",
                            help="graphs of few nodes with most of the edges, by R-MAT")
        if self.large:
            parser.add_argument("--large", action="store_true",
                                help=f"load {self.large[0]:,} nodes, {self.large[1]:,} edges too")
        parser.add_argument("--changes", type=int, default=1_000_000,
                            help="replacements in each row")
        parser.add_argument("--rows", nargs="*", type=int, metavar="ROUNDS",
                            default=[1_000, 10_000, 100_000, 1_000_000],
                            help="replacements in a batch, one row each")
        parser.add_argument("--singles", type=int, default=50,
                            help="steps of the row with single replacements; 0 for none")
        parser.add_argument("--limit", type=float, default=LIMIT,
                            help="seconds after which a row, or a run of GraphX, is stopped")
        parser.add_argument("--recompute", type=float, default=LIMIT, metavar="SECONDS",
                            help="the same for a row of plain Spark or GraphX; 0 for none of these")
        if BASELINES[self.name].graphx:
            parser.add_argument("--graphx", action="store_true", help="run GraphX as well")
        else:
            parser.set_defaults(graphx=False)
        add_options(parser)
        parser.add_argument("--json", default=f"benchmarks/results/{self.name}.json")
        parser.add_argument("--folder",
                            help="where generated graphs go; a temporary one if not given")
        return parser.parse_args()
