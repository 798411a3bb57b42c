"""Pairs of updates with equal keys: the join core.

For the updates ``A`` and ``B`` of one key, with times that are totally ordered, and in a loop with
coordinates that are not::

    join(A, B) = { (a, b, max(time of a, time of b), lub(coordinate of a, coordinate of b)):
                   diff of a * diff of b }

With ``old`` updates, ``earlier`` ones that have been processed in this step, and the ``new`` ones
that have it now, what is new of the join is::

    new A x (old B + earlier B)  +  (old A + earlier A + new A) x new B

so each pair is met once, when the later of its two updates is processed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.consolidate import Grouped, consolidate, runs_of
from pyspark_diff.kernels.coordinates import lub
from pyspark_diff.kernels.history import distinct_keys, history, key_lengths, key_starts, matches
from pyspark_diff.kernels.jit import jit
from pyspark_diff.kernels.updates import Int64, PerRow, Updates, concat, pick, spread
from pyspark_diff.times import Coordinate

#: A key with more pairs of new updates than this, and many more pairs than updates, is replayed in
#: order of time instead: what is not there at the same time never meets.
LONG = 4096

_TOO_LARGE = (
    "the product of two diffs leaves the range of 64-bit integers: a record on one side of a join, "
    "or its match, occurs too often; check the diffs that go in"
)


@dataclass(frozen=True)
class Matches:
    """Pairs of rows of two sets of updates.

    Parameters
    ----------
    left, right : Updates
    left_rows, right_rows : ndarray of int64, shape (pairs,)
    time, diff : ndarray of int64, shape (pairs,), or int
    coordinate : ndarray of int64, shape (pairs,), or int
        In a loop, where a pair belongs: the least coordinate beyond those of both rows.
    """

    left: Updates
    right: Updates
    left_rows: Int64
    right_rows: Int64
    time: PerRow
    diff: PerRow
    coordinate: PerRow = 0

    def __len__(self) -> int:
        return int(self.left_rows.size)


@dataclass(frozen=True)
class Reached:
    """What has been reached of an arrangement when a coordinate is processed.

    Parameters
    ----------
    old : list of Updates
        Batches of updates before ``lower``, at all coordinates.
    earlier : list of Updates
        Those from ``lower`` on that have been processed; none outside of loops.
    new : Grouped
        Those from ``lower`` on that is processed.
    depth : int
        Number of loops around the arrangement.
    """

    old: list[Updates]
    earlier: list[Updates]
    new: Grouped
    depth: int


def join(
    left: Reached, right: Reached, at: Coordinate, lower: int | None, *, null_safe: bool = False
) -> tuple[list[Matches], int]:
    """What is new in the join of two arrangements when a coordinate is processed.

    What is new meets all that the other side has, larger coordinates included.

    Parameters
    ----------
    left, right : Reached
    at : tuple of int
        The coordinate; ``()`` outside of loops.
    lower : int or None
        Where the interval begins; None where there is nothing old.
    null_safe : bool
        Whether a null matches a null; else it matches nothing.

    Returns
    -------
    pairs : list of Matches
        With coordinates from `at` on.
    read : int
        Number of rows that were read, new ones left out.

    Raises
    ------
    DiffOverflowError
        If a product of diffs leaves 64 bits.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> a = consolidate(Updates(np.array([1, 2]), None, 0, 1, np.array([10, 20])))
    >>> b = consolidate(Updates(np.array([2, 2]), None, 3, 1, np.array([7, 8])))
    >>> pairs, _ = join(Reached([], [], a, 0), Reached([], [], b, 0), (), None)
    >>> p = pairs[0]
    >>> p.left.val64[p.left_rows].tolist(), p.right.val64[p.right_rows].tolist(), p.time
    ([20, 20], [7, 8], 3)
    """
    found: list[Matches] = []
    read = 0
    for ours, theirs, swap in ((left, right, False), (right, left, True)):
        if not len(ours.new.updates):
            continue
        met: list[Matches] = []
        groups, rows, old = history(ours.new, theirs.old, lower, null_safe=null_safe)
        read += rows
        if old is not None:
            our_rows, their_rows = _expand(ours.new, groups)
            met.append(_pairs(ours.new.updates, old, our_rows, their_rows, swap))
        now, rows = _of_this_step(ours.new, theirs, null_safe, with_new=swap)
        read += rows
        if now is not None:
            met += _join_new(*((now, ours.new) if swap else (ours.new, now)), null_safe)
        found += [_placed(pairs, swap, theirs.depth, at) for pairs in met if len(pairs)]
    return found, read


def _placed(pairs: Matches, swap: bool, depth: int, at: Coordinate) -> Matches:
    """Pairs of what is processed and rows of the other side, where they belong."""
    if not at:
        return pairs
    theirs, rows = (pairs.left, pairs.left_rows) if swap else (pairs.right, pairs.right_rows)
    return replace(pairs, coordinate=lub(pick(theirs.coordinate, rows), depth, at))


def _of_this_step(
    new: Grouped, side: Reached, null_safe: bool, *, with_new: bool
) -> tuple[Grouped | None, int]:
    """The rows of the interval that new updates of the other side meet, and how many were read."""
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
    if isinstance(grouped.updates.coordinate, np.ndarray) and len(grouped.updates):
        # A record at another coordinate is another one: pairs tell them apart.
        starts = np.zeros(len(grouped.updates), dtype=bool)
        starts[grouped.starts] = True
        np.not_equal(
            grouped.updates.coordinate[1:], grouped.updates.coordinate[:-1],
            where=~starts[1:], out=starts[1:],
        )
        grouped = Grouped(grouped.updates, np.flatnonzero(starts), key_starts(grouped))
    return grouped, sum(len(part) for part in parts)


def _expand(new: Grouped, groups: Int64) -> tuple[Int64, Int64]:
    """Pairs of each new row of a key with each of the key's matches."""
    starts = key_starts(new)
    counts = key_lengths(new)[groups]
    theirs = np.repeat(np.arange(groups.size), counts)
    ours = np.arange(theirs.size) - np.repeat(np.cumsum(counts) - counts, counts)
    ours += np.repeat(starts[groups], counts)
    return ours, theirs


def _join_new(left: Grouped, right: Grouped, null_safe: bool) -> list[Matches]:
    """Pairs of new updates of both sides."""
    left_keys, right_keys = distinct_keys(left), distinct_keys(right)
    ours, theirs = matches(left_keys, right_keys, null_safe)
    a, b = key_lengths(left)[ours], key_lengths(right)[theirs]
    many = (a * b > LONG) & (a * b > 16 * (a + b))
    if isinstance(left.updates.time, int) and isinstance(right.updates.time, int):
        many[:] = False  # nothing comes and goes
    found = []
    if not many.all():
        few = np.flatnonzero(~many)
        left_rows, right_rows = _products(
            key_starts(left)[ours[few]], a[few], key_starts(right)[theirs[few]], b[few]
        )
        found.append(_pairs(left.updates, right.updates, left_rows, right_rows, False))
    for key in np.flatnonzero(many):  # each of them is long: a Python call is nothing to it
        found.append(
            _replayed(
                left, right, int(key_starts(left)[ours[key]]), int(a[key]),
                int(key_starts(right)[theirs[key]]), int(b[key]),
            )
        )
    return found


def _products(
    left: Int64, left_counts: Int64, right: Int64, right_counts: Int64
) -> tuple[Int64, Int64]:
    """All pairs of rows of several pairs of runs."""
    total = int((left_counts * right_counts).sum())
    found = np.empty(total, np.int64), np.empty(total, np.int64)
    _multiply_out(left, left_counts, right, right_counts, *found)
    return found


@jit
def _multiply_out(left, left_counts, right, right_counts, ours, theirs):  # type: ignore
    n = 0
    for run in range(left.size):
        for i in range(left[run], left[run] + left_counts[run]):
            for j in range(right[run], right[run] + right_counts[run]):
                ours[n] = i
                theirs[n] = j
                n += 1


def _pairs(
    ours: Updates, theirs: Updates, our_rows: Int64, their_rows: Int64, swap: bool
) -> Matches:
    a, b = pick(ours.time, our_rows), pick(theirs.time, their_rows)
    time = max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)
    diff = product(pick(ours.scalars(), our_rows), pick(theirs.scalars(), their_rows))
    if swap:
        return Matches(theirs, ours, their_rows, our_rows, time, diff)
    return Matches(ours, theirs, our_rows, their_rows, time, diff)


def product(a: PerRow, b: PerRow) -> PerRow:
    """Diffs multiplied, row by row.

    Raises
    ------
    DiffOverflowError
        If one leaves 64 bits.
    """
    if not np.size(a) or not np.size(b):
        return 1
    reach = [max(abs(int(np.min(x))), abs(int(np.max(x)))) for x in (a, b)]
    if reach[0] * reach[1] < 2**63:
        return a * b
    a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    found = a * b
    # Floats tell where it may be too large, and whole numbers of any size whether it is.
    size = np.abs(a.astype(np.float64) * b.astype(np.float64))
    for row in np.flatnonzero(size >= 2.0**63 * (1 - 2.0**-40)):
        if int(a[row]) * int(b[row]) != int(found[row]):
            raise DiffOverflowError(_TOO_LARGE)
    return found


def _replayed(
    left: Grouped, right: Grouped, a: int, a_count: int, b: int, b_count: int
) -> Matches:
    """Pairs of one key's long histories: at each time, what changes meets what is there."""
    sides = []
    for grouped, start, count in ((left, a, a_count), (right, b, b_count)):
        rows = np.arange(start, start + count)
        value = np.searchsorted(grouped.starts, rows, side="right") - 1
        times = spread(pick(grouped.updates.time, rows), count)
        order = np.argsort(times, kind="stable")
        diffs = spread(pick(grouped.updates.scalars(), rows), count)[order]
        sides.append((value[order] - value[0], times[order], diffs, grouped.starts[value[0]:]))
    (av, at, ad, a_first), (bv, bt, bd, b_first) = sides
    sizes = int(av.max()) + 1, int(bv.max()) + 1
    count = _meet(av, at, ad, bv, bt, bd, *sizes, np.empty((4, 0), np.int64))
    if count < 0:
        raise DiffOverflowError(_TOO_LARGE)
    out = np.empty((4, count), np.int64)
    _meet(av, at, ad, bv, bt, bd, *sizes, out)
    return Matches(left.updates, right.updates, a_first[out[0]], b_first[out[1]], out[2], out[3])


@jit
def _meet(av, at, ad, bv, bt, bd, a_values, b_values, out):  # type: ignore[no-untyped-def]
    """Count the pairs, and write them where there is room; -1 where a product is too large."""
    a_sum = np.zeros(a_values, np.int64)
    b_sum = np.zeros(b_values, np.int64)
    a_live = np.empty(a_values, np.int64)  # values that are there, in any order
    b_live = np.empty(b_values, np.int64)
    a_place = np.full(a_values, -1, np.int64)
    b_place = np.full(b_values, -1, np.int64)
    a_count = b_count = 0
    i = j = n = 0
    while i < av.size or j < bv.size:
        if j == bv.size or (i < av.size and at[i] <= bt[j]):
            for k in range(b_count):
                d = ad[i] * b_sum[b_live[k]]
                if _wrapped(ad[i], b_sum[b_live[k]], d):
                    return -1
                if n < out.shape[1]:
                    out[0, n] = av[i]
                    out[1, n] = b_live[k]
                    out[2, n] = at[i]
                    out[3, n] = d
                n += 1
            a_count = _change(av[i], ad[i], a_sum, a_live, a_place, a_count)
            i += 1
        else:
            for k in range(a_count):
                d = bd[j] * a_sum[a_live[k]]
                if _wrapped(bd[j], a_sum[a_live[k]], d):
                    return -1
                if n < out.shape[1]:
                    out[0, n] = a_live[k]
                    out[1, n] = bv[j]
                    out[2, n] = bt[j]
                    out[3, n] = d
                n += 1
            b_count = _change(bv[j], bd[j], b_sum, b_live, b_place, b_count)
            j += 1
    return n


@jit
def _wrapped(a, b, product):  # type: ignore[no-untyped-def]
    """Whether a product of two numbers that are not zero has left 64 bits."""
    if abs(float(a) * float(b)) < 9.2e18:
        return False
    return (product < 0) != ((a < 0) != (b < 0)) or product // b != a


@jit
def _change(value, diff, sums, live, place, count):  # type: ignore[no-untyped-def]
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
