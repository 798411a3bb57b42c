"""Compaction of arrangements: the views of their readers, the limit of times, and merges.

A hold is the frontier up to which a reader has read, or from which on users may read::

    since = join(old since, meet of all holds)

and no merge has batches from both sides of a reader's frontier.

If times are structs, holds are antichains, and compaction advances times in their first field only,
to the least first field ``s`` of the hold ``H``. A time ``t`` becomes ``join(t, (s, 0, …))``, and
each ``h`` in ``H`` is beyond ``(s, 0, …)``::

    t <= u  iff  join(t, (s, 0, …)) <= u        for every u beyond H

so all sums beyond ``H`` stay equal. The meet of ``join(t, h)`` over ``H`` would advance times in
all fields, and would merge more times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.rewind import Rewindable
from pyspark_diff.engine.state import StepSettings
from pyspark_diff.operators.contract import ReplayKernel
from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader
from pyspark_diff.runners.view import ArrangementView
from pyspark_diff.times import Antichain, meet_all
from pyspark_diff.trace.batch import Batch, Paths
from pyspark_diff.trace.spine import Trace


@dataclass(frozen=True)
class Compaction:
    """The rules of compaction for the arrangements of a graph.

    Parameters
    ----------
    rewindable : Rewindable
        The holds of collections whose updates can be rolled back.
    """

    graph: Graph
    settings: StepSettings
    rewindable: Rewindable = Rewindable()

    def view(
        self, node: Arranged, trace: Trace, lower: Antichain, upper: Antichain
    ) -> ArrangementView:
        """The files of an arrangement for a reader that goes from lower to upper."""
        old: list[Batch] = []
        new: list[Batch] = []
        both: list[Batch] = []
        recorded: list[Batch] = []
        for batch in trace.batches:
            interval = batch.description
            if self.settings.open:
                if not upper.precedes(interval.lower):
                    (new if lower.precedes(interval.lower) else recorded).append(batch)
            elif interval.upper.precedes(lower):
                old.append(batch)
            elif upper.precedes(interval.lower):
                continue
            elif lower.precedes(interval.lower) and interval.upper.precedes(upper):
                new.append(batch)
            elif _before(batch, lower):
                old.append(batch)
            else:
                both.append(batch)
        form = self.graph.form(node)
        return ArrangementView(
            form.layout,
            form.stored,
            Paths(old),
            Paths(new),
            Paths(both),
            sum(batch.rows for batch in (*new, *both)),
            node.depth,
            recorded=Paths(recorded) if recorded else {},
        )

    def hold(
        self, node: Arranged, frontiers: Mapping[Node, Antichain], upper: Antichain
    ) -> Antichain:
        """The frontier from which on a reader may still read; empty without readers."""
        # The last time before the frontier stays distinct: the past moves to this time, so that
        # later readers see it as processed.
        hold = last_before(meet_all(self._reading(node, frontiers, upper)))
        if node in self.settings.holds:
            hold = hold.meet(self.settings.holds[node])
        return hold

    def _reading(
        self, node: Arranged, frontiers: Mapping[Node, Antichain], upper: Antichain
    ) -> list[Antichain]:
        """The frontiers of the remaining readers."""
        limits = [frontiers[reader] for reader in self.graph.readers[node]]
        # If times are structs, output of earlier steps may lie in the interval of a later step,
        # like output of the same step at other coordinates.
        own = isinstance(node, Reader) and (
            node.recalls or self.settings.open and node.loop is not None
        )
        if isinstance(node, Keyed) and node.kernel is not None and node.kernel.looks_at_complete:
            limits.append(frontiers[node])  # times that become complete in the step stay distinct
        elif own or (isinstance(node, Keyed) and node.kernel is not None):
            limits.append(upper)  # it reads its own past itself
        if node in self.rewindable.nodes:
            limits.append(self.rewindable.nodes[node])
        return limits

    def since(
        self, node: Arranged, trace: Trace, frontiers: Mapping[Node, Antichain], upper: Antichain
    ) -> Antichain:
        """The frontier to which times may be advanced: no reader reads before it."""
        hold = self.hold(node, frontiers, upper)
        if self.readable(node):
            end = upper.bound
            if self.settings.keep_history or end is None:
                return trace.since
            hold = hold.meet(last_before(upper))  # the latest complete time stays readable
        # If the first step completes no time, the hold has no time before it.
        return trace.since.join(hold)

    def forward(self, node: Node, trace: Trace, at: Antichain) -> Trace:
        """The trace of a node without new updates, when it and its readers are at a frontier."""
        if not isinstance(node, Arranged):
            raise TypeError(f"{node!r} has no arrangement")
        nodes: list[Node] = [node, *self.graph.readers[node]]
        frontiers = dict.fromkeys(nodes, at)
        needed = self.needed(node, frontiers, at)
        since = self.since(node, trace, frontiers, at) if needed else at
        return Trace(trace.lower, at, since, trace.batches)

    def readable(self, node: Arranged) -> bool:
        """Whether a user may read the collection at a time."""
        return node in self.graph.sinks and not (
            isinstance(node, Keyed) and node.kernel is not None
        )

    def needed(
        self, node: Arranged, frontiers: Mapping[Node, Antichain], upper: Antichain
    ) -> bool:
        """Whether the arrangement will have a reader again."""
        if self.readable(node):
            return True
        readers = self.graph.readers[node]
        if readers and isinstance(node, Keyed) and all(
            isinstance(reader.kernel, ReplayKernel) and not reader.kernel.stateful
            and upper.precedes(frontiers[reader]) for reader in readers
        ):
            return False  # all readers have read it, and need no old updates
        return not self.hold(node, frontiers, upper).is_empty

    def fences(self, node: Arranged, frontiers: Mapping[Node, Antichain]) -> list[Antichain]:
        """Frontiers that no merge may cross."""
        return [frontiers[reader] for reader in self.graph.readers[node]]


def _before(batch: Batch, frontier: Antichain) -> bool:
    """Whether a batch that reaches beyond a frontier has no time there.

    A constant, and an input that was closed or advanced far ahead, has such a batch in each step. A
    reader of new updates would read all of its rows each time.
    """
    bound, times = frontier.bound, batch.times
    return bound is not None and times is not None and times[1] < bound


def last_before(frontier: Antichain) -> Antichain:
    """The last complete time of a frontier; for structs the last time in their first field."""
    if frontier.is_empty:
        return frontier
    least = frontier.elements[0]
    if isinstance(least, int):
        return Antichain([least - 1])
    # Times are advanced in their first field alone: see docs/model.md.
    return Antichain([(least[0] - 1, *[0] * (len(least) - 1))])
