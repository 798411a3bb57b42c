"""The work of one operator that reads arrangements, in one bucket and one interval.

For each arrangement ``A`` that it reads, and the interval ``[lower, upper)``, a kernel is given::

    old = updates of A before lower      (times may have been advanced to it)
    new = updates of A in [lower, upper)

as far as the bucket goes, and returns the updates of the output in that interval. Nothing is
shuffled: equal keys of all arrangements lie in equal buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

import numpy as np

from pyspark_diff.kernels.consolidate import consolidate, runs_of
from pyspark_diff.kernels.join import Reached
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.replay import compact
from pyspark_diff.kernels.updates import Updates, concat
from pyspark_diff.operators.contract import ReadKernel, Side
from pyspark_diff.runners.work import BucketResult, Output, write_file
from pyspark_diff.times import Coordinate
from pyspark_diff.trace import storage


@dataclass(frozen=True)
class View:
    """The files in which an operator finds an arrangement, by bucket.

    Parameters
    ----------
    layout : Layout
    names : tuple of str
    old, new, both : mapping of int to tuple of str
        Files of updates before the interval, in it, and of those that have to be told by time.
    rows : int
        Rows of the files that may hold new updates.
    depth : int
        Number of loops around the arrangement.
    fresh : mapping of int to tuple of str
        In a loop, those of the new files that hold the updates whose turn it is.
    first : bool
        In a loop, whether it is the turn of what is new in `both`.
    """

    layout: Layout
    names: tuple[str, ...]
    old: Mapping[int, tuple[str, ...]]
    new: Mapping[int, tuple[str, ...]]
    both: Mapping[int, tuple[str, ...]]
    rows: int
    depth: int = 0
    fresh: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    first: bool = False

    def paths(self) -> list[str]:
        """All files."""
        every = (self.old, self.new, self.both)
        return [path for files in every for paths in files.values() for path in paths]

    def reached(self, bucket: int, lower: int | None, upper: int | None) -> Reached:
        """What a loop has reached of one bucket."""
        old = [storage.open_updates(path) for path in self.old.get(bucket, ())]
        new = [storage.open_updates(path) for path in self.new.get(bucket, ())]
        fresh = [storage.open_updates(path) for path in self.fresh.get(bucket, ())]
        for path in self.both.get(bucket, ()):
            before, inside = _told(storage.open_updates(path), lower, upper)
            old.append(before)
            new.append(inside)
            if self.first:
                fresh.append(inside)
        grouped = runs_of(fresh[0]) if len(fresh) == 1 else consolidate(concat(fresh))
        return Reached(old, new, grouped, self.depth)

    def side(self, bucket: int, lower: int | None, upper: int | None) -> Side:
        """What is in one bucket."""
        old = [storage.open_updates(path) for path in self.old.get(bucket, ())]
        new = [storage.open_updates(path) for path in self.new.get(bucket, ())]
        for path in self.both.get(bucket, ()):
            before, inside = _told(storage.open_updates(path), lower, upper)
            old.append(before)
            new.append(inside)
        grouped = runs_of(new[0]) if len(new) == 1 else consolidate(concat(new))
        return Side(old, grouped, self.layout, self.names, lower)


def _told(
    updates: Updates, lower: int | None, upper: int | None
) -> tuple[Updates, Updates]:
    """The updates before an interval, and those in it."""
    times = updates.times()
    before = np.zeros(times.size, dtype=bool) if lower is None else times < lower
    inside = ~before if upper is None else ~before & (times < upper)
    return updates.take(before), updates.take(inside)


@dataclass(frozen=True)
class Read:
    """What an operator does in one step, for all buckets. Travels to the executors.

    Parameters
    ----------
    kernel : ReadKernel
    views : tuple of View
        Of the arrangements that it reads.
    own : View or None
        Of the arrangement of its output.
    output : Output or None
        None where nobody takes the updates themselves.
    stored : tuple of int
        Positions among all output columns of those that are kept in the arranged output.
    directory : str
        Where files go.
    keeps : bool
        Whether the arranged output gets a new batch.
    since : int or None
        Times of the new batch are advanced to it.
    lower, upper : int or None
        The interval; None is no bound.
    at : tuple of int, or None
        In a loop, the coordinate whose turn it is.
    due : mapping of int to tuple of str
        In a loop, files of the keys that have to be visited besides those with fresh updates.
    """

    kernel: ReadKernel
    views: tuple[View, ...]
    own: View | None
    output: Output | None
    stored: tuple[int, ...]
    directory: str
    keeps: bool
    since: int | None
    lower: int | None
    upper: int | None
    at: Coordinate | None = None
    due: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def buckets(self) -> list[int]:
        """Buckets in which there may be something to do."""
        if self.at is not None:
            found = set(self.due)
            for view in self.views:
                found.update(view.fresh, view.both if view.first else ())
            return sorted(found)
        return sorted({b for view in self.views for b in (*view.new, *view.both)})


def read_bucket(read: Read, bucket: int, *, in_memory: bool = False) -> BucketResult:
    """Do one bucket's share of a step.

    Parameters
    ----------
    read : Read
    bucket : int
    in_memory : bool
        Small batches may stay in this process's memory.

    Returns
    -------
    BucketResult
    """
    sides = [view.side(bucket, read.lower, read.upper) for view in read.views]
    rows_in = sum(len(side.new.updates) for side in sides)
    own = None if read.own is None else read.own.side(bucket, read.lower, read.upper)
    wanted = () if read.output is None else read.output.wanted
    asked = wanted if read.own is None else read.stored
    (columns, time, diff), rows_read = read.kernel(sides, own, asked)
    file, output = None, None
    if read.own is not None:
        if read.keeps:
            updates = consolidate(read.own.layout.encode(columns, time, diff))
            kept = compact(updates, read.since)
            file = write_file(read.directory, bucket, kept, in_memory=in_memory)
        columns = [columns[read.stored.index(i)] for i in wanted]
    if read.output is not None:
        output = read.output.table((columns, time, diff))
    rows_out = 0 if output is None else output.num_rows
    return BucketResult(bucket, file, output, None, rows_in, rows_read, rows_out)
