"""Due: what happens to a record some time after it came, or at a time that it says itself.

With ``w`` an interval, and ``c(r)`` the event time of a record ``r`` in a column::

    accumulate(delay(A, w), t)            =  accumulate(A, t - w)
    accumulate(expire_after(A, w), t)     =  accumulate(A, t) - accumulate(A, t - w)
    accumulate(expire_after(A, w, c), t)  =  { r in accumulate(A, t) : c(r) + w > t }

The updates that something is still due for are kept by the time at which it is, so that a step
finds what falls due in it where it looks, whatever else waits. What was done is dropped when
batches are merged.

With structs as times ``s + w`` is field by field, and what leaves by its event time does so at the
least time that is beyond both ``s`` and ``c(r) + w``. An update may be complete and yet have a
first field beyond every frontier, so nothing waits there: updates go on at once, at the later time,
and are in no answer before it.
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
    """A column with the time at which something is due for an update, as a number.

    Parameters
    ----------
    name : str
        Of the new column.
    interval : int
        So long after its time.
    column : str or None
        After the event time in this column instead. Updates that come when it has passed are left
        out.
    time_type : TimeType
    """

    name: str
    interval: int
    column: str | None
    time_type: TimeType
    keeps_time_and_diff = False  # it looks at the time, though it leaves it as it is

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
    """Times as numbers."""
    if column.null_count:
        raise InvalidTimeError(
            f"{column.null_count} rows have no {name} (it is null): give every row one, or filter "
            "these rows out"
        )
    found: Int64 = as_int64(joined([column])).to_numpy()
    return found


def _later(event: Int64, interval: int, time_type: TimeType) -> Int64:
    """Times an interval later."""
    last = (1 << (time_type.arrow.bit_width - 1)) - 1
    if event.size and int(event.max()) > last - interval:
        raise InvalidTimeError(
            f"the time {time_type.decode(int(event.max()))!r} and the interval after it "
            f"leave the range of times of type {time_type.name}; cast the times to a "
            "wider type, or filter these rows out"
        )
    return event + interval


@dataclass(frozen=True)
class Later(Stage):
    """Updates at times that are structs moved to a later one: the first field, which is the time,
    by itself; for the others, what they are moved to comes in columns.

    Parameters
    ----------
    interval : tuple of int
        So long after the time, of which only the first field is known here.
    column : str or None
        So long after the event time in this column instead, or at their time where that is later.
    names : tuple of str
        Of the columns for the other fields of the event time; none without one.
    time_type : TimeType
        Of the first field.
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
    """Where the current time enters, as one record.

    Parameters
    ----------
    every : int
        The interval between its ticks, as times are encoded.
    """

    kind = "clock"
    every: int = field(kw_only=True)


class Waiting(Keyed):
    """An arrangement of updates by the time at which they are due, that drops what was done."""

    @property
    def plain(self) -> bool:
        return False  # nobody else finds the collection in it


@dataclass(frozen=True)
class DueKernel(ReplayKernel):
    """What falls due in the interval, at the time at which it does.

    Parameters
    ----------
    names : tuple of str
        Columns of the records.
    sign : int
        1 where records come then, -1 where they go.
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
        found = concat([*side.old, side.new.updates])
        columns = dict(zip(side.names, side.layout.decode(found)))
        diff = found.diffs()
        if self.sign < 0:
            if (diff == np.iinfo(np.int64).min).any():
                raise DiffOverflowError(
                    "a diff of -9223372036854775808 cannot be taken back within 64 bits"
                )
            diff = -diff
        records = [columns[self.names[i]] for i in wanted]
        return (records, found.key64, diff), sum(map(len, side.old))


def due(source: Node, interval: int, column: str | None, taken: Sequence[str]) -> Linear:
    """The node with a column, its last one, that tells when something is due.

    Parameters
    ----------
    source : Node
    interval : int
        As times are encoded.
    column : str or None
        So long after the event time in this column, and not after the time of an update.
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
    kind : str
    source : Linear
    sign : int
        1 where records come then, -1 where they go.

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
    """The node with each update at a later time in the first field, where times are structs, and
    its columns, if any, with what the others are to be: for `pyspark_diff.operators.loop.moved`.

    Parameters
    ----------
    source : Node
    interval : sequence of int
        A number for each field.
    column : str or None
        So long after the event time in this column, if that is later than the update, else at the
        time that it has.
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
