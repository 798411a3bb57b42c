"""Loops: where an iteration begins, goes round, and is left.

With the body ``r = f(x)``, at every time ``t``::

    x at (t, 0) = start at t        x at (t, i + 1) = r at (t, i)

so ``x`` at coordinate 0 has the updates of ``start``, at 1 those of ``r`` at 0 less those of
``start``, and at ``i + 1`` those of ``r`` at ``i``. To leave a loop is to forget its coordinate.

What enters has all its updates at coordinate 0. With a number of iterations ``f`` for each record::

    enter_at(a, f) at (t, i) = { r in a at t : f(r) <= i }

so the updates of a record are at the coordinate ``f(r)``, whenever in time they come.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pyspark_diff.errors import SchemaError, StalledError
from pyspark_diff.kernels.updates import Int64
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import LoopScope, Node, Passing
from pyspark_diff.spark.frames import column
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
        if start in loop:
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
class EnterAt(Node):
    """A collection from outside of a loop, each record of it from some iteration on.

    Parameters
    ----------
    loop : LoopScope
    source : Node
    at : str
        The column with the number of that iteration.
    names : tuple of str
        Columns of the output.
    """

    kind = "enter_at"
    loop: LoopScope
    source: InitVar[Node]
    at: str
    names: tuple[str, ...]

    def __post_init__(self, source: Node) -> None:
        if source in self.loop:
            raise SchemaError(
                f"enter_at takes a collection from outside of {self.loop.name}, not one that "
                "changes in each iteration"
            )
        self._settle((source,), schema=source.schema.only(self.names), loop=self.loop)

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return wanted | {self.at}

    def iterations(self, numbers: Int64) -> tuple[list[int], list[int]]:
        """The iterations in which something enters, in order, and how many updates each.

        Raises
        ------
        SchemaError
            If there is no such iteration.
        StalledError
            If the loop would have been refused before.
        """
        found, counts = np.unique(numbers, return_counts=True)
        if found.size and found[0] < 0:
            raise SchemaError(
                f"enter_at: a record of {self.loop.name} is to enter at iteration {found[0]}; "
                "iterations are counted from 0"
            )
        if self.loop.stops:  # it ends before they enter
            there = found < self.loop.max_iterations
            found, counts = found[there], counts[there]
        elif found.size and found[-1] >= self.loop.max_iterations:
            raise StalledError(
                f"enter_at: a record of {self.loop.name} is to enter at iteration {found[-1]}, and "
                f"it has {self.loop.max_iterations} at most: give a larger max_iterations"
            )
        return found.tolist(), counts.tolist()


@dataclass(frozen=True)
class Entering(Stage):
    """The records that enter a loop at one iteration, without its number.

    Parameters
    ----------
    at : str
    number : int
    """

    at: str
    number: int
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        return frame.where(column(self.at) == self.number).drop(self.at)

    def on_table(self, table: pa.Table) -> pa.Table:
        return table.filter(pc.equal(table[self.at], self.number)).drop_columns([self.at])


@dataclass(frozen=True, eq=False, repr=False)
class Leave(Passing):
    """A collection of a loop as it is at the end, seen from outside."""

    kind = "leave"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        if source.loop is None:
            raise SchemaError("a collection that is in no loop cannot leave one")
        self._settle((source,), schema=source.schema, loop=source.loop.parent)
