"""Loops: where an iteration begins, goes round, and is left.

With the body ``r = f(x)``, at every time ``t``::

    x at (t, 0) = start at t        x at (t, i + 1) = r at (t, i)

so ``x`` at coordinate 0 has the updates of ``start``, at 1 those of ``r`` at 0 less those of
``start``, and at ``i + 1`` those of ``r`` at ``i``. To leave a loop is to forget its coordinate.
"""

from __future__ import annotations

from pyspark_diff.errors import SchemaError
from pyspark_diff.operators.node import LoopScope, Node
from pyspark_diff.spark.schema import Schema, without_nullability


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
