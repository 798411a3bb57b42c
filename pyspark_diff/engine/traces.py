"""The arrangements of a dataflow, of which those that rest are brought forward when they are seen.

Where nothing comes to a part of a program its frontiers move on with its inputs, and its traces
follow. With ``T`` the traces and ``R`` those that have rested since they were seen last::

    self[n]  =  R[n](n, T[n]) where n rests, else T[n]

so a step costs nothing for each of them, but for a note that it rests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping

from pyspark_diff.operators.node import Node
from pyspark_diff.trace.spine import Trace

#: Brings the trace of a node forward; doing it twice changes nothing.
Forward = Callable[[Node, Trace], Trace]


class Traces(MutableMapping[Node, Trace]):
    """Traces by node. It holds state: what has been brought forward.

    Parameters
    ----------
    held : dict of Node to Trace
        As they were when they were seen last.
    resting : dict of Node to Forward
        How the last step brings those forward that rest.
    """

    def __init__(
        self, held: dict[Node, Trace] | None = None, resting: dict[Node, Forward] | None = None
    ):
        self.held = {} if held is None else held
        self._resting = {} if resting is None else resting

    def __getitem__(self, node: Node) -> Trace:
        # In this order: another thread may be looking too, and what it has brought forward is held
        # before it rests no more.
        forward = self._resting.get(node)
        found = self.held[node]
        if forward is not None:
            self.held[node] = found = forward(node, found)
            self._resting.pop(node, None)
        return found

    def __setitem__(self, node: Node, trace: Trace) -> None:
        self.held[node] = trace
        self._resting.pop(node, None)

    def __delitem__(self, node: Node) -> None:
        del self.held[node]
        self._resting.pop(node, None)

    def __contains__(self, node: object) -> bool:
        return node in self.held

    def __iter__(self) -> Iterator[Node]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def copy(self) -> Traces:
        """The same, to be changed."""
        resting = dict(self._resting)  # first: what is brought forward meanwhile is so twice
        return Traces(dict(self.held), resting)

    def rest(self, nodes: Iterable[Node], forward: Forward) -> None:
        """Note that nothing came to some nodes, which may have traces."""
        for node in nodes:
            if node in self.held:
                self._resting[node] = forward
