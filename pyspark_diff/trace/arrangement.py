"""Arrangements as tables: their updates, and the collection at a time.

For every readable ``t``, that is beyond ``since`` and not beyond ``upper``::

    snapshot(t) holds each record as many times as  sum(diff, time <= t)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from pyspark_diff import thresholds
from pyspark_diff.errors import (
    NegativeMultiplicityError,
    NotReadableError,
    TimeRegressionError,
    errors_to_text,
)
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.jit import interruptible
from pyspark_diff.kernels.key_ranges import fitting, ranges, updates_between
from pyspark_diff.kernels.layout import Layout, from_int64
from pyspark_diff.kernels.merge import merge
from pyspark_diff.kernels.standing import repeated_places
from pyspark_diff.kernels.updates import Int64, UpdateChunk, concat
from pyspark_diff.spark.frames import frame_of_table, map_in_arrow
from pyspark_diff.spark.schema import Schema, TimeType
from pyspark_diff.spark.session import parallelism
from pyspark_diff.trace import storage
from pyspark_diff.trace.credentials import with_credentials
from pyspark_diff.trace.spine import Trace

Tables = Iterator[pa.Table]
#: Returns a mask of the chosen rows of a table of updates.
Inside = Callable[[pa.Table], np.ndarray]


@dataclass(frozen=True)
class Arrangement:
    """A kept collection, with its reads as tables.

    Parameters
    ----------
    stored : tuple of str
        Names of the columns in the order of the layout, with the columns of the key first.
    time, diff : str
        The user's names of these columns.
    """

    trace: Trace
    schema: Schema
    layout: Layout
    stored: tuple[str, ...]
    time_type: TimeType
    time: str
    diff: str

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key of the arrangement."""
        return self.stored[:len(self.layout.types)]

    @property
    def reads_later(self) -> bool:
        """Whether its frames read the files at their evaluation, and not at their construction."""
        limits = thresholds.current
        return (
            self.trace.rows > limits.driver_table_rows_max
            or self.trace.size > limits.work_bytes_max
        )

    def _decode(self, updates: UpdateChunk) -> list[pa.Array]:
        """The columns in the order of the schema."""
        columns = dict(zip(self.stored, self.layout.decode(updates)))
        return [columns[name] for name in self.schema.names]

    @interruptible()
    def updates(self, spark: SparkSession, since: int | None = None) -> DataFrame:
        """Consolidated update rows: the data columns, then time and diff.

        Parameters
        ----------
        since : int, optional
            Times before it advance to it.
        """
        return self._frame(
            spark, self._update_struct(), lambda rows: self._rows(rows, since), by_time=True
        )

    @interruptible()
    def between(
        self, spark: SparkSession, lower: int | None, upper: int | None
    ) -> DataFrame:
        """The updates of an interval of times, with the columns of `updates`.

        Only batches that overlap the interval are read.

        Parameters
        ----------
        lower, upper : int or None
            Only updates with ``lower <= time < upper``; None is no bound.
        """
        overlapping = replace(self, trace=self.trace.reaching(lower, upper))
        rows = partial(overlapping._cut, lower, upper)
        return overlapping._frame(spark, self._update_struct(), rows, by_time=True)

    @interruptible()
    def table_between(self, lower: int | None, upper: int | None) -> pa.Table | None:
        """The rows of `between` in any order; None if tasks have to read them."""
        part = replace(self, trace=self.trace.reaching(lower, upper))
        return None if part.reads_later else _together(part._cut(lower, upper, part._all()))

    def _cut(self, lower: int | None, upper: int | None, updates: UpdateChunk) -> Tables:
        times = updates.times()
        inside = np.full(times.size, True)
        if lower is not None:
            inside &= times >= lower
        if upper is not None:
            inside &= times < upper
        return self._rows(updates.take(inside), None)

    @interruptible()
    def only(self, spark: SparkSession, inside: Inside) -> DataFrame:
        """Some of the update rows, with the columns of `updates`.

        The reader of the files filters them, so that Spark receives only these rows.

        Parameters
        ----------
        inside : callable
            Returns a mask of the chosen rows of a table. Executors get a copy of it.
        """
        return self._frame(spark, self._update_struct(), self._only(inside), by_time=True)

    @interruptible()
    def has_any(self, spark: SparkSession, inside: Inside) -> bool:
        """Whether `only` has any rows, without a Spark job if the driver reads the rows."""
        if not self.reads_later:
            return _together(self._only(inside)(self._all())).num_rows > 0
        return bool(self.only(spark, inside).take(1))

    def _only(self, inside: Inside) -> Callable[[UpdateChunk], Tables]:
        def make(updates: UpdateChunk) -> Tables:
            for table in self._rows(updates, None):
                yield table.filter(pa.array(inside(table)))

        return make

    def has_between(self, lower: int | None, upper: int | None) -> bool:
        """Whether any batch overlaps an interval of times."""
        return self.trace.reaching(lower, upper).rows > 0

    def readable(self, time: Any, next_to_do: Callable[[], str]) -> int:
        """Encode a user's time, or the latest complete time if there is none.

        Parameters
        ----------
        time : int, date, datetime or None
        next_to_do : callable
            Returns the remedy for a time that is not complete: how to advance the collection.

        Raises
        ------
        NotReadableError
            If the time is not complete, or lies before `since`.
        """
        kind = self.time_type
        frontier, since = self.trace.upper.bound, self.trace.since.bound
        at = (2**63 if frontier is None else frontier) - 1 if time is None else kind.encode(time)
        if frontier is not None and at >= frontier:
            raise NotReadableError(
                f"time {kind.decode(at)!r} is not complete: the collection is processed up to, and "
                f"not including, {kind.decode(frontier)!r}. {next_to_do()}"
            )
        if since is not None and at < since and frontier is not None and frontier <= since:
            raise NotReadableError(
                f"no time is complete yet: the collection is processed up to, and not including, "
                f"{kind.decode(frontier)!r}. {next_to_do()}"
            )
        if since is not None and at < since:
            raise NotReadableError(
                f"time {kind.decode(at)!r} was compacted away: the collection can be read from "
                f"{kind.decode(since)!r} on. Use Dataflow(keep_history=True) to read older times"
            )
        return at

    def changed(
        self, spark: SparkSession, since: Any, until: Any, next_to_do: Callable[[], str]
    ) -> DataFrame:
        """The updates that turn the collection at one time into the collection at a later time.

        Both times are a user's. The columns are those of `updates`.
        """
        last = self.readable(until, next_to_do)
        first = self.readable(since, next_to_do)
        if first > last:
            decode = self.time_type.decode
            raise TimeRegressionError(
                f"changes since {decode(first)!r} until {decode(last)!r} run backwards. Give the "
                "earlier time first"
            )
        # The updates after the first time, up to the last time and including it.
        return self.between(spark, first + 1, last + 1 if last < 2**63 - 1 else None)

    def _update_struct(self) -> T.StructType:
        return T.StructType(
            [
                *self.schema.struct.fields,
                T.StructField(self.time, self.time_type.kind, False),
                T.StructField(self.diff, T.LongType(), False),
            ]
        )

    @interruptible()
    def table(self, since: int | None = None) -> pa.Table:
        """The rows of `updates` on the driver, in no order."""
        return _together(self._rows(self._all(), since))

    def _rows(self, updates: UpdateChunk, since: int | None) -> Tables:
        time = updates.times() if since is None else np.maximum(updates.times(), since)
        moments = from_int64(pa.array(time), self.time_type.arrow)
        columns = [*self._decode(updates), moments, pa.array(updates.diffs())]
        yield pa.Table.from_arrays(columns, names=[*self.schema.names, self.time, self.diff])

    @interruptible()
    def snapshot(
        self, spark: SparkSession, time: int, *, allow_negative: bool,
        remedy: Callable[[], str] = lambda: "Correct the input",
    ) -> DataFrame:
        """The collection at a time; each record occurs as often as its multiplicity.

        Parameters
        ----------
        remedy : callable
            Returns the remedy for records with more removals than insertions.

        Raises
        ------
        NegativeMultiplicityError
            If a record's accumulation is negative. With `allow_negative` the snapshot omits such
            records instead.
        """
        decode, names = self._decode, list(self.schema.names)

        def accumulated(updates: UpdateChunk) -> UpdateChunk:
            rows = updates.take(updates.times() <= time)
            return consolidate(rows.at(0, rows.diffs())).updates

        def check(updates: UpdateChunk) -> Iterator[pa.Table]:
            rows = accumulated(updates)
            wrong = rows.take(rows.diffs() < 0)
            columns = [*decode(wrong.between(0, min(5, len(wrong)))), ]
            columns.append(pa.array(wrong.diffs()[:5]))
            yield pa.Table.from_arrays(columns, names=[*names, "__diff"])

        def table(updates: UpdateChunk) -> Iterator[pa.Table]:
            rows = accumulated(updates)
            times = np.maximum(rows.diffs(), 0)
            if (times == 1).all():
                yield _table(decode(rows), names, len(rows))
            else:
                yield from _repeated(_table(decode(rows), names, len(rows)), times)

        if not allow_negative:
            struct = T.StructType(
                [*self.schema.struct.fields, T.StructField("__diff", T.LongType())]
            )
            wrong = self._first(spark, struct, check)
            if wrong:
                shown = "; ".join(f"{tuple(row)[:-1]!r}: {row[-1]}" for row in wrong)
                # The last time of a complete history has no Python value.
                last = time == 2**63 - 1
                when = "in the end" if last else f"at time {self.time_type.decode(time)!r}"
                raise NegativeMultiplicityError(
                    f"{when} these records have a negative multiplicity: {shown}. They were "
                    f"removed more often than inserted. {remedy()}, or pass allow_negative=True "
                    "to leave such records out"
                )
        if not self.reads_later:
            rows = accumulated(self._all())
            times = np.maximum(rows.diffs(), 0)
            if times.sum(dtype=np.float64) > thresholds.current.driver_table_rows_max:
                return _repeated_in_spark(
                    spark, self.schema.struct, _table(decode(rows), names, len(rows)), times
                )
        return self._frame(spark, self.schema.struct, table)

    def _all(self) -> UpdateChunk:
        return concat([*pieces(self.trace)])

    def _files(self) -> list[tuple[str, ...]]:
        return _by_bucket(self.trace)

    def _first(
        self, spark: SparkSession, struct: T.StructType, make: Callable[[UpdateChunk], Tables]
    ) -> list[Row]:
        """The first rows of a table that is usually empty, on the driver if it can read them."""
        if not self.reads_later:
            table = _together(make(self._all()))
            return frame_of_table(spark, table, struct).take(5) if table.num_rows else []
        return self._frame(spark, struct, make).take(5)

    def _frame(
        self,
        spark: SparkSession,
        struct: T.StructType,
        make: Callable[[UpdateChunk], Tables],
        by_time: bool = False,
    ) -> DataFrame:
        files = self._files()
        if not self.reads_later:
            updates = self._all()
            if by_time:
                updates = updates.take(np.argsort(updates.times(), kind="stable"))
            return frame_of_table(spark, _together(make(updates)), struct)

        storage.settle(path for paths in files for path in paths)
        chunk_rows = thresholds.current.table_chunk_rows

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with errors_to_text(), storage.opened_for_task():
                for batch in batches:
                    for number in batch.column(0).to_numpy():
                        for updates in _merged(files[number]):
                            for table in make(updates):
                                yield from table.to_batches(max_chunksize=chunk_rows)

        do = with_credentials(run)
        return spark.range(0, len(files), 1, len(files)).mapInArrow(do, struct)


def pieces(trace: Trace) -> Iterator[UpdateChunk]:
    """All updates of a trace, consolidated, in pieces that fit into memory."""
    for paths in _by_bucket(trace):
        yield from _merged(paths)


def _by_bucket(trace: Trace) -> list[tuple[str, ...]]:
    buckets = sorted({bucket for batch in trace.batches for bucket in batch.files})
    return [trace.files(bucket) for bucket in buckets]


def _merged(paths: tuple[str, ...]) -> Iterator[UpdateChunk]:
    """The updates of a bucket, consolidated, in pieces that fit into memory."""
    batches = [storage.open_updates(path) for path in paths]
    if len(paths) == 1:
        yield batches[0]  # a batch is consolidated
        return
    for keys in ranges(batches, [], fitting(batches, thresholds.current.table_piece_rows)):
        yield merge([updates_between(batch, keys) for batch in batches], None)


def _repeated(table: pa.Table, times: Int64) -> Tables:
    """Repeat each row as often as `times` says; yields chunks, at least one."""
    most = thresholds.current.table_chunk_rows
    for rows in repeated_places(times, most) if times.any() else [np.arange(0)]:
        if table.num_columns:
            yield table.take(pa.array(rows))
        else:
            yield _table([], [], rows.size)


def _repeated_in_spark(
    spark: SparkSession, struct: T.StructType, table: pa.Table, times: Int64
) -> DataFrame:
    """The rows of `_repeated` as a lazy frame, which may have more rows than fit into memory.

    A row with a high multiplicity is split, so that all tasks get a share.
    """
    total = float(times.sum(dtype=np.float64))
    share = max(thresholds.current.table_chunk_rows, math.ceil(total / 1000))
    parts = -(-times // share)
    rows = np.repeat(np.arange(times.size), parts)
    last = np.cumsum(parts) - 1
    often = np.full(rows.size, share)
    often[last[parts > 0]] = (times - (parts - 1) * share)[parts > 0]
    some = table.take(pa.array(rows)) if table.num_columns else table
    field = T.StructField("__diff", T.LongType(), False)
    shares = frame_of_table(
        spark,
        some.append_column(field.name, pa.array(often)) if some.num_columns
        else pa.table({field.name: often}),
        T.StructType([*struct.fields, field]),
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            whole = pa.Table.from_batches([batch])
            records = whole.select(list(range(whole.num_columns - 1)))
            for chunk in _repeated(records, whole.column(-1).to_numpy()):
                yield from chunk.to_batches()

    # One partition for each task that can run at once.
    return map_in_arrow(shares.repartition(parallelism(spark)), run, struct)


def _together(tables: Tables) -> pa.Table:
    """One table of all rows. Arrow's own concatenation loses the rows of tables without columns."""
    parts = list(tables)
    if len(parts) == 1:
        return parts[0]
    if parts[0].num_columns:
        return pa.concat_tables(parts)
    return _table([], [], sum(table.num_rows for table in parts))


def _table(columns: list[pa.Array], names: list[str], rows: int) -> pa.Table:
    if columns:
        return pa.Table.from_arrays(columns, names=names)
    return pa.table({"": pa.nulls(rows)}).select([])  # rows without columns
