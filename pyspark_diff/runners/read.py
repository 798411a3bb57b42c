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

A bucket is worked through in pieces, a range of keys each, where it is more than can be held. Of
pairs that are too many the rest is not made at all: whoever takes them in makes them, piece by
piece, and adds up what is equal before the next. See `Rest`.
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
from pyspark_diff.kernels.key_ranges import MOST_BYTES, Keys, fitting, ranges, rows_of, within
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

#: So many pairs of a bucket are made at once, also where there is room for more: 10^8 pairs that
#: are added up take a fourth of the time and of the memory that they take in pieces of 40 million,
#: as memory that nobody has used yet costs more than what is done in it.
PAIRS = 1 << 22


@dataclass(frozen=True)
class Read:
    """What an operator does in one step, for all buckets. Travels to the executors.

    Parameters
    ----------
    name : str
        Of the operator, for errors.
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
    most : int
        So many rows are held at once.
    at : tuple of int
        The coordinate that is processed; ``()`` outside of loops.
    due : mapping of int to tuple of str
        In a loop, files of the keys that have to be visited besides those with new updates.
    all_buckets : int
        How many there are.
    frontier : Antichain
        Where times are structs, that up to which the step goes.
    chosen : tuple of int, optional
        The buckets that are left to be done; if not given, all in which there may be something.
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
        """Buckets in which there may be something to do."""
        if self.chosen is not None:
            return sorted(self.chosen)
        found = set(self.due)
        for view in self.views:
            found.update(view.new, view.both if view.first else ())
        if self.kernel.visits_all and self.own is not None:
            found.update(self.own.old)
        return sorted(found.union(self.due_rows))

    @cached_property
    def due_rows(self) -> dict[int, int]:
        """Where keys are times, the buckets in which old updates may fall due, and about how many.
        """
        found: dict[int, int] = {}
        for view in self.views if self.kernel.by_time else ():
            assert isinstance(view.old, Paths)  # it is asked on the driver
            for batch in view.old.batches:
                for bucket, path in batch.opened():
                    rows = len(self._falling_due(storage.open_updates(path)))
                    for one in (batch.files if bucket is None else [bucket]) if rows else ():
                        found[one] = found.get(one, 0) + (rows if bucket is not None else 1)
        return found

    def _falling_due(self, updates: Updates, *, every: bool = False) -> Updates:
        """Where keys are times, the updates under those of the interval, or under all before its
        end."""
        start, stop = 0, len(updates)
        if not every:
            # Where all was complete before there is no beginning, and nothing is due any more.
            lower = self.lower
            start = stop if lower is None else int(np.searchsorted(updates.key64, lower))
        if self.upper is not None:
            stop = int(np.searchsorted(updates.key64, self.upper))
        return updates.between(start, max(start, stop))

    def paths(self) -> Iterator[str]:
        """All files that are read."""
        for view in self.views if self.own is None else (*self.views, self.own):
            yield from view.paths()
        for paths in self.due.values():
            yield from paths

    def rows(self, bucket: int) -> int:
        """Rows that may be read of a bucket."""
        return sum(map(len, chain(*self._files(bucket))))

    def fitting(self, bucket: int) -> "Read":
        """The same with no more rows of a bucket at once than have room.

        Whoever makes the rest of what a bucket gives takes this one: told again it may be another,
        as a file has some bytes more or less than what it was written from.
        """
        most = fitting(list(chain(*self._files(bucket))), self.most)
        if isinstance(self.kernel, BilinearKernel):
            width = sum(view.width(bucket) for view in self.views)
            most = max(1, min(most, 2 * MOST_BYTES // max(1, width)))  # a chunk is a fourth
        return self if most == self.most else replace(self, most=most)

    @property
    def pairs(self) -> int:
        """So many rows of what a bilinear operator gives are made at once; of what they are made of
        there may be more, as that is looked up and not gone through."""
        return min(self.most, PAIRS)

    def ranges(self, bucket: int) -> list[Keys]:
        """Ranges of keys that a bucket is worked through in."""
        return ranges(*self._files(bucket), self.most)

    def looks_up_many(self, bucket: int) -> bool:
        """Whether a bilinear operator looks up more rows of a bucket than pairs are made at once:
        then it gives more than that too, and is not begun with several buckets at once."""
        new, old = self._files(bucket)
        bilinear = isinstance(self.kernel, BilinearKernel)
        if not bilinear or not new or sum(map(len, old)) <= self.pairs:
            return False
        keys = np.unique(np.concatenate([updates.key64 for updates in new]))
        rows = sum(int(rows_of(updates.key64, keys, keys).sum()) for updates in old)
        return rows > self.pairs

    def _files(self, bucket: int) -> tuple[list[Updates], list[Updates]]:
        """The updates that say what is done in a bucket, and those that are looked up."""
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
        """The keys of a range that have to be visited besides those with new updates."""
        return [within(updates, keys) for updates in opened(self.due.get(bucket, ()))]

    def sides(self, bucket: int, keys: Keys) -> list[Side]:
        """What is in a range of one bucket."""
        found = [view.side(bucket, keys, self.lower, self.upper) for view in self.views]
        if any(view.recorded for view in self.views):
            touched = _keys(self.visited_again(bucket, keys), found)
            found = [
                view.with_recorded(side, bucket, touched, self.lower)
                for view, side in zip(self.views, found)
            ]
        if not self.frontier.is_empty:
            found = [replace(side, frontier=self.frontier) for side in found]
        if self.kernel.by_time:
            found = [
                replace(
                    side, old=list(map(self._falling_due, side.old)),
                    new=runs_of(self._falling_due(side.new.updates, every=True)),
                ) for side in found
            ]
        return found


def read_bucket(
    read: Read, bucket: int, waiting: Waiting, *, in_memory: bool = False
) -> BucketResult:
    """Do one bucket's share of a step, or in a loop of a coordinate.

    Parameters
    ----------
    read : Read
    bucket : int
    waiting : Waiting
        Output that is held.
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
    """Do the share of some buckets at once: see `pyspark_diff.runners.work.run_together`.

    Returns
    -------
    list of BucketResult or None
        None where it is more than can be held, or pairs are too many.
    """
    own = read.own
    one = replace(
        read, views=tuple(view.together(buckets) for view in read.views),
        own=None if own is None else own.together(buckets),
    ).fitting(0)
    if one.ranges(0) != [None] or one.looks_up_many(0):
        return None
    found = read_bucket(one, 0, waiting, in_memory=True)
    if found.rest:
        storage.remove_files(list(found.paths()))
        return None
    result = replace(found, bucket=-1, files=())
    if found.files and own is not None:
        made = concat(opened(file.path for file in found.files))
        storage.remove_files([file.path for file in found.files])
        files = write_files(read.directory, made, own.layout, read.all_buckets)
        result = replace(result, together=files)
    return [result]


class _Met:
    """The parts that a bilinear operator gives in one bucket, by number."""

    def __init__(self, read: Read, kernel: BilinearKernel, bucket: int):
        self._read, self._kernel, self._bucket = read, kernel, bucket
        self._wanted = () if read.output is None else read.output.wanted
        self._ranges = iter(read.ranges(bucket))
        self.rows_in = self.rows_read = self.rows = 0
        #: The coordinates of what is given under the range that was reached last.
        self._coordinates: Callable[[], list[int]] = list

    def parts(self) -> Iterator[tuple[list[Side], Part]]:
        """All of them, and what they are made of."""
        for keys in self._ranges:
            sides, found = self._under(keys)
            for part in found.parts:
                yield sides, part

    def rest(self) -> list[int]:
        """Count what was not reached; gives the coordinates of that, packed."""
        codes = set(self._coordinates())
        for keys in self._ranges:
            self._under(keys)
            codes.update(self._coordinates())
        return sorted(codes)

    def _under(self, keys: Keys) -> tuple[list[Side], Parts]:
        """What is read under a range of keys, and what is given."""
        sides = self._read.sides(self._bucket, keys)
        # In chunks of which some can be held at once: they are added up one by one.
        most = max(1, self._read.pairs // 4)
        with room(self._read.name, sides, self._read.most):
            found = self._kernel(sides, self._read.at, self._wanted, most)
        self.rows_in += sum(len(side.new.updates) for side in sides)
        self.rows_read += found.read
        self.rows += found.rows
        self._coordinates = found.coordinates
        return sides, found


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
        made: list[tuple[Changes, PerRow]] = []
        more = 0
        with explained(read.name, sides):
            for changes, coordinates in part():
                made.append((changes, coordinates))
                more += changes[2].size
                if rows + more > read.pairs and len(made) > 1:
                    done = False
                    break
        if not done:
            break  # of this part nothing is given, as others count it as a whole
        rows += more
        if read.output is None:
            continue
        for code, change in chain.from_iterable(_by_coordinate(*chunk) for chunk in made):
            if code not in spools:
                name = f"out-{bucket:05d}-{code}"
                spools[code] = Spool(read.directory, name, waiting, make=in_memory)
            spools[code].add(read.output.table(change))
    rest: tuple[tuple[int, int, int, int], ...] = ()
    if not done and read.output is not None:
        codes = met.rest()
        about = max(met.rows - rows, 1)
        rest = tuple((code, number, about, read.most) for code in codes)
    later = {code: given for code, spool in spools.items() if (given := spool.given()).rows}
    output = later.pop(pack(read.at), Given())
    return BucketResult(bucket, (), output, met.rows_in, met.rows_read, later, {}, rest)


@dataclass(frozen=True)
class Rest:
    """What a bilinear operator gives in one bucket from some part on, at one coordinate.

    It is made when it is read, and made again when it is read again: nothing of it is held.

    Parameters
    ----------
    read : Read
    bucket : int
    coordinate : int
        Packed.
    first : int
        Number of the first part.
    rows : int
        About so many update rows.
    share, shares : int
        Of the parts every so-many-th, from this one on.
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
        """The same in several parts, for as many tasks."""
        return [replace(self, share=share, shares=shares) for share in range(shares)]


def check_fit(rest: Sequence[Rest]) -> None:
    """For who has to hold all of them at once.

    Raises
    ------
    TooManyRowsError
        If they have no room in memory.
    """
    if rest:
        most = max(rest, key=lambda one: one.rows)
        check_room(
            most.read.name, sum(one.rows for one in rest), "update rows that it gives",
            lambda: _heaviest(most.read, most.bucket),
        )


def _heaviest(read: Read, bucket: int) -> list[Side]:
    """What is read in the range of a bucket's keys under which most is given."""
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
    found: list[tuple[int, Changes]] = []
    for code in codes:
        rows = np.flatnonzero(coordinates == code)
        index = pa.array(rows)
        part = [column.take(index) for column in columns], pick(time, rows), diff[rows]
        found.append((int(code), part))
    return found


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
            found = _replay(read, kernel, bucket, keys, name, sides, in_memory)
        rows_read += found.rows_read
        files += found.files
        if found.output is not None:
            spool.add(found.output)
        for code, touched in found.due.items():
            due[code] = (*due.get(code, ()), *touched)
    return BucketResult(bucket, tuple(files), spool.given(), rows_in, rows_read, {}, due)


class _Replay(NamedTuple):
    """What became of one range of keys."""

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
        raise ValueError("in a loop an operator knows what it gave at other coordinates")
    due = read.visited_again(bucket, keys)
    touched = _keys(due, sides) if at else empty()
    visited: Sequence[Side] = sides
    rows_read = 0
    if at:
        visited, rows_read = _visited(read, due, sides, touched)
    own, given = None, empty()
    if read.own is not None:
        own = read.own.side(bucket, keys, read.lower, read.upper)
        own = read.own.with_recorded(own, bucket, touched, read.lower)
        limit = _limit(own.depth, at)
        if own.earlier:
            grouped, rows = recent(touched, own.earlier, limit)
            given, rows_read = grouped.updates, rows_read + rows
        own = replace(own, earlier=[], limit=limit) if at else own
    wanted = () if read.output is None else read.output.wanted
    changes, rows = kernel(visited, own, wanted if own is None else read.stored)
    files: list[BatchFile] = []
    if own is not None:
        # A retraction has the form that is recorded; so has an insertion.
        changes = list(map(normalise, changes[0])), *changes[1:]
        files, changes = _kept(read, name, own, changes, given, in_memory)
        columns, time, diff = changes
        changes = [columns[read.stored.index(i)] for i in wanted], time, diff
    output = None if read.output is None else read.output.table(changes)
    again = _due(read, name, touched, sides, in_memory) if at else {}
    return _Replay(files, output, rows_read + rows, again)


def _kept(
    read: Read, name: str, own: Side, changes: Changes, given: Updates, in_memory: bool
) -> tuple[list[BatchFile], Changes]:
    """Take changes into the arranged output, less those that were given at other coordinates."""
    if not read.keeps and not len(given):
        return [], changes
    columns, time, diff = changes
    # Records without columns are counted by their times.
    made = own.layout.encode(columns, spread(time, diff.size), diff)
    if len(given):
        made = concat([made, given.at(given.time, -given.diffs())])
    change = consolidate(made)
    files: list[BatchFile] = []
    if read.keeps:
        kept = compact(change, read.since).placed(pack(read.at))
        files = write_file(read.directory, name, kept, in_memory=in_memory)
    if not read.at:
        return files, changes  # adding them up is left to who takes them in
    # A loop goes on as long as there are rows, so none may be left that cancel.
    rows = change.updates
    return files, (own.layout.decode(rows), rows.times(), rows.diffs())


def _visited(
    read: Read, due: Sequence[Updates], sides: Sequence[Side], keys: Updates
) -> tuple[Sequence[Side], int]:
    """The sides up to the coordinate, under the keys that have to be visited; and rows read."""
    visited, rows_read = [], 0
    # What is new is all there is to see where nothing has been processed, and nothing is due.
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
    """The keys that have to be visited, each once."""
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
    """The keys that have to be visited again, by coordinate."""
    batches = []
    recorded = any(view.recorded for view in read.views)
    for side in sides:
        held = side.old
        # In one loop what is new has no coordinate that is still to come, unless earlier steps have
        # been there.
        if len(read.at) > 1 or recorded:
            held = [*held, *side.earlier, side.new.updates]
        batches.append((held, side.depth))
    due = {}
    for code, touched in due_after(keys, batches, read.at).items():
        path = f"due-{code}-{name}"
        files = write_file(read.directory, path, touched, in_memory=in_memory)
        if files:
            due[code] = files
    return due


def _limit(depth: int, at: Coordinate) -> Limit | None:
    return Limit(depth, pack(at[:depth])) if depth else None
