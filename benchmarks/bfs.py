"""Breadth-first search under changes, against GraphX and a plain Spark loop in the same session.

    python benchmarks/bfs.py                              # 1k nodes / 2k edges, then 1M / 10M
    python benchmarks/bfs.py --sizes 10000:50000 --changes 10000 --rows 100 10000 --graphx

The benchmark loads a random graph from Parquet, then replaces edges. Each replacement is one
removal and one insertion at a separate logical time, and one physical step processes a batch of
replacements. Each row is a new dataflow with all replacements in batches of one size. A row stops
at its time limit, and reports its progress. Seconds of ours and of the others come from one run, so
quote their ratios: absolute times depend on the machine.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from graph_benchmark import Benchmark
from graph_rows import Program, complete, load_seconds
from measure import ratio
from plain_graphs import ROOT
from pyspark_diff import DiffFrame, graphs


class Distances(Program):
    """Distances from the root, and the number of nodes at each, as in the original."""

    small = (200, 400)

    def define(self, edges: DiffFrame) -> DiffFrame:
        """Breadth-first search."""
        return graphs.bfs(edges, self.root())

    def keep(self) -> None:
        """Keep the distances, and maintain the number of nodes at each."""
        super().keep()
        self._nodes: Counter[int] = Counter()
        counts = self.answer.groupBy("distance").count()
        self.probes.append(counts.inspect(self._count, by_table=True).probe())

    def _count(self, updates: pa.Table) -> None:
        distance, count, _, diff = (updates[name] for name in updates.column_names)
        changes = pa.table({"distance": distance, "nodes": _times(count, diff)})
        for row in changes.group_by("distance").aggregate([("nodes", "sum")]).to_pylist():
            self._nodes[row["distance"]] += row["nodes_sum"]

    def counted(self, answer: DataFrame) -> bool:
        """Return whether the maintained numbers of nodes equal the numbers in the answer."""
        nodes_at = {row[0]: row[1] for row in answer.groupBy("distance").count().collect()}
        return nodes_at == {distance: nodes for distance, nodes in self._nodes.items() if nodes}

    @staticmethod
    def expected(edges: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
        """Compute the distances in plain Python."""
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
    """Return the ratios of the runs over a graph."""
    plain, load = result["plain_mean_seconds"], load_seconds(result)
    ten, whole = complete(result, changes // 10), complete(result, changes)
    single = complete(result, 1)
    change_seconds = single["median_ms"] / 1e3 if single else None
    rows = [
        ratio("load / plain", load, plain),
        ratio("(load + all changes in one batch) / plain", _with_load(whole), plain),
        ratio("ten batches / plain", ten["seconds"] if ten else None, plain),
        ratio("(load + ten batches) / plain", _with_load(ten), plain),
        ratio("plain / one replacement", plain, change_seconds),
    ]
    graphx = result.get("graphx", {}).get("seconds")
    if graphx:
        rows.append(ratio("load / GraphX", load, graphx))
        rows.append(ratio("GraphX / one replacement", graphx, change_seconds))
    return rows


def _with_load(row: dict[str, Any] | None) -> float | None:
    return row["load_seconds"] + row["seconds"] if row else None


BENCHMARK = Benchmark(
    "bfs", Distances, [(1_000, 2_000), (1_000_000, 10_000_000)], (100, 300), ratios
)


if __name__ == "__main__":
    BENCHMARK.main(__doc__)
