"""Sessions of inputs with struct times. The first field of a time is the time of an update in the
engine, and columns have the other fields.

    the session's frontier is F  ⟹  no further update has a time that is not beyond F
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.coercion import Data, coerce
from pyspark_diff.dataflow.input_session import Discard, Discarded, InputSession
from pyspark_diff.dataflow.times import coordinate, frontier_of
from pyspark_diff.engine.state import Arrival
from pyspark_diff.errors import InvalidTimeError, TimeRegressionError
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.loop import beyond
from pyspark_diff.operators.node import Input
from pyspark_diff.runners.feed import UpdateRows
from pyspark_diff.spark.data_types import arrow_type
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import Schema
from pyspark_diff.times import Antichain, Coordinate

if TYPE_CHECKING:
    from typing_extensions import Self


class StructSession(InputSession):
    """The engine's side of a `ProductSession`: frontiers consist of structs, and the last columns
    of updates have all fields of their times but the first.
    """

    def __init__(
        self, node: Input, spark: SparkSession, time: str, diff: str, start: Antichain,
        discard: Discard, times: T.StructType,
    ):
        super().__init__(node, spark, time, diff, start, discard)
        self._times = times
        #: Guards the comparison of updates with the frontier together with their entry.
        self.feeding = threading.RLock()
        #: The maximum of each field of the times of a frame that enters.
        self.last: Coordinate = ()

    def _describe_time(self) -> str:
        at = self._content.capability
        return "closed" if at.is_empty else f"at {list(at)!r}"

    def _arrival(self, entered: UpdateRows, last: int) -> Arrival:
        if entered.table is None:
            return Arrival(entered, self.last)
        names = entered.schema.names[1 - len(self._times.fields):]
        columns = (joined([entered.table[name]]) for name in names)
        return Arrival(entered, (last, *(int(as_int64(c).to_numpy().max()) for c in columns)))

    def _hand_over(self, to: Antichain | None = None) -> None:
        with self.feeding:
            super()._hand_over(to)

    def _shown(self, discarded: Discarded) -> Discarded:
        records = len(self._node.schema.names) + 1 - len(self._times.fields)
        shown: Discarded = []
        for rows in discarded:
            names = list(rows.columns if isinstance(rows, DataFrame) else rows.column_names)
            *fields, time, diff = names[records:]
            if isinstance(rows, DataFrame):
                pairs = zip((time, *fields), self._times.fields)
                parts = (column(name).cast(f.dataType).alias(f.name) for name, f in pairs)
                own = map(column, names[:records])
                shown.append(rows.select(*own, F.struct(*parts).alias(time), column(diff)))
                continue
            arrays = [joined([rows[name]]) for name in (time, *fields)]
            whole = pa.StructArray.from_arrays(arrays, self._times.names)
            rest = rows.drop_columns(names[records:])
            rest = rest.append_column(time, whole.cast(arrow_type(self._times)))
            shown.append(rest.append_column(diff, rows[diff]))
        return shown

    def _advance(self, to: Antichain) -> None:
        """Move the session's frontier forward."""
        with self._lock:
            self._replace_content(self._content._replace(capability=to))


class ProductSession:
    """Feeds one input of a dataflow whose times are structs. It holds state: its frontier.

    `Dataflow.input` returns it if ``time_type`` is a struct of integers. It is an `InputSession`
    with tuples as times; a frontier is a tuple, or a list of tuples.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark, time_type="struct<day: int, known: int>") as flow:
    ...     hired, hired_in = flow.input("hired", "name string")
    ...     there = hired.count().keep()
    ...     hired_in.update([("ann", (1, 1), 1), ("bob", (3, 2), 1)])
    ...     _ = flow.advance_to((4, 0))
    ...     hired_in.insert([("cy",)])                        # at (4, 0)
    ...     _ = flow.advance_to((5, 0))
    ...     [sorted(row.name for row in there.at(t).collect()) for t in [(4, 0), (4, 1), (4, 2)]]
    [['cy'], ['ann', 'cy'], ['ann', 'bob', 'cy']]
    """

    def __init__(
        self, session: StructSession, schema: Schema, times: T.StructType, fields: list[str],
    ):
        self._session, self._schema, self._times, self._fields = session, schema, times, fields
        self._time, self._diff = session._names

    def __repr__(self) -> str:
        return f"ProductSession({self.name!r}, {self._session._describe_time()})"

    @property
    def _frontier(self) -> Antichain:
        """Times beyond it are accepted."""
        return self._session._content.capability

    @property
    def name(self) -> str:
        """Name of the input."""
        return self._session.name

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the records."""
        return self._schema.struct

    def time(self) -> tuple[int, ...]:
        """The time at which the next inserted rows enter.

        Raises
        ------
        InvalidTimeError
            If the frontier has several times, none of them before all others.
        """
        self._session._open()
        frontier = self._frontier
        if len(frontier.elements) > 1:
            raise InvalidTimeError(
                f"input {self.name!r} is at several times, {list(frontier)!r}, and records "
                "enter at one: give them theirs, update(...)"
            )
        (time,) = frontier.elements
        assert isinstance(time, tuple)
        return time

    def advance_to(self, time: Any) -> None:
        """Move the session's frontier forward: every later update is at a time beyond it.

        Parameters
        ----------
        time : tuple of int, or list of them
            Updates may still enter at times that are not before one of these in any field.

        Raises
        ------
        TimeRegressionError
            If one of them is not beyond the present frontier.
        """
        to = frontier_of(time, self._times)
        with self._session.feeding:
            self._session._open()
            if not self._frontier.precedes(to):
                raise TimeRegressionError(
                    f"input {self.name!r} is at {list(self._frontier)!r} and cannot go back to "
                    f"{time!r}. Advance to times that are no earlier than a time of the "
                    "input in any field"
                )
            self._session._advance(to)

    def insert(self, data: Data) -> None:
        """Add records at the session's time: see `InputSession.insert`."""
        self._append(data, 1)

    def remove(self, data: Data) -> None:
        """Take records away at the session's time."""
        self._append(data, -1)

    def update(self, data: Data) -> None:
        """Add update rows that bring their own times and diffs: see `InputSession.update`.

        Raises
        ------
        TimeRegressionError
            If a time is not beyond the session's frontier; nothing of ``data`` is taken then.
        InvalidTimeError
            If a time, or a field of one, is null.
        """
        struct = T.StructType([
            *self.schema.fields, T.StructField(self._time, self._times),
            T.StructField(self._diff, T.LongType()),
        ])
        rows = coerce(data, struct, self.name, self._session._spark, widen=(self._diff,))
        with self._session.feeding:
            self._session._open()
            if isinstance(rows, DataFrame):
                self._session.update(self._checked_frame(rows))
            elif rows.num_rows:
                self._session.update(self._checked(rows))

    def flush(self) -> None:
        """Hand everything over to the dataflow. Its next step does that too."""
        self._session.flush()

    def discard(self) -> Discarded:
        """Drop updates that no step has processed or whose time is incomplete: see
        `InputSession.discard`.

        Returns
        -------
        list of pyarrow.Table or DataFrame
            The dropped updates: the input's columns, time and diff.
        """
        return self._session.discard()

    def close(self) -> None:
        """Declare the input complete, and flush. A second call does nothing."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, data: Data, diff: int) -> None:
        rows = coerce(data, self.schema, self.name, self._session._spark)
        with self._session.feeding:
            now = self.time()
            self._session.last = now
            for name, part in zip(self._fields, now[1:]):
                if isinstance(rows, DataFrame):
                    rows = rows.withColumn(name, F.lit(part).cast("long"))
                else:
                    numbers = pa.array(np.full(rows.num_rows, part, np.int64))
                    rows = rows.append_column(name, numbers)
            (self._session.insert if diff > 0 else self._session.remove)(rows)

    def _checked(self, table: pa.Table) -> pa.Table:
        """A table of updates with the fields of its times as columns."""
        whole = table[self._time].combine_chunks()
        parts = [pc.struct_field(whole, [i]) for i in range(len(self._times.fields))]
        numbers = [pc.cast(part, pa.int64()) for part in parts]
        missing = np.logical_or.reduce([part.is_null().to_numpy(False) for part in parts])
        self._check_nulls(int(missing.sum()))
        columns = [part.to_numpy() for part in numbers]
        inside = beyond(self._frontier, columns)
        if not inside.all():
            self._refuse(tuple(int(c[np.argmin(inside)]) for c in columns))
        records = table.select(list(self._schema.names))
        for name, part in zip(self._fields, numbers[1:]):
            records = records.append_column(name, part)
        records = records.append_column(self._time, parts[0])
        return records.append_column(self._diff, table[self._diff])

    def _checked_frame(self, frame: DataFrame) -> DataFrame:
        """A Spark frame of updates with the fields of its times as columns; one job reads them."""
        parts = [column(self._time).getField(f.name).cast("long") for f in self._times.fields]
        inside = F.lit(False)
        for element in self._frontier:
            assert isinstance(element, tuple)
            after = F.lit(True)
            for part, least in zip(parts, element):
                after &= part >= least
            inside |= after
        missing = F.lit(False)
        for part in parts:
            missing |= part.isNull()
        extremes = frame.agg(
            F.count_if(missing).alias("missing"),
            F.first(F.when(~inside, F.array(*parts)), ignorenulls=True).alias("wrong"),
            F.array(*map(F.max, parts)).alias("last"),
        ).first()
        assert extremes is not None  # an aggregate without keys has one row
        self._check_nulls(extremes.missing)
        if extremes.wrong is not None:
            self._refuse(tuple(extremes.wrong))
        self._session.last = tuple(part or 0 for part in extremes.last)  # there may be no rows
        rest = [part.alias(name) for part, name in zip(parts[1:], self._fields)]
        first = column(self._time).getField(self._times.fields[0].name).alias(self._time)
        return frame.select(
            *map(column, self._schema.names), *rest, first, column(self._diff)
        )

    def _check_nulls(self, count: int) -> None:
        if count:
            raise InvalidTimeError(
                f"{count} rows for input {self.name!r} have a null time, or one in a field of it; "
                "nothing was taken. Fill it, or filter these rows out"
            )

    def _refuse(self, time: Coordinate) -> None:
        at = coordinate(time, self._times)
        raise TimeRegressionError(
            f"an update at time {at!r} is not beyond the frontier of input {self.name!r}, which is "
            f"at {list(self._frontier)!r}; nothing was taken"
        )
