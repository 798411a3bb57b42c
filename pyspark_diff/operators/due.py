"""Due: what happens to a record some time after it came, or at a time that it says itself.

With ``w`` an interval, and ``c(r)`` the event time of a record ``r`` in a column::

    accumulate(delay(A, w), t)            =  accumulate(A, t - w)
    accumulate(expire_after(A, w), t)     =  accumulate(A, t) - accumulate(A, t - w)
    accumulate(expire_after(A, w, c), t)  =  { r in accumulate(A, t) : c(r) + w > t }

The updates that something is still due for are kept by the time at which it is, so that a step
finds what falls due in it where it looks, whatever else waits. What was done is dropped when
batches are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence

import numpy as np
import pyarrow as pa
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
        last = (1 << (self.time_type.arrow.bit_width - 1)) - 1
        if event.size and int(event.max()) > last - self.interval:
            raise InvalidTimeError(
                f"the time {self.time_type.decode(int(event.max()))!r} and the interval after it "
                f"leave the range of times of type {self.time_type.name}; cast the times to a "
                "wider type, or filter these rows out"
            )
        due = event + self.interval
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
