"""Ranges of keys: the pieces in which updates are processed that exceed the memory.

For ranges ``r`` of the keys of ``new``, and updates ``A``, in order of their keys::

    ranges are disjoint, and each key of new is in one
    rows(A in r) <= most, or r is one key

For wide rows the limit is lower, see `fitting`: Arrow's strings have offsets of 31 bits, so a
column in memory has to stay below 2 GiB.
"""

from __future__ import annotations

from typing import Iterable, Sequence

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.key_index import MOST, PAST
from pyspark_diff.kernels.updates import Int64, UpdateChunk

#: A range of keys, both ends included, by their ``key64``. None is the range of all keys.
Keys = tuple[int, int] | None

#: Number of rows that `keys_at_least` counts before it checks whether they are enough.
_LOOKED_AT = 1 << 16

#: Size of the sample of an arrangement's keys.
SAMPLE = 256

#: Number of parts whose widest determines the row width.
PARTS = 16


def fitting(updates_list: Sequence[UpdateChunk], most: int) -> int:
    """The number of rows of some updates that fit in memory at once: ``most``, or fewer if rows are
    wide.

    Examples
    --------
    >>> fitting([UpdateChunk(np.array([1, 2, 2]), None, 0, 1)], 2)
    2
    """
    size = thresholds.current.work_bytes_max
    if sum(updates.nbytes for updates in updates_list) <= size:
        return most
    return max(1, min(most, size // max(1, *map(_width, updates_list))))


def _width(updates: UpdateChunk) -> int:
    """Bytes of a row in the widest part: rows may grow in the order of the keys."""
    step = max(1, len(updates) // PARTS)
    starts = range(0, len(updates) - step + 1, step)
    return max((updates.between(at, at + step).nbytes // step for at in starts), default=0)


def updates_between(updates: UpdateChunk, keys: Keys) -> UpdateChunk:
    """The updates of a range of keys, from updates in order of their keys. Copies nothing."""
    if keys is None:
        return updates
    start = int(np.searchsorted(updates.key64, keys[0], side="left"))
    stop = int(np.searchsorted(updates.key64, keys[1], side="right"))
    return updates.between(start, stop)


def ranges(new: Sequence[UpdateChunk], old: Sequence[UpdateChunk], most: int) -> list[Keys]:
    """Ranges of the keys of new updates, with at most `most` rows in each.

    A key with more rows is a range of its own.

    Parameters
    ----------
    new, old : sequence of UpdateChunk
        Each is in order of its keys.

    Examples
    --------
    >>> new = [UpdateChunk(np.array([1, 2, 2, 2, 5, 9]), None, 0, 1)]
    >>> ranges(new, [UpdateChunk(np.array([1, 5, 7]), None, 0, 1)], 4)
    [(1, 1), (2, 4), (5, 9)]
    """
    rows = sum(len(updates) for updates in new)
    if rows + sum(len(updates) for updates in old) <= most:
        return [None]
    parts = [updates.key64 for updates in new if len(updates)]
    if not parts:
        return [None]
    stride = max(1, min(most // 64, rows // (thresholds.current.exact_ranges_rows_max + 1)))
    first = np.unique(np.concatenate([keys[::stride] for keys in parts]))
    last = max(int(keys[-1]) for keys in parts)
    until = first
    if stride > 1:
        # A sampled key has a range of its own, since its number of rows is not known.
        first = np.union1d(first, first[first < last] + 1)
        until = np.append(first[1:] - 1, last)
    all_keys = [updates.key64 for updates in (*new, *old)]
    count = np.sum([rows_of(keys, first, until) for keys in all_keys], axis=0)
    result: list[Keys] = []
    begin, total = 0, 0
    for i, rows in enumerate(count.tolist()):
        if i > begin and total + rows > most:
            result += _finer((int(first[begin]), int(first[i]) - 1), total, new, old, most)
            begin, total = i, 0
        total += rows
    return [*result, *_finer((int(first[begin]), last), total, new, old, most)]


def _finer(
    keys: tuple[int, int], rows: int, new: Sequence[UpdateChunk], old: Sequence[UpdateChunk],
    most: int,
) -> list[Keys]:
    """A range with a number of rows, or its subranges if the number is too large."""
    if rows <= most or keys[0] == keys[1]:
        return [keys]
    inside = [updates_between(updates, keys) for updates in new]
    if not any(map(len, inside)):
        return []
    return ranges(inside, [updates_between(updates, keys) for updates in old], most)


def rows_of(keys: Int64, first: Int64, last: Int64) -> Int64:
    """The number of keys, from an ordered array, in each of several ranges."""
    below = np.searchsorted(keys, first, side="left")
    return np.searchsorted(keys, last, side="right") - below


def keys_at_least(key64: Int64, most: int) -> int:
    """A lower bound of the number of keys of a batch; the count ends when it reaches `most`.

    Parameters
    ----------
    key64 : ndarray of int64, in order

    Examples
    --------
    >>> key64 = np.array([3, 3, 5, 8])
    >>> keys_at_least(key64, 10), keys_at_least(np.arange(10**6), 10) >= 10
    (3, True)
    """
    count = min(1, key64.size)
    for at in range(0, key64.size, _LOOKED_AT):
        if count >= most:
            break
        rows = key64[at:at + _LOOKED_AT + 1]
        count += int(np.count_nonzero(rows[1:] != rows[:-1]))
    return count


def shards_of(arrangements: Iterable[Int64], most: int) -> list[tuple[int, int]]:
    """Ranges of keys, as the least and the greatest key of each, with about equal work.

    Parameters
    ----------
    arrangements : iterable of ndarray of int64
        The ordered keys of each arrangement. All samples have one size, since all arrangements
        cause about the same work, and the lesser ends of edges lie on one side.
    most : int
        The number of ranges.

    Examples
    --------
    >>> shards_of([np.array([1, 2, 3]), np.array([7, 8, 9])], 2)[0][1]
    6
    """
    samples = [
        keys[np.linspace(0, keys.size - 1, SAMPLE).astype(np.int64)]
        for keys in arrangements if keys.size
    ]
    begins: list[int] = []
    if samples:
        sampled = np.sort(np.concatenate(samples))
        places = [sampled.size * n // most for n in range(1, most)]
        begins = [key for key in np.unique(sampled[places]).tolist() if key > PAST]
    return list(zip([PAST, *begins], [*(key - 1 for key in begins), MOST]))
