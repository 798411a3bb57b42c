"""Pairs of updates with equal keys: the join core.

For the updates ``A`` and ``B`` of one key, with times that are totally ordered::

    join(A, B) = { (a, b, max(time of a, time of b)): diff of a * diff of b }

and with ``old`` and ``new`` updates, what is new of the join is
``new A x (old B + new B)  +  old A x new B``: each pair is met once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.consolidate import Grouped, consolidate, runs_of
from pyspark_diff.kernels.coordinates import lub, pack
from pyspark_diff.kernels.history import distinct_keys, history, key_lengths, key_starts, matches
from pyspark_diff.kernels.jit import jit
from pyspark_diff.kernels.updates import Int64, PerRow, Updates, advanced, concat, pick, spread
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


def join(
    old_left: list[Updates],
    new_left: Grouped,
    old_right: list[Updates],
    new_right: Grouped,
    lower: int | None,
    *,
    null_safe: bool = False,
) -> tuple[list[Matches], int]:
    """What is new in the join of two arrangements.

    Parameters
    ----------
    old_left, old_right : list of Updates
        Batches of updates before ``lower``, each in order.
    new_left, new_right : Grouped
        Updates from ``lower`` on.
    lower : int or None
        None where there is nothing old.
    null_safe : bool
        Whether a null matches a null; else it matches nothing.

    Returns
    -------
    pairs : list of Matches
    read : int
        Number of old rows that were read.

    Raises
    ------
    DiffOverflowError
        If a product of diffs leaves 64 bits.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> a = consolidate(Updates(np.array([1, 2]), None, 0, 1, np.array([10, 20])))
    >>> b = consolidate(Updates(np.array([2, 2]), None, 3, 1, np.array([7, 8])))
    >>> pairs, _ = join([], a, [], b, None)
    >>> p = pairs[0]
    >>> p.left.val64[p.left_rows].tolist(), p.right.val64[p.right_rows].tolist(), p.time
    ([20, 20], [7, 8], 3)
    """
    found = []
    read = 0
    for batch, new, swap in ((old_right, new_left, False), (old_left, new_right, True)):
        if not len(new.updates):
            continue
        groups, rows, old = history(new, batch, lower, null_safe=null_safe)
        read += rows
        if old is None:
            continue
        ours, theirs = _expand(new, groups)
        found.append(_pairs(new.updates, old, ours, theirs, swap))
    if len(new_left.updates) and len(new_right.updates):
        found += _join_new(new_left, new_right, null_safe)
    return [pairs for pairs in found if len(pairs)], read


@dataclass(frozen=True)
class Reached:
    """What a loop has reached of an arrangement.

    Parameters
    ----------
    old : list of Updates
        Batches of updates before ``lower``, at all coordinates.
    new : list of Updates
        Those from ``lower`` on, at the coordinates that have had their turn and the one that has
        it now.
    fresh : Grouped
        Those of `new` whose turn it is.
    depth : int
        Number of loops around the arrangement.
    """

    old: list[Updates]
    new: list[Updates]
    fresh: Grouped
    depth: int


def join_at(
    left: Reached, right: Reached, at: Coordinate, lower: int | None, *, null_safe: bool = False
) -> tuple[list[Matches], int]:
    """What is new in the join of two arrangements when a coordinate has its turn.

    What is fresh meets all that the other side has, larger coordinates included; so each pair is
    met once, when the later of its two updates has its turn.

    Parameters
    ----------
    left, right : Reached
    at : tuple of int
        The coordinate.
    lower : int or None
    null_safe : bool
        Whether a null matches a null; else it matches nothing.

    Returns
    -------
    pairs : list of Matches
        With coordinates from `at` on.
    read : int
        Number of rows that were read.
    """
    found = []
    read = 0
    for ours, theirs, swap in ((left, right, False), (right, left, True)):
        if not len(ours.fresh.updates):
            continue
        others, rows = _met(ours.fresh, theirs, at, lower, null_safe, fresh_too=swap)
        read += rows
        if others is None:
            continue
        both = (others, ours.fresh) if swap else (ours.fresh, others)
        for pairs in _join_new(*both, null_safe):
            rows_there = pairs.left_rows if swap else pairs.right_rows
            there = pick(others.updates.coordinate, rows_there)
            found.append(replace(pairs, coordinate=lub(there, theirs.depth, at)))
    return [pairs for pairs in found if len(pairs)], read


def _met(
    fresh: Grouped, side: Reached, at: Coordinate, lower: int | None, null_safe: bool, *,
    fresh_too: bool,
) -> tuple[Grouped | None, int]:
    """The rows of a side that fresh updates of the other meet; its own fresh ones or not."""
    keys = distinct_keys(fresh)
    now = None
    if not fresh_too and not any(at[side.depth:]):
        now = pack(at[: side.depth])
    parts = []
    mixed = False
    for batches, old in ((side.old, True), (side.new, False)):
        for batch in batches:
            _, row = matches(keys, batch, null_safe)
            if row.size and not old and now is not None:
                row = row[spread(pick(batch.coordinate, row), row.size) != now]
            if row.size:
                parts.append(advanced(batch.take(row), lower) if old else batch.take(row))
                mixed = mixed or isinstance(batch.time, np.ndarray)
    read = sum(len(part) for part in parts)
    if not parts:
        return None, 0
    grouped = consolidate(concat(parts)) if len(parts) > 1 or mixed else runs_of(parts[0])
    if isinstance(grouped.updates.coordinate, np.ndarray) and len(grouped.updates):
        # A record at another coordinate is another one: pairs tell them apart.
        new = np.zeros(len(grouped.updates), dtype=bool)
        new[grouped.starts] = True
        np.not_equal(
            grouped.updates.coordinate[1:], grouped.updates.coordinate[:-1],
            where=~new[1:], out=new[1:],
        )
        grouped = Grouped(grouped.updates, np.flatnonzero(new), key_starts(grouped))
    return grouped, read


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
