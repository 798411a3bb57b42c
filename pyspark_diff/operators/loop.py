"""Loops: where an iteration begins, goes round, and is left.

With the body ``r = f(x)``, at every time ``t``::

    x at (t, 0) = start at t        x at (t, i + 1) = r at (t, i)

so ``x`` at coordinate 0 has the updates of ``start``, at 1 those of ``r`` at 0 less those of
``start``, and at ``i + 1`` those of ``r`` at ``i``. To leave a loop is to forget its coordinate.

What enters has all its updates at coordinate 0. With a number of iterations ``f`` for each record::

    enter_at(a, f) at (t, i) = { r in a at t : f(r) <= i }

so the updates of a record are at the coordinate ``f(r)``, whenever in time they come.

Times that are structs ``(t, i, ...)`` are ordered field by field, as times and coordinates are. So
collections with such times are in a loop for each field but the first, in which nothing goes round:
each update enters it at that field of its time, and what comes out has the field in a column.
"""

from __future__ import annotations

import json
from dataclasses import InitVar, dataclass, field
from functools import cache, reduce
from operator import and_
from typing import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import DiffError, InvalidTimeError, SchemaError
from pyspark_diff.kernels.coordinates import bits
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import Int64, joined
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import LoopScope, Node, Passing
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import TIME, Schema, arrow_type, without_nullability
from pyspark_diff.times import Antichain, Coordinate


@dataclass(frozen=True, eq=False)
class TimeScope(LoopScope):
    """A field of times that are structs, as the loop that its updates are in.

    Parameters
    ----------
    times : StructType
        Type of the times.
    """

    times: T.StructType = field(kw_only=True)

    def time_type(self) -> T.StructType:
        return self.times

    def last(self, number: int) -> int:
        """The last value of a field besides the first."""
        width = arrow_type(self.times.fields[number].dataType).bit_width
        return min(self.max_iterations, 1 << (width - 1)) - 1

    def no_entry(self, number: int | None) -> DiffError:
        name, kind = self.times.fields[self.depth].name, self.times.simpleString()
        if number is None:
            return InvalidTimeError(
                f"rows have no time: the field {name!r} of it is null; give every row a time, or "
                "filter these rows out"
            )
        return InvalidTimeError(
            f"a row has {number} in the field {name!r} of its time, of type {kind}: all fields "
            f"but the first are from 0 to {self.max_iterations - 1}"
        )


def time_scope(node: Node) -> TimeScope | None:
    """The innermost field of the times of a collection, where these are structs."""
    loop = node.loop
    while loop is not None and not isinstance(loop, TimeScope):
        loop = loop.parent
    return loop


def scope_of(times: T.StructType) -> TimeScope:
    """The innermost field of a type of times."""
    return _scopes(times.json())[-1]


@cache
def _scopes(kind: str) -> tuple[TimeScope, ...]:
    """The loops of a type of times, the outermost first: of one type they are the same."""
    times = T.StructType.fromJson(json.loads(kind))
    found: list[TimeScope] = []
    count = len(times.fields) - 1
    for _ in range(count):
        parent = found[-1] if found else None
        name = f"the times {times.simpleString()}"
        found.append(TimeScope(name, parent, 1 << bits(count), stops=False, times=times))
    return tuple(found)


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
            raise self.loop.no_entry(int(found[0]))
        if self.loop.stops:  # it ends before they enter
            there = found < self.loop.max_iterations
            found, counts = found[there], counts[there]
        elif found.size and found[-1] >= self.loop.max_iterations:
            raise self.loop.no_entry(int(found[-1]))
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
class Move(Passing):
    """Updates at a later time in a field of times that are structs than they came at.

    Parameters
    ----------
    source : Node
    number : int
        Which of the fields but the first.
    by : int
        So much later.
    at : str or None
        At the number in this column instead, where that is later than they came.
    """

    kind = "move"
    source: InitVar[Node]
    number: int
    by: int = 0
    at: str | None = None

    def __post_init__(self, source: Node) -> None:
        names = [name for name in source.schema.names if name != self.at]
        self._settle((source,), schema=source.schema.only(names))

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return wanted if self.at is None else wanted | {self.at}

    def moved(self, at: Coordinate, to: int) -> Coordinate:
        """A coordinate with another number in its place.

        Raises
        ------
        InvalidTimeError
            If there is none so late.
        """
        assert isinstance(self.loop, TimeScope)
        if to > self.loop.last(self.number + 1):
            field_ = self.loop.times.fields[self.number + 1]
            raise InvalidTimeError(
                f"an update moves to {to} in the field {field_.name!r} of its time, of type "
                f"{self.loop.times.simpleString()}, which goes to "
                f"{self.loop.last(self.number + 1)}: give a shorter interval, or filter these "
                "rows out"
            )
        return (*at[:self.number], to, *at[self.number + 1:])


def moved(source: Node, by: Sequence[int], names: Sequence[str]) -> Node:
    """The collection at later times in all fields but the first.

    Parameters
    ----------
    source : Node
    by : sequence of int
        So much later in each field.
    names : sequence of str
        Columns with the numbers of these fields instead, where these are later.
    """
    found = source
    for number, interval in enumerate(by):
        if names:
            found = Move(found, number, at=names[number])
        elif interval:
            found = Move(found, number, interval)
    return found


@dataclass(frozen=True)
class Moving(Stage):
    """The records of one number in a column, which is left out.

    Parameters
    ----------
    at : str
    number : int
    first : bool
        Those of smaller numbers as well.
    """

    at: str
    number: int
    first: bool
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        part = column(self.at)
        inside = part <= self.number if self.first else part == self.number
        return frame.where(inside).drop(self.at)

    def on_table(self, table: pa.Table) -> pa.Table:
        inside = (pc.less_equal if self.first else pc.equal)(table[self.at], self.number)
        return table.filter(inside).drop_columns([self.at])


#: Before all fields of times.
BEFORE_ALL = -(2**63)


@dataclass(frozen=True)
class Completing(Stage):
    """Of updates with the fields of their times in columns, but for the first, those at times that
    are complete at a frontier, or the others.

    Parameters
    ----------
    names : tuple of str
        These columns.
    frontier : Antichain
    complete : bool
    """

    names: tuple[str, ...]
    frontier: Antichain
    complete: bool
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        inside = is_beyond(self.frontier, [column(name) for name in (TIME, *self.names)])
        inside = F.coalesce(inside, F.lit(False))
        return frame.where(~inside if self.complete else inside)

    def on_table(self, table: pa.Table) -> pa.Table:
        columns = (joined([table[name]]) for name in self.names)
        # A field that is null is beyond nothing.
        parts = [pc.fill_null(as_int64(part), BEFORE_ALL).to_numpy() for part in columns]
        parts.insert(0, as_int64(joined([table[TIME]])).to_numpy())
        inside = beyond(self.frontier, parts)
        return table.filter(pa.array(~inside if self.complete else inside))


def beyond(frontier: Antichain, parts: Sequence[Int64]) -> np.ndarray:
    """Which of some times, field by field, are beyond a frontier.

    Examples
    --------
    >>> parts = [np.array([0, 1, 2]), np.array([5, 1, 0])]
    >>> beyond(Antichain([(0, 3), (2, 0)]), parts).tolist()
    [True, False, True]
    """
    found = np.zeros(len(parts[0]), bool)
    for element in frontier:
        assert isinstance(element, tuple)
        found |= np.logical_and.reduce([part >= least for part, least in zip(parts, element)])
    return found


def is_beyond(frontier: Antichain, parts: Sequence[Column]) -> Column:
    """The same as a condition on columns."""
    found = F.lit(False)
    for element in frontier:
        assert isinstance(element, tuple)
        found |= reduce(and_, (part >= least for part, least in zip(parts, element)))
    return found


def with_times(source: Node, times: T.StructType, fields: Sequence[str]) -> EnterAt:
    """The collection whose times have more fields than the first, which are columns so far."""
    names = source.schema.names
    found = source
    for scope, column_ in zip(_scopes(times.json()), fields):
        names = tuple(name for name in names if name != column_)
        found = EnterAt(scope, found, column_, names)
    assert isinstance(found, EnterAt)  # there is a field besides the first
    return found


def revealed(source: Node, found: Node) -> tuple[str, ...] | None:
    """The columns that have the coordinates of a collection, the outermost first, in another one
    that is the same outside of loops; None where that is of another collection."""
    names = []
    while found is not source:
        if not isinstance(found, Reveal):
            return None
        names.append(found.name)
        (found,) = found.inputs
    return tuple(names)


def without_times(source: Node, names: Sequence[str]) -> Reveal:
    """The collection at times that are only the first field, the others being columns again."""
    found = source
    for name in reversed(names):
        found = Reveal(found, name)
    assert isinstance(found, Reveal)
    return found


@dataclass(frozen=True)
class Revealing(Stage):
    """A column with one number in all records.

    Parameters
    ----------
    name : str
    number : int
    """

    name: str
    number: int
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        return frame.withColumn(self.name, F.lit(self.number).cast("long"))

    def on_table(self, table: pa.Table) -> pa.Table:
        numbers = pa.array(np.full(table.num_rows, self.number, np.int64))
        return table.append_column(self.name, numbers)


@dataclass(frozen=True, eq=False, repr=False)
class Leave(Passing):
    """A collection of a loop as it is at the end, seen from outside."""

    kind = "leave"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        if source.loop is None:
            raise SchemaError("a collection that is in no loop cannot leave one")
        self._settle((source,), schema=source.schema, loop=source.loop.parent)

    def stages(self, iteration: int) -> tuple[Stage, ...]:
        """What is done to what leaves at an iteration."""
        return ()


@dataclass(frozen=True, eq=False, repr=False)
class Reveal(Leave):
    """A collection of a loop, seen from outside, with the iteration of each update in a column.

    Parameters
    ----------
    source : Node
    name : str
        Of that column, the last one.
    """

    kind = "reveal"
    name: str

    def __post_init__(self, source: Node) -> None:
        super().__post_init__(source)
        fields = [*source.schema.struct.fields, T.StructField(self.name, T.LongType(), False)]
        object.__setattr__(self, "schema", Schema(T.StructType(fields)))

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        return wanted - {self.name}

    def stages(self, iteration: int) -> tuple[Stage, ...]:
        return (Revealing(self.name, iteration),)
