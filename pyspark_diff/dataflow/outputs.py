"""Outputs collections: those that a user reads, the holds on their history, and frames handed out.

A collection that is kept can be read at every complete time that is not compacted away; a hold, or
``keep_history``, decides how far back that is.
"""

from __future__ import annotations

from typing import Iterable, Mapping

from pyspark_diff.dataflow.hold import Hold
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import State
from pyspark_diff.errors import NotReadableError
from pyspark_diff.operators.arrange import Output, arrange_by_self
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.node import Arranged, Node
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.times import Antichain
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
        #: The sinks that keep collections: a certain arrangement of one, or any.
        self._sinks: dict[Node, Node] = {}
        self._holds: list[tuple[Node, Hold]] = []
        #: Files of frames that were handed out and may be read until the dataflow is closed.
        self.pinned: set[str] = set()

    def __contains__(self, node: Node) -> bool:
        return node in self._sinks

    def add(self, node: Node, arranged: Arranged | None = None) -> Node:
        """Keep a collection, in the given arrangement or one that there is; returns its sink."""
        sink = arranged or self._sinks.get(node) or Output(node)
        self._sinks.setdefault(node, sink)
        return sink

    def share(self, nodes: Iterable[Node], same: Mapping[Node, Node]) -> None:
        """Take collections for kept that are the same as kept ones: for each node the one it is."""
        sinks = {same[node]: sink for node, sink in self._sinks.items()}
        for node in nodes:
            if same[node] in sinks:
                self._sinks.setdefault(node, sinks[same[node]])

    def arrangement(
        self, node: Node, state: State, start: Antichain, graph: Graph | None
    ) -> Arrangement:
        """A kept collection; one that no step has reached is empty, and begins at ``start``."""
        if node not in self._sinks:
            raise NotReadableError(
                f"the updates of this collection ({node!r}) were not kept, because "
                f"{_why_not_kept(node, graph)}; call arrange_by_self() on it before the first step"
            )
        kept = arrange_by_self(node) if graph is None else graph.arrangement(self._sinks[node])
        trace = state.traces.get(kept)
        if trace is None:
            trace = Trace(start, start, start)
        every = frozenset(node.schema.names)
        arrangement = Arrangement(
            trace, node.schema, kept.layout(every), kept.stored(every), self._time_type,
            *self._names,
        )
        if arrangement.reads_later:
            self.pinned.update(trace.paths())
        return arrangement

    def hold(self, node: Node, arrangement: Arrangement, time: int | None) -> Hold:
        """A hold on a kept collection, from a time or from the first that can be read."""
        since = arrangement.trace.since.bound
        if time is None:
            time = since if since is not None else self._time_type.start
        elif since is not None and time < since:
            raise NotReadableError(
                f"time {self._time_type.decode(time)!r} was compacted away: the collection can be "
                f"held from {self._time_type.decode(since)!r} on"
            )
        hold = Hold(self._time_type, time)
        self._holds.append((node, hold))
        return hold

    def holds(self, graph: Graph) -> dict[Node, Antichain]:
        """From when on each arrangement's history is held, where it is."""
        self._holds = [held for held in self._holds if not held[1]._frontier.is_empty]
        found: dict[Node, Antichain] = {}
        for node, hold in self._holds:
            kept = graph.arrangement(self._sinks[node])
            found[kept] = found.get(kept, hold._frontier).meet(hold._frontier)
        return found


def _why_not_kept(node: Node, graph: Graph | None) -> str:
    readers: dict[str, None] = {}
    if graph is not None:
        found = graph.lowered.get(node, node)
        readers = dict.fromkeys(reader.kind for reader in graph.nodes if found in reader.inputs)
    if readers:
        return f"other operators read it ({', '.join(readers)})"
    if node.loop is not None:
        return "it is inside of a loop"
    if isinstance(node, Inspect):
        return "it is shown, by inspect"
    return "it has a probe, and only what has no other use is kept unasked"
