"""Connected components under changes, against GraphX and a plain Spark loop in the same session.

    python benchmarks/components.py                       # 1M nodes / 5M edges
    python benchmarks/components.py --sizes 10000:20000 --changes 10000 --rows 100 10000 --graphx

The rows are those of ``bfs.py``, without the largest graph.
"""

from __future__ import annotations

from collections import Counter

from graph_benchmark import Benchmark
from graph_rows import Program, load_and_batches
from pyspark_diff import DiffFrame, graphs


class Components(Program):
    """The smallest node of each component."""

    small = (200, 150)

    def define(self, edges: DiffFrame) -> DiffFrame:
        """Connected components."""
        return graphs.connected_components(edges)

    @staticmethod
    def expected(edges: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """Compute components in plain Python."""
        component = {node: node for edge in edges for node in edge}
        before = None
        while component != before:
            before = dict(component)
            for src, dst in edges:
                component[src] = component[dst] = min(component[src], component[dst])
        return Counter(component.items())


BENCHMARK = Benchmark(
    "components", Components, [(1_000_000, 5_000_000)], (100, 200), load_and_batches
)


if __name__ == "__main__":
    BENCHMARK.main(__doc__)
