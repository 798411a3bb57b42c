"""The rows of ordered partitions that a step has to read: all rows of a key, or those near changes.

A *partition* here is a key, or a part of a key with all of its rows known::

    the rows of a part at any time of the step  =  those of its key between two values

On both sides of its new updates it has unchanged rows, present at all times of the step, as far as
any function reads; unless the key ends there.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels import ranking
from pyspark_diff.kernels import window_replay as segment
from pyspark_diff.kernels.candidates import candidates, check, expand, values_of
from pyspark_diff.kernels.consolidate import Grouped
from pyspark_diff.kernels.coordinates import Limit
from pyspark_diff.kernels.history import distinct_keys, key_starts
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.lookup import key_ranges
from pyspark_diff.kernels.ranking import Ordering
from pyspark_diff.kernels.updates import Int64, UpdateChunk, concat, joined, spread

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class WindowRows:
    """The candidates of some partitions, their new updates, and their ties.

    Parameters
    ----------
    pool : UpdateChunk
        The values of rows that were read, and then the touched ones.
    owner : ndarray of int64
        The partition of each row.
    read : int
        The number of rows that were read.
    diff : ndarray of int64
        The diffs of the rows that were read.
    key : ndarray of int64
        The key of each partition.
    by : int
        The number of columns of the order; the others only break ties.
    edges : list of (ndarray of int64, ndarray of int64)
        For each batch and partition the first and the last row that was read, if the batch has
        further rows beyond it; -1 if it has none.
    ties : bool
        Whether all tied rows have to be known.

    Attributes
    ----------
    first, base, key, tie : ndarray of int64
        For each candidate a row of the pool, the sum of old diffs, the key, and a number that
        tied candidates share.
    bounds : ndarray of int64
        The first candidate of each partition, and the number of candidates.
    starts, cand, time, diff : ndarray of int64
        The first event of each partition, and the number of events; by partition, time and
        candidate.
    """

    def __init__(
        self, pool: UpdateChunk, owner: Int64, read: int, diff: Int64, keys: UpdateChunk,
        key: Int64, new: Grouped, ordering: Ordering, by: int, edges: list[tuple[Int64, Int64]],
        ties: bool,
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
        # The rows consist of few ordered runs.
        order = np.argsort(packed, kind="stable")
        first, base, touched, of_record, fits = candidates(order, packed, read, diff)
        check(fits)
        partition = owner[first]
        #: Whether a partition may continue before its first candidate, and after the last one.
        self.open = tuple(np.zeros(key.size, np.bool_) for _ in range(2))
        if edges:
            low, high = np.full(key.size, _LEAST), np.full(key.size, _MOST)
            place = tie if ties else code
            for before, after in edges:
                self.open[0][before >= 0] = True
                self.open[1][after >= 0] = True
                low = np.where(before >= 0, np.maximum(low, place[before]), low)
                high = np.where(after >= 0, np.minimum(high, place[after]), high)
            # There may be more rows with the value of an edge.
            own = place[first]
            known = (~self.open[0][partition] | (own > low[partition])) & (
                ~self.open[1][partition] | (own < high[partition])
            )
            #: Whether all touched candidates are known.
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
    """Values of a batch, the ranges of the keys in it, and the place of each touched value."""

    values: UpdateChunk
    low: Int64
    high: Int64
    place: Int64


def rows_of(
    old: list[UpdateChunk],
    new: Grouped,
    ordering: Ordering,
    by: int,
    limit: Limit | None,
    near: int | None,
    ties: bool,
    read_range: Callable[[WindowRows], tuple[Int64, Int64]],
) -> WindowRows:
    """The rows of the keys of new updates that functions read.

    Parameters
    ----------
    old : list of UpdateChunk
        Batches of updates before the new ones, each ordered by (key64, key, value, time) with the
        values ordered by `ordering`.
    by : int
        The number of columns of the order.
    limit : Limit or None
        In a loop, the coordinates of old updates that count.
    near : int or None
        The usual number of rows that are read on both sides of new updates; None for the whole
        key.
    ties : bool
        Whether all tied rows have to be known.
    read_range : callable
        The first and the last candidate that are read if each touched candidate changes. There
        has to be a candidate beyond them, or the partition ends.
    """
    keys = distinct_keys(new)
    touched = values_of(new.records())
    first = np.searchsorted(new.starts, key_starts(new))
    counts = np.diff(first, append=new.starts.size)
    key_of = np.repeat(np.arange(len(keys)), counts)
    ranges = [(values_of(batch), *key_ranges(keys, batch)) for batch in old if len(batch)]
    whole = np.ones(len(keys), np.bool_)
    if near is not None:
        there = np.sum([high - low for _, low, high in ranges], axis=0, initial=0)
        whole = there <= thresholds.current.window_whole_rows_max * counts
    sought = np.flatnonzero(~whole[key_of])
    batches = []
    for values, low, high in ranges:
        place = low[key_of]
        if sought.size:
            place[sought] = _places(
                values, low[key_of[sought]], high[key_of[sought]], touched.take(sought), ordering
            )
        batches.append(_Batch(values, low, high, place))
    width = np.full(len(keys), (near or 0) + thresholds.current.window_spare_rows)
    while True:
        rows = _read(batches, new, touched, keys, key_of, whole, width, ordering, by, limit, ties)
        if not sought.size:
            return rows
        short = _short(rows, *read_range(rows))
        if not short.size:
            return rows
        # Reads that grow by a factor cost in total little more than the last read.
        width[short] *= 4


def _read(
    batches: list[_Batch], new: Grouped, touched: UpdateChunk, keys: UpdateChunk, key_of: Int64,
    whole: np.ndarray, width: Int64, ordering: Ordering, by: int, limit: Limit | None, ties: bool,
) -> WindowRows:
    """The rows of keys, or ``width`` rows of each batch on both sides of each touched value."""
    begins, ends = [], []
    # Each touched value begins a part of its own, unless all rows between two are read.
    new_key = np.ones(key_of.size, np.bool_)
    new_key[1:] = key_of[1:] != key_of[:-1]
    split = np.zeros(key_of.size, np.bool_)
    for _, low, high, place in batches:
        begin = np.where(whole[key_of], low[key_of], np.maximum(low[key_of], place - width[key_of]))
        end = np.where(whole[key_of], high[key_of], np.minimum(high[key_of], place + width[key_of]))
        split[1:] |= begin[1:] > end[:-1]
        begins.append(begin)
        ends.append(end)
    starts = np.flatnonzero(new_key | split)
    lasts = np.append(starts[1:], key_of.size) - 1
    key = key_of[starts]
    parts, owners, diffs, edges = [], [], [], []
    at = 0
    for (values, low, high, _), begin, end in zip(batches, begins, ends):
        begin, end = begin[starts], end[lasts]
        owner, rows = expand(begin, end - begin)
        values_read = values.take(rows)
        parts.append(values_read)
        owners.append(owner)
        diffs.append(_diffs(values_read, limit))
        stops = at + np.cumsum(end - begin)
        if not whole.all():
            edges.append((
                np.where(begin > low[key], stops - (end - begin), -1),
                np.where(end < high[key], stops - 1, -1),
            ))
        at += rows.size
    owners.append(np.repeat(np.arange(starts.size), lasts - starts + 1))
    return WindowRows(
        concat([*parts, touched]), np.concatenate(owners), at,
        np.concatenate([*diffs, np.empty(0, np.int64)]), keys, key, new, ordering, by, edges, ties,
    )


def _short(rows: WindowRows, first: Int64, last: Int64) -> Int64:
    """The keys that need a further read."""
    short = ~rows.known
    touched = np.flatnonzero(rows.touched)
    partition = np.searchsorted(rows.bounds, touched, side="right") - 1
    # The outermost candidate of a part must be beyond the reads, or there may be others.
    at_first = first <= rows.bounds[partition]
    at_last = last >= rows.bounds[partition + 1] - 1
    short[partition[rows.open[0][partition] & at_first]] = True
    short[partition[rows.open[1][partition] & at_last]] = True
    return np.unique(rows.key[rows.bounds[:-1][short]])


def _diffs(rows: UpdateChunk, limit: Limit | None) -> Int64:
    """The diffs of rows; zero for coordinates that do not count."""
    diffs = spread(rows.scalars(), len(rows))
    if limit is None:
        return diffs
    return np.where(limit.mask(spread(rows.coordinate, len(rows))), diffs, 0)


def _places(
    values: UpdateChunk, low: Int64, high: Int64, wanted: UpdateChunk, ordering: Ordering
) -> Int64:
    """The places of values among those of their keys: the first that is not less."""
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
    places = np.empty(needles.size, np.int64)
    for i in range(needles.size):
        left, right = low[i], high[i]
        while left < right:
            middle = (left + right) // 2
            if hay[middle] < needles[i]:
                left = middle + 1
            else:
                right = middle
        places[i] = left
    return places
