"""Loops: entry into an iteration, feedback, and exit from it.

With the body ``r = f(x)``, at every time ``t``::

    x at (t, 0) = start at t        x at (t, i + 1) = r at (t, i)

so ``x`` at coordinate 0 has the updates of ``start``. At coordinate 1 it has the updates of ``r``
at 0 minus the updates of ``start``, and at ``i + 1`` the updates of ``r`` at ``i``. `leave` drops
the coordinate of a loop.

A collection enters with all its updates at coordinate 0. With an iteration ``f`` for each record::

    enter_at(a, f) at (t, i) = { r in a at t : f(r) <= i }

so the updates of a record are at the coordinate ``f(r)``, at each of their times.

Times that are structs ``(t, i, ...)`` are ordered field by field, as times and coordinates are. So
collections with struct times are in a loop for each field except the first, and these loops have no
feedback. Each update enters a loop at that field of its time, and leaves with the field in a
column.
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
from pyspark_diff.spark.data_types import arrow_type, without_nullability
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import TIME, Schema
from pyspark_diff.times import Antichain, Coordinate


@dataclass(frozen=True, eq=False)
class TimeScope(LoopScope):
    """A field of struct times, as the loop around the updates with such times.

    Parameters
    ----------
    times : StructType
        Type of the times.
    """

    times: T.StructType = field(kw_only=True)

    def time_type(self) -> T.StructType:
        return self.times

    def last(self, number: int) -> int:
        """The greatest value of a field other than the first."""
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
    """The innermost field of the times of a collection; None if its times are no structs."""
    loop = node.loop
    while loop is not None and not isinstance(loop, TimeScope):
        loop = loop.parent
    return loop


def scope_of(times: T.StructType) -> TimeScope:
    """The innermost field of a type of times."""
    return _scopes(times.json())[-1]


@cache
def _scopes(kind: str) -> tuple[TimeScope, ...]:
    """The loops of a type of times, the outermost first. Equal types share their loops."""
    times = T.StructType.fromJson(json.loads(kind))
    scopes: list[TimeScope] = []
    count = len(times.fields) - 1
    for _ in range(count):
        parent = scopes[-1] if scopes else None
        name = f"the times {times.simpleString()}"
        scopes.append(TimeScope(name, parent, 1 << bits(count), stops=False, times=times))
    return tuple(scopes)


@dataclass(frozen=True, eq=False, repr=False)
class Variable(Node):
    """The variable of a loop. Its feedback has all columns, so it needs all columns of the start.

    The definition of a variable reads the variable, so `define` sets it after the construction, and
    only once. Nodes have no other cycle and no other attribute that is set later.

    Parameters
    ----------
    start : Node
        The value of the variable in the first iteration.
    """

    kind = "variable"
    loop: LoopScope
    start: InitVar[Node]
    #: The value in the next iteration; None until `define` sets it.
    result: Node | None = field(default=None, init=False)

    def __post_init__(self, start: Node) -> None:
        loop = self.loop
        if start in loop:
            raise SchemaError(
                f"a variable of {loop.name} starts with a collection from outside of it, not with "
                "one that changes in each iteration"
            )
        # Later iterations may have nulls in columns whose start has none.
        schema = Schema(without_nullability(start.schema.struct))
        self._settle((start,), schema=schema, loop=loop)

    def define(self, result: Node) -> None:
        """Set, once, the value in the next iteration."""
        if self.result is not None:
            raise SchemaError("this variable was set before; a variable is set once")
        object.__setattr__(self, "result", result)


@dataclass(frozen=True, eq=False, repr=False)
class Enter(Passing):
    """A stream of updates from outside of all loops that enters a loop."""

    kind = "enter"
    loop: LoopScope
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        self._settle((source,), schema=source.schema, loop=self.loop)


@dataclass(frozen=True, eq=False, repr=False)
class EnterAt(Node):
    """A collection from outside of a loop, whose records enter at iterations of their own.

    Parameters
    ----------
    at : str
        The column with the number of the iteration.
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
        """The iterations with entering updates, in order, and the number of updates of each.

        Raises
        ------
        SchemaError
            If an iteration is negative.
        StalledError
            If the loop would raise an error before an iteration.
        """
        entered, counts = np.unique(numbers, return_counts=True)
        if entered.size and entered[0] < 0:
            raise self.loop.no_entry(int(entered[0]))
        if self.loop.stops:  # it returns before later records enter
            reached = entered < self.loop.max_iterations
            entered, counts = entered[reached], counts[reached]
        elif entered.size and entered[-1] >= self.loop.max_iterations:
            raise self.loop.no_entry(int(entered[-1]))
        return entered.tolist(), counts.tolist()


@dataclass(frozen=True)
class Entering(Stage):
    """The records that enter a loop at one iteration, without the column of the iteration."""

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
    """Moves updates with struct times to a later time in one field.

    Parameters
    ----------
    number : int
        Number of the field, without the first field.
    by : int
        Distance of the later time.
    at : str or None
        Column with the new value of the field, if that is later than the old value.
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
        """A coordinate with another value of the field.

        Raises
        ------
        InvalidTimeError
            If the value exceeds the range of the field.
        """
        assert isinstance(self.loop, TimeScope)
        if to > self.loop.last(self.number + 1):
            field_ = self.loop.times.fields[self.number + 1]
            raise InvalidTimeError(
                f"an update moves to {to} in the field {field_.name!r} of its time, of type "
                f"{self.loop.times.simpleString()}, which goes to "
                f"{self.loop.last(self.number + 1)}. Give a shorter interval, or filter these "
                "rows out"
            )
        return (*at[:self.number], to, *at[self.number + 1:])


def moved(source: Node, by: Sequence[int], names: Sequence[str]) -> Node:
    """The collection at later times in all fields except the first.

    Parameters
    ----------
    by : sequence of int
        Distance of the later time, field by field.
    names : sequence of str
        Columns with the new values of these fields, if they are later than the old values.
    """
    node = source
    for number, interval in enumerate(by):
        if names:
            node = Move(node, number, at=names[number])
        elif interval:
            node = Move(node, number, interval)
    return node


@dataclass(frozen=True)
class Moving(Stage):
    """The records with one number in a column, without this column.

    Parameters
    ----------
    first : bool
        Whether records with smaller numbers belong to the output as well.
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


#: A number before all values of fields of times.
BEFORE_ALL = -(2**63)


@dataclass(frozen=True)
class Completing(Stage):
    """Selects updates by the completeness of their struct times at a frontier.

    Parameters
    ----------
    names : tuple of str
        Columns with the fields of times, except the first.
    complete : bool
        Whether the output has the complete times, or the incomplete times.
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
    """For times, field by field, whether each is beyond a frontier.

    Examples
    --------
    >>> parts = [np.array([0, 1, 2]), np.array([5, 1, 0])]
    >>> beyond(Antichain([(0, 3), (2, 0)]), parts).tolist()
    [True, False, True]
    """
    inside = np.zeros(len(parts[0]), bool)
    for element in frontier:
        assert isinstance(element, tuple)
        inside |= np.logical_and.reduce([part >= least for part, least in zip(parts, element)])
    return inside


def is_beyond(frontier: Antichain, parts: Sequence[Column]) -> Column:
    """`beyond` as a condition on columns."""
    condition = F.lit(False)
    for element in frontier:
        assert isinstance(element, tuple)
        condition |= reduce(and_, (part >= least for part, least in zip(parts, element)))
    return condition


def with_times(source: Node, times: T.StructType, fields: Sequence[str]) -> EnterAt:
    """The collection with struct times, whose fields except the first are columns of ``source``."""
    names = source.schema.names
    node = source
    for scope, column_ in zip(_scopes(times.json()), fields):
        names = tuple(name for name in names if name != column_)
        node = EnterAt(scope, node, column_, names)
    assert isinstance(node, EnterAt)  # struct times have a second field
    return node


def revealed(source: Node, node: Node) -> tuple[str, ...] | None:
    """The columns of ``node`` with the coordinates of ``source``, the outermost first; None if
    ``node`` does not reveal the coordinates of ``source``."""
    names = []
    while node is not source:
        if not isinstance(node, Reveal):
            return None
        names.append(node.name)
        (node,) = node.inputs
    return tuple(names)


def without_times(source: Node, names: Sequence[str]) -> Reveal:
    """The collection with the first field as its time, and the other fields as columns."""
    node = source
    for name in reversed(names):
        node = Reveal(node, name)
    assert isinstance(node, Reveal)
    return node


@dataclass(frozen=True)
class Revealing(Stage):
    """A column with one number in all records."""

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
    """The result of a collection of a loop, outside of the loop."""

    kind = "leave"
    source: InitVar[Node]

    def __post_init__(self, source: Node) -> None:
        if source.loop is None:
            raise SchemaError("a collection that is in no loop cannot leave one")
        self._settle((source,), schema=source.schema, loop=source.loop.parent)

    def stages(self, iteration: int) -> tuple[Stage, ...]:
        """The stages for the updates that leave at an iteration."""
        return ()


@dataclass(frozen=True, eq=False, repr=False)
class Reveal(Leave):
    """A collection of a loop, outside of the loop, with the iteration of each update in a column.

    Parameters
    ----------
    source : Node
    name : str
        Name of this last column.
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
