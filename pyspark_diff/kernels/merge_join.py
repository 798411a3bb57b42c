"""Merge join: pairs of records with equal keys that are present at the same time, in one walk over
sorted updates of numbers.

For the updates ``A`` and ``B`` of a key, in order of value and time, the new updates of their join
at a time ``t`` are::

    new A at t  x  B up to t    +    A before t  x  new B at t

with the diffs of each value added up. A record that has come and gone meets nothing. With all
products of updates, its pairs would come and go too: if records are replaced one after the other,
that is twice as many pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterator, NamedTuple

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.jit import inlined, jit, kernel
from pyspark_diff.kernels.overflow import product_leaves, sum_leaves
from pyspark_diff.kernels.search import gallop
from pyspark_diff.kernels.updates import Int64, UpdateChunk

#: The columns of pairs that a caller can ask for.
KEY, LEFT, RIGHT = range(3)


class PairColumns(NamedTuple):
    """Pairs: columns that the caller does not read are empty."""

    key: Int64
    left: Int64
    right: Int64
    time: Int64
    diff: Int64


class WalkPart(NamedTuple):
    """Some adjacent keys, as the ranges of their rows.

    Parameters
    ----------
    starts, stops : ndarray of int64, shape (4,)
        Among new and old updates of the left side, then among those of the right side.
    rows : float
        Upper bound of the number of pairs.
    long : bool
        Whether it is one key that this module does not process.
        Whether it is one key that is not done here.
    """

    starts: Int64
    stops: Int64
    rows: float
    long: bool

    def bounds(self) -> list[tuple[tuple[int, int], ...]]:
        """The ranges of the new and of the old updates, for each side."""
        ranges = list(zip(self.starts.tolist(), self.stops.tolist()))
        return [tuple(ranges[:2]), tuple(ranges[2:])]


@dataclass(frozen=True)
class MergeJoin:
    """A join of two sides, before its pairs are computed.

    Parameters
    ----------
    left, right : (UpdateChunk, UpdateChunk)
        New and old updates, in order, for which `fits` is true.
    most : int
        Maximal number of pairs of a part, unless its last key has more.
    long : int
        A key is long if it has more products of new updates than this, and many more than
        updates; or more updates than a chunk has pairs. This module does not process long keys.
    """

    left: tuple[UpdateChunk, UpdateChunk]
    right: tuple[UpdateChunk, UpdateChunk]
    most: int
    long: int

    @property
    def chunk(self) -> int:
        """Number of pairs that are computed at once."""
        return max(1, min(self.most, thresholds.current.join_chunk_pairs))

    @cached_property
    def _columns(self) -> tuple[list[Int64], Int64]:
        """Keys, values, times and diffs of new updates, and the same without times of old updates,
        for each side. The masks of their rows are zero if one value is shared by all rows."""
        columns: list[Int64] = []
        masks = []
        for new, old in (self.left, self.right):
            sources = (new.key64, new.val64, new.time, new.diff), (old.key64, old.val64, old.diff)
            for value in (*sources[0], *sources[1]):
                several = isinstance(value, np.ndarray)
                columns.append(np.ascontiguousarray(value if several else [value or 0], np.int64))
                masks.append(-1 if several else 0)
        return columns, np.array(masks)

    def parts(self) -> tuple[list[WalkPart], tuple[int, int]]:
        """The parts, and the number of old rows that are read on each side."""
        columns, _ = self._columns
        keys = columns[0], columns[4], columns[7], columns[11]
        parts = []
        at, left, right = np.zeros(4, np.int64), 0, 0
        while at[0] < keys[0].size or at[2] < keys[2].size:
            starts = at.copy()
            pairs, ours, theirs, long = _cut(*keys, at, self.most, self.chunk, self.long)
            left, right = left + ours, right + theirs
            parts.append(WalkPart(starts, at.copy(), pairs, long))
        return parts, (left, right)

    def pairs(self, part: WalkPart, wanted: tuple[int, ...]) -> Iterator[PairColumns | None]:
        """The pairs of a part, chunk by chunk; a final None if a sum or product of diffs leaves 64
        bits.
        """
        columns, masks = self._columns
        room = int(min(self.chunk, max(part.rows, 1)))
        state = np.concatenate((part.starts, [-1, 0]))
        while True:
            out = [np.empty(room if n in wanted else 0, np.int64) for n in range(3)]
            out += [np.empty(room, np.int64) for _ in range(2)]
            count = _meet(*columns, masks, state, part.stops, *out)
            if count < 0:
                yield None
                return
            if count:
                yield PairColumns(*(column[:count] for column in out))
            if state[0] == part.stops[0] and state[2] == part.stops[2]:
                return


def fits(updates: UpdateChunk) -> bool:
    """Whether updates are numbers, at one coordinate of a loop."""
    return updates.columns is None and updates.values is None and not (
        isinstance(updates.diff, DiffVectors) or isinstance(updates.coordinate, np.ndarray)
    )


@inlined
def _end(keys, at, key):  # type: ignore[no-untyped-def]
    """The first row at or after ``at`` that has another key."""
    while at < keys.size and keys[at] == key:
        at += 1
    return at


@kernel("int64[:]-, int64[:]-, int64[:]-, int64[:]-, int64[:], int64, int64, int64")
def _cut(lk, ok, rk, pk, at, most, chunk, long):  # type: ignore[no-untyped-def]
    """Advance by one part: an upper bound of its pairs, the old rows of both sides, and whether it
    is long."""
    a, o, b, p = at[0], at[1], at[2], at[3]
    total = 0.0
    ours = theirs = 0
    while a < lk.size or b < rk.size:
        key = lk[a] if b == rk.size or (a < lk.size and lk[a] <= rk[b]) else rk[b]
        o, p = gallop(ok, o, key, False), gallop(pk, p, key, False)
        a1, o1, b1, p1 = _end(lk, a, key), _end(ok, o, key), _end(rk, b, key), _end(pk, p, key)
        new = float(a1 - a) * float(b1 - b)
        is_long = new > long and new > 16.0 * (a1 - a + b1 - b)
        is_long = is_long or (a1 > a and b1 - b + p1 - p > chunk)
        is_long = is_long or (b1 > b and a1 - a + o1 - o > chunk)
        pairs = new + float(a1 - a) * float(p1 - p) + float(o1 - o) * float(b1 - b)
        began = a > at[0] or b > at[2]
        if began and (is_long or total + pairs > most):
            break
        total += pairs
        if a1 > a:
            theirs += p1 - p
        if b1 > b:
            ours += o1 - o
        a, o, b, p = a1, o1, b1, p1
        if is_long:
            at[0], at[1], at[2], at[3] = a, o, b, p
            return total, ours, theirs, True
    at[0], at[1], at[2], at[3] = a, o, b, p
    return total, ours, theirs, False


@inlined
def _count_at(  # type: ignore[no-untyped-def]
    old, old_diff, old_mask, old_diff_mask, x, x_end,
    new, new_diff, new_time, new_mask, new_diff_mask, new_time_mask, y, y_end, time, with_now,
):
    """Advance past the next value of the old and new updates of a key. Returns the new positions,
    the value, its count before a time or at it, and whether the count fits in 64 bits."""
    if y == y_end or (x < x_end and old[x & old_mask] <= new[y & new_mask]):
        value = old[x & old_mask]
    else:
        value = new[y & new_mask]
    total = 0
    while x < x_end and old[x & old_mask] == value:
        part = old_diff[x & old_diff_mask]
        if sum_leaves(total, part):
            return x, y, value, total, False
        total += part
        x += 1
    while y < y_end and new[y & new_mask] == value:
        when = new_time[y & new_time_mask]
        if when < time or (with_now and when == time):
            part = new_diff[y & new_diff_mask]
            if sum_leaves(total, part):
                return x, y, value, total, False
            total += part
        y += 1
    return x, y, value, total, True


@kernel(", ".join(["int64[:]-"] * 15 + ["int64[:]"] * 7))
def _meet(  # type: ignore[no-untyped-def]
    lk, lv, lt, ld, ok, ov, od, rk, rv, rt, rd, pk, pv, pd, masks, state, stops,
    out_key, out_left, out_right, out_time, out_diff,
):
    """Write pairs until the room may be full; the next call continues from there.

    Returns the number of written pairs, or -1 if a sum or a product is too large. The fifth number
    of the state is the next row of a key, and the sixth is the side of that row.
    """
    lvm, ltm, ldm, ovm, odm = masks[1], masks[2], masks[3], masks[5], masks[6]
    rvm, rtm, rdm, pvm, pdm = masks[8], masks[9], masks[10], masks[12], masks[13]
    a, o, b, p, row, side = state
    room = out_time.size
    keys, lefts, rights = out_key.size > 0, out_left.size > 0, out_right.size > 0
    n = 0
    while a < stops[0] or b < stops[2]:
        key = lk[a] if b == stops[2] or (a < stops[0] and lk[a] <= rk[b]) else rk[b]
        o, p = gallop(ok, o, key, False), gallop(pk, p, key, False)
        a1, o1, b1, p1 = _end(lk, a, key), _end(ok, o, key), _end(rk, b, key), _end(pk, p, key)
        if side == 0:
            i = max(row, a)
            while i < a1 and (b1 > b or p1 > p):
                if n + b1 - b + p1 - p > room:
                    _save(state, a, o, b, p, i, 0)
                    return n
                time, diff, x, y = lt[i & ltm], ld[i & ldm], p, b
                while x < p1 or y < b1:
                    x, y, value, total, fits_in = _count_at(
                        pv, pd, pvm, pdm, x, p1, rv, rd, rt, rvm, rdm, rtm, y, b1, time, True
                    )
                    if not fits_in:
                        return -1
                    if total != 0:
                        if product_leaves(diff, total):
                            return -1
                        if keys:
                            out_key[n] = key
                        if lefts:
                            out_left[n] = lv[i & lvm]
                        if rights:
                            out_right[n] = value
                        out_time[n] = time
                        out_diff[n] = diff * total
                        n += 1
                i += 1
            row = -1
        side = 0
        i = max(row, b)
        while i < b1 and (a1 > a or o1 > o):
            if n + a1 - a + o1 - o > room:
                _save(state, a, o, b, p, i, 1)
                return n
            time, diff, x, y = rt[i & rtm], rd[i & rdm], o, a
            while x < o1 or y < a1:
                x, y, value, total, fits_in = _count_at(
                    ov, od, ovm, odm, x, o1, lv, ld, lt, lvm, ldm, ltm, y, a1, time, False
                )
                if not fits_in:
                    return -1
                if total != 0:
                    if product_leaves(diff, total):
                        return -1
                    if keys:
                        out_key[n] = key
                    if lefts:
                        out_left[n] = value
                    if rights:
                        out_right[n] = rv[i & rvm]
                    out_time[n] = time
                    out_diff[n] = diff * total
                    n += 1
            i += 1
        row = -1
        a, o, b, p = a1, o1, b1, p1
    _save(state, a, o, b, p, -1, 0)
    return n


@jit
def _save(state, a, o, b, p, row, side):  # type: ignore[no-untyped-def]
    # One assignment each: numba's code for ``state[:] = ...`` takes three times as long to compile.
    state[0] = a
    state[1] = o
    state[2] = b
    state[3] = p
    state[4] = row
    state[5] = side
