"""Connected components of a graph that a job keeps up to date, night after night.

    python examples/nightly_graph.py --folder /tmp/graph --night 0
    python examples/nightly_graph.py --folder /tmp/graph --night 1

Each night changes some edges and catches up. The loop that spreads labels continues from its fixed
point of the night before, in another process. With ``--killed`` the process ends like a power cut,
after the commit and before the write to the target. The next night begins with that write. The
target is a folder of CSV files, one for each epoch. Their sum is compared with the components that
a search finds in the current edges.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame

import pyspark_diff
from pyspark_diff import Dataflow
from pyspark_diff.graphs import connected_components
from pyspark_diff.sinks import Epoch, Sink
from pyspark_diff.sources import snapshots


def edges_at(night: int, nodes: int, count: int) -> list[tuple[int, int]]:
    """The edges of a night: some edges of the night before are replaced by others."""
    chance = random.Random(0)
    edges = [(chance.randrange(nodes), chance.randrange(nodes)) for _ in range(count)]
    for _ in range(night):
        for _ in range(max(1, count // 10)):
            edges[chance.randrange(count)] = chance.randrange(nodes), chance.randrange(nodes)
    return edges


class Folder(Sink):
    """A sink with a file for each epoch, named by the epoch and written atomically."""

    def __init__(self, folder: Path, killed: bool):
        self._folder, self._killed = folder, killed

    def write(self, epoch: Epoch) -> None:
        if self._killed:
            os._exit(137)
        self._folder.mkdir(exist_ok=True)
        if epoch.is_first:
            for path in self._folder.glob("*.csv"):
                path.unlink()
        new = self._folder / "new"
        with new.open("w", newline="") as file:
            csv.writer(file).writerows(epoch.changes.toLocalIterator())
        new.replace(self._folder / f"{epoch.number}.csv")

    def components(self) -> dict[int, int]:
        """The component of each node: the sum of all files of the target."""
        total: Counter[tuple[int, int]] = Counter()
        for path in self._folder.glob("*.csv"):
            with path.open(newline="") as file:
                for node, component, _, diff in csv.reader(file):
                    total[int(node), int(component)] += int(diff)
        return dict(pair for pair, count in total.items() if count)


def program(flow: Dataflow, edges: DataFrame, target: Sink) -> None:
    """Keep the components of a table of edges in a target."""
    source = flow.source("edges", snapshots(lambda: edges))
    connected_components(source).sink("components", target)


def searched(edges: list[tuple[int, int]]) -> dict[int, int]:
    """The smallest node of each node's component, by uniting sets."""
    parent: dict[int, int] = {}

    def root(node: int) -> int:
        while parent.setdefault(node, node) != node:
            parent[node] = node = parent[parent[node]]
        return node

    for edge in edges:
        least, other = sorted(map(root, edge))
        parent[other] = least
    return {node: root(node) for node in list(parent)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="where the state and the target are")
    parser.add_argument("--night", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--edges", type=int, default=900)
    parser.add_argument("--killed", action="store_true")
    options = parser.parse_args(arguments)
    folder = Path(options.folder).absolute()
    spark = pyspark_diff.session("nightly graph")
    edges = edges_at(options.night, options.nodes, options.edges)
    table = spark.createDataFrame(edges, "src long, dst long")
    target = Folder(folder / "components", options.killed)

    folder.mkdir(exist_ok=True, parents=True)
    with Dataflow.open(
        str(folder / "state"), lambda flow: program(flow, table, target), spark=spark
    ) as flow:
        flow.catch_up()
    actual, expected = target.components(), searched(edges)
    same = actual == expected
    print(f"night {options.night}: {len(actual)} nodes in {len(set(actual.values()))} components, "
          f"{'as' if same else 'NOT as'} a search finds them")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
