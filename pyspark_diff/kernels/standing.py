"""The snapshot at a time: the records of a collection, each with its multiplicity.

For batches of updates ``B``, each consolidated and in the order of its records, all outputs of
``snapshot(B, t)`` together are::

    S[record] = sum(diff for b in B for (record, s, diff) in b if s <= t),   without zeros

A small batch together with a large one costs as much as the small one: only the common keys of the
large batch are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.consolidate import consolidate, runs_of
from pyspark_diff.kernels.key_ranges import fitting, ranges, updates_between
from pyspark_diff.kernels.updates import Int64, UpdateChunk, concat

#: Above this a sum of diffs may leave 64 bits.
_SAFE = 2.0**62


def snapshot(batches: Sequence[UpdateChunk], time: int) -> Iterator[UpdateChunk]:
    """The records at a time, with all times zero; no record is in two outputs.

    Raises
    ------
    DiffOverflowError
        If a multiplicity leaves 64 bits.

    Examples
    --------
    >>> a = UpdateChunk(np.array([3, 5]), None, 0, 1)
    >>> b = UpdateChunk(np.array([3, 5]), None, np.array([4, 6]), np.array([-1, 1]))
    >>> [(s.key64.tolist(), s.diffs().tolist()) for s in snapshot([a, b], 4)]
    [([5], [1])]
    """
    parts = [updates for updates in batches if len(updates)]
    if len(parts) == 1:
        yield _of_one(parts[0], time)
        return
    most = thresholds.current.standing_piece_rows
    for keys in ranges(parts, [], fitting(parts, most)) if parts else ():
        yield from _of_several([_until(updates_between(updates, keys), time) for updates in parts])


def repeated_places(counts: Int64, most: int) -> Iterator[Int64]:
    """Places of records, each repeated by its count, in arrays of at most ``most`` places.

    Parameters
    ----------
    counts : array of int64
        The count of each record; none is negative.

    Examples
    --------
    >>> [places.tolist() for places in repeated_places(np.array([2, 0, 3]), 4)]
    [[0, 0, 2, 2], [2]]
    """
    until = np.cumsum(counts)
    total = int(until[-1]) if until.size else 0
    for start in range(0, total, most):
        copies = np.arange(start, min(start + most, total))
        yield np.searchsorted(until, copies, side="right")


def _until(updates: UpdateChunk, time: int) -> UpdateChunk:
    if not isinstance(updates.time, np.ndarray):
        return updates if updates.time <= time else updates.between(0, 0)
    early = updates.time <= time
    return updates if early.all() else updates.take(early)


def _of_one(updates: UpdateChunk, time: int) -> UpdateChunk:
    """The records of one batch: equal records are adjacent already, so there is no sort."""
    rows = _until(updates, time)
    if isinstance(rows.coordinate, np.ndarray):
        return consolidate(rows.placed(0).at(0, rows.diff)).updates
    if not len(rows) or not isinstance(rows.time, np.ndarray):
        return rows.at(0, rows.diff)  # a record has one update at one time
    starts = runs_of(rows).starts
    if starts.size == len(rows):
        return rows.at(0, rows.diff)
    diffs = rows.diffs()
    if np.abs(diffs.astype(np.float64)).sum() >= _SAFE:
        return consolidate(rows.at(0, diffs)).updates  # which checks each sum
    sums = np.add.reduceat(diffs, starts)
    there = np.flatnonzero(sums)
    return rows.take(starts[there]).at(0, sums[there])


def _of_several(batches: Sequence[UpdateChunk]) -> Iterator[UpdateChunk]:
    large = max(batches, key=len)
    small = concat([updates for updates in batches if updates is not large])
    touched = _touched(large, small)
    if touched is None:
        yield consolidate(_still(concat([large, small]))).updates
        return
    yield _of_one(large.take(~touched) if touched.any() else large, 2**63 - 1)
    if len(small):
        yield consolidate(_still(concat([large.take(touched), small]))).updates


def _still(updates: UpdateChunk) -> UpdateChunk:
    return updates.placed(0).at(0, updates.diff)


def _touched(large: UpdateChunk, small: UpdateChunk) -> np.ndarray | None:
    """The rows of a large batch that have a key of a small one; None if the small one is too
    large."""
    if 4 * len(small) > len(large):
        return None
    keys = np.unique(small.key64)
    marks = np.zeros(len(large) + 1, np.int8)
    first = np.searchsorted(large.key64, keys, side="left")
    last = np.searchsorted(large.key64, keys, side="right")
    there = first < last
    # Ranges of different keys share at most their ends.
    np.add.at(marks, first[there], 1)
    np.add.at(marks, last[there], -1)
    return np.cumsum(marks[:-1], dtype=np.int8).astype(bool)
