"""Outputs collections: those that a user reads, the holds on their history, and frames handed out.

A collection that is kept can be read at every complete time that is not compacted away; a hold, or
``keep_history``, decides how far back that is.
"""

from __future__ import annotations

from typing import Iterable

from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.engine.compaction import antichain
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import Frontier, State, only
from pyspark_diff.errors import NotReadableError
from pyspark_diff.operators.arrange import arrange_by_self
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.node import Arranged, Node, Reader
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.trace.arrangement import Arrangement
from pyspark_diff.trace.spine import Trace


class Outputs:
    """The kept collections of a dataflow. It holds state: what is kept, held and handed out.

    Parameters
    ----------
    time_type : TimeType
    time, diff : str
        The user's names of these columns.
    """

    def __init__(self, time_type: TimeType, time: str, diff: str):
        self._time_type = time_type
        self._names = (time, diff)
        self._nodes: dict[Node, Arranged] = {}
        self._holds: list[tuple[Arranged, Hold]] = []
        #: Files of frames that were handed out and may be read until the dataflow is closed.
        self.pinned: set[str] = set()

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def add(self, node: Node, arranged: Arranged | None = None) -> Arranged:
        """Keep a collection, in the given arrangement or one that suits; returns which."""
        if arranged is None:
            if node in self._nodes:
                return self._nodes[node]
            arranged = node if isinstance(node, Reader) and node.keeps else arrange_by_self(node)
        self._nodes.setdefault(node, arranged)
        return arranged

    def arrangement(
        self, node: Node, graph: Graph | None, state: State, starts: Iterable[Frontier]
    ) -> tuple[Arrangement, Frontier]:
        """A kept collection, and its frontier."""
        if node not in self._nodes:
            raise NotReadableError(
                f"the updates of this collection ({node!r}) were not kept, because "
                f"{_why_not_kept(node, graph)}; call arrange_by_self() on it before the first step"
            )
        kept = self._nodes[node]
        trace = state.traces.get(kept)
        if trace is None:
            start = antichain(min([s for s in starts if s is not None], default=0))
            trace = Trace(start, start, start)
        every = frozenset(node.schema.names)
        arrangement = Arrangement(
            trace, node.schema, kept.layout(every), kept.stored(every), self._time_type,
            *self._names,
        )
        if arrangement.reads_later:
            self.pinned.update(trace.paths())
        return arrangement, only(trace.upper)

    def hold(self, node: Node, arrangement: Arrangement, time: int | None) -> Hold:
        """A hold on a kept collection, from a time or from the first that can be read."""
        since = only(arrangement.trace.since)
        if time is None:
            time = since if since is not None else self._time_type.start
        elif since is not None and time < since:
            raise NotReadableError(
                f"time {self._time_type.decode(time)!r} was compacted away: the collection can be "
                f"held from {self._time_type.decode(since)!r} on"
            )
        hold = Hold(self._time_type, time)
        self._holds.append((self._nodes[node], hold))
        return hold

    def holds(self) -> dict[Node, int]:
        """From when on each arrangement's history is held, where it is."""
        self._holds = [held for held in self._holds if held[1]._at is not None]
        found: dict[Node, int] = {}
        for node, hold in self._holds:
            if hold._at is not None:
                found[node] = min(found.get(node, hold._at), hold._at)
        return found


def _why_not_kept(node: Node, graph: Graph | None) -> str:
    nodes = () if graph is None else graph.nodes
    readers = dict.fromkeys(reader.kind for reader in nodes if node in reader.inputs)
    if readers:
        return f"other operators read it ({', '.join(readers)})"
    if node.loop is not None:
        return "it is inside of a loop"
    if isinstance(node, Inspect):
        return "it is shown, by inspect"
    return "it has a probe, and only what has no other use is kept unasked"
