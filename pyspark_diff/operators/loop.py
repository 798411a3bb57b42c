"""Loops: where an iteration begins, goes round, and is left.

With the body ``r = f(x)``, at every time ``t``::

    x at (t, 0) = start at t        x at (t, i + 1) = r at (t, i)

so ``x`` at coordinate 0 has the updates of ``start``, at 1 those of ``r`` at 0 less those of
``start``, and at ``i + 1`` those of ``r`` at ``i``. To leave a loop is to forget its coordinate.
"""

from __future__ import annotations

from pyspark_diff.errors import SchemaError
from pyspark_diff.operators.node import Node
from pyspark_diff.schema import Schema, without_nullability


class LoopScope:
    """One loop, as nodes know it.

    Parameters
    ----------
    name : str
    parent : LoopScope or None
        The loop around it.
    max_iterations : int
        How many iterations there are at most.
    stops : bool
        Whether it returns what it has reached then, instead of refusing.
    """

    def __init__(
        self, name: str, parent: "LoopScope | None", max_iterations: int, *, stops: bool
    ):
        self.name = name
        self.parent = parent
        self.depth: int = 1 if parent is None else parent.depth + 1
        self.max_iterations = max_iterations
        self.stops = stops
        self.variables: list[Variable] = []
        #: Collections from outside of all loops that are read inside, by the node read.
        self.entered: dict[Node, Enter] = {}

    def around(self, depth: int) -> "LoopScope":
        """The loop at a depth, of this one and those around it."""
        found = self
        while found.depth > depth and found.parent is not None:
            found = found.parent
        return found

    def __contains__(self, node: Node) -> bool:
        """Whether a node is in this loop, or in one inside of it."""
        return node.loop is not None and node.loop.around(self.depth) is self


class Variable(Node):
    """What goes round in a loop.

    Parameters
    ----------
    loop : LoopScope
    start : Node
        What it is at first.
    """

    def __init__(self, loop: LoopScope, start: Node):
        if start.loop is not None and start.loop.around(loop.depth) is loop:
            raise SchemaError(
                f"a variable of {loop.name} starts with a collection from outside of it, not with "
                "one that changes in each iteration"
            )
        # It may come to have nulls where the first one has none.
        schema = Schema(without_nullability(start.schema.struct))
        super().__init__("variable", (start,), schema, start.time_type)
        self.loop = loop
        self.result: Node | None = None
        loop.variables.append(self)

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return wanted


class Enter(Node):
    """A stream of updates from outside of all loops, up to where the loop goes."""

    def __init__(self, loop: LoopScope, source: Node):
        super().__init__("enter", (source,), source.schema, source.time_type)
        self.loop = loop

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return wanted


class Leave(Node):
    """A collection of a loop as it is at the end, seen from outside."""

    def __init__(self, source: Node):
        super().__init__("leave", (source,), source.schema, source.time_type)
        if source.loop is None:
            raise SchemaError("a collection that is in no loop cannot leave one")
        self.loop = source.loop.parent

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return wanted
