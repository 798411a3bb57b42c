"""The traces of a dataflow. Resting traces are brought forward lazily, when they are read.

If a part of a program has no new updates, its frontiers follow its inputs, and its traces follow
its frontiers. With ``T`` the traces and ``R`` the pending moves of resting nodes::

    self[n]  =  R[n](n, T[n]) if n rests, else T[n]

so the only cost of a step for a resting trace is the note of its rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping

from pyspark_diff.operators.node import Node
from pyspark_diff.trace.spine import Trace

#: Brings the trace of a node forward; doing it twice changes nothing.
Forward = Callable[[Node, Trace], Trace]


class Traces(MutableMapping[Node, Trace]):
    """Traces by node. It holds state: which traces have been brought forward.

    Parameters
    ----------
    stored : dict of Node to Trace
        The traces at their last read.
    resting : dict of Node to Forward
        The moves that bring resting traces forward to the last step.
    """

    def __init__(
        self, stored: dict[Node, Trace] | None = None, resting: dict[Node, Forward] | None = None
    ):
        self.stored = {} if stored is None else stored
        self._resting = {} if resting is None else resting

    def __getitem__(self, node: Node) -> Trace:
        # The order matters for concurrent readers: a thread stores the moved trace before it
        # removes the move.
        forward = self._resting.get(node)
        trace = self.stored[node]
        if forward is not None:
            self.stored[node] = trace = forward(node, trace)
            self._resting.pop(node, None)
        return trace

    def __setitem__(self, node: Node, trace: Trace) -> None:
        self.stored[node] = trace
        self._resting.pop(node, None)

    def __delitem__(self, node: Node) -> None:
        del self.stored[node]
        self._resting.pop(node, None)

    def __contains__(self, node: object) -> bool:
        return node in self.stored

    def __iter__(self) -> Iterator[Node]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def copy(self) -> Traces:
        """A mutable copy."""
        resting = dict(self._resting)  # first, so that a concurrent move happens twice, not never
        return Traces(dict(self.stored), resting)

    def rest(self, nodes: Iterable[Node], forward: Forward) -> None:
        """Note that some nodes have no new updates."""
        for node in nodes:
            if node in self.stored:
                self._resting[node] = forward
