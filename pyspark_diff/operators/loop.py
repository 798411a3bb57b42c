"""Loops: where an iteration begins, goes round, and is left.

With the body ``r = f(x)``, at every time ``t``::

    x at (t, 0) = start at t        x at (t, i + 1) = r at (t, i)

so ``x`` at coordinate 0 has the updates of ``start``, at 1 those of ``r`` at 0 less those of
``start``, and at ``i + 1`` those of ``r`` at ``i``. To leave a loop is to forget its coordinate.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from pyspark_diff.errors import SchemaError
from pyspark_diff.operators.node import LoopScope, Node, Passing
from pyspark_diff.spark.schema import Schema, without_nullability


@dataclass(frozen=True, eq=False, repr=False)
class Variable(Node):
    """What goes round in a loop: whole, and so it needs all of what it starts with.

    Its definition is made of the variable itself, so it comes later: the one knot of a program,
    which `define` ties, once. Nothing else about a node is filled in after it is made.

    Parameters
    ----------
    loop : LoopScope
    start : Node
        What it is at first.
    """

    kind = "variable"
    loop: LoopScope
    start: InitVar[Node]
    #: What it is in the next iteration; None until it is defined.
    result: Node | None = field(default=None, init=False)

    def __post_init__(self, start: Node) -> None:
        loop = self.loop
        if start.loop is not None and start.loop.around(loop.depth) is loop:
            raise SchemaError(
                f"a variable of {loop.name} starts with a collection from outside of it, not with "
                "one that changes in each iteration"
            )
        # It may come to have nulls where the first one has none.
        schema = Schema(without_nullability(start.schema.struct))
        self._settle((start,), schema=schema, loop=loop)

    def define(self, result: Node) -> None:
        """Say, once, what it is in the next iteration."""
        if self.result is not None:
            raise SchemaError("this variable was set before; a variable is set once")
        object.__setattr__(self, "result", result)


@dataclass(frozen=True, eq=False, repr=False)
class Enter(Passing):
    """A stream of updates from outside of all loops, up to where the loop goes."""

    kind = "enter"
    loop: LoopScope
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        self._settle((source,), schema=source.schema, loop=self.loop)


@dataclass(frozen=True, eq=False, repr=False)
class Leave(Passing):
    """A collection of a loop as it is at the end, seen from outside."""

    kind = "leave"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        if source.loop is None:
            raise SchemaError("a collection that is in no loop cannot leave one")
        self._settle((source,), schema=source.schema, loop=source.loop.parent)
