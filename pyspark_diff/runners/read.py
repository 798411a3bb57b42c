"""The work of one operator that reads arrangements: one bucket, one interval, one coordinate.

For each arrangement ``A`` that it reads, and the interval ``[lower, upper)``::

    old = updates of A before lower      (times may have been advanced to it)
    new = updates of A in [lower, upper)

as far as the bucket goes. Nothing is shuffled: equal keys of all arrangements lie in equal buckets.

At the coordinate ``c`` that is processed, which is ``()`` outside of loops, all times of the
interval are done at once. With ``F`` the operator's function, ``I`` its input and ``O`` its output,
projected on the outer time::

    sum(O at coordinates <= c) = F(sum(I at coordinates <= c))

so what the operator gives at ``c`` is the change of the right side in the interval, less what it
gave at smaller coordinates. The keys that can have any are those with new updates, and those that
were found due. A bilinear operator needs none of this: each pair of updates is met once, and
belongs to the least upper bound of their coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.consolidate import consolidate, runs_of
from pyspark_diff.kernels.coordinates import Limit, pack
from pyspark_diff.kernels.history import distinct_keys, due_after, recent
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.replay import compact
from pyspark_diff.kernels.updates import PerRow, Updates, concat, empty, pick, spread
from pyspark_diff.operators.contract import BilinearKernel, Changes, Kernel, ReplayKernel, Side
from pyspark_diff.runners.work import BucketResult, Output, write_file
from pyspark_diff.times import Coordinate
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile


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
    earlier : mapping of int to tuple of str
        In a loop, files of updates in the interval that have been processed; `new` are the others.
    first : bool
        Whether what is new in `both` is processed.
    """

    layout: Layout
    names: tuple[str, ...]
    old: Mapping[int, tuple[str, ...]]
    new: Mapping[int, tuple[str, ...]]
    both: Mapping[int, tuple[str, ...]]
    rows: int
    depth: int = 0
    earlier: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    first: bool = True

    def paths(self) -> list[str]:
        """All files."""
        every = (self.old, self.new, self.both, self.earlier)
        return [path for files in every for paths in files.values() for path in paths]

    def at_coordinate(self, new: Mapping[int, tuple[str, ...]], first: bool) -> "View":
        """The view when only some of the new files are processed."""
        earlier = {}
        for bucket, paths in self.new.items():
            now = new.get(bucket, ())
            if rest := tuple(path for path in paths if path not in now):
                earlier[bucket] = rest
        return replace(self, new=new, earlier=earlier, first=first)

    def side(self, bucket: int, lower: int | None, upper: int | None) -> Side:
        """What is in one bucket."""
        old = [storage.open_updates(path) for path in self.old.get(bucket, ())]
        earlier = [storage.open_updates(path) for path in self.earlier.get(bucket, ())]
        new = [storage.open_updates(path) for path in self.new.get(bucket, ())]
        for path in self.both.get(bucket, ()):
            before, inside = _told(storage.open_updates(path), lower, upper)
            old.append(before)
            (new if self.first else earlier).append(inside)
        grouped = runs_of(new[0]) if len(new) == 1 else consolidate(concat(new))
        return Side(old, earlier, grouped, self.depth, self.layout, self.names, lower)


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
    kernel : Kernel
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
    at : tuple of int
        The coordinate that is processed; ``()`` outside of loops.
    due : mapping of int to tuple of str
        In a loop, files of the keys that have to be visited besides those with new updates.
    """

    kernel: Kernel
    views: tuple[View, ...]
    own: View | None
    output: Output | None
    stored: tuple[int, ...]
    directory: str
    keeps: bool
    since: int | None
    lower: int | None
    upper: int | None
    at: Coordinate = ()
    due: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def buckets(self) -> list[int]:
        """Buckets in which there may be something to do."""
        found = set(self.due)
        for view in self.views:
            found.update(view.new, view.both if view.first else ())
        return sorted(found)


def read_bucket(read: Read, bucket: int, *, in_memory: bool = False) -> BucketResult:
    """Do one bucket's share of a step, or in a loop of a coordinate.

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
    if isinstance(read.kernel, BilinearKernel):
        return _bilinear(read, read.kernel, bucket, sides)
    if isinstance(read.kernel, ReplayKernel):
        return _replayed(read, read.kernel, bucket, sides, in_memory)
    raise TypeError(f"{read.kernel!r} is neither a replay nor bilinear")


def _bilinear(
    read: Read, kernel: BilinearKernel, bucket: int, sides: Sequence[Side]
) -> BucketResult:
    output, later = None, {}
    rows_in = sum(len(side.new.updates) for side in sides)
    wanted = () if read.output is None else read.output.wanted
    changes, coordinates, rows_read = kernel(sides, read.at, wanted)
    now = pack(read.at)
    if read.output is not None:
        for code, part in _by_coordinate(changes, coordinates):
            table = read.output.table(part)
            if code == now:
                output = table
            elif table.num_rows:
                later[code] = (table, None, table.num_rows)
    rows_out = 0 if output is None else output.num_rows
    return BucketResult(bucket, None, output, None, rows_in, rows_read, rows_out, later)


def _by_coordinate(changes: Changes, coordinates: PerRow) -> list[tuple[int, Changes]]:
    """The changes that belong to each coordinate."""
    if not isinstance(coordinates, np.ndarray):
        return [(coordinates, changes)]
    columns, time, diff = changes
    codes = np.unique(coordinates)
    if codes.size == 1:
        return [(int(codes[0]), changes)]
    found: list[tuple[int, Changes]] = []
    for code in codes:
        rows = np.flatnonzero(coordinates == code)
        index = pa.array(rows)
        part = [column.take(index) for column in columns], pick(time, rows), diff[rows]
        found.append((int(code), part))
    return found


def _replayed(
    read: Read, kernel: ReplayKernel, bucket: int, sides: Sequence[Side], in_memory: bool
) -> BucketResult:
    at = read.at
    if at and read.own is None:
        raise ValueError("in a loop an operator knows what it gave at other coordinates")
    rows_in = sum(len(side.new.updates) for side in sides)
    keys = _keys(read, bucket, sides) if at else empty()
    visited, rows_read = _visited(read, bucket, sides, keys) if at else (sides, 0)
    own, given = None, empty()
    if read.own is not None:
        own = read.own.side(bucket, read.lower, read.upper)
        limit = _limit(own.depth, at)
        if own.earlier:
            grouped, rows = recent(keys, own.earlier, limit)
            given, rows_read = grouped.updates, rows_read + rows
        own = replace(own, earlier=[], limit=limit) if at else own
    wanted = () if read.output is None else read.output.wanted
    changes, rows = kernel(visited, own, wanted if own is None else read.stored)
    rows_read += rows
    file, output = None, None
    if own is not None:
        file, changes = _kept(read, bucket, own, changes, given, in_memory)
        columns, time, diff = changes
        changes = [columns[read.stored.index(i)] for i in wanted], time, diff
    if read.output is not None:
        output = read.output.table(changes)
    rows_out = 0 if output is None else output.num_rows
    due = _due(read, bucket, keys, sides, in_memory) if at else {}
    return BucketResult(bucket, file, output, None, rows_in, rows_read, rows_out, {}, due)


def _kept(
    read: Read, bucket: int, own: Side, changes: Changes, given: Updates, in_memory: bool
) -> tuple[BatchFile | None, Changes]:
    """Take changes into the arranged output, less those that were given at other coordinates."""
    if not read.keeps and not len(given):
        return None, changes
    columns, time, diff = changes
    # Records without columns are counted by their times.
    made = own.layout.encode(columns, spread(time, diff.size), diff)
    if len(given):
        made = concat([made, given.at(given.time, -given.diffs())])
    change = consolidate(made)
    file = None
    if read.keeps:
        kept = compact(change, read.since).placed(pack(read.at))
        file = write_file(read.directory, bucket, kept, in_memory=in_memory)
    if not read.at:
        return file, changes  # adding them up is left to who takes them in
    # A loop goes on as long as there are rows, so none may be left that cancel.
    rows = change.updates
    return file, (own.layout.decode(rows), rows.times(), rows.diffs())


def _visited(
    read: Read, bucket: int, sides: Sequence[Side], keys: Updates
) -> tuple[Sequence[Side], int]:
    """The sides up to the coordinate, under the keys that have to be visited; and rows read."""
    visited, rows_read = [], 0
    # What is new is all there is to see where nothing has been processed, and nothing is due.
    alone = bucket not in read.due and not any(side.earlier for side in sides)
    for side in sides:
        new, limit = side.new, _limit(side.depth, read.at)
        if not alone:
            new, rows = recent(keys, [*side.earlier, new.updates], limit)
            rows_read += rows - len(side.new.updates)
        elif limit is not None:
            new = replace(new, updates=new.updates.placed(0))
        visited.append(replace(side, earlier=[], new=new, limit=limit))
    return visited, rows_read


def _keys(read: Read, bucket: int, sides: Sequence[Side]) -> Updates:
    """The keys that have to be visited, each once."""
    parts = [distinct_keys(s.new).at(0, 1).placed(0) for s in sides if len(s.new.updates)]
    parts += [storage.open_updates(path) for path in read.due.get(bucket, ())]
    if len(parts) == 1:
        return parts[0]
    return consolidate(concat(parts)).updates


def _due(
    read: Read, bucket: int, keys: Updates, sides: Sequence[Side], in_memory: bool
) -> dict[int, BatchFile]:
    """The keys that have to be visited again, by coordinate."""
    batches = []
    for side in sides:
        held = side.old
        if len(read.at) > 1:  # in one loop what is new has no coordinate that is still to come
            held = [*held, *side.earlier, side.new.updates]
        batches.append((held, side.depth))
    due = {}
    for code, touched in due_after(keys, batches, read.at).items():
        name = f"due-{code}-"
        file = write_file(read.directory, bucket, touched, in_memory=in_memory, name=name)
        if file is not None:
            due[code] = file
    return due


def _limit(depth: int, at: Coordinate) -> Limit | None:
    return Limit(depth, pack(at[:depth])) if depth else None
