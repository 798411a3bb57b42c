"""Due: updates that follow a record after an interval, or at a time that the record contains.

With ``w`` an interval, and ``c(r)`` the event time of a record ``r`` in a column::

    accumulate(delay(A, w), t)            =  accumulate(A, t - w)
    accumulate(expire_after(A, w), t)     =  accumulate(A, t) - accumulate(A, t - w)
    accumulate(expire_after(A, w, c), t)  =  { r in accumulate(A, t) : c(r) + w > t }

Pending updates are arranged by their due time, so that a step reads only the updates that fall due
in it. Merges of batches drop updates whose due time has passed.

With structs as times ``s + w`` is field by field. A record expires by event time at the least time
beyond both ``s`` and ``c(r) + w``. A complete update may have a first field beyond every frontier,
so no update waits: each is emitted at once, at its later time, and no earlier result contains it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.errors import DiffOverflowError, InvalidTimeError
from pyspark_diff.expressions.names import unused
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import Int64, concat, joined
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side, Stage
from pyspark_diff.operators.node import Input, Keyed, Linear, Node, Reader
from pyspark_diff.spark.frames import map_tables
from pyspark_diff.spark.schema import TIME, Schema, TimeType


@dataclass(frozen=True)
class Due(Stage):
    """Adds a column with the due time of an update, as a number.

    Parameters
    ----------
    name : str
        Name of the new column.
    interval : int
        Interval between the time of an update and its due time.
    column : str or None
        Column of the event time, to which the interval is added instead. Updates that arrive at or
        after their due time are dropped.
    """

    name: str
    interval: int
    column: str | None
    time_type: TimeType
    keeps_time_and_diff = False  # it changes no time, but its output depends on the time

    def on_frame(self, frame: DataFrame) -> DataFrame:
        fields = [*frame.schema.fields, T.StructField(self.name, T.LongType())]
        return map_tables(frame, self.on_table, T.StructType(fields))

    def on_table(self, table: pa.Table) -> pa.Table:
        time = event = _numbers(table[TIME], "time")
        if self.column is not None:
            event = _numbers(table[self.column], self.column)
        due = _later(event, self.interval, self.time_type)
        table = table.append_column(self.name, pa.array(due))
        if self.column is not None and (due <= time).any():
            table = table.filter(pa.array(due > time))
        return table


def _numbers(column: pa.ChunkedArray, name: str) -> Int64:
    if column.null_count:
        raise InvalidTimeError(
            f"{column.null_count} rows have no {name} (it is null): give every row one, or filter "
            "these rows out"
        )
    numbers: Int64 = as_int64(joined([column])).to_numpy()
    return numbers


def _later(event: Int64, interval: int, time_type: TimeType) -> Int64:
    last = (1 << (time_type.arrow.bit_width - 1)) - 1
    if event.size and int(event.max()) > last - interval:
        raise InvalidTimeError(
            f"the time {time_type.decode(int(event.max()))!r} and the interval after it "
            f"leave the range of times of type {time_type.name}. Cast the times to a "
            "wider type, or filter these rows out"
        )
    return event + interval


@dataclass(frozen=True)
class Later(Stage):
    """Moves updates with struct times to a later time. The stage changes the first field itself,
    and adds columns with the new values of the other fields.

    Parameters
    ----------
    interval : tuple of int
        Distance of the later time, field by field. The stage knows only the first field.
    column : str or None
        Column of the event time, to which the interval is added instead. An update with a later
        time keeps its time.
    names : tuple of str
        Columns for the other fields of the event time; empty without an event time.
    time_type : TimeType
        Type of the first field.
    """

    interval: tuple[int, ...]
    column: str | None
    names: tuple[str, ...]
    time_type: TimeType
    keeps_time_and_diff = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        more = [T.StructField(name, T.LongType()) for name in self.names]
        return map_tables(frame, self.on_table, T.StructType([*frame.schema.fields, *more]))

    def on_table(self, table: pa.Table) -> pa.Table:
        time = _numbers(table[TIME], "time")
        first, *rest = self.interval
        if self.column is None:
            moved = _later(time, first, self.time_type)
        else:
            whole = joined([table[self.column]])
            events = [
                _numbers(pa.chunked_array([pc.struct_field(whole, [i])]), self.column)
                for i in range(len(self.interval))
            ]
            moved = np.maximum(time, _later(events[0], first, self.time_type))
            for name, event, interval in zip(self.names, events[1:], rest):
                due = _later(event, interval, TimeType(T.LongType()))
                table = table.append_column(name, pa.array(due))
        number = table.column_names.index(TIME)
        return table.set_column(number, TIME, pa.array(moved).cast(table[TIME].type))


@dataclass(frozen=True, eq=False, repr=False)
class Clock(Input):
    """The input of the current time, a collection with one record.

    Parameters
    ----------
    interval : int
        The encoded interval between its ticks.
    """

    kind = "clock"
    interval: int = field(kw_only=True)


class Waiting(Keyed):
    """An arrangement of updates by due time that drops updates after that time."""

    @property
    def plain(self) -> bool:
        return False  # other readers need the updates that it drops


@dataclass(frozen=True)
class DueKernel(ReplayKernel):
    """Emits the updates that fall due in the interval, at their due times.

    Parameters
    ----------
    names : tuple of str
        Columns of the records.
    sign : int
        1 to insert records at their due times, -1 to retract them.
    """

    names: tuple[str, ...]
    sign: int
    by_time = True

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return [self.names[i] for i in wanted]

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        (side,) = sides
        updates = concat([*side.old, side.new.updates])
        columns = dict(zip(side.names, side.layout.decode(updates)))
        diff = updates.diffs()
        if self.sign < 0:
            if (diff == np.iinfo(np.int64).min).any():
                raise DiffOverflowError(
                    "a diff of -9223372036854775808 cannot be taken back within 64 bits"
                )
            diff = -diff
        records = [columns[self.names[i]] for i in wanted]
        return (records, updates.key64, diff), sum(map(len, side.old))


def due(source: Node, interval: int, column: str | None, taken: Sequence[str]) -> Linear:
    """The node that adds the due time as the last column.

    Parameters
    ----------
    interval : int
        As times are encoded.
    column : str or None
        Column of the event time, to which the interval is added instead of the update's time.
    taken : sequence of str
        Names that no column may have.
    """
    name = unused("due", [*source.schema.names, *taken])
    fields = [*source.schema.struct.fields, T.StructField(name, T.LongType(), False)]
    stage = Due(name, interval, column, source.time_type)
    also = frozenset() if column is None else frozenset([column])
    return Linear(
        "due", source, Schema(T.StructType(fields)), stage,
        lambda wanted: (wanted - {name}) | also,
    )


def falls_due(kind: str, source: Linear, sign: int) -> Reader:
    """The node with the updates of `due`, without that column, at the times in it.

    Parameters
    ----------
    sign : int
        1 to insert records at their due times, -1 to retract them.

    Notes
    -----
    Source: differential-dataflow ``Collection::delay``, whose updates wait in the operator too.
    """
    *names, when = source.schema.names
    waiting = Waiting("waiting", source, source.schema, None, (when,))
    kernel = DueKernel(tuple(names), sign)
    return Reader(kind, (waiting,), source.schema.only(names), kernel)


def later(
    source: Node, interval: Sequence[int], column: str | None, taken: Sequence[str]
) -> tuple[Node, list[str]]:
    """The node that moves the first field of struct times to a later time, and the names of its
    columns with the new values of other fields, for `pyspark_diff.operators.loop.moved`.

    Parameters
    ----------
    interval : sequence of int
        A number for each field.
    column : str or None
        Column of the event time, to which the interval is added instead. An update with a later
        time keeps its time.
    taken : sequence of str
        Names that no column may have.
    """
    names: list[str] = []
    if column is None and not interval[0]:
        return source, names
    for _ in interval[1:] if column is not None else ():
        names.append(unused("due", [*source.schema.names, *taken, *names]))
    fields = [*source.schema.struct.fields, *(T.StructField(n, T.LongType()) for n in names)]
    stage = Later(tuple(interval), column, tuple(names), source.time_type)
    also = frozenset() if column is None else frozenset([column])
    moved = Linear(
        "later", source, Schema(T.StructType(fields)), stage,
        lambda wanted: (wanted - frozenset(names)) | also,
    )
    return moved, names
