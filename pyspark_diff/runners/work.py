"""The work of one operator that takes updates in, in one bucket and one interval.

The updates of the interval are consolidated, the kernel is told of them and of what was taken in
before, and a batch of them is written::

    new = consolidate(updates),    old = the batches below the interval

A bucket with more than can be held is worked through in pieces, a range of keys each. Both runners
call `run_bucket`. What a kernel may rely on is in `pyspark_diff.operators.contract`.
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

from pyspark_diff.errors import (
    InvalidDiffError,
    InvalidTimeError,
    TimeRegressionError,
)
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.bucketed import rows_under
from pyspark_diff.kernels.consolidate import consolidate, consolidate_parts, runs_of
from pyspark_diff.kernels.into_diff import into_diff
from pyspark_diff.kernels.key_ranges import fitting, ranges, within
from pyspark_diff.kernels.layout import Layout, as_int64, from_int64
from pyspark_diff.kernels.merge import merge
from pyspark_diff.kernels.replay import compact
from pyspark_diff.kernels.split import places
from pyspark_diff.kernels.updates import (
    PerRow,
    Updates,
    bounds_of,
    concat,
    joined,
    one_or_all,
    spread,
    sum_of,
)
from pyspark_diff.operators.contract import Changes, DiffColumns, ReplayKernel, Side
from pyspark_diff.runners.pieces import Given, Intake, Spool, Waiting, room
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.trace import held_batches, storage
from pyspark_diff.trace.batch import Batch, BatchFile, HeldTogether, Paths

#: Batches of up to this many rows, and bytes, of a bucket stay in the driver's memory until another
#: process reads them: of numbers a megabyte. To write and map files of so many was a seventh of a
#: step of 10,000 changes. In a store these are part of the commit; what is larger is a file there,
#: and elsewhere stays in memory as long as there is room (`pyspark_diff.trace.held_batches`).
IN_MEMORY_ROWS, IN_MEMORY_BYTES = 1 << 15, 1 << 22

#: From so many rows on it is looked whether they all have one time, or one diff.
MANY = 1 << 12

#: In so many files of a batch keys are looked for one after the other, in more of numbers at once.
#: In more of anything else only few rows are looked for: to visit the buckets one by one costs less
#: than to look for each key in all of them.
BUCKETS, TOGETHER = 4, 500


@dataclass(frozen=True)
class Output:
    """Form of an operator's output rows.

    Parameters
    ----------
    schema : pyarrow.Schema
        The wanted data columns.
    wanted : tuple of int
        Their positions among all output columns.
    time : pyarrow.DataType
    pruned : bool
        Some columns are left out, so rows may have become equal.
    """

    schema: pa.Schema
    wanted: tuple[int, ...]
    time: pa.DataType
    pruned: bool

    def table(self, changes: Changes) -> pa.Table:
        """Update rows from what a kernel returned."""
        columns, time, diff = changes
        if self.pruned:
            time = spread(time, diff.size)  # records without columns are counted by their times
            updates = consolidate(self._layout.encode(columns, time, diff)).updates
            columns, time, diff = self._layout.decode(updates), updates.time, updates.diffs()
        arrays = list(columns)
        arrays.append(from_int64(pa.array(spread(time, diff.size)), self.time))
        arrays.append(pa.array(diff))
        return pa.Table.from_arrays(arrays, schema=self._updates)

    @cached_property  # asked for in each step
    def _layout(self) -> Layout:
        return Layout(tuple(self.schema.types))

    @cached_property  # asked for in each step
    def _updates(self) -> pa.Schema:
        fields = [pa.field(TIME, self.time), pa.field(DIFF, pa.int64())]
        return pa.schema([*self.schema, *fields])


@dataclass(frozen=True)
class Work:
    """What a keyed operator does in one step, for all buckets. Travels to the executors.

    Parameters
    ----------
    name : str
        Of the operator, for errors.
    layout : Layout
    names : tuple of str
        Columns of the records, in the layout's order.
    buckets : int
    kernel : ReplayKernel or None
        None only arranges.
    output : Output or None
    files : mapping of int to tuple of str
        Batch files that stand for the time below the interval, by bucket.
    directory : str
        Where files go.
    keeps : bool
        Whether a new batch is written.
    since : int or None
        Times of the new batch are advanced to it.
    lower, upper : int or None
        The interval; None is no bound.
    most : int
        So many rows are held at once.
    diff_columns : DiffColumns or None
        What moves into the diff.
    coordinate : int
        In a loop, where the updates belong, packed.
    """

    name: str
    layout: Layout
    names: tuple[str, ...]
    buckets: int
    kernel: ReplayKernel | None
    output: Output | None
    files: Mapping[int, tuple[str, ...]]
    directory: str
    keeps: bool
    since: int | None
    lower: int | None
    upper: int | None
    most: int
    diff_columns: DiffColumns | None = None
    coordinate: int = 0

    def old(self, bucket: int) -> list[Updates]:
        """What the kernel may read of a bucket's older updates."""
        if self.kernel is None or not self.kernel.stateful:
            return []
        return [storage.open_updates(path) for path in self.files.get(bucket, ())]


@dataclass(frozen=True)
class Merge:
    """Files of an arrangement that become one of each bucket.

    Parameters
    ----------
    files : mapping of int to sequence of str
        By bucket.
    directory : str
        Where files go.
    since : int or None
        Times are advanced to it.
    most : int
        So many rows are held at once.
    by_time : bool
        Keys are times, and what is under those before `since` is of no use any more.
    """

    files: Mapping[int, Sequence[str]]
    directory: str
    since: int | None
    most: int
    by_time: bool = False


@dataclass(frozen=True)
class BucketResult:
    """What became of one bucket.

    Parameters
    ----------
    bucket : int
    files : tuple of BatchFile
        The new batch's, in order of their keys; none when it holds nothing.
    output : Given
        Output update rows.
    rows_in, rows_read : int
        Update rows that came in, and rows of older batches that were read.
    later : mapping of int to Given
        In a loop, output that belongs to later coordinates.
    due : mapping of int to tuple of BatchFile
        In a loop, keys that have to be visited again, by coordinate.
    rest : tuple of (int, int, int, int)
        Output that is too much to hold, and is made when it is read: for each coordinate it, the
        first part of it, about how many rows they have, and the `most` by which parts are cut.
    together : mapping of int to tuple of BatchFile
        Where several buckets were done at once, the files of all of them by bucket.
    operator : int
        Of whom it is, where one task does the work of several: see `pyspark_diff.runners.fused`.
    seconds : float
        That the task took for it; 0 where it was not a task of Spark.
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
        """All files that were written."""
        for files in (self.files, *self.due.values(), *self.together.values()):
            yield from (file.path for file in files)
        for given in (self.output, *self.later.values()):
            yield from given.paths


def files_of(results: Sequence[BucketResult]) -> Mapping[int, tuple[BatchFile, ...]]:
    """The files of the new batch, by bucket."""
    found = {result.bucket: result.files for result in results if result.files}
    for result in results:
        if result.together:
            # Beside it are buckets that were done elsewhere, before their turn.
            return {**found, **result.together} if found else result.together
    return found


def run_bucket(
    work: Work, bucket: int, intake: Intake, waiting: Waiting, *, in_memory: bool = False
) -> BucketResult:
    """Do one bucket's share of a step.

    Parameters
    ----------
    work : Work
    bucket : int
    intake : Intake
        The new updates; the bucket's are taken from it.
    waiting : Waiting
        Output that is held.
    in_memory : bool
        Small batches may stay in this process's memory.

    Returns
    -------
    BucketResult
    """
    held, parts = intake.take(bucket)
    grouped = consolidate_parts(held)
    old = work.old(bucket)
    new = [*parts, grouped.updates]
    files: list[BatchFile] = []
    # Where a bucket is cut depends on the order in which it came in. Another attempt of the task
    # may cut it elsewhere and still be running, so each has names of its own.
    own = uuid.uuid4().hex[:8]
    spool = Spool(work.directory, f"out-{bucket:05d}-{own}", waiting, make=in_memory)
    read = 0
    most = fitting([*new, *old], work.most)
    for number, keys in enumerate(ranges(new, old, most)):
        if keys is not None or parts:
            inside = [within(updates, keys) for updates in new]
            grouped = consolidate(concat(inside)) if parts else runs_of(inside[0])
        if work.kernel is not None and work.output is not None:
            there = [within(updates, keys) for updates in old]
            side = Side(there, [], grouped, 0, work.layout, work.names, work.lower)
            with room(work.name, [side], work.most):
                changes, rows = work.kernel([side], None, work.output.wanted)
                spool.add(work.output.table(changes))
            read += rows
        if work.keeps:
            kept = compact(grouped, work.since).placed(work.coordinate)
            name = f"{bucket:05d}" + ("" if keys is None else f"-{number}-{own}")
            files += write_file(
                work.directory, name, kept, in_memory=in_memory, given=work.buckets == 1
            )
    return BucketResult(bucket, tuple(files), spool.given(), intake.rows[bucket], read)


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
        merged = merge([within(batch, keys) for batch in batches], since)
        name = f"{bucket:05d}" if keys is None else f"{bucket:05d}-{number}"
        files += write_file(directory, name, merged, in_memory=in_memory)
    return tuple(files)


def run_together(
    work: Work, updates: Updates, waiting: Waiting
) -> list[BucketResult] | None:
    """Do the share of all buckets at once, as for few rows each of them costs as much as all.

    Equal keys are in the same bucket, so a key finds nothing in the batches of others.

    Parameters
    ----------
    work : Work
    updates : Updates
        The new ones, in any order.
    waiting : Waiting

    Returns
    -------
    list of BucketResult or None
        None where it is more than can be held.
    """
    looks = work.kernel is not None and work.kernel.stateful
    if looks and len(updates) >= TOGETHER and not all(map(_is_together, _batches(work.files))):
        return None
    grouped = consolidate(updates)
    old: list[Updates] = []
    if looks and len(grouped.updates):
        old = _old_together(work, grouped.updates)
    held = [grouped.updates, *old]
    most = fitting(held, work.most)
    if sum(map(len, held)) > most and ranges(held[:1], old, most) != [None]:
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
        kept = compact(grouped, work.since).placed(work.coordinate)
        files = write_files(work.directory, kept, work.layout, work.buckets)
    return [BucketResult(-1, (), spool.given(), len(updates), read, together=files)]


def _batches(files: Mapping[int, tuple[str, ...]]) -> Sequence[Batch]:
    if not isinstance(files, Paths):
        raise TypeError("only who has the batches looks into several buckets at once")
    return files.batches


def _is_together(batch: Batch) -> bool:
    """Whether keys are looked for in a batch at once, or in few files."""
    files = list(islice(batch.opened(), BUCKETS + 1))
    return len(files) <= BUCKETS or storage.open_updates(files[0][1]).words is not None


def _old_together(work: Work, new: Updates) -> list[Updates]:
    """What the kernel may read of older updates under the keys of new ones."""
    buckets = work.layout.buckets(new, work.buckets)
    touched = np.bincount(buckets).nonzero()[0].tolist()
    held: list[Updates] = []
    for batch in _batches(work.files):
        files = [(bucket, storage.open_updates(path)) for bucket, path in batch.opened(touched)]
        found = None
        if len(files) > BUCKETS:
            found = rows_under(new.key64, buckets, [(b, u) for b, u in files if b is not None])
        held += [updates for _, updates in files] if found is None else [found]
    return held


def opened_together(
    files: Mapping[int, tuple[str, ...]], buckets: Sequence[int] | None = None
) -> tuple[str, ...]:
    """What is opened to see some buckets at once, or all."""
    return tuple(path for _, path in opened_by(files, buckets))


def opened_by(
    files: Mapping[int, tuple[str, ...]], buckets: Sequence[int] | None = None
) -> list[tuple[int | None, str]]:
    """The same, and of which bucket each is; None where it is of all."""
    if isinstance(files, Paths):
        return list(files.opened(buckets))
    return [
        (bucket, path) for bucket in (files if buckets is None else buckets)
        for path in files.get(bucket, ())
    ]


def still_due(updates: Updates, since: int | None) -> Updates:
    """Of updates whose keys are times, those under keys that have not passed."""
    if since is None:
        return updates
    return updates.between(int(np.searchsorted(updates.key64, since)), len(updates))


def merge_together(
    batches: Sequence[Batch], directory: str, since: int | None, layout: Layout, buckets: int,
    by_time: bool,
) -> Mapping[int, tuple[BatchFile, ...]]:
    """As `merge_bucket` for all buckets of batches that have few rows, in one go."""
    held = [storage.open_updates(path) for batch in batches for _, path in batch.opened()]
    if by_time:
        held = [still_due(updates, since) for updates in held]
    return write_files(directory, merge(held, since), layout, buckets)


def write_files(
    directory: str, updates: Updates, layout: Layout, buckets: int
) -> Mapping[int, tuple[BatchFile, ...]]:
    """Write a batch of whose buckets all rows are at hand, in order."""
    if buckets == 1 or not len(updates):
        files = write_file(directory, f"{0:05d}", updates, in_memory=True, given=True)
        return {0: tuple(files)} if files else {}
    order, stops = places(updates, layout, buckets)
    found: dict[int, tuple[BatchFile, ...]] = {}
    most = max(stop - start for _, start, stop in stops)
    width, parts = updates.size // len(updates), {}
    if most > IN_MEMORY_ROWS or most * width > IN_MEMORY_BYTES:
        for bucket, start, stop in stops:
            part = updates.take(order[start:stop])
            found[bucket] = tuple(write_file(directory, f"{bucket:05d}", part, in_memory=True))
        return found
    for bucket, start, stop in stops:
        path, rows = f"{directory}/{bucket:05d}.arrow", stop - start
        parts[path] = order[start:stop]
        found[bucket] = (BatchFile(path, rows, rows * width),)
    held_batches.put_together(directory, updates, parts)
    return HeldTogether(directory, found)


def write_file(
    directory: str, name: str, updates: Updates, *, in_memory: bool, given: bool = False
) -> list[BatchFile]:
    """Write a bucket of a batch, or a range of it; no file where there is nothing to hold.

    Where they were not moved into buckets, columns may still be those that a user has `given`.
    """
    if not len(updates):
        return []
    path = os.path.join(directory, f"{name}.arrow")
    if in_memory and len(updates) <= IN_MEMORY_ROWS and updates.size <= IN_MEMORY_BYTES:
        held_batches.put(path, updates)
        return [BatchFile(path, len(updates), updates.size)]
    lasting = directory.endswith(storage.LASTING)
    if in_memory and not lasting and held_batches.put_large(path, updates, copied=given):
        return [BatchFile(path, len(updates), updates.size)]
    if lasting:
        path, size = storage.write_lasting(path, ipc.to_batch(updates), make=in_memory)
        return [BatchFile(path, len(updates), size, sum_of(updates))]
    path, size = storage.write_batch(path, ipc.to_batch(updates), make=in_memory)
    return [BatchFile(path, len(updates), size)]


def check_ceiling(time: PerRow, ceiling: int) -> None:
    """Refuse updates that an operator has moved beyond the frontier of its input.

    Raises
    ------
    InvalidTimeError
    """
    found = bounds_of(time)
    if found is not None and found[1] >= ceiling:
        raise InvalidTimeError(
            f"an update at time {found[1]} lies beyond the frontier {ceiling} of "
            "the collection that it comes from; an operator between (transform, "
            "map_in_pandas) must have changed the time, which only a whole history allows"
        )


@dataclass(frozen=True)
class Split:
    """How rows become blobs.

    Parameters
    ----------
    layout : Layout
    names : tuple of str
        Columns of the records, in the layout's order.
    buckets : int
    time, diff : int or None
        Shared by all rows; None where the rows have a column of it.
    lower, upper : int or None
        Rows at other times are left out.
    floor, ceiling : int or None
        A time below the one, or not below the other, is an error.
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

    def updates(self, table: pa.Table) -> Updates:
        """Rows of the interval, as kernels see them."""
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
        found = bounds_of(time)
        if self.floor is not None and found is not None and found[0] < self.floor:
            raise TimeRegressionError(
                f"an update at time {found[0]} lies behind the frontier {self.floor}; "
                "an operator between (transform, map_in_pandas) must have changed the time"
            )
        if self.ceiling is not None:
            check_ceiling(time, self.ceiling)
        columns = [table.column(name) for name in self.names]
        if columns and table.num_rows >= MANY:
            # One value for all rows is neither sorted, nor moved, nor written with each of them.
            if found is not None and found[0] == found[1] and self._holds(found[0]):
                time = found[0]
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

    def _holds(self, time: int) -> bool:
        """Whether a time is of the interval."""
        return (self.lower is None or time >= self.lower) and (
            self.upper is None or time < self.upper
        )
