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

from collections import Counter

from graph_benchmark import Benchmark
from graph_rows import Program, load_and_batches
from plain_graphs import K
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


BENCHMARK = Benchmark(
    "k_core", Core, [(1_000_000, 5_000_000)], (100, 500), load_and_batches, LARGE, {"k": K}
)


if __name__ == "__main__":
    BENCHMARK.main(__doc__)
