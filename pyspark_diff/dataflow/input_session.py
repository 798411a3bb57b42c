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


#: Discards an input's updates that meet a condition; the flag includes those of earlier steps.
Discard: TypeAlias = "Callable[[Input, Column | str | None, bool], Discarded]"


class _Content(NamedTuple):
    """The state of a session. One assignment replaces it, so each change is atomic."""

    #: Times that the session still accepts; empty after `close`.
    capability: Antichain
    #: The frontier that the last flush declared.
    frontier: Antichain
    #: Arrivals since the last flush, and small tables of records, each with one time and one diff.
    waiting: list[Arrival]
    rows: list[tuple[pa.Table, int, int]]
    #: The flushed arrivals, and the number of the first; arrivals are numbered in their order.
    flushed: tuple[Arrival, ...] = ()
    first: int = 0

    def beyond(self, taken: int) -> tuple[Arrival, ...]:
        """The flushed arrivals whose number is at least ``taken``."""
        return self.flushed[taken - self.first:]


class _Span(NamedTuple):
    """The first and last time of some updates, and their number."""

    first: int
    last: int
    rows: int


class BaseSession:
    """Base of all sessions: a time, updates that wait for `flush`, and flushed updates.

    A session holds state. Several threads may use it, also during a step, and so may functions that
    a step calls: each call is atomic. Updates enter at the session's time at that moment.
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
        #: The sessions of the dataflow with news for a step; all its inputs share the value.
        self._changed: dict[BaseSession, None] = {}
        #: All inputs of a dataflow share this value.
        self._fallbacks = Fallbacks()
        #: Guards the assignment of the content only; rows are converted before.
        self._lock = threading.Lock()
        self._flow_closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._describe_time()})"

    def _describe_time(self) -> str:
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
        """The time at which the next inserted rows enter."""
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
            self._replace_content(self._content._replace(capability=Antichain([to])))

    def flush(self) -> None:
        """Hand everything over to the dataflow. Its next step does that too."""
        with self._lock:
            self._open()
            self._flush(self._content.capability)

    def discard(
        self, where: Column | str | None = None, *, waiting: bool = False
    ) -> Discarded:
        """Drop updates that no step has processed, flushed or not. Use it if a step fails on them
        and would fail for ever.

        The session keeps its time and the frontier that it declared with `flush`. Corrected rows
        therefore enter at the session's time or later, like any rows.

        Parameters
        ----------
        where : Column or str, optional
            Drop only updates that meet this condition on the input's columns, time and diff; for
            an input with a key, on its columns, time and change.
        waiting : bool
            Also drop updates that earlier steps took in and that another, lagging input keeps from
            being complete. From the next step on all collections are as if these updates had never
            entered, and consumers receive the difference. If more than a million updates wait, none
            of them can be dropped.

        Returns
        -------
        list of pyarrow.Table or DataFrame
            The dropped updates: the input's columns, time and diff. One table has all updates that
            were not Spark frames, if any; the dropped Spark frames follow.

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
        ...         named = "(1, 0) with diff 1" in str(error)
        ...     dropped, = parts_in.discard()
        ...     parts_in.insert([row for row in dropped.drop_columns(["time", "diff"]).to_pylist()
        ...                      if row["number"]])
        ...     parts_in.close()
        ...     _ = flow.step()
        ...     named, shares.at().collect()
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

    def _replace_content(self, content: _Content) -> None:
        """Replace the content. The caller has the lock."""
        # First, so that a Ctrl-C between the two lines loses no change.
        self._changed[self] = None
        self._content = content

    def _add(
        self, waiting: Sequence[Arrival] = (), rows: Sequence[tuple[pa.Table, int, int]] = ()
    ) -> None:
        """Append arrivals, and small tables of records, each with a time and a diff."""
        self._changed[self] = None
        self._content.waiting.extend(waiting)
        self._content.rows.extend(rows)

    def _saved_content(self) -> _Content:
        """A copy of the content for `_go_back`; the lists of the content itself grow."""
        with self._lock:
            content = self._content
            return content._replace(waiting=[*content.waiting], rows=[*content.rows])

    def _go_back(self, content: _Content) -> None:
        """Restore an earlier content."""
        with self._lock:
            self._replace_content(content)

    def _go_on(self, frontier: Antichain) -> None:
        """Continue from the frontier of another process, without updates."""
        with self._lock:
            self._replace_content(_Content(frontier, frontier, [], []))

    def _at(self) -> int | None:
        """The session's time; None after `close`."""
        return self._content.capability.bound

    def _advance_at_least(self, to: Antichain) -> None:
        """Advance an open session to a frontier, unless its time is later."""
        with self._lock:
            content = self._content
            if content.capability.precedes(to):
                self._replace_content(_Content(to, *content[1:]))

    def _is_ahead(self, taken: int) -> bool:
        """Whether the session has arrivals after ``taken``, or advanced since the last flush."""
        content = self._content
        return self._has_more(taken) or content.capability != content.frontier

    def _has_more(self, taken: int) -> bool:
        """Whether the session has arrivals after ``taken``."""
        content = self._content
        return bool(content.waiting or content.rows or content.beyond(taken))

    def _hand_over(self, to: Antichain | None = None) -> None:
        """Advance an open session to a frontier, unless its time is later, and flush it."""
        with self._lock:
            now = self._content.capability
            if not now.is_empty:
                self._flush(now if to is None or not now.precedes(to) else to)

    def _flush(self, frontier: Antichain) -> None:
        content = self._content
        if content.waiting or content.rows:
            content = self._all_flushed()
        self._replace_content(_Content(frontier, frontier, [], [], content.flushed, content.first))

    def _all_flushed(self) -> _Content:
        """The content with all arrivals among the flushed ones, at the old frontier."""
        content = self._content
        flushed = (*content.flushed, *content.waiting, *self._gathered(content.rows))
        return content._replace(waiting=[], rows=[], flushed=flushed)

    def _entered(self, taken: int) -> tuple[Arrival, ...]:
        """The arrivals after ``taken``, flushed or not."""
        with self._lock:
            # New arrivals get numbers without a flush. No step reads them: their times are beyond
            # the frontier.
            self._replace_content(self._all_flushed())
            return self._content.beyond(taken)

    def _drop(self, taken: int, frontier: Antichain | None) -> None:
        """Forget the first ``taken`` arrivals, which a state at a frontier has. If the state has
        all, the session is no longer among the changed ones. Idempotent."""
        with self._lock:
            content = self._content
            if taken > content.first:
                content = content._replace(flushed=content.beyond(taken), first=taken)
                self._replace_content(content)
            if content.waiting or content.rows or content.flushed:
                return
            if content.capability is not content.frontier:
                return
            if content.frontier is frontier or content.frontier == frontier:
                self._changed.pop(self, None)

    def _open(self) -> int:
        if self._flow_closed:
            raise ClosedError(f"the dataflow of input {self.name!r} was closed; make a new one")
        now = self._content.capability.bound
        if now is None:
            raise ClosedError(f"input {self.name!r} was closed: it takes no more updates")
        return now

    def _gathered(self, rows: Sequence[tuple[pa.Table, int, int]]) -> list[Arrival]:
        """One arrival for the many small tables of insert and remove."""
        if not rows:
            return []
        tables, times, diffs = zip(*rows)
        records = pa.concat_tables(tables).combine_chunks()
        sizes = [table.num_rows for table in tables]
        time = from_int64(pa.array(np.repeat(times, sizes)), self._node.time_type.arrow)
        diff = pa.array(np.repeat(diffs, sizes))
        # Not appended to the records: Arrow counts no rows in a table without columns.
        table = pa.table(
            [*records.columns, time, diff], names=[*self._node.schema.names, TIME, DIFF]
        )
        entered = UpdateRows(self._node.schema, table=table, rows=table.num_rows)
        return [self._arrival(entered, max(times))]

    def _arrival(self, entered: UpdateRows, last: int) -> Arrival:
        """An arrival of updates whose last time is known."""
        return Arrival(entered, last)

    def _enter(self, entered: UpdateRows, first: int, last: int) -> None:
        """Append updates with times of their own, from a first to a last time."""
        with self._lock:
            self._check_times(first, self._open())
            self._add(waiting=[self._arrival(entered, last)])

    def _span(self, frame: DataFrame) -> _Span:
        """The times of a Spark frame of updates; arbitrary if the frame has no rows."""
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
        """A frame of updates, and of further columns, under the user's names."""
        names = [*self._node.schema.names, *self._names]
        return frame.toDF(*names, *frame.columns[len(names):])

    def _shown(self, discarded: Discarded) -> Discarded:
        """The discarded updates in the user's form."""
        return discarded

    def _check_times(self, first: int, now: int) -> None:
        if first < now:
            decode = self._node.time_type.decode
            raise TimeRegressionError(
                f"an update at time {decode(first)!r} is before the frontier of input "
                f"{self.name!r}, which is at {decode(now)!r}; nothing was taken. Give late updates "
                "a time that is not before the frontier"
            )


class InputSession(BaseSession):
    """Feeds one input of a dataflow. It holds state: a time, and updates that wait for `flush`.

    `Dataflow.input` returns it. Updates enter at the session's time, unless they bring their own
    (`update`). After `flush`, `Dataflow.step` processes the updates at times before the session's
    time.

    Several threads may feed a session, also during a step, and so may functions that a step calls:
    each call is atomic. Updates enter at the session's time at that moment.

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

    if not TYPE_CHECKING:  # a type checker would accept any attribute

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
        self._append(data, 1)

    def remove(self, data: Data) -> None:
        """Take records away at the session's time. See `insert`."""
        self._append(data, -1)

    def update(self, data: Data) -> None:
        """Add update rows that bring their own time and diff columns.

        This call reads a Spark frame once to check its times and diffs, unless it is a scan of
        Parquet files with statistics of both columns.

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
        rows: DataFrame | pa.Table
        if isinstance(data, pa.Table) and data.schema.equals(self._update_columns, True):
            rows = normal_table(data)
        else:
            widen = (self._names[1],)
            rows = coerce(data, self._update_rows, self.name, self._spark, widen=widen)
        names = [*self._node.schema.names, TIME, DIFF]
        if isinstance(rows, DataFrame):
            renamed = rows.toDF(*names)
            check_deterministic(renamed)
            self._update_frame(renamed)
            return
        table = rows.rename_columns(names)
        time, diff = table.column(len(names) - 2), table.column(len(names) - 1)
        if time.null_count:
            raise InvalidTimeError(nulls(time.null_count, "time", self.name))
        if diff.null_count:
            raise InvalidDiffError(nulls(diff.null_count, "diff", self.name))
        if table.num_rows:
            bounds = bounds_of(as_int64(joined([time])).to_numpy())
            assert bounds is not None  # there are rows
            entered = UpdateRows(self._node.schema, table=table, rows=table.num_rows)
            self._enter(entered, *bounds)

    @cached_property  # each update reads it
    def _update_rows(self) -> T.StructType:
        """The columns of the rows of `update`."""
        return T.StructType([
            *self._node.schema.struct.fields,
            T.StructField(self._names[0], self._node.time_type.kind),
            T.StructField(self._names[1], T.LongType()),
        ])

    @cached_property
    def _update_columns(self) -> pa.Schema:
        return Schema(self._update_rows).arrow()

    def _append(self, data: Data, diff: int) -> None:
        self._open()
        rows = coerce(data, self._node.schema.struct, self.name, self._spark)
        if isinstance(rows, DataFrame):
            check_deterministic(rows)
            with counting(self._fallbacks):
                scan = parquet_scan(rows)
            with self._lock:
                now = self._open()
                entered = UpdateRows.of_frame(
                    self._node.schema, rows, scan, self._node.time_type.arrow, now, diff
                )
                self._add(waiting=[self._arrival(entered, now)])
        elif rows.num_rows:
            with self._lock:
                self._add(rows=[(rows, self._open(), diff)])

    def _update_frame(self, frame: DataFrame) -> None:
        with counting(self._fallbacks):
            scan = parquet_scan(frame)
        span = None if scan is None else self._span_in_files(scan)
        span = self._span(frame) if span is None else span
        if span.rows:
            entered = UpdateRows.of_frame(
                self._node.schema, frame, scan, self._node.time_type.arrow
            )
            self._enter(replace(entered, rows=span.rows), *span[:2])

    def _span_in_files(self, scan: ParquetScan) -> _Span | None:
        """The times of the updates of a scan by the files' statistics; None if statistics do not
        have them or report a null time or diff."""
        if not scan.rows:
            return _Span(0, 0, 0)
        time, diff = scan.bounds_of(TIME), scan.bounds_of(DIFF)
        if scan.condition is not None or time is None or diff is None or time.nulls or diff.nulls:
            return None
        return _Span(time.first, time.last, scan.rows)


def check_name(name: object, what: str, example: str) -> None:
    """Refuse a name that is no text, or is blank."""
    if not isinstance(name, str) or not name.strip():
        raise SchemaError(f"the name of {what} is a text such as {example!r}, not {name!r}")


def nulls(count: int, what: str, name: str) -> str:
    """The message about updates with a null time or diff."""
    return (
        f"{count} rows for input {name!r} have a null {what}; nothing was taken. Fill the {what}, "
        "or filter these rows out"
    )
