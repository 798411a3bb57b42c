"""Random graphs, and replacements of their edges, for the benchmarks of graph programs.

All edges come from one random stream. A graph of ``m`` edges begins with the first ``m`` edges.
Round ``r`` removes edge ``r`` of the stream and inserts edge ``m + r``, at a separate logical time:

    the graph at time t  =  edges t, ..., m + t - 1 of the stream

Both ends of an edge are uniformly random, unless the graph is skewed. Then R-MAT draws a quarter of
the matrix of edges, then a quarter of that quarter, and so on. Few nodes have most of the edges, as
in a social network. The shares are those of Graph500. Source: Chakrabarti, Zhan, Faloutsos,
"R-MAT: A Recursive Model for Graph Mining", SDM 2004.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 8
#: With some other seeds, node 0 of the smallest graph has no outgoing edge at the start or the end.
SEED = 11
#: R-MAT's shares of the first quarter, of the first two and of the first three.
QUARTERS = 0.57, 0.76, 0.95


@dataclass(frozen=True)
class Graph:
    """A graph on disk, and its replacements.

    Parameters
    ----------
    path : str
        Folder of Parquet files with columns ``src`` and ``dst``.
    nodes, edges : int
    gone, come : pyarrow.Table
        The edges that the rounds remove, and the edges that they insert.
    """

    path: str
    nodes: int
    edges: int
    gone: pa.Table
    come: pa.Table

    @property
    def rounds(self) -> int:
        """Return the number of rounds."""
        return self.come.num_rows

    def updates(self, first: int, end: int) -> pa.Table:
        """Return the updates of some rounds: round ``r`` is at time ``r + 1``."""
        times = np.arange(first + 1, end + 1)
        both = [edges.slice(first, end - first) for edges in (self.gone, self.come)]
        updates = pa.concat_tables(both)
        updates = updates.append_column("time", pa.array(np.concatenate((times, times))))
        return updates.append_column("diff", pa.array(np.repeat([-1, 1], end - first)))

    def after(self, rounds: int) -> pa.Table:
        """Return all edges after some rounds."""
        old = pq.read_table(self.path).slice(rounds)
        first = max(rounds - self.edges, 0)
        return pa.concat_tables([old, self.come.slice(first, rounds - first)])

    def write_changes(self, rounds: int) -> str:
        """Write the updates of the first rounds as Parquet files, and return their folder."""
        path = f"{self.path}-changes-{rounds}"
        if not os.path.exists(path):
            os.makedirs(path)
            _write(path, self.updates(0, rounds))
        return path

    def write_after(self, rounds: int) -> str:
        """Write the edges after some rounds as Parquet files, and return their folder."""
        if rounds == 0:
            return self.path
        path = f"{self.path}-after-{rounds}"
        if not os.path.exists(path):
            os.makedirs(path)
            _write(path, self.after(rounds))
        return path


def write_graph(
    folder: str, nodes: int, edges: int, rounds: int, *, skewed: bool = False
) -> Graph:
    """Write a random graph as Parquet files, and draw a number of rounds."""
    path = os.path.join(folder, f"edges-{nodes}-{edges}")
    os.makedirs(path)
    old = []
    for number, (first, end) in enumerate(_pieces(edges)):
        part = _random_edges(number, nodes, end - first, skewed)
        _write_file(path, number, part)
        old.append(part.slice(0, max(rounds - first, 0)))
    come = _random_edges(FILES, nodes, rounds, skewed)
    gone = pa.concat_tables([*old, come]).slice(0, rounds).combine_chunks()
    return Graph(path, nodes, edges, gone, come)


def size(text: str) -> tuple[int, int]:
    """Parse nodes and edges from ``"1000:2000"``."""
    nodes, edges = (int(part) for part in text.split(":"))
    return nodes, edges


def _random_edges(part: int, nodes: int, count: int, skewed: bool) -> pa.Table:
    random = np.random.default_rng([SEED, part])
    if skewed:
        src, dst = np.zeros((2, count), np.int64)
        bits = (nodes - 1).bit_length()
        first, half, last = QUARTERS
        for _ in range(bits):
            drawn = random.random(count, np.float32)
            src = 2 * src + (drawn >= half)
            dst = 2 * dst + (((drawn >= first) & (drawn < half)) | (drawn >= last))
        # Scale the power of two down to the number of nodes. Some numbers merge into one node.
        return pa.table({"src": src * nodes >> bits, "dst": dst * nodes >> bits})
    return pa.table({name: random.integers(0, nodes, count) for name in ("src", "dst")})


def _pieces(rows: int) -> list[tuple[int, int]]:
    ends = [rows * number // FILES for number in range(FILES + 1)]
    return list(zip(ends, ends[1:]))


def _write(path: str, edges: pa.Table) -> None:
    for number, (first, end) in enumerate(_pieces(edges.num_rows)):
        _write_file(path, number, edges.slice(first, end - first))


def _write_file(path: str, number: int, edges: pa.Table) -> None:
    name = f"{path}/{number}.parquet"
    pq.write_table(edges, name, use_dictionary=False, compression="none")
