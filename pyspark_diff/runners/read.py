"""The work of one operator that reads arrangements: one bucket, one interval, one coordinate.

For each arrangement ``A`` that it reads, and the interval ``[lower, upper)``::

    old = updates of A before lower      (times may have been advanced to it)
    new = updates of A in [lower, upper)

in one bucket. No shuffle is needed: equal keys of all arrangements lie in equal buckets.

The operator processes all times of the interval at once, at the current coordinate ``c``, which is
``()`` outside of loops. With ``F`` the operator's function, ``I`` its input and ``O`` its output,
projected on the outer time::

    sum(O at coordinates <= c) = F(sum(I at coordinates <= c))

so the output at ``c`` is the change of the right side in the interval, minus the output at smaller
coordinates. Only keys with new updates and keys that are due can have output. A bilinear operator
needs no earlier output: each pair of updates meets once, and belongs to the least upper bound of
their coordinates.

A bucket that exceeds the memory is processed in pieces, each a range of keys. If a join has too
many pairs, the task leaves a rest. The reader of the output computes the rest piece by piece, and
consolidates each piece before the next. See `Rest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.consolidate import Grouped, consolidate, runs_of
from pyspark_diff.kernels.coordinates import Limit, pack
from pyspark_diff.kernels.equality import normalise
from pyspark_diff.kernels.history import distinct_keys, due_after, recent
from pyspark_diff.kernels.key_ranges import (
    MOST_BYTES,
    Keys,
    fitting,
    ranges,
    rows_of,
    updates_between,
)
from pyspark_diff.kernels.replay import compact
from pyspark_diff.kernels.updates import PerRow, Updates, concat, empty, pick, spread
from pyspark_diff.operators.contract import (
    BilinearKernel,
    Changes,
    Kernel,
    Part,
    Parts,
    ReplayKernel,
    Side,
)
from pyspark_diff.runners.pieces import Given, Spool, Waiting, check_room, explained, room
from pyspark_diff.runners.view import View, opened
from pyspark_diff.runners.work import BucketResult, Output, write_file, write_files
from pyspark_diff.times import Antichain, Coordinate
from pyspark_diff.trace import storage
from pyspark_diff.trace.batch import BatchFile, Paths

#: Number of pairs of a bucket in memory, even if there is room for more. With it the consolidation
#: of 10^8 pairs takes a fourth of the time and memory that it takes with 40 million pairs, since
#: fresh memory costs more than the work in it.
PAIRS = 1 << 22


@dataclass(frozen=True)
class Read:
    """The work of a reading operator in one step, for all buckets. Travels to the executors.

    Parameters
    ----------
    name : str
        Name of the operator, for errors.
    kernel : Kernel
    views : tuple of View
        Views of the arrangements that it reads.
    own : View or None
        View of the arrangement of its output.
    output : Output or None
        None if no operator reads the updates themselves.
    stored : tuple of int
        Positions of the columns of the arranged output among all output columns.
    directory : str
        Directory of new files.
    keeps : bool
        Whether the arranged output gets a new batch.
    since : int or None
        Times of the new batch are advanced to it.
    lower, upper : int or None
        The interval; None is no bound.
    most : int
        Maximal number of rows in memory.
    at : tuple of int
        The current coordinate; ``()`` outside of loops.
    due : mapping of int to tuple of str
        In a loop, files of due keys, which are visited like keys with new updates.
    all_buckets : int
        Number of all buckets.
    frontier : Antichain
        If times are structs, the upper frontier of the step.
    chosen : tuple of int, optional
        The remaining buckets. By default all buckets that may have work.
    """

    name: str
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
    most: int
    at: Coordinate = ()
    due: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    all_buckets: int = 1
    frontier: Antichain = Antichain()
    chosen: tuple[int, ...] | None = None

    def buckets(self) -> list[int]:
        """Buckets that may have work."""
        if self.chosen is not None:
            return sorted(self.chosen)
        buckets = set(self.due)
        for view in self.views:
            buckets.update(view.new, view.both if view.first else ())
        if self.kernel.visits_all and self.own is not None:
            buckets.update(self.own.old)
        return sorted(buckets.union(self.due_rows))

    @cached_property
    def due_rows(self) -> dict[int, int]:
        """For keys that are times, estimated numbers of old updates that fall due, by bucket."""
        due: dict[int, int] = {}
        for view in self.views if self.kernel.by_time else ():
            assert isinstance(view.old, Paths)  # only the driver uses this property
            for batch in view.old.batches:
                for bucket, path in batch.opened():
                    rows = len(self._falling_due(storage.open_updates(path)))
                    for number in (batch.files if bucket is None else [bucket]) if rows else ():
                        due[number] = due.get(number, 0) + (rows if bucket is not None else 1)
        return due

    def _falling_due(self, updates: Updates, *, every: bool = False) -> Updates:
        """For keys that are times, the updates with keys in the interval, or before its end."""
        start, stop = 0, len(updates)
        if not every:
            # A complete collection has no lower bound, and no update that falls due.
            lower = self.lower
            start = stop if lower is None else int(np.searchsorted(updates.key64, lower))
        if self.upper is not None:
            stop = int(np.searchsorted(updates.key64, self.upper))
        return updates.between(start, max(start, stop))

    def paths(self) -> Iterator[str]:
        """All files to read."""
        for view in self.views if self.own is None else (*self.views, self.own):
            yield from view.paths()
        for paths in self.due.values():
            yield from paths

    def rows(self, bucket: int) -> int:
        """Maximal number of rows that the operator reads of a bucket."""
        return sum(map(len, chain(*self._files(bucket))))

    def fitting(self, bucket: int) -> "Read":
        """The reading with a limit of rows in memory that suits a bucket.

        A `Rest` keeps the result of this method. A second call may find another limit, since the
        size of a file differs by some bytes from the size of its source.
        """
        most = fitting(list(chain(*self._files(bucket))), self.most)
        if isinstance(self.kernel, BilinearKernel):
            width = sum(view.width(bucket) for view in self.views)
            most = max(1, min(most, 2 * MOST_BYTES // max(1, width)))  # a chunk is a fourth
        return self if most == self.most else replace(self, most=most)

    @property
    def pairs(self) -> int:
        """Maximal number of a bilinear operator's output rows in memory. Its input may have more
        rows, since it looks up rows instead of copying them."""
        return min(self.most, PAIRS)

    def ranges(self, bucket: int) -> list[Keys]:
        """The ranges of keys of the pieces of a bucket."""
        return ranges(*self._files(bucket), self.most)

    def looks_up_many(self, bucket: int) -> bool:
        """Whether a bilinear operator looks up more rows of a bucket than `pairs`. Its output then
        exceeds this limit as well, so its buckets are processed one by one."""
        new, old = self._files(bucket)
        bilinear = isinstance(self.kernel, BilinearKernel)
        if not bilinear or not new or sum(map(len, old)) <= self.pairs:
            return False
        keys = np.unique(np.concatenate([updates.key64 for updates in new]))
        rows = sum(int(rows_of(updates.key64, keys, keys).sum()) for updates in old)
        return rows > self.pairs

    def _files(self, bucket: int) -> tuple[list[Updates], list[Updates]]:
        """The updates whose keys are visited in a bucket, and the updates for look-ups."""
        new = opened(self.due.get(bucket, ()))
        old = [] if self.own is None else opened(self.own.old.get(bucket, ()))
        if self.kernel.visits_all:
            new, old = [*new, *old], []
        for view in self.views:
            new += opened(view.new.get(bucket, ()))
            both = opened(view.both.get(bucket, ()))
            (new if view.first else old).extend(both)
            for files in (view.old, view.earlier, view.recorded):
                old += opened(files.get(bucket, ()))
        if self.kernel.by_time:
            new, old = [*new, *map(self._falling_due, old)], []
        return new, old

    def visited_again(self, bucket: int, keys: Keys) -> list[Updates]:
        """The due keys of a range."""
        return [updates_between(updates, keys) for updates in opened(self.due.get(bucket, ()))]

    def sides(self, bucket: int, keys: Keys) -> list[Side]:
        """The sides of a range of keys in one bucket."""
        sides = [view.side(bucket, keys, self.lower, self.upper) for view in self.views]
        if any(view.recorded for view in self.views):
            touched = _keys(self.visited_again(bucket, keys), sides)
            sides = [
                view.with_recorded(side, bucket, touched, self.lower)
                for view, side in zip(self.views, sides)
            ]
        if not self.frontier.is_empty:
            sides = [replace(side, frontier=self.frontier) for side in sides]
        if self.kernel.by_time:
            sides = [
                replace(
                    side, old=list(map(self._falling_due, side.old)),
                    new=runs_of(self._falling_due(side.new.updates, every=True)),
                ) for side in sides
            ]
        return sides


def read_bucket(
    read: Read, bucket: int, waiting: Waiting, *, in_memory: bool = False
) -> BucketResult:
    """Process one bucket in a step, or in a loop at a coordinate.

    Parameters
    ----------
    read : Read
    bucket : int
    waiting : Waiting
        The count of output rows in memory.
    in_memory : bool
        Small batches may stay in this process's memory.

    Returns
    -------
    BucketResult
    """
    read = read.fitting(bucket)
    if isinstance(read.kernel, BilinearKernel):
        return _bilinear(read, read.kernel, bucket, waiting, in_memory)
    if isinstance(read.kernel, ReplayKernel):
        return _replayed(read, read.kernel, bucket, waiting, in_memory)
    raise TypeError(f"{read.kernel!r} is neither a replay nor bilinear")


def read_together(
    read: Read, buckets: Sequence[int], waiting: Waiting
) -> list[BucketResult] | None:
    """Process several buckets in one call: see `pyspark_diff.runners.work.run_together`.

    Returns
    -------
    list of BucketResult or None
        None if they exceed the memory, or have too many pairs.
    """
    own = read.own
    united = replace(
        read, views=tuple(view.together(buckets) for view in read.views),
        own=None if own is None else own.together(buckets),
    ).fitting(0)
    if united.ranges(0) != [None] or united.looks_up_many(0):
        return None
    whole = read_bucket(united, 0, waiting, in_memory=True)
    if whole.rest:
        storage.remove_files(list(whole.paths()))
        return None
    result = replace(whole, bucket=-1, files=())
    if whole.files and own is not None:
        updates = concat(opened(file.path for file in whole.files))
        storage.remove_files([file.path for file in whole.files])
        files = write_files(read.directory, updates, own.layout, read.all_buckets)
        result = replace(result, together=files)
    return [result]


class _Met:
    """The parts of a bilinear operator's output in one bucket, in order."""

    def __init__(self, read: Read, kernel: BilinearKernel, bucket: int):
        self._read, self._kernel, self._bucket = read, kernel, bucket
        self._wanted = () if read.output is None else read.output.wanted
        self._ranges = iter(read.ranges(bucket))
        self.rows_in = self.rows_read = self.rows = 0
        #: Returns the coordinates of the output in the last range.
        self._coordinates: Callable[[], list[int]] = list

    def parts(self) -> Iterator[tuple[list[Side], Part]]:
        """All parts, each with its input."""
        for keys in self._ranges:
            sides, output = self._under(keys)
            for part in output.parts:
                yield sides, part

    def rest(self) -> list[int]:
        """Count the rows of the remaining ranges; returns their packed coordinates."""
        codes = set(self._coordinates())
        for keys in self._ranges:
            self._under(keys)
            codes.update(self._coordinates())
        return sorted(codes)

    def _under(self, keys: Keys) -> tuple[list[Side], Parts]:
        """The input and the output of a range of keys."""
        sides = self._read.sides(self._bucket, keys)
        # Memory has room for several chunks, since a reader consolidates them one by one.
        most = max(1, self._read.pairs // 4)
        with room(self._read.name, sides, self._read.most):
            output = self._kernel(sides, self._read.at, self._wanted, most)
        self.rows_in += sum(len(side.new.updates) for side in sides)
        self.rows_read += output.read
        self.rows += output.rows
        self._coordinates = output.coordinates
        return sides, output


def _bilinear(
    read: Read, kernel: BilinearKernel, bucket: int, waiting: Waiting, in_memory: bool
) -> BucketResult:
    met = _Met(read, kernel, bucket)
    spools: dict[int, Spool] = {}
    rows = number = 0
    done = True
    for number, (sides, part) in enumerate(met.parts()):
        if rows > read.pairs:
            done = False
            break
        chunks: list[tuple[Changes, PerRow]] = []
        more = 0
        with explained(read.name, sides):
            for changes, coordinates in part():
                chunks.append((changes, coordinates))
                more += changes[2].size
                if rows + more > read.pairs and len(chunks) > 1:
                    done = False
                    break
        if not done:
            break  # drops the whole part, since a rest begins with a whole part
        rows += more
        if read.output is None:
            continue
        for code, change in chain.from_iterable(_by_coordinate(*chunk) for chunk in chunks):
            if code not in spools:
                name = f"out-{bucket:05d}-{code}"
                spools[code] = Spool(read.directory, name, waiting, make=in_memory)
            spools[code].add(read.output.table(change))
    rest: tuple[tuple[int, int, int, int], ...] = ()
    if not done and read.output is not None:
        codes = met.rest()
        about = max(met.rows - rows, 1)
        rest = tuple((code, number, about, read.most) for code in codes)
    later = {code: added for code, spool in spools.items() if (added := spool.added()).rows}
    output = later.pop(pack(read.at), Given())
    return BucketResult(bucket, (), output, met.rows_in, met.rows_read, later, {}, rest)


@dataclass(frozen=True)
class Rest:
    """A bilinear operator's output in one bucket from some part on, at one coordinate.

    Each read computes it again; it is never stored.

    Parameters
    ----------
    read : Read
    bucket : int
    coordinate : int
        The packed coordinate.
    first : int
        Number of the first part.
    rows : int
        Estimated number of update rows.
    share, shares : int
        Only parts whose number has the remainder `share` modulo `shares`.
    """

    read: Read
    bucket: int
    coordinate: int
    first: int
    rows: int
    share: int = 0
    shares: int = 1

    def tables(self) -> Iterator[pa.Table]:
        """The update rows, chunk by chunk."""
        kernel, output = self.read.kernel, self.read.output
        if not isinstance(kernel, BilinearKernel) or output is None:
            raise TypeError(f"{kernel!r} leaves no rest")
        for number, (sides, part) in enumerate(_Met(self.read, kernel, self.bucket).parts()):
            if number < self.first or number % self.shares != self.share:
                continue
            with explained(self.read.name, sides):
                for chunk in part():
                    for code, change in _by_coordinate(*chunk):
                        if code == self.coordinate:
                            yield output.table(change)

    def shared(self, shares: int) -> "list[Rest]":
        """The rest in several shares, one for each task."""
        return [replace(self, share=share, shares=shares) for share in range(shares)]


def check_fit(rest: Sequence[Rest]) -> None:
    """Check that all rows fit into memory together.

    Raises
    ------
    TooManyRowsError
        If they do not fit.
    """
    if rest:
        most = max(rest, key=lambda part: part.rows)
        check_room(
            most.read.name, sum(part.rows for part in rest), "output update rows",
            lambda: _heaviest(most.read, most.bucket),
        )


def _heaviest(read: Read, bucket: int) -> list[Side]:
    """The input of the range of a bucket's keys with the largest output."""
    kernel = read.kernel
    assert isinstance(kernel, BilinearKernel)
    most, heaviest = -1, []
    for keys in read.ranges(bucket):
        sides = read.sides(bucket, keys)
        rows = kernel(sides, read.at, (), read.most).rows
        if rows > most:
            most, heaviest = rows, sides
    return heaviest


def _by_coordinate(changes: Changes, coordinates: PerRow) -> list[tuple[int, Changes]]:
    """The changes that belong to each coordinate."""
    if not isinstance(coordinates, np.ndarray):
        return [(coordinates, changes)]
    columns, time, diff = changes
    codes = np.unique(coordinates)
    if codes.size == 1:
        return [(int(codes[0]), changes)]
    parts: list[tuple[int, Changes]] = []
    for code in codes:
        rows = np.flatnonzero(coordinates == code)
        index = pa.array(rows)
        part = [column.take(index) for column in columns], pick(time, rows), diff[rows]
        parts.append((int(code), part))
    return parts


def _replayed(
    read: Read, kernel: ReplayKernel, bucket: int, waiting: Waiting, in_memory: bool
) -> BucketResult:
    files: list[BatchFile] = []
    due: dict[int, tuple[BatchFile, ...]] = {}
    spool = Spool(read.directory, f"out-{bucket:05d}", waiting, make=in_memory)
    rows_in = rows_read = 0
    for number, keys in enumerate(read.ranges(bucket)):
        name = f"{bucket:05d}" if keys is None else f"{bucket:05d}-{number}"
        sides = read.sides(bucket, keys)
        rows_in += sum(len(side.new.updates) for side in sides)
        with room(read.name, sides, read.most):
            result = _replay(read, kernel, bucket, keys, name, sides, in_memory)
        rows_read += result.rows_read
        files += result.files
        if result.output is not None:
            spool.add(result.output)
        for code, touched in result.due.items():
            due[code] = (*due.get(code, ()), *touched)
    return BucketResult(bucket, tuple(files), spool.added(), rows_in, rows_read, {}, due)


class _Replay(NamedTuple):
    """The result of one range of keys."""

    files: list[BatchFile]
    output: pa.Table | None
    rows_read: int
    due: dict[int, list[BatchFile]]


def _replay(
    read: Read, kernel: ReplayKernel, bucket: int, keys: Keys, name: str, sides: Sequence[Side],
    in_memory: bool,
) -> _Replay:
    at = read.at
    if at and read.own is None:
        raise ValueError("in a loop an operator arranges its output of other coordinates")
    due = read.visited_again(bucket, keys)
    touched = _keys(due, sides) if at else empty()
    visited: Sequence[Side] = sides
    rows_read = 0
    if at:
        visited, rows_read = _visited(read, due, sides, touched)
    own, earlier = None, empty()
    if read.own is not None:
        own = read.own.side(bucket, keys, read.lower, read.upper)
        own = read.own.with_recorded(own, bucket, touched, read.lower)
        limit = _limit(own.depth, at)
        if own.earlier:
            grouped, rows = recent(touched, own.earlier, limit)
            earlier, rows_read = grouped.updates, rows_read + rows
        own = replace(own, earlier=[], limit=limit) if at else own
    wanted = () if read.output is None else read.output.wanted
    changes, rows = kernel(visited, own, wanted if own is None else read.stored)
    files: list[BatchFile] = []
    if own is not None:
        # Stored rows are in normal form, so retractions and insertions must be.
        changes = list(map(normalise, changes[0])), *changes[1:]
        files, changes = _store_output(read, name, own, changes, earlier, in_memory)
        columns, time, diff = changes
        changes = [columns[read.stored.index(i)] for i in wanted], time, diff
    output = None if read.output is None else read.output.table(changes)
    again = _due(read, name, touched, sides, in_memory) if at else {}
    return _Replay(files, output, rows_read + rows, again)


def _store_output(
    read: Read, name: str, own: Side, changes: Changes, earlier: Updates, in_memory: bool
) -> tuple[list[BatchFile], Changes]:
    """Store changes in the arranged output, minus the earlier output at other coordinates."""
    if not read.keeps and not len(earlier):
        return [], changes
    columns, time, diff = changes
    # The times carry the number of rows if records have no columns.
    updates = own.layout.encode(columns, spread(time, diff.size), diff)
    if len(earlier):
        updates = concat([updates, earlier.at(earlier.time, -earlier.diffs())])
    change = consolidate(updates)
    files: list[BatchFile] = []
    if read.keeps:
        compacted = compact(change, read.since).placed(pack(read.at))
        files = write_file(read.directory, name, compacted, in_memory=in_memory)
    if not read.at:
        return files, changes  # their reader consolidates them
    # A loop runs as long as there are rows, so no cancelling rows may remain.
    rows = change.updates
    return files, (own.layout.decode(rows), rows.times(), rows.diffs())


def _visited(
    read: Read, due: Sequence[Updates], sides: Sequence[Side], keys: Updates
) -> tuple[Sequence[Side], int]:
    """The sides up to the coordinate, for the visited keys; and the number of rows read."""
    visited, rows_read = [], 0
    # Without processed updates and due keys the new updates are complete.
    alone = not due and not any(side.earlier for side in sides)
    for side in sides:
        new, limit = side.new, _limit(side.depth, read.at)
        if not alone:
            new, rows = recent(keys, [*side.earlier, new.updates], limit)
            rows_read += rows - len(side.new.updates)
        elif limit is not None:
            new = Grouped(new.updates.placed(0), new.starts, new.key_starts)
        visited.append(replace(side, earlier=[], new=new, limit=limit))
    return visited, rows_read


def _keys(due: Sequence[Updates], sides: Sequence[Side]) -> Updates:
    """The visited keys, each once."""
    parts = [distinct_keys(s.new).at(0, 1).placed(0) for s in sides if len(s.new.updates)]
    parts += due
    if not parts:
        return empty()
    if len(parts) == 1:
        return parts[0]
    return consolidate(concat(parts)).updates


def _due(
    read: Read, name: str, keys: Updates, sides: Sequence[Side], in_memory: bool
) -> dict[int, list[BatchFile]]:
    """The keys to visit again, by coordinate."""
    batches = []
    recorded = any(view.recorded for view in read.views)
    for side in sides:
        updates = side.old
        # In one loop new updates have no later coordinate, unless earlier steps reached it.
        if len(read.at) > 1 or recorded:
            updates = [*updates, *side.earlier, side.new.updates]
        batches.append((updates, side.depth))
    due = {}
    for code, touched in due_after(keys, batches, read.at).items():
        path = f"due-{code}-{name}"
        files = write_file(read.directory, path, touched, in_memory=in_memory)
        if files:
            due[code] = files
    return due


def _limit(depth: int, at: Coordinate) -> Limit | None:
    return Limit(depth, pack(at[:depth])) if depth else None
