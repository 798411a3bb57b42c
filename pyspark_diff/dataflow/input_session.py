"""Input sessions: handles that give updates a time, and move the frontier of an input.

For a session whose time is ``now``: every update that it still accepts has a time ``t >= now``, and
``now`` never goes back.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.coercion import Data, coerce
from pyspark_diff.engine.state import Arrival
from pyspark_diff.errors import (
    ClosedError,
    InvalidDiffError,
    InvalidTimeError,
    SchemaError,
    TimeRegressionError,
)
from pyspark_diff.expressions.check import check_deterministic
from pyspark_diff.fallbacks import Fallbacks, counting
from pyspark_diff.kernels.equality import normal_table
from pyspark_diff.kernels.layout import as_int64, from_int64
from pyspark_diff.kernels.updates import bounds_of, joined
from pyspark_diff.operators.node import Input
from pyspark_diff.runners.feed import UpdateRows
from pyspark_diff.runners.parquet import ParquetScan, parquet_scan
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.times import Antichain

if TYPE_CHECKING:
    from typing_extensions import Self

#: Updates that were discarded: the input's columns, time and diff, under the user's names.
Discarded: TypeAlias = list[pa.Table | DataFrame]


#: Of an input, what a condition holds for, and also what earlier steps took in.
Discard: TypeAlias = "Callable[[Input, Column | str | None, bool], Discarded]"


class _Content(NamedTuple):
    """All that a session holds. One assignment replaces it, so nothing is ever half done."""

    #: Times that it still accepts; empty when closed.
    capability: Antichain
    #: What was declared with the last flush.
    frontier: Antichain
    #: Since the last flush: what came by itself, and the many small tables of records that came
    #: each with a time and a diff for all of them.
    waiting: list[Arrival]
    rows: list[tuple[pa.Table, int, int]]
    #: What was flushed, and the number of the first of it; all are numbered as they come.
    flushed: tuple[Arrival, ...] = ()
    first: int = 0

    def beyond(self, taken: int) -> tuple[Arrival, ...]:
        """What was flushed beyond so many arrivals."""
        return self.flushed[taken - self.first:]


class _Span(NamedTuple):
    """The times of some updates, and how many they are."""

    first: int
    last: int
    rows: int


class BaseSession:
    """What all that feeds an input has: a time, what waits for `flush`, and what was flushed.

    It holds state. Several threads may use it, also while another one steps, and so may functions
    that a step calls: each call is done as a whole. What enters has the time that the session has
    just then.
    """

    def __init__(
        self, node: Input, spark: SparkSession, time: str, diff: str, start: int | Antichain,
        discard: Discard,
    ):
        self._node = node
        self._spark = spark
        self._discard = discard
        self._names = (time, diff)
        begin = start if isinstance(start, Antichain) else Antichain([start])
        self._content = _Content(begin, begin, [], [])
        #: Sessions of which a step may have to take in something, of all inputs of a dataflow.
        self._changed: dict[BaseSession, None] = {}
        #: Shared by all inputs of a dataflow.
        self._fallbacks = Fallbacks()
        #: For the moment in which the content changes; what is handed in is converted before.
        self._lock = threading.Lock()
        self._flow_closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._told()})"

    def _told(self) -> str:
        """The time of the session, in words."""
        at = self._content.capability.bound
        return "closed" if at is None else f"at {self._node.time_type.decode(at)!r}"

    @property
    def name(self) -> str:
        """Name of the input."""
        return self._node.name

    @property
    def schema(self) -> T.StructType:
        """Spark schema of the records."""
        return self._node.schema.struct

    def time(self) -> Any:
        """The session's time: that of the next insertion."""
        return self._node.time_type.decode(self._open())

    def advance_to(self, time: Any) -> None:
        """Move the session's time forward: no update before it will come any more.

        Raises
        ------
        TimeRegressionError
            If ``time`` lies before the session's time.
        """
        with self._lock:
            now = self._open()
            to = self._node.time_type.encode(time)
            if to < now:
                raise TimeRegressionError(
                    f"input {self.name!r} is at time {self.time()!r} and cannot go back to {time!r}"
                )
            self._hold(self._content._replace(capability=Antichain([to])))

    def flush(self) -> None:
        """Hand everything over to the dataflow. Its next step does that too."""
        with self._lock:
            self._open()
            self._flush(self._content.capability)

    def discard(
        self, where: Column | str | None = None, *, waiting: bool = False
    ) -> Discarded:
        """Drop what has entered and no step has processed, flushed or not: for when a step fails on
        it, and would fail for ever.

        The session keeps its time, and what it has declared with `flush`. So what is mended enters
        at the session's time or later, as anything else.

        Parameters
        ----------
        where : Column or str, optional
            Only updates that this holds for: a condition on the input's columns, time and diff, or
            for an input with a key on time and change.
        waiting : bool
            Also what earlier steps took in, at times that are not complete everywhere because
            another input lags behind. From the next step on all collections are as if that had
            never come, and consumers are shown the difference. What has waited for more than a
            million updates cannot be dropped any more.

        Returns
        -------
        list of pyarrow.Table or DataFrame
            What was dropped: the input's columns, time and diff. One table of all updates, if there
            are any, then the Spark frames that were given.

        Examples
        --------
        >>> from pyspark_diff import Dataflow
        >>> with Dataflow(spark) as flow:
        ...     parts, parts_in = flow.input("parts", "total int, number int")
        ...     shares = parts.selectExpr("total div number AS share").keep()
        ...     parts_in.insert([(6, 2), (1, 0)])
        ...     try:
        ...         _ = flow.advance_to(1)
        ...     except Exception as error:
        ...         found = "(1, 0) with diff 1" in str(error)
        ...     dropped, = parts_in.discard()
        ...     parts_in.insert([row for row in dropped.drop_columns(["time", "diff"]).to_pylist()
        ...                      if row["number"]])
        ...     parts_in.close()
        ...     _ = flow.step()
        ...     found, shares.at().collect()
        (True, [Row(share=3)])
        """
        return self._discard(self._node, where, waiting)

    def close(self) -> None:
        """Declare the input complete, and flush. A second call does nothing."""
        with self._lock:
            if not self._content.capability.is_empty:
                self._flush(Antichain())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self, content: _Content) -> None:
        """Change what the session holds; within the lock."""
        # First, so that a Ctrl-C in between forgets nothing.
        self._changed[self] = None
        self._content = content

    def _add(
        self, waiting: Sequence[Arrival] = (), rows: Sequence[tuple[pa.Table, int, int]] = ()
    ) -> None:
        """Take in what came by itself, and small tables of records with a time and a diff."""
        self._changed[self] = None
        self._content.waiting.extend(waiting)
        self._content.rows.extend(rows)

    def _held(self) -> _Content:
        """All that it holds now, to go back to: lists in it grow."""
        with self._lock:
            held = self._content
            return held._replace(waiting=[*held.waiting], rows=[*held.rows])

    def _go_back(self, held: _Content) -> None:
        """Go back to what it held once."""
        with self._lock:
            self._hold(held)

    def _go_on(self, frontier: Antichain) -> None:
        """Go on where another process has got to; nothing has been given yet."""
        with self._lock:
            self._hold(_Content(frontier, frontier, [], []))

    def _at(self) -> int | None:
        """The session's time; None when closed."""
        return self._content.capability.bound

    def _advance_at_least(self, to: Antichain) -> None:
        """Move the session's time forward, if it is open and not there yet."""
        with self._lock:
            held = self._content
            if held.capability.precedes(to):
                self._hold(_Content(to, *held[1:]))

    def _is_ahead(self, taken: int) -> bool:
        """Whether it was given more than so many arrivals, or advanced since they were flushed."""
        held = self._content
        return self._has_more(taken) or held.capability != held.frontier

    def _has_more(self, taken: int) -> bool:
        """Whether it was given more than so many arrivals."""
        held = self._content
        return bool(held.waiting or held.rows or held.beyond(taken))

    def _hand_over(self, to: Antichain | None = None) -> None:
        """Flush, if it is open, and before that move its time forward if it is not there yet."""
        with self._lock:
            now = self._content.capability
            if not now.is_empty:
                self._flush(now if to is None or not now.precedes(to) else to)

    def _flush(self, frontier: Antichain) -> None:
        held = self._content
        if held.waiting or held.rows:
            held = self._all_flushed()
        self._hold(_Content(frontier, frontier, [], [], held.flushed, held.first))

    def _all_flushed(self) -> _Content:
        """The content when all that has entered is among what was flushed."""
        held = self._content
        flushed = (*held.flushed, *held.waiting, *self._gathered(held.rows))
        return held._replace(waiting=[], rows=[], flushed=flushed)

    def _entered(self, taken: int) -> tuple[Arrival, ...]:
        """What has entered beyond so many arrivals, flushed or not."""
        with self._lock:
            # What was not flushed is numbered, too. It lies beyond the frontier, so nobody sees it.
            self._hold(self._all_flushed())
            return self._content.beyond(taken)

    def _drop(self, taken: int, frontier: Antichain | None) -> None:
        """Let go of what a state at a frontier has taken in, so many arrivals; if it has all, the
        session has not changed any more. A second call does nothing."""
        with self._lock:
            held = self._content
            if taken > held.first:
                held = held._replace(flushed=held.beyond(taken), first=taken)
                self._hold(held)
            if held.waiting or held.rows or held.flushed or held.capability is not held.frontier:
                return
            if held.frontier is frontier or held.frontier == frontier:
                self._changed.pop(self, None)

    def _open(self) -> int:
        if self._flow_closed:
            raise ClosedError(f"the dataflow of input {self.name!r} was closed; make a new one")
        now = self._content.capability.bound
        if now is None:
            raise ClosedError(f"input {self.name!r} was closed: it takes no more updates")
        return now

    def _gathered(self, rows: Sequence[tuple[pa.Table, int, int]]) -> list[Arrival]:
        """One arrival of the many small tables that insert and remove left."""
        if not rows:
            return []
        tables, times, diffs = zip(*rows)
        records = pa.concat_tables(tables).combine_chunks()
        sizes = [found.num_rows for found in tables]
        time = from_int64(pa.array(np.repeat(times, sizes)), self._node.time_type.arrow)
        diff = pa.array(np.repeat(diffs, sizes))
        # Not appended to the records: where they have no columns, they are none.
        table = pa.table(
            [*records.columns, time, diff], names=[*self._node.schema.names, TIME, DIFF]
        )
        entered = UpdateRows(self._node.schema, table=table, rows=table.num_rows)
        return [self._arrival(entered, max(times))]

    def _arrival(self, entered: UpdateRows, last: int) -> Arrival:
        """Updates that have entered, the last time of which is known."""
        return Arrival(entered, last)

    def _enter(self, entered: UpdateRows, first: int, last: int) -> None:
        """Take in updates that bring their times, the first and last of which are known."""
        with self._lock:
            self._check_times(first, self._open())
            self._add(waiting=[self._arrival(entered, last)])

    def _span(self, frame: DataFrame) -> _Span:
        """The times of a Spark frame of updates; any where it has no rows."""
        counted = [F.count_if(column(name).isNull()) for name in (TIME, DIFF)]
        row = frame.agg(
            F.min(column(TIME)).alias("first"),
            F.max(column(TIME)).alias("last"),
            counted[0].alias("no_time"),
            counted[1].alias("no_diff"),
            F.count(F.lit(1)).alias("rows"),
        ).first()
        assert row is not None  # an aggregate without keys has one row
        if row.no_time:
            raise InvalidTimeError(nulls(row.no_time, "time", self.name))
        if row.no_diff:
            raise InvalidDiffError(nulls(row.no_diff, "diff", self.name))
        if not row.rows:
            return _Span(0, 0, 0)
        encode = self._node.time_type.encode
        return _Span(encode(row["first"]), encode(row["last"]), row["rows"])

    def _named(self, frame: DataFrame) -> DataFrame:
        """A frame of updates, and of other columns behind them, under the names of users."""
        names = [*self._node.schema.names, *self._names]
        return frame.toDF(*names, *frame.columns[len(names):])

    def _shown(self, given: Discarded) -> Discarded:
        """What was discarded, as users are given it."""
        return given

    def _check_times(self, first: int, now: int) -> None:
        if first < now:
            decode = self._node.time_type.decode
            raise TimeRegressionError(
                f"an update at time {decode(first)!r} lies behind the frontier of input "
                f"{self.name!r}, which is at {decode(now)!r}; nothing was taken. Give late updates "
                "a time that is not before the frontier"
            )


class InputSession(BaseSession):
    """Feeds one input of a dataflow. It holds state: a time, and updates that wait for `flush`.

    Made by `Dataflow.input`. Updates enter at the session's time, unless they bring their own
    (`update`). What was handed in becomes visible to `Dataflow.step` with `flush`, and is processed
    up to the time that the session has advanced to.

    Several threads may feed a session, also while another one steps, and so may functions that a
    step calls: each call is done as a whole. What enters has the time that the session has just
    then.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark) as flow:
    ...     edges, edges_in = flow.input("edges", "src long, dst long")
    ...     degrees = edges.select("src").count().keep()
    ...     edges_in.insert([(1, 2), (1, 3)])
    ...     edges_in.advance_to(1)
    ...     edges_in.remove([(1, 2)])
    ...     _ = flow.advance_to(2)
    ...     degrees.at(1).collect()
    [Row(src=1, count=1)]
    """

    if not TYPE_CHECKING:  # so that a type checker knows what there is

        def __getattr__(self, name):
            if name in ("upsert", "delete", "replace"):
                raise AttributeError(
                    f"input {self.name!r} has no key to {name} rows by: make it with one, "
                    f"flow.input({self.name!r}, schema, key=...), or take whole rows away with "
                    "remove(rows)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def insert(self, data: Data) -> None:
        """Add records at the session's time.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            The records; columns are matched by name, tuples by position.

        Raises
        ------
        SchemaError
            If names or types differ from the input's.
        ClosedError
            If the session or its dataflow was closed.
        """
        self._put(data, 1)

    def remove(self, data: Data) -> None:
        """Take records away at the session's time. See `insert`."""
        self._put(data, -1)

    def update(self, data: Data) -> None:
        """Add update rows that bring their own time and diff columns.

        A Spark frame is read once here, to check its times and diffs, if it is not of Parquet files
        that tell them.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
            The input's columns, then time and diff.

        Raises
        ------
        TimeRegressionError
            If a time lies before the session's; nothing of ``data`` is taken then.
        InvalidTimeError, InvalidDiffError
            If a time or a diff is null.
        SchemaError
            If names or types differ from the input's.
        """
        self._open()
        found: DataFrame | pa.Table
        if isinstance(data, pa.Table) and data.schema.equals(self._update_columns, True):
            found = normal_table(data)
        else:
            widen = (self._names[1],)
            found = coerce(data, self._update_rows, self.name, self._spark, widen=widen)
        names = [*self._node.schema.names, TIME, DIFF]
        if isinstance(found, DataFrame):
            renamed = found.toDF(*names)
            check_deterministic(renamed)
            self._update_frame(renamed)
            return
        table = found.rename_columns(names)
        time, diff = table.column(len(names) - 2), table.column(len(names) - 1)
        if time.null_count:
            raise InvalidTimeError(nulls(time.null_count, "time", self.name))
        if diff.null_count:
            raise InvalidDiffError(nulls(diff.null_count, "diff", self.name))
        if table.num_rows:
            found = bounds_of(as_int64(joined([time])).to_numpy())
            assert found is not None  # there are rows
            entered = UpdateRows(self._node.schema, table=table, rows=table.num_rows)
            self._enter(entered, *found)

    @cached_property  # asked for with each change
    def _update_rows(self) -> T.StructType:
        """What `update` takes."""
        return T.StructType([
            *self._node.schema.struct.fields,
            T.StructField(self._names[0], self._node.time_type.kind),
            T.StructField(self._names[1], T.LongType()),
        ])

    @cached_property
    def _update_columns(self) -> pa.Schema:
        """The same as `update` hands it on."""
        return Schema(self._update_rows).arrow()

    def _put(self, data: Data, diff: int) -> None:
        self._open()
        found = coerce(data, self._node.schema.struct, self.name, self._spark)
        if isinstance(found, DataFrame):
            check_deterministic(found)
            with counting(self._fallbacks):
                scan = parquet_scan(found)
            with self._lock:
                now = self._open()
                entered = UpdateRows.of_frame(
                    self._node.schema, found, scan, self._node.time_type.arrow, now, diff
                )
                self._add(waiting=[self._arrival(entered, now)])
        elif found.num_rows:
            with self._lock:
                self._add(rows=[(found, self._open(), diff)])

    def _update_frame(self, frame: DataFrame) -> None:
        with counting(self._fallbacks):
            scan = parquet_scan(frame)
        span = None if scan is None else self._span_told(scan)
        span = self._span(frame) if span is None else span
        if span.rows:
            entered = UpdateRows.of_frame(
                self._node.schema, frame, scan, self._node.time_type.arrow
            )
            self._enter(replace(entered, rows=span.rows), *span[:2])

    def _span_told(self, scan: ParquetScan) -> _Span | None:
        """The times of some updates, if the files that they are in tell; with a null among times or
        diffs they do not."""
        if not scan.rows:
            return _Span(0, 0, 0)
        time, diff = scan.bounds_of(TIME), scan.bounds_of(DIFF)
        if scan.condition is not None or time is None or diff is None or time.nulls or diff.nulls:
            return None
        return _Span(time.first, time.last, scan.rows)


def check_name(name: object, what: str, example: str) -> None:
    """Refuse names by which no message could tell a thing."""
    if not isinstance(name, str) or not name.strip():
        raise SchemaError(f"the name of {what} is a text such as {example!r}, not {name!r}")


def nulls(count: int, what: str, name: str) -> str:
    """What is told of updates that have nulls where none may be."""
    return (
        f"{count} rows for input {name!r} have a null {what}; nothing was taken. Fill the {what}, "
        "or filter these rows out"
    )
