"""Pairs of updates with equal keys: the join core.

For the updates ``A`` and ``B`` of one key, with times that are totally ordered, and in a loop with
coordinates that are partially ordered::

    join(A, B) = { (a, b, max(time of a, time of b), lub(coordinate of a, coordinate of b)):
                   diff of a * diff of b }

With ``old`` updates, ``earlier`` updates that were processed in this step, and ``new`` updates that
are processed now, the new updates of the join are::

    new A x (old B + earlier B)  +  (old A + earlier A + new A) x new B

so the join forms each pair once, at the later of its two updates.

A join can have many more pairs than input updates, so it computes them in pieces: the look-ups are
done for all pieces, and the products of a piece on demand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Callable, Iterator

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.consolidate import Grouped, consolidate, runs_of
from pyspark_diff.kernels.coordinates import lub
from pyspark_diff.kernels.history import distinct_keys, history, key_lengths, key_starts, matches
from pyspark_diff.kernels.jit import jit, kernel
from pyspark_diff.kernels.merge_join import KEY, LEFT, RIGHT, MergeJoin, WalkPart, fits
from pyspark_diff.kernels.overflow import product_leaves
from pyspark_diff.kernels.updates import Int64, PerRow, UpdateChunk, concat, empty, pick
from pyspark_diff.times import Coordinate

TOO_LARGE = (
    "the product of two diffs leaves the range of 64-bit integers: a record on one side of a join, "
    "or its match, occurs too often; check the diffs of the input"
)


@dataclass(frozen=True)
class Matches:
    """Pairs of rows of two sets of updates.

    Parameters
    ----------
    left_rows, right_rows : ndarray of int64, shape (pairs,), or None
        None if each pair has its own row.
    time, diff : ndarray of int64, shape (pairs,), or int
    coordinate : ndarray of int64, shape (pairs,), or int
        In a loop, the coordinate of a pair: the least upper bound of those of both rows.
    """

    left: UpdateChunk
    right: UpdateChunk
    left_rows: Int64 | None
    right_rows: Int64 | None
    time: PerRow
    diff: PerRow
    coordinate: PerRow = 0

    def __len__(self) -> int:
        return len(self.left) if self.left_rows is None else int(self.left_rows.size)

    def left_updates(self) -> UpdateChunk:
        """The left rows, one for each pair."""
        return self.left if self.left_rows is None else self.left.take(self.left_rows)


@dataclass(frozen=True)
class Meeting:
    """Runs of rows of two sets of updates: all combinations of a left and a right row are pairs.

    Parameters
    ----------
    left_starts, left_counts, right_starts, right_counts : ndarray of int64, shape (runs,)
        First row and number of rows of each run.
    swap : bool
        Whether the left rows are those of the other side; else the right rows are.
    depth : int
        Number of loops around the other side's arrangement.
    at : tuple of int
        The coordinate of the visit.
    come_and_go : bool
        Whether the rows have several times, so that some are never present at the same time.
    """

    left: UpdateChunk
    right: UpdateChunk
    left_starts: Int64
    left_counts: Int64
    right_starts: Int64
    right_counts: Int64
    swap: bool
    depth: int
    at: Coordinate
    come_and_go: bool = False

    @property
    def sizes(self) -> Int64:
        """Number of pairs of each run."""
        return self.left_counts * self.right_counts

    def only(self, runs: np.ndarray | slice) -> "Meeting":
        """Some of the runs."""
        return replace(
            self, left_starts=self.left_starts[runs], left_counts=self.left_counts[runs],
            right_starts=self.right_starts[runs], right_counts=self.right_counts[runs],
        )

    def placed(self, pairs: Matches) -> Matches:
        """Pairs with their coordinates."""
        rows = pairs.left_rows if self.swap else pairs.right_rows
        if not self.at or rows is None:
            return pairs
        return replace(pairs, coordinate=self._lub(rows))

    def coordinates(self) -> list[int]:
        """The possible coordinates of pairs, packed."""
        if not self.at:
            return [0]
        starts, counts = self.right_starts, self.right_counts
        if self.swap:
            starts, counts = self.left_starts, self.left_counts
        position = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.unique(self._lub(np.repeat(starts, counts) + position)).tolist()

    def _lub(self, rows: Int64) -> PerRow:
        theirs = self.left if self.swap else self.right
        return lub(pick(theirs.coordinate, rows), self.depth, self.at)


#: A part of the pairs of a join, computed by the call, in chunks of a bounded number.
Piece = Callable[[], Iterator[Matches]]


@dataclass(frozen=True)
class Pairs:
    """The new pairs of a join, before they are computed.

    Parameters
    ----------
    pieces : iterator of callable
        The parts, in an order that depends only on the arguments of the join.
    rows : int
        Upper bound of the number of pairs.
    read : int
        Number of rows read, without new rows.
    meetings : list of Meeting
        The runs that meet, in a loop.
    at : tuple of int
        The coordinate of the visit.
    """

    pieces: Iterator[Piece]
    rows: int
    read: int
    meetings: list[Meeting]
    at: Coordinate = ()

    def coordinates(self) -> list[int]:
        """The possible coordinates of pairs, packed."""
        if not self.at:
            return [0]
        return sorted({code for meeting in self.meetings for code in meeting.coordinates()})


@dataclass(frozen=True)
class Reached:
    """The updates of an arrangement that a visit of a coordinate has reached.

    Parameters
    ----------
    old : list of UpdateChunk
        Batches of updates before ``lower``, at all coordinates.
    earlier : list of UpdateChunk
        Processed updates from ``lower`` on; none outside of loops.
    new : Grouped
        The updates from ``lower`` on that this visit processes.
    depth : int
        Number of loops around the arrangement.
    """

    old: list[UpdateChunk]
    earlier: list[UpdateChunk]
    new: Grouped
    depth: int


def join(
    left: Reached, right: Reached, at: Coordinate, lower: int | None, most: int, *,
    null_safe: bool = False, wanted: tuple[int, ...] = (KEY, LEFT, RIGHT),
) -> Pairs:
    """The new pairs of the join of two arrangements at the visit of a coordinate.

    New updates meet all updates of the other side, larger coordinates included.

    Parameters
    ----------
    at : tuple of int
        The coordinate; ``()`` outside of loops.
    lower : int or None
        Lower bound of the interval; None if there are no old updates.
    most : int
        Maximal number of pairs in a chunk.
    null_safe : bool
        Whether a null matches a null; else it matches nothing.
    wanted : tuple of int
        The columns of the pairs that the caller reads: the key or the values of a side. Other
        columns may be empty.

    Returns
    -------
    Pairs
        With coordinates from `at` on. A piece raises DiffOverflowError if a product of diffs leaves
        64 bits.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> a = consolidate(UpdateChunk(np.array([1, 2]), None, 0, 1, np.array([10, 20])))
    >>> b = consolidate(UpdateChunk(np.array([2, 2]), None, 3, 1, np.array([7, 8])))
    >>> pairs = join(Reached([], [], a, 0), Reached([], [], b, 0), (), None, 100)
    >>> p, = next(pairs.pieces)()
    >>> p.left.val64.tolist(), p.right.val64.tolist(), p.time.tolist()
    ([20, 20], [7, 8], [3, 3])
    """
    if not at:
        pairs = _walked(left, right, lower, most, wanted)
        if pairs is not None:
            return pairs
    return _multiplied_out(left, right, at, lower, most, null_safe)


def _multiplied_out(
    left: Reached, right: Reached, at: Coordinate, lower: int | None, most: int, null_safe: bool
) -> Pairs:
    """Products of updates by look-ups of keys: for all types, and in loops."""
    meetings: list[Meeting] = []
    read = 0
    for ours, theirs, swap in ((left, right, False), (right, left, True)):
        if not len(ours.new.updates):
            continue
        where = swap, theirs.depth, at
        groups, rows, old = history(ours.new, theirs.old, lower, null_safe=null_safe)
        read += rows
        if old is not None:
            meetings.append(_with_history(ours.new, old, groups, *where))
        now, rows = _of_this_step(ours.new, theirs, null_safe, with_new=swap)
        read += rows
        if now is not None:
            meetings.append(_with_new(ours.new, now, null_safe, *where))
    pieces = chain.from_iterable(_pieces(meeting, most) for meeting in meetings)
    rows = sum(int(meeting.sizes.sum(dtype=np.float64)) for meeting in meetings)
    return Pairs(pieces, rows, read, meetings, at)


def _walked(
    left: Reached, right: Reached, lower: int | None, most: int, wanted: tuple[int, ...]
) -> Pairs | None:
    """As `join`, if all updates are numbers: in one walk over both sides."""
    sides, read = [], [0, 0]
    several = [False, False]
    for number, (ours, theirs) in enumerate(((left, right), (right, left))):
        if ours.earlier or not all(map(fits, (*ours.old, ours.new.updates))):
            return None
        old = [batch for batch in ours.old if len(batch)] if len(theirs.new.updates) else []
        history_rows = old[0] if old else empty()
        if len(old) > 1:
            # Merge only the rows that meet new updates.
            _, read[number], rows = history(theirs.new, old, lower)
            history_rows, several[number] = rows or empty(), True
        sides.append((ours.new.updates, history_rows))
    walk = MergeJoin(sides[0], sides[1], most, thresholds.current.multiply_pairs_max)
    parts, found_old = walk.parts()
    met = sum(b if again else a for a, b, again in zip(found_old, read, several))

    def pieces() -> Iterator[Piece]:
        for part in parts:
            if part.long:
                run = [
                    Reached([old.between(*bounds[1])], [], runs_of(new.between(*bounds[0])), 0)
                    for (new, old), bounds in zip(sides, part.bounds())
                ]
                yield from _multiplied_out(run[0], run[1], (), lower, most, True).pieces
            else:
                yield partial(_of_part, walk, part, wanted)

    return Pairs(pieces(), int(sum(part.rows for part in parts)), met, [])


def _of_part(walk: MergeJoin, part: WalkPart, wanted: tuple[int, ...]) -> Iterator[Matches]:
    likes = [new if len(new) else old for new, old in (walk.left, walk.right)]
    for pairs in walk.pairs(part, wanted):
        if pairs is None:
            raise DiffOverflowError(TOO_LARGE)
        # One for each pair; if the key is not wanted, no caller reads it.
        key = pairs.key if KEY in wanted else pairs.time
        left, right = (
            UpdateChunk(
                key, None, 0, 1, value if value.size and like.val64 is not None else None, None,
                like.ordering,
            )
            for value, like in zip((pairs.left, pairs.right), likes)
        )
        yield Matches(left, right, None, None, pairs.time, pairs.diff)


def _of_this_step(
    new: Grouped, side: Reached, null_safe: bool, *, with_new: bool
) -> tuple[Grouped | None, int]:
    """The rows of the interval that new updates of the other side meet, and the number of rows
    read."""
    if not side.earlier:
        return (side.new if with_new and len(side.new.updates) else None), 0
    keys = distinct_keys(new)
    parts = []
    for batch in (*side.earlier, side.new.updates) if with_new else side.earlier:
        _, row = matches(keys, batch, null_safe)
        if row.size:
            parts.append(batch.take(row))
    if not parts:
        return None, 0
    grouped = consolidate(concat(parts)) if len(parts) > 1 else runs_of(parts[0])
    return grouped, sum(len(part) for part in parts)


def _with_history(
    new: Grouped, old: UpdateChunk, groups: Int64, swap: bool, depth: int, at: Coordinate
) -> Meeting:
    """New updates and the history under their keys, in order of the key."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    keys = groups[starts]
    ours = new.updates, key_starts(new)[keys], key_lengths(new)[keys]
    theirs = old, starts, np.diff(starts, append=groups.size)
    return _meeting(ours, theirs, swap, depth, at)


def _with_new(
    new: Grouped, other: Grouped, null_safe: bool, swap: bool, depth: int, at: Coordinate
) -> Meeting:
    """New updates of both sides."""
    our_keys, their_keys = matches(distinct_keys(new), distinct_keys(other), null_safe)
    ours = new.updates, key_starts(new)[our_keys], key_lengths(new)[our_keys]
    theirs = other.updates, key_starts(other)[their_keys], key_lengths(other)[their_keys]
    several = not (isinstance(new.updates.time, int) and isinstance(other.updates.time, int))
    return _meeting(ours, theirs, swap, depth, at, several)


def _meeting(
    ours: tuple[UpdateChunk, Int64, Int64], theirs: tuple[UpdateChunk, Int64, Int64], swap: bool,
    depth: int, at: Coordinate, come_and_go: bool = False,
) -> Meeting:
    left, right = (theirs, ours) if swap else (ours, theirs)
    return Meeting(
        left[0], right[0], left[1], left[2], right[1], right[2], swap, depth, at, come_and_go
    )


def _pieces(meeting: Meeting, most: int) -> Iterator[Piece]:
    """The parts of a meeting: products first, then keys with long histories, each separately."""
    sizes = meeting.sizes
    if meeting.come_and_go:
        updates = meeting.left_counts + meeting.right_counts
        many = (sizes > thresholds.current.multiply_pairs_max) & (sizes > 16 * updates)
        if many.any():
            yield from _products(meeting.only(~many), most)
            for run in np.flatnonzero(many).tolist():
                yield partial(_replayed, meeting.only(slice(run, run + 1)), most)
            return
    yield from _products(meeting, most)


def _products(meeting: Meeting, most: int) -> Iterator[Piece]:
    """All pairs of the runs, as many per piece as allowed."""
    sizes = meeting.sizes
    until = np.cumsum(sizes, dtype=np.float64)  # the number may exceed 64 bits
    if not sizes.size:
        return
    if until[-1] <= most:
        yield partial(_multiplied, meeting)
        return
    large = np.append(np.flatnonzero(sizes > most), sizes.size)
    first = 0
    while first < sizes.size:
        stop = int(large[np.searchsorted(large, first)])
        if stop > first:
            before = until[first - 1] if first else 0.0
            fits = int(np.searchsorted(until, before + most, side="right"))
            stop = max(first + 1, min(stop, fits))
            yield partial(_multiplied, meeting.only(slice(first, stop)))
            first = stop
        else:
            for part in _cut(meeting.only(slice(first, first + 1)), most):
                yield partial(_multiplied, part)
            first += 1


def _cut(run: Meeting, most: int) -> Iterator[Meeting]:
    """One run as several runs, none with too many pairs."""
    left, right = int(run.left_counts[0]), int(run.right_counts[0])
    width = min(right, most)
    height = max(1, most // width)
    for i in range(0, left, height):
        for j in range(0, right, width):
            yield replace(
                run, left_starts=run.left_starts + i, right_starts=run.right_starts + j,
                left_counts=np.array([min(height, left - i)]),
                right_counts=np.array([min(width, right - j)]),
            )


def _multiplied(meeting: Meeting) -> Iterator[Matches]:
    total = int(meeting.sizes.sum())
    rows = np.empty(total, np.int64), np.empty(total, np.int64)
    _multiply_out(
        meeting.left_starts, meeting.left_counts, meeting.right_starts, meeting.right_counts, *rows
    )
    left, right = meeting.left, meeting.right
    a, b = pick(left.time, rows[0]), pick(right.time, rows[1])
    time = max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)
    diff = product(pick(left.scalars(), rows[0]), pick(right.scalars(), rows[1]))
    yield meeting.placed(Matches(left, right, *rows, time, diff))


@kernel("int64[:], int64[:], int64[:], int64[:], int64[:], int64[:]")
def _multiply_out(left, left_counts, right, right_counts, ours, theirs):  # type: ignore
    n = 0
    for run in range(left.size):
        for i in range(left[run], left[run] + left_counts[run]):
            for j in range(right[run], right[run] + right_counts[run]):
                ours[n] = i
                theirs[n] = j
                n += 1


def product(a: PerRow, b: PerRow) -> PerRow:
    """The products of diffs, row by row.

    Raises
    ------
    DiffOverflowError
        If a product leaves 64 bits.
    """
    if not np.size(a) or not np.size(b):
        return 1
    if not (np.ndim(a) or np.ndim(b)):
        whole = int(a) * int(b)
        if not -(2**63) <= whole < 2**63:
            raise DiffOverflowError(TOO_LARGE)
        return whole
    reach = [max(abs(int(np.min(x))), abs(int(np.max(x)))) for x in (a, b)]
    if reach[0] * reach[1] < 2**63:
        return a * b
    a, b = np.broadcast_arrays(a, b)
    products = a * b
    # Floats find the products that may be too large, and exact integers decide.
    size = np.abs(a.astype(np.float64) * b.astype(np.float64))
    for row in np.flatnonzero(size >= 2.0**63 * (1 - 2.0**-40)):
        if int(a[row]) * int(b[row]) != int(products[row]):
            raise DiffOverflowError(TOO_LARGE)
    return products


def _replayed(meeting: Meeting, most: int) -> Iterator[Matches]:
    """Pairs of one key's long histories: at each time, changed values meet present values."""
    a = _in_time_order(meeting.left, int(meeting.left_starts[0]), int(meeting.left_counts[0]))
    b = _in_time_order(meeting.right, int(meeting.right_starts[0]), int(meeting.right_counts[0]))
    room = min(int(meeting.sizes[0]), most)
    state = np.zeros(5, np.int64)
    sides = [
        (value, time, diff, np.zeros(first.size, np.int64), np.empty(first.size, np.int64),
         np.full(first.size, -1))
        for value, time, diff, first in (a, b)
    ]
    while True:
        out = np.empty((4, room), np.int64)
        count = _meet(*sides[0], *sides[1], state, out)
        if count < 0:
            raise DiffOverflowError(TOO_LARGE)
        if count:
            left_rows, right_rows = a[3][out[0, :count]], b[3][out[1, :count]]
            time, diff = out[2, :count].copy(), out[3, :count].copy()
            pairs = Matches(meeting.left, meeting.right, left_rows, right_rows, time, diff)
            yield meeting.placed(pairs)
        if count < room:
            return


def _in_time_order(
    updates: UpdateChunk, start: int, count: int
) -> tuple[Int64, Int64, Int64, Int64]:
    """The values of a run of rows in order of time, as numbers, with times and diffs; and the first
    row of each value."""
    run = runs_of(updates.between(start, start + count))
    first = np.zeros(count, dtype=bool)
    first[run.starts] = True
    if isinstance(run.updates.coordinate, np.ndarray):
        # A record at another coordinate is another one: pairs distinguish them.
        first[1:] |= np.diff(run.updates.coordinate) != 0
    value = np.cumsum(first) - 1
    order = np.argsort(run.updates.times(), kind="stable")
    times, diffs = run.updates.times()[order], run.updates.diffs()[order]
    return value[order], times, diffs, np.flatnonzero(first) + start


@kernel(
    "int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], "
    "int64[:], int64[:], int64[:], int64[:], int64[:,:]"
)
def _meet(  # type: ignore[no-untyped-def]
    av, at, ad, a_sum, a_live, a_place, bv, bt, bd, b_sum, b_live, b_place, state, out
):
    """Write pairs until the room is full; the next call continues from there.

    Returns the number of written pairs, or -1 if a product is too large. `live` has the present
    values, in any order, and `place` the place of each among them.
    """
    i, j, k, a_count, b_count = state
    n = 0
    while i < av.size or j < bv.size:
        if j == bv.size or (i < av.size and at[i] <= bt[j]):
            while k < b_count:
                if n == out.shape[1]:
                    _save(state, i, j, k, a_count, b_count)
                    return n
                if product_leaves(ad[i], b_sum[b_live[k]]):
                    return -1
                out[0, n] = av[i]
                out[1, n] = b_live[k]
                out[2, n] = at[i]
                out[3, n] = ad[i] * b_sum[b_live[k]]
                n += 1
                k += 1
            a_count = changed(av[i], ad[i], a_sum, a_live, a_place, a_count)
            i += 1
        else:
            while k < a_count:
                if n == out.shape[1]:
                    _save(state, i, j, k, a_count, b_count)
                    return n
                if product_leaves(bd[j], a_sum[a_live[k]]):
                    return -1
                out[0, n] = a_live[k]
                out[1, n] = bv[j]
                out[2, n] = bt[j]
                out[3, n] = bd[j] * a_sum[a_live[k]]
                n += 1
                k += 1
            b_count = changed(bv[j], bd[j], b_sum, b_live, b_place, b_count)
            j += 1
        k = 0
    _save(state, i, j, k, a_count, b_count)
    return n


@jit
def _save(state, i, j, k, a_count, b_count):  # type: ignore[no-untyped-def]
    # One assignment each: numba's code for ``state[:] = ...`` takes three times as long to compile.
    state[0] = i
    state[1] = j
    state[2] = k
    state[3] = a_count
    state[4] = b_count


@jit
def changed(value, diff, sums, live, place, count):  # type: ignore[no-untyped-def]
    """Change the sum of a value; returns the number of present values. `live` lists these in any
    order, and `place` has the place of each in the list."""
    before = sums[value]
    sums[value] = before + diff
    if before == 0 and sums[value] != 0:
        live[count] = value
        place[value] = count
        return count + 1
    if before != 0 and sums[value] == 0:
        last = live[count - 1]
        live[place[value]] = last
        place[last] = place[value]
        place[value] = -1
        return count - 1
    return count
