"""The 5-core of a graph under changes, against a plain Spark loop in the same session and GraphX.

    python benchmarks/k_core.py                           # 1M nodes / 5M edges
    python benchmarks/k_core.py --large --graphx          # and 10M / 50M, with fewer changes

The benchmark loads a random graph from Parquet, then replaces edges. Each replacement is one
removal and one insertion at a separate logical time, and one physical step processes a batch of
replacements. Each row is a new dataflow with all replacements in batches of one size. A row stops
at its time limit, and reports its progress. Seconds of ours and of the others come from one run, so
quote their ratios: absolute times depend on the machine.

The programs treat the graph as undirected and simple. Our load makes the simple graph. The plain
loop and GraphX read a simple graph, and their time excludes the work to make it.
"""

from __future__ import annotations

from collections import Counter

from graph_benchmark import Benchmark
from graph_rows import Program, load_and_batches
from plain_graphs import K
from pyspark_diff import DiffFrame, graphs

#: The graph of ``--large``, and its only row.
LARGE = (10_000_000, 50_000_000, [(1_000, 10_000)])


class Core(Program):
    """The edges of the k-core."""

    small = (60, 200)

    def define(self, edges: DiffFrame) -> DiffFrame:
        """The k-core."""
        return graphs.k_core(edges, K)

    @staticmethod
    def expected(edges: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """Compute the k-core in plain Python."""
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
