"""The work of one operator that takes updates in, in one bucket and one interval.

The updates of the interval are consolidated, the kernel is told of them and of what was taken in
before, and a batch of them is written::

    new = consolidate(updates),    old = the batches below the interval

Both runners call `run_bucket`. What a kernel may rely on is in `pyspark_diff.operators.contract`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import (
    InvalidDiffError,
    InvalidTimeError,
    TimeRegressionError,
)
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.into_diff import into_diff
from pyspark_diff.kernels.layout import Layout, as_int64, from_int64
from pyspark_diff.kernels.merge import merge
from pyspark_diff.kernels.replay import compact
from pyspark_diff.kernels.updates import PerRow, Updates, concat, joined, spread
from pyspark_diff.operators.contract import Changes, DiffColumns, ReplayKernel, Side
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile

#: Batches of up to this many rows stay in the driver's memory until somebody else reads them.
IN_MEMORY_ROWS = 4096


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
            layout = Layout(tuple(self.schema.types))
            time = spread(time, diff.size)  # records without columns are counted by their times
            updates = consolidate(layout.encode(columns, time, diff)).updates
            columns, time, diff = layout.decode(updates), updates.times(), updates.diffs()
        arrays = list(columns)
        arrays.append(from_int64(pa.array(spread(time, diff.size)), self.time))
        arrays.append(pa.array(diff))
        fields = list(self.schema) + [pa.field(TIME, self.time), pa.field(DIFF, pa.int64())]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


@dataclass(frozen=True)
class Work:
    """What a keyed operator does in one step, for all buckets. Travels to the executors.

    Parameters
    ----------
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
    diff_columns : DiffColumns or None
        What moves into the diff.
    coordinate : int
        In a loop, where the updates belong, packed.
    """

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
    diff_columns: DiffColumns | None = None
    coordinate: int = 0


@dataclass(frozen=True)
class BucketResult:
    """What became of one bucket.

    Parameters
    ----------
    bucket : int
    file : BatchFile or None
        The new batch's file; None when it holds nothing.
    output : pyarrow.Table or None
        Output update rows, unless they were written to ``output_path``.
    output_path : str or None
    rows_in, rows_read, rows_out : int
        Update rows that came in, rows of older batches that were read, and output rows.
    later : mapping of int to (Table or None, str or None, int)
        In a loop, output that belongs to later coordinates: a table or the path of one, and rows.
    due : mapping of int to BatchFile
        In a loop, keys that have to be visited again, by coordinate.
    """

    bucket: int
    file: BatchFile | None
    output: pa.Table | None
    output_path: str | None
    rows_in: int
    rows_read: int
    rows_out: int
    later: Mapping[int, tuple[pa.Table | None, str | None, int]] = field(default_factory=dict)
    due: Mapping[int, BatchFile] = field(default_factory=dict)


def run_bucket(
    work: Work, bucket: int, parts: list[Updates], *, in_memory: bool = False
) -> BucketResult:
    """Do one bucket's share of a step.

    Parameters
    ----------
    work : Work
    bucket : int
    parts : list of Updates
        The bucket's new updates, in any order.
    in_memory : bool
        Small batches may stay in this process's memory.

    Returns
    -------
    BucketResult
    """
    grouped = consolidate(concat(parts))
    output, read = None, 0
    if work.kernel is not None and work.output is not None:
        files = work.files.get(bucket, ()) if work.kernel.stateful else ()
        old = [storage.open_updates(path) for path in files]
        side = Side(old, [], grouped, 0, work.layout, work.names, work.lower)
        changes, read = work.kernel([side], None, work.output.wanted)
        output = work.output.table(changes)
    file = None
    if work.keeps:
        kept = compact(grouped, work.since).placed(work.coordinate)
        file = write_file(work.directory, bucket, kept, in_memory=in_memory)
    rows_in = sum(len(part) for part in parts)
    rows_out = output.num_rows if output is not None else 0
    return BucketResult(bucket, file, output, None, rows_in, read, rows_out)


def merge_bucket(
    paths: Sequence[str], directory: str, bucket: int, since: int | None, *, in_memory: bool = False
) -> BatchFile | None:
    """Merge one bucket's files into a new one, times advanced to ``since``."""
    batches = [storage.open_updates(path) for path in paths]
    return write_file(directory, bucket, merge(batches, since).updates, in_memory=in_memory)


def write_file(
    directory: str, bucket: int, updates: Updates, *, in_memory: bool, name: str = ""
) -> BatchFile | None:
    """Write one bucket of a batch; no file where there is nothing to hold."""
    if not len(updates):
        return None
    path = os.path.join(directory, f"{name}{bucket:05d}.arrow")
    if in_memory and len(updates) <= IN_MEMORY_ROWS:
        storage.put_in_memory(path, updates)
        return BatchFile(path, len(updates), ipc.to_batch(updates).nbytes)
    size = storage.write_batch(path, ipc.to_batch(updates), make=in_memory)
    return BatchFile(path, len(updates), size)


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
            time = as_int64(column.combine_chunks()).to_numpy()
        diff: PerRow | None = self.diff
        if diff is None:
            column = table.column(DIFF)
            if column.null_count:
                raise InvalidDiffError(
                    f"{column.null_count} rows have no diff (it is null): give every row a diff, "
                    "or filter these rows out"
                )
            diff = as_int64(column.combine_chunks()).to_numpy()
        if self.floor is not None and np.size(time) and int(np.min(time)) < self.floor:
            raise TimeRegressionError(
                f"an update at time {int(np.min(time))} lies behind the frontier {self.floor}; "
                "an operator between (transform, map_in_pandas) must have changed the time"
            )
        if self.ceiling is not None and np.size(time) and int(np.max(time)) >= self.ceiling:
            raise InvalidTimeError(
                f"an update at time {int(np.max(time))} lies beyond the frontier {self.ceiling} of "
                "the collection that it comes from; an operator between (transform, "
                "map_in_pandas) must have changed the time, which only a whole history allows"
            )
        columns = [table.column(name) for name in self.names]
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
