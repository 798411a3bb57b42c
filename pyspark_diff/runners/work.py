"""The work of one operator that arranges updates, in one bucket and one interval.

The runner consolidates the updates of the interval, passes them and the older batches to the
kernel, and writes a batch of them::

    new = consolidate(updates),    old = the batches below the interval

A bucket that exceeds the memory is processed in pieces, each a range of keys. Both runners call
`run_bucket`. `pyspark_diff.operators.contract` states the guarantees for kernels.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.errors import (
    InvalidDiffError,
    InvalidTimeError,
    TimeRegressionError,
)
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.bucketed import rows_under
from pyspark_diff.kernels.consolidate import consolidate, consolidate_parts, runs_of
from pyspark_diff.kernels.into_diff import into_diff
from pyspark_diff.kernels.key_ranges import fitting, ranges, updates_between
from pyspark_diff.kernels.layout import Layout, as_int64, from_int64
from pyspark_diff.kernels.merge import merge
from pyspark_diff.kernels.replay import compact
from pyspark_diff.kernels.split import places
from pyspark_diff.kernels.updates import (
    PerRow,
    UpdateChunk,
    bounds_of,
    concat,
    joined,
    one_or_all,
    spread,
    sum_of,
)
from pyspark_diff.operators.contract import Changes, DiffColumns, ReplayKernel, Side
from pyspark_diff.runners.pieces import Given, Intake, RowsInMemory, Spool, room
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.trace import held_batches, storage
from pyspark_diff.trace.batch import Batch, BatchFile, BatchInMemory, Paths


@dataclass(frozen=True)
class OutputForm:
    """Form of an operator's output rows.

    Parameters
    ----------
    schema : pyarrow.Schema
        The wanted data columns.
    wanted : tuple of int
        Positions of these columns among all output columns.
    time : pyarrow.DataType
    pruned : bool
        Whether the output omits columns, so that rows may be equal.
    """

    schema: pa.Schema
    wanted: tuple[int, ...]
    time: pa.DataType
    pruned: bool

    def table(self, changes: Changes) -> pa.Table:
        """Update rows from the output of a kernel."""
        columns, time, diff = changes
        if self.pruned:
            time = spread(time, diff.size)  # has the number of rows if records have no columns
            updates = consolidate(self._layout.encode(columns, time, diff)).updates
            columns, time, diff = self._layout.decode(updates), updates.time, updates.diffs()
        arrays = list(columns)
        arrays.append(from_int64(pa.array(spread(time, diff.size)), self.time))
        arrays.append(pa.array(diff))
        return pa.Table.from_arrays(arrays, schema=self._updates)

    @cached_property  # used in each step
    def _layout(self) -> Layout:
        return Layout(tuple(self.schema.types))

    @cached_property  # used in each step
    def _updates(self) -> pa.Schema:
        fields = [pa.field(TIME, self.time), pa.field(DIFF, pa.int64())]
        return pa.schema([*self.schema, *fields])


@dataclass(frozen=True)
class Work:
    """The work of a keyed operator in one step, for all buckets. Travels to the executors.

    Parameters
    ----------
    name : str
        Name of the operator, for errors.
    names : tuple of str
        Columns of the records, in the layout's order.
    kernel : ReplayKernel or None
        None only arranges.
    files : mapping of int to tuple of str
        Batch files of the times below the interval, by bucket.
    directory : str
        Directory of new files.
    keeps : bool
        Whether the work writes a new batch.
    since : int or None
        Times of the new batch are advanced to it.
    lower, upper : int or None
        The interval; None is no bound.
    most : int
        Maximal number of rows in memory.
    diff_columns : DiffColumns or None
        Columns that move into the diff.
    coordinate : int
        In a loop, the packed coordinate of the updates.
    """

    name: str
    layout: Layout
    names: tuple[str, ...]
    buckets: int
    kernel: ReplayKernel | None
    output: OutputForm | None
    files: Mapping[int, tuple[str, ...]]
    directory: str
    keeps: bool
    since: int | None
    lower: int | None
    upper: int | None
    most: int
    diff_columns: DiffColumns | None = None
    coordinate: int = 0

    def old(self, bucket: int) -> list[UpdateChunk]:
        """The older updates of a bucket for the kernel."""
        if self.kernel is None or not self.kernel.stateful:
            return []
        return [storage.open_updates(path) for path in self.files.get(bucket, ())]


@dataclass(frozen=True)
class Merge:
    """Files of an arrangement to merge, bucket by bucket.

    Parameters
    ----------
    files : mapping of int to sequence of str
        Files by bucket.
    directory : str
        Directory of new files.
    since : int or None
        Times are advanced to it.
    most : int
        Maximal number of rows in memory.
    by_time : bool
        Whether keys are times, so that the merge drops keys before `since`.
    """

    files: Mapping[int, Sequence[str]]
    directory: str
    since: int | None
    most: int
    by_time: bool = False


@dataclass(frozen=True)
class BucketResult:
    """The result of one bucket.

    Parameters
    ----------
    files : tuple of BatchFile
        Files of the new batch, in order of their keys; empty for an empty batch.
    output : Given
        Output update rows.
    rows_in, rows_read : int
        Numbers of input update rows, and of rows that were read of older batches.
    later : mapping of int to Given
        In a loop, output that belongs to later coordinates.
    due : mapping of int to tuple of BatchFile
        In a loop, keys to visit again, by coordinate.
    rest : tuple of (int, int, int, int)
        Output that exceeds the memory, and that readers compute. For each coordinate: the
        coordinate, its first part, the estimated number of rows, and the `most` that cuts parts.
    together : mapping of int to tuple of BatchFile
        Files of several buckets by bucket, if one call processed them.
    operator : int
        Number of the operator in a task with fused operators: see `pyspark_diff.runners.fused`.
    seconds : float
        Seconds of the task for this result; 0 without a Spark task.
    """

    bucket: int
    files: tuple[BatchFile, ...]
    output: Given
    rows_in: int
    rows_read: int
    later: Mapping[int, Given] = field(default_factory=dict)
    due: Mapping[int, tuple[BatchFile, ...]] = field(default_factory=dict)
    rest: tuple[tuple[int, int, int, int], ...] = ()
    together: Mapping[int, tuple[BatchFile, ...]] = field(default_factory=dict)
    operator: int = 0
    seconds: float = 0.0

    def paths(self) -> Iterator[str]:
        """All new files."""
        for files in (self.files, *self.due.values(), *self.together.values()):
            yield from (file.path for file in files)
        for rows in (self.output, *self.later.values()):
            yield from rows.paths


def files_of(results: Sequence[BucketResult]) -> Mapping[int, tuple[BatchFile, ...]]:
    """The files of the new batch, by bucket."""
    files = {result.bucket: result.files for result in results if result.files}
    for result in results:
        if result.together:
            # Fused tasks may have processed further buckets in advance.
            return {**files, **result.together} if files else result.together
    return files


def run_bucket(
    work: Work, bucket: int, intake: Intake, waiting: RowsInMemory, *, in_memory: bool = False
) -> BucketResult:
    """Process one bucket in a step.

    Parameters
    ----------
    intake : Intake
        The new updates; the function removes those of the bucket.
    waiting : RowsInMemory
        The count of output rows in memory.
    in_memory : bool
        Small batches may stay in this process's memory.
    """
    unsorted, parts = intake.take(bucket)
    grouped = consolidate_parts(unsorted)
    old = work.old(bucket)
    new = [*parts, grouped.updates]
    files: list[BatchFile] = []
    # The cuts of a bucket depend on the order of its input. A concurrent attempt of the task may
    # cut it elsewhere, so each attempt has file names of its own.
    own = uuid.uuid4().hex[:8]
    spool = Spool(work.directory, f"out-{bucket:05d}-{own}", waiting, make=in_memory)
    read = 0
    most = fitting([*new, *old], work.most)
    for number, keys in enumerate(ranges(new, old, most)):
        if keys is not None or parts:
            inside = [updates_between(updates, keys) for updates in new]
            grouped = consolidate(concat(inside)) if parts else runs_of(inside[0])
        if work.kernel is not None and work.output is not None:
            older = [updates_between(updates, keys) for updates in old]
            side = Side(older, [], grouped, 0, work.layout, work.names, work.lower)
            with room(work.name, [side], work.most):
                changes, rows = work.kernel([side], None, work.output.wanted)
                spool.add(work.output.table(changes))
            read += rows
        if work.keeps:
            compacted = compact(grouped, work.since).placed(work.coordinate)
            name = f"{bucket:05d}" + ("" if keys is None else f"-{number}-{own}")
            files += write_file(
                work.directory, name, compacted, in_memory=in_memory, given=work.buckets == 1
            )
    return BucketResult(bucket, tuple(files), spool.added(), intake.rows[bucket], read)


def merge_bucket(
    paths: Sequence[str], directory: str, bucket: int, since: int | None, most: int,
    by_time: bool, *, in_memory: bool = False,
) -> tuple[BatchFile, ...]:
    """Merge one bucket's files into new ones, times advanced to ``since``."""
    batches = [storage.open_updates(path) for path in paths]
    if by_time:
        batches = [still_due(updates, since) for updates in batches]
    files: list[BatchFile] = []
    for number, keys in enumerate(ranges(batches, [], fitting(batches, most))):
        merged = merge([updates_between(batch, keys) for batch in batches], since)
        name = f"{bucket:05d}" if keys is None else f"{bucket:05d}-{number}"
        files += write_file(directory, name, merged, in_memory=in_memory)
    return tuple(files)


def run_together(
    work: Work, updates: UpdateChunk, waiting: RowsInMemory
) -> list[BucketResult] | None:
    """Process all buckets in one call, since for few rows the cost of a call dominates.

    Equal keys are in the same bucket, so batches of other buckets have no updates of a key.

    Parameters
    ----------
    updates : UpdateChunk
        The new updates, in any order.

    Returns
    -------
    list of BucketResult or None
        None if the rows exceed the memory.
    """
    looks = work.kernel is not None and work.kernel.stateful
    many = len(updates) >= thresholds.current.look_up_bucket_rows_min
    if looks and many and not all(map(_is_together, _batches(work.files))):
        return None
    grouped = consolidate(updates)
    old: list[UpdateChunk] = []
    if looks and len(grouped.updates):
        old = _old_together(work, grouped.updates)
    batches = [grouped.updates, *old]
    most = fitting(batches, work.most)
    if sum(map(len, batches)) > most and ranges(batches[:1], old, most) != [None]:
        return None
    spool = Spool(work.directory, "out", waiting, make=True)
    read = 0
    if work.kernel is not None and work.output is not None:
        side = Side(old, [], grouped, 0, work.layout, work.names, work.lower)
        with room(work.name, [side], work.most):
            changes, read = work.kernel([side], None, work.output.wanted)
            spool.add(work.output.table(changes))
    files: Mapping[int, tuple[BatchFile, ...]] = {}
    if work.keeps:
        compacted = compact(grouped, work.since).placed(work.coordinate)
        files = write_files(work.directory, compacted, work.layout, work.buckets)
    return [BucketResult(-1, (), spool.added(), len(updates), read, together=files)]


def _batches(files: Mapping[int, tuple[str, ...]]) -> Sequence[Batch]:
    if not isinstance(files, Paths):
        raise TypeError("work on several buckets at once needs the batches of the driver")
    return files.batches


def _is_together(batch: Batch) -> bool:
    """Whether a batch has few files, or allows a search of all its files at once."""
    most = thresholds.current.look_up_files_max
    files = list(islice(batch.opened(), most + 1))
    return len(files) <= most or storage.open_updates(files[0][1]).words is not None


def _old_together(work: Work, new: UpdateChunk) -> list[UpdateChunk]:
    """The older updates of the kernel that may have keys of new updates."""
    buckets = work.layout.buckets(new, work.buckets)
    touched = np.bincount(buckets).nonzero()[0].tolist()
    old: list[UpdateChunk] = []
    for batch in _batches(work.files):
        files = [(bucket, storage.open_updates(path)) for bucket, path in batch.opened(touched)]
        rows = None
        if len(files) > thresholds.current.look_up_files_max:
            rows = rows_under(new.key64, buckets, [(b, u) for b, u in files if b is not None])
        old += [updates for _, updates in files] if rows is None else [rows]
    return old


def opened_together(
    files: Mapping[int, tuple[str, ...]], buckets: Sequence[int] | None = None
) -> tuple[str, ...]:
    """The paths to open for some buckets, or all."""
    return tuple(path for _, path in opened_by(files, buckets))


def opened_by(
    files: Mapping[int, tuple[str, ...]], buckets: Sequence[int] | None = None
) -> list[tuple[int | None, str]]:
    """The paths to open for some buckets, or all, each with its bucket; None for all buckets."""
    if isinstance(files, Paths):
        return list(files.opened(buckets))
    return [
        (bucket, path) for bucket in (files if buckets is None else buckets)
        for path in files.get(bucket, ())
    ]


def still_due(updates: UpdateChunk, since: int | None) -> UpdateChunk:
    """The updates whose due time, which is their key, is not before ``since``."""
    if since is None:
        return updates
    return updates.between(int(np.searchsorted(updates.key64, since)), len(updates))


def merge_together(
    batches: Sequence[Batch], directory: str, since: int | None, layout: Layout, buckets: int,
    by_time: bool,
) -> Mapping[int, tuple[BatchFile, ...]]:
    """`merge_bucket` for all buckets of batches with few rows, in one call."""
    parts = [storage.open_updates(path) for batch in batches for _, path in batch.opened()]
    if by_time:
        parts = [still_due(updates, since) for updates in parts]
    return write_files(directory, merge(parts, since), layout, buckets)


def write_files(
    directory: str, updates: UpdateChunk, layout: Layout, buckets: int
) -> Mapping[int, tuple[BatchFile, ...]]:
    """Write a batch of all buckets from its ordered updates."""
    if buckets == 1 or not len(updates):
        files = write_file(directory, f"{0:05d}", updates, in_memory=True, given=True)
        return {0: tuple(files)} if files else {}
    order, stops = places(updates, layout, buckets)
    written: dict[int, tuple[BatchFile, ...]] = {}
    most = max(stop - start for _, start, stop in stops)
    width, parts = updates.size // len(updates), {}
    limits = thresholds.current
    if most > limits.in_memory_rows_max or most * width > limits.in_memory_bytes_max:
        for bucket, start, stop in stops:
            part = updates.take(order[start:stop])
            written[bucket] = tuple(write_file(directory, f"{bucket:05d}", part, in_memory=True))
        return written
    for bucket, start, stop in stops:
        path, rows = f"{directory}/{bucket:05d}.arrow", stop - start
        parts[path] = order[start:stop]
        written[bucket] = (BatchFile(path, rows, rows * width),)
    held_batches.keep_together(directory, updates, parts)
    return BatchInMemory(directory, written)


def write_file(
    directory: str, name: str, updates: UpdateChunk, *, in_memory: bool, given: bool = False
) -> list[BatchFile]:
    """Write a bucket of a batch, or a range of it; no file without updates.

    With one bucket columns may be the arrays that a user has `given`, which need a copy.
    """
    if not len(updates):
        return []
    path = os.path.join(directory, f"{name}.arrow")
    limits = thresholds.current
    if in_memory and len(updates) <= limits.in_memory_rows_max and (
        updates.size <= limits.in_memory_bytes_max
    ):
        held_batches.keep_copy(path, updates)
        return [BatchFile(path, len(updates), updates.size)]
    lasting = directory.endswith(storage.LASTING)
    if in_memory and not lasting and held_batches.keep_large(path, updates, copied=given):
        return [BatchFile(path, len(updates), updates.size)]
    if lasting:
        path, size = storage.write_lasting(path, ipc.to_batch(updates), make=in_memory)
        return [BatchFile(path, len(updates), size, sum_of(updates))]
    path, size = storage.write_batch(path, ipc.to_batch(updates), make=in_memory)
    return [BatchFile(path, len(updates), size)]


def check_ceiling(time: PerRow, ceiling: int) -> None:
    """Check that no operator has moved updates beyond the frontier of its input.

    Raises
    ------
    InvalidTimeError
    """
    bounds = bounds_of(time)
    if bounds is not None and bounds[1] >= ceiling:
        raise InvalidTimeError(
            f"an update at time {bounds[1]} lies beyond the frontier {ceiling} of "
            "its collection. An operator in between (transform, map_in_pandas) must have "
            "changed the time, which only a whole history allows"
        )


@dataclass(frozen=True)
class Split:
    """The conversion of rows into updates of an operator.

    Parameters
    ----------
    names : tuple of str
        Columns of the records, in the layout's order.
    time, diff : int or None
        The shared value of all rows; None if the rows have a column of it.
    lower, upper : int or None
        The interval; rows at other times are omitted.
    floor, ceiling : int or None
        A time below `floor`, or not below `ceiling`, is an error.
    diff_columns : DiffColumns or None
        Columns that move into the diff.
    """

    layout: Layout
    names: tuple[str, ...]
    buckets: int
    time: int | None
    diff: int | None
    lower: int | None
    upper: int | None
    floor: int | None
    ceiling: int | None
    diff_columns: DiffColumns | None = None

    def updates(self, table: pa.Table) -> UpdateChunk:
        """The rows of the interval as updates."""
        time: PerRow | None = self.time
        if time is None:
            column = table.column(TIME)
            if column.null_count:
                raise InvalidTimeError(
                    f"{column.null_count} rows have no time (it is null): give every row a time, "
                    "or filter these rows out"
                )
            time = as_int64(joined([column])).to_numpy()
        diff: PerRow | None = self.diff
        if diff is None:
            column = table.column(DIFF)
            if column.null_count:
                raise InvalidDiffError(
                    f"{column.null_count} rows have no diff (it is null): give every row a diff, "
                    "or filter these rows out"
                )
            diff = as_int64(joined([column])).to_numpy()
        bounds = bounds_of(time)
        if self.floor is not None and bounds is not None and bounds[0] < self.floor:
            raise TimeRegressionError(
                f"an update at time {bounds[0]} lies before the frontier {self.floor}; "
                "an operator between (transform, map_in_pandas) must have changed the time"
            )
        if self.ceiling is not None:
            check_ceiling(time, self.ceiling)
        columns = [table.column(name) for name in self.names]
        if columns and table.num_rows >= thresholds.current.single_value_check_rows_min:
            # A common value needs no sort, no shuffle and no space in each row.
            if bounds is not None and bounds[0] == bounds[1] and self._includes(bounds[0]):
                time = bounds[0]
            if isinstance(diff, np.ndarray):
                diff = one_or_all(diff)
        if not columns and not isinstance(time, np.ndarray):
            time = np.full(table.num_rows, time, dtype=np.int64)
        updates = self.layout.encode(columns, time, diff)
        if isinstance(time, np.ndarray) and (self.lower is not None or self.upper is not None):
            inside = np.ones(time.size, dtype=bool)
            if self.lower is not None:
                inside &= time >= self.lower
            if self.upper is not None:
                inside &= time < self.upper
            if not inside.all():
                updates = updates.take(inside)
                table = table.filter(pa.array(inside))
        if self.diff_columns is None:
            return updates
        columns = [joined([table.column(name)]) for name in self.diff_columns.columns]
        return into_diff(updates, columns, self.diff_columns.accumulators)

    def _includes(self, time: int) -> bool:
        """Whether a time lies in the interval."""
        return (self.lower is None or time >= self.lower) and (
            self.upper is None or time < self.upper
        )
