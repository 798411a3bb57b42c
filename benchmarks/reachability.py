"""The nodes that a root reaches under changes, against a plain Spark loop.

    python benchmarks/reachability.py                     # 1M nodes / 10M edges
    python benchmarks/reachability.py --skewed --sizes 4800000:69000000 --changes 1000 --rows 1000

The rows are those of ``bfs.py``, without the smallest graph.
"""

from __future__ import annotations

from collections import Counter

from pyspark.sql import functions as F

from bfs import Distances
from graph_benchmark import Benchmark
from graph_rows import Program, load_and_batches
from plain_graphs import ROOT
from pyspark_diff import DiffFrame, graphs


class Reached(Program):
    """The nodes that the root reaches, and the root."""

    small = (200, 400)

    def define(self, edges: DiffFrame) -> DiffFrame:
        """Reachability."""
        return graphs.reachability(edges, self.root()).withColumn("root", F.lit(ROOT).cast("long"))

    @staticmethod
    def expected(edges: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """Return all nodes with a distance."""
        return Counter((node, ROOT) for node, _ in Distances.expected(edges))


BENCHMARK = Benchmark(
    "reachability", Reached, [(1_000_000, 10_000_000)], (100, 300), load_and_batches
)


if __name__ == "__main__":
    BENCHMARK.main(__doc__)
