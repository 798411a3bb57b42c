"""The rows of ordered partitions that a step has to see: all of a key, or those near to changes.

A *partition* here is a key, or a part of one in which all rows are known::

    the rows of a part that stand at any time of the step  =  those of its key between two values

and which has so many rows on both sides of what is new in it, that stand at all of these times,
that no function looks beyond them; unless the key ends there.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np

from pyspark_diff.kernels import ranking
from pyspark_diff.kernels import window_replay as segment
from pyspark_diff.kernels.candidates import candidates, check, expand, values_of
from pyspark_diff.kernels.consolidate import Grouped
from pyspark_diff.kernels.coordinates import Limit
from pyspark_diff.kernels.history import distinct_keys, key_starts
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.lookup import key_ranges
from pyspark_diff.kernels.ranking import Ordering
from pyspark_diff.kernels.updates import Int64, Updates, concat, joined, spread

#: A key with no more rows than this for each of its changes is read whole.
FEW = 256
#: So many rows are read beyond those that are surely needed.
MORE = 16

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Rows:
    """The candidates of some partitions, what is new of them, and what ties.

    Parameters
    ----------
    pool : Updates
        The values of rows that were read, and then the touched ones.
    owner : ndarray of int64
        The partition of each.
    read : int
        How many of them were read.
    diff : ndarray of int64
        Of those that were read.
    keys : Updates
    key : ndarray of int64
        The key of each partition.
    new : Grouped
    ordering : Ordering
    by : int
        How many columns make the order; the others only break ties.
    edges : list of (ndarray of int64, ndarray of int64)
        For each batch and partition the first and the last row that were read of it, of which more
        may be there than were read; -1 for none.
    ties : bool
        Whether rows that tie have to be known all.

    Attributes
    ----------
    first, base, key, tie : ndarray of int64
        Of each candidate a row of the pool, the sum of old diffs, the key, and a number that is
        the same for those that tie.
    bounds : ndarray of int64
        The first candidate of each partition, and how many there are.
    starts, cand, time, diff : ndarray of int64
        The first event of each partition, and how many there are; by partition, time and candidate.
    """

    def __init__(
        self, pool: Updates, owner: Int64, read: int, diff: Int64, keys: Updates, key: Int64,
        new: Grouped, ordering: Ordering, by: int, edges: list[tuple[Int64, Int64]], ties: bool,
    ):
        self.pool, self.keys, self.read = pool, keys, read
        if pool.columns is None:
            code = pool.key64
            tie = code if by else np.zeros(len(pool), np.int64)
        else:
            code = tie = ranking.codes(pool.columns, ordering, len(pool))
            if by < len(pool.columns):
                tie = ranking.codes(pool.columns[:by], ordering[:by], len(pool))
        packed = ranking.pack([owner, code])
        # Rows come in few runs that are in order.
        order = np.argsort(packed, kind="stable")
        first, base, touched, of_record, fits = candidates(order, packed, read, diff)
        check(fits)
        partition = owner[first]
        #: Whether a partition may go on before its first candidate, and behind the last one.
        self.open = tuple(np.zeros(key.size, np.bool_) for _ in range(2))
        if edges:
            low, high = np.full(key.size, _LEAST), np.full(key.size, _MOST)
            place = tie if ties else code
            for before, behind in edges:
                self.open[0][before >= 0] = True
                self.open[1][behind >= 0] = True
                low = np.where(before >= 0, np.maximum(low, place[before]), low)
                high = np.where(behind >= 0, np.minimum(high, place[behind]), high)
            # Of the value of an edge there may be more rows.
            own = place[first]
            known = (~self.open[0][partition] | (own > low[partition])) & (
                ~self.open[1][partition] | (own < high[partition])
            )
            #: Whether all that is touched is known.
            self.known = np.ones(key.size, np.bool_)
            self.known[partition[touched & ~known]] = False
            known |= touched
            of_record = (np.cumsum(known) - 1)[of_record]
            first, base, touched = first[known], base[known], touched[known]
            partition = partition[known]
        self.first, self.base, self.touched = first, base, touched
        self.bounds = np.searchsorted(partition, np.arange(key.size + 1))
        self.key = key[partition]
        self.tie = tie[first]
        updates = new.updates
        cand = np.repeat(of_record, new.lengths())
        time, partition = updates.times(), partition[cand]
        if isinstance(updates.time, np.ndarray):
            rows = np.lexsort((cand, time, partition))
        else:
            rows = np.lexsort((cand, partition))
        self.starts = np.searchsorted(partition[rows], np.arange(key.size + 1))
        self.cand, self.time = cand[rows], np.ascontiguousarray(time[rows])
        self.diff = spread(updates.scalars(), len(updates))[rows]
        self.tie_low, self.tie_high = segment.ties_of(self.bounds, self.tie)

    def __len__(self) -> int:
        return int(self.first.size)


class _Batch(NamedTuple):
    """Values of a batch, and where those of each key begin and end, and each touched one would be.
    """

    values: Updates
    low: Int64
    high: Int64
    place: Int64


def rows_of(
    old: list[Updates],
    new: Grouped,
    ordering: Ordering,
    by: int,
    limit: Limit | None,
    near: int | None,
    ties: bool,
    seen: Callable[[Rows], tuple[Int64, Int64]],
) -> Rows:
    """The rows of the keys of new updates that have to be seen.

    Parameters
    ----------
    old : list of Updates
        Batches of updates before the new ones, each ordered by (key64, key, value, time) with the
        values ordered by `ordering`.
    new : Grouped
    ordering : Ordering
    by : int
        How many columns make the order.
    limit : Limit or None
        In a loop, the coordinates of old updates that count.
    near : int or None
        How many rows are mostly looked at on both sides of what is new; None for all of the key.
    ties : bool
        Whether rows that tie have to be known all.
    seen : callable
        The first and the last candidate that are looked at where each touched one changes; there
        has to be one beyond them, or the partition ends.
    """
    keys = distinct_keys(new)
    touched = values_of(new.records())
    first = np.searchsorted(new.starts, key_starts(new))
    counts = np.diff(first, append=new.starts.size)
    of = np.repeat(np.arange(len(keys)), counts)
    found = [(values_of(batch), *key_ranges(keys, batch)) for batch in old if len(batch)]
    whole = np.ones(len(keys), np.bool_)
    if near is not None:
        there = np.sum([high - low for _, low, high in found], axis=0, initial=0)
        whole = there <= FEW * counts
    sought = np.flatnonzero(~whole[of])
    batches = []
    for values, low, high in found:
        place = low[of]
        if sought.size:
            place[sought] = _places(
                values, low[of[sought]], high[of[sought]], touched.take(sought), ordering
            )
        batches.append(_Batch(values, low, high, place))
    width = np.full(len(keys), (near or 0) + MORE)
    while True:
        rows = _read(batches, new, touched, keys, of, whole, width, ordering, by, limit, ties)
        if not sought.size:
            return rows
        short = _short(rows, *seen(rows))
        if not short.size:
            return rows
        # Reads that grow by a factor cost in all little more than the last of them.
        width[short] *= 4


def _read(
    batches: list[_Batch], new: Grouped, touched: Updates, keys: Updates, of: Int64,
    whole: np.ndarray, width: Int64, ordering: Ordering, by: int, limit: Limit | None, ties: bool,
) -> Rows:
    """The rows of keys, or so many of each batch on both sides of each touched value."""
    begins, ends = [], []
    # What is touched begins a part of its own, unless all rows between are read.
    apart = np.ones(of.size, np.bool_)
    apart[1:] = of[1:] != of[:-1]
    split = np.zeros(of.size, np.bool_)
    for _, low, high, place in batches:
        begin = np.where(whole[of], low[of], np.maximum(low[of], place - width[of]))
        end = np.where(whole[of], high[of], np.minimum(high[of], place + width[of]))
        split[1:] |= begin[1:] > end[:-1]
        begins.append(begin)
        ends.append(end)
    starts = np.flatnonzero(apart | split)
    lasts = np.append(starts[1:], of.size) - 1
    key = of[starts]
    parts, owners, diffs, edges = [], [], [], []
    at = 0
    for (values, low, high, _), begin, end in zip(batches, begins, ends):
        begin, end = begin[starts], end[lasts]
        owner, rows = expand(begin, end - begin)
        found = values.take(rows)
        parts.append(found)
        owners.append(owner)
        diffs.append(_diffs(found, limit))
        stops = at + np.cumsum(end - begin)
        if not whole.all():
            edges.append((
                np.where(begin > low[key], stops - (end - begin), -1),
                np.where(end < high[key], stops - 1, -1),
            ))
        at += rows.size
    owners.append(np.repeat(np.arange(starts.size), lasts - starts + 1))
    return Rows(
        concat([*parts, touched]), np.concatenate(owners), at,
        np.concatenate([*diffs, np.empty(0, np.int64)]), keys, key, new, ordering, by, edges, ties,
    )


def _short(rows: Rows, first: Int64, last: Int64) -> Int64:
    """The keys of which more rows have to be read."""
    short = ~rows.known
    touched = np.flatnonzero(rows.touched)
    partition = np.searchsorted(rows.bounds, touched, side="right") - 1
    # The outermost candidate of a part is beyond what is looked at, or there may be others.
    at_first = first <= rows.bounds[partition]
    at_last = last >= rows.bounds[partition + 1] - 1
    short[partition[rows.open[0][partition] & at_first]] = True
    short[partition[rows.open[1][partition] & at_last]] = True
    return np.unique(rows.key[rows.bounds[:-1][short]])


def _diffs(rows: Updates, limit: Limit | None) -> Int64:
    """The diffs of rows; those at coordinates that do not count are worth nothing."""
    diffs = spread(rows.scalars(), len(rows))
    if limit is None:
        return diffs
    return np.where(limit.mask(spread(rows.coordinate, len(rows))), diffs, 0)


def _places(
    values: Updates, low: Int64, high: Int64, wanted: Updates, ordering: Ordering
) -> Int64:
    """Where values would be among those of their keys: the first that is not less."""
    if values.columns is None and wanted.columns is None:
        return _search(values.key64, low, high, wanted.key64)
    low, high = low.copy(), high.copy()
    active = np.flatnonzero(low < high)
    while active.size:
        middle = (low[active] + high[active]) // 2
        there, here = values.take(middle).with_columns(), wanted.take(active).with_columns()
        code = ranking.codes([joined([a, b]) for a, b in zip(there, here)], ordering)
        less = code[:active.size] < code[active.size:]
        low[active[less]] = middle[less] + 1
        high[active[~less]] = middle[~less]
        active = active[low[active] < high[active]]
    return low


@kernel("int64[:]-, int64[:], int64[:], int64[:]-")
def _search(hay, low, high, needles):  # type: ignore[no-untyped-def]
    found = np.empty(needles.size, np.int64)
    for i in range(needles.size):
        left, right = low[i], high[i]
        while left < right:
            middle = (left + right) // 2
            if hay[middle] < needles[i]:
                left = middle + 1
            else:
                right = middle
        found[i] = left
    return found
