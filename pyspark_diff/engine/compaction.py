"""Compaction of arrangements: what their readers find in them, how far times may be advanced, and
which batches are merged.

With ``holds`` the frontiers up to which readers have read, and the times that users may ask for::

    since <= every hold

and no merge takes in batches from both sides of a reader's frontier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import Frontier, Settings, only
from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader
from pyspark_diff.runners.read import View
from pyspark_diff.times import Antichain
from pyspark_diff.trace.batch import Batch
from pyspark_diff.trace.spine import Trace


def antichain(frontier: Frontier) -> Antichain:
    """A frontier of totally ordered times as an antichain."""
    return Antichain([] if frontier is None else [frontier])


@dataclass(frozen=True)
class Compaction:
    """The rules by which one graph's arrangements are kept.

    Parameters
    ----------
    graph : Graph
    settings : Settings
    """

    graph: Graph
    settings: Settings

    def view(self, node: Arranged, trace: Trace, lower: Frontier, upper: Frontier) -> View:
        """The files of an arrangement, as a reader sees them that goes from lower to upper."""
        begin, end = antichain(lower), antichain(upper)
        old: list[Batch] = []
        new: list[Batch] = []
        both: list[Batch] = []
        for batch in trace.batches:
            interval = batch.description
            if interval.upper.precedes(begin):
                old.append(batch)
            elif end.precedes(interval.lower):
                continue
            elif begin.precedes(interval.lower) and interval.upper.precedes(end):
                new.append(batch)
            else:
                both.append(batch)
        wanted = self.graph.wanted[node]
        return View(
            node.layout(wanted),
            node.stored(wanted),
            _files(old),
            _files(new),
            _files(both),
            sum(batch.rows for batch in (*new, *both)),
            node.depth,
        )

    def holds(
        self, node: Arranged, frontiers: Mapping[Node, Frontier], upper: Frontier
    ) -> list[int]:
        """Times from which on somebody may still read."""
        found = [frontiers.get(reader) for reader in self.graph.readers[node]]
        own = isinstance(node, Reader) and node.recalls
        if own or (isinstance(node, Keyed) and node.kernel is not None):
            found.append(upper)  # it reads its own past itself
        if node in self.settings.holds:
            found.append(self.settings.holds[node])
        return [frontier for frontier in found if frontier is not None]

    def since(
        self, node: Arranged, trace: Trace, frontiers: Mapping[Node, Frontier], upper: Frontier
    ) -> Frontier:
        """How far times may be advanced: as far as nobody reads behind it."""
        since = only(trace.since)
        holds = self.holds(node, frontiers, upper)
        if self.readable(node):
            if self.settings.keep_history or upper is None:
                return since
            # The latest complete time stays readable.
            holds.append(upper - 1)
        if not holds:
            return since
        # Where the first step completes nothing, there is no time before.
        return min(holds) if since is None else max(since, min(holds))

    def readable(self, node: Arranged) -> bool:
        """Whether a user may read the collection at a time."""
        return node in self.graph.sinks and not (
            isinstance(node, Keyed) and node.kernel is not None
        )

    def needed(
        self, node: Arranged, frontiers: Mapping[Node, Frontier], upper: Frontier
    ) -> bool:
        """Whether anybody will look into the arrangement again."""
        return self.readable(node) or bool(self.holds(node, frontiers, upper))

    def fences(self, node: Arranged, frontiers: Mapping[Node, Frontier]) -> list[Antichain]:
        """Frontiers that no merge may cross."""
        return [antichain(frontiers.get(reader)) for reader in self.graph.readers[node]]


def _files(batches: list[Batch]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for batch in batches:
        for bucket, file in batch.files.items():
            found[bucket] = (*found.get(bucket, ()), file.path)
    return found
