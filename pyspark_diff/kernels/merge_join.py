"""Merge join: pairs of records with equal keys that are there at the same time, in one walk over
sorted updates of numbers.

For the updates ``A`` and ``B`` of one key, in order of value and time, what is new in their join
at a time ``t`` is::

    new A at t  x  B up to t    +    A before t  x  new B at t

with the diffs of each value added up. A record that has come and gone meets nothing, where all
products of updates have it come with the pairs and go with them again: of records that are
replaced, one after the other, these are twice as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterator, NamedTuple

import numpy as np

from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.jit import inlined, jit, kernel
from pyspark_diff.kernels.overflow import product_leaves, sum_leaves
from pyspark_diff.kernels.search import gallop
from pyspark_diff.kernels.updates import Int64, Updates

#: So many pairs are made at once: their memory is used again for the next ones.
CHUNK = 1 << 20
#: Columns that are wanted of the pairs.
KEY, LEFT, RIGHT = range(3)


class Pairs(NamedTuple):
    """Pairs: columns that are not wanted are empty."""

    key: Int64
    left: Int64
    right: Int64
    time: Int64
    diff: Int64


class Part(NamedTuple):
    """Some keys that follow each other: where their rows begin and end.

    Parameters
    ----------
    starts, stops : ndarray of int64, shape (4,)
        Among new and old updates of the left side, then among those of the right one.
    rows : float
        So many pairs it has, or less.
    long : bool
        Whether it is one key that is not done here.
    """

    starts: Int64
    stops: Int64
    rows: float
    long: bool

    def bounds(self) -> list[tuple[tuple[int, int], ...]]:
        """Of each side where its new updates begin and end, and its old ones."""
        found = list(zip(self.starts.tolist(), self.stops.tolist()))
        return [tuple(found[:2]), tuple(found[2:])]


@dataclass(frozen=True)
class MergeJoin:
    """A join of two sides, before it is made.

    Parameters
    ----------
    left, right : (Updates, Updates)
        New and old updates, in order; those for which `fits` holds.
    most : int
        So many pairs a part has, or the last of its keys has more.
    long : int
        A key is not done here if it has more products of new updates than this, and many more than
        updates; or more updates than a chunk has pairs.
    """

    left: tuple[Updates, Updates]
    right: tuple[Updates, Updates]
    most: int
    long: int

    @property
    def chunk(self) -> int:
        """So many pairs are made at once."""
        return max(1, min(self.most, CHUNK))

    @cached_property
    def _columns(self) -> tuple[list[Int64], Int64]:
        """Keys, values, times and diffs of new updates, and all but the times of old ones, of each
        side; with masks for their rows, as one value may stand for all rows."""
        columns: list[Int64] = []
        masks = []
        for new, old in (self.left, self.right):
            held = (new.key64, new.val64, new.time, new.diff), (old.key64, old.val64, old.diff)
            for value in (*held[0], *held[1]):
                several = isinstance(value, np.ndarray)
                columns.append(np.ascontiguousarray(value if several else [value or 0], np.int64))
                masks.append(-1 if several else 0)
        return columns, np.array(masks)

    def parts(self) -> tuple[list[Part], tuple[int, int]]:
        """The parts, and how many old rows of each side are read."""
        columns, _ = self._columns
        keys = columns[0], columns[4], columns[7], columns[11]
        found = []
        at, left, right = np.zeros(4, np.int64), 0, 0
        while at[0] < keys[0].size or at[2] < keys[2].size:
            starts = at.copy()
            pairs, ours, theirs, long = _cut(*keys, at, self.most, self.chunk, self.long)
            left, right = left + ours, right + theirs
            found.append(Part(starts, at.copy(), pairs, long))
        return found, (left, right)

    def pairs(self, part: Part, wanted: tuple[int, ...]) -> Iterator[Pairs | None]:
        """The pairs of a part, chunk by chunk; None where a sum or product of diffs leaves 64 bits,
        and nothing more."""
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
                yield Pairs(*(column[:count] for column in out))
            if state[0] == part.stops[0] and state[2] == part.stops[2]:
                return


def fits(held: Updates) -> bool:
    """Whether updates are numbers, at one coordinate of a loop."""
    return held.columns is None and held.values is None and not (
        isinstance(held.diff, DiffVectors) or isinstance(held.coordinate, np.ndarray)
    )


@inlined
def _end(keys, at, key):  # type: ignore[no-untyped-def]
    """The first row from one on that has another key."""
    while at < keys.size and keys[at] == key:
        at += 1
    return at


@kernel("int64[:]-, int64[:]-, int64[:]-, int64[:]-, int64[:], int64, int64, int64")
def _cut(lk, ok, rk, pk, at, most, chunk, long):  # type: ignore[no-untyped-def]
    """Move on by one part: its number of pairs or more, old rows of both sides, and whether it is
    long."""
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
def _standing(  # type: ignore[no-untyped-def]
    old, old_diff, old_mask, old_diff_mask, x, x_end,
    new, new_diff, new_time, new_mask, new_diff_mask, new_time_mask, y, y_end, time, with_now,
):
    """Go on behind the next value of old and new updates of a key: where that is in both, the
    value, how often it stands before a time, or at it, and whether that fits in 64 bits."""
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
    """Write pairs until there may be no more room, and go on from there in the next call.

    Gives how many were written; -1 where a sum or a product is too large. The fifth number of the
    state is the row that is next within a key, the sixth the side that it is of.
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
                    x, y, value, total, fits_in = _standing(
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
                x, y, value, total, fits_in = _standing(
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
    # One by one: what numba makes of ``state[:] = ...`` takes three times as long to compile.
    state[0] = a
    state[1] = o
    state[2] = b
    state[3] = p
    state[4] = row
    state[5] = side
