"""Ranges of keys: how updates that are too many to hold are worked through in pieces.

For ranges ``r`` of the keys of ``new``, and updates ``A``, in order of their keys::

    ranges are disjoint, and each key of new is in one
    rows(A within r) <= most, or r is one key

Of wide rows less are held, see `fitting`: Arrow's strings have offsets of 31 bits, so that what is
held of a column has to stay below 2 GiB.
"""

from __future__ import annotations

from typing import Iterable, Sequence

import numpy as np

from pyspark_diff.kernels.key_index import MOST, PAST
from pyspark_diff.kernels.updates import Int64, Updates

#: Keys from the one to the other, both included, by their ``key64``. None are all keys.
Keys = tuple[int, int] | None

#: So many new rows are looked up one by one; of more as many, and ranges are counted with all that
#: lies between.
FEW = 1 << 16

#: So many rows are looked at before it is asked whether that is enough.
_LOOKED_AT = 1 << 16

#: Of so many keys of an arrangement it is seen where its keys lie.
SAMPLE = 256

#: Bytes of columns that are held at once, and parts of which the widest tells how wide rows are.
MOST_BYTES, PARTS = 3 << 29, 16


def fitting(held: Sequence[Updates], most: int) -> int:
    """How many rows of some updates are held at once: so many, or as many as have room.

    Examples
    --------
    >>> fitting([Updates(np.array([1, 2, 2]), None, 0, 1)], 2)
    2
    """
    if sum(updates.nbytes for updates in held) <= MOST_BYTES:
        return most
    return max(1, min(most, MOST_BYTES // max(1, *map(_width, held))))


def _width(updates: Updates) -> int:
    """Bytes of a row where they are widest: in order of the keys they may well grow."""
    step = max(1, len(updates) // PARTS)
    starts = range(0, len(updates) - step + 1, step)
    return max((updates.between(at, at + step).nbytes // step for at in starts), default=0)


def within(updates: Updates, keys: Keys) -> Updates:
    """The updates of a range of keys, where updates are in order of their keys. Copies nothing."""
    if keys is None:
        return updates
    start = int(np.searchsorted(updates.key64, keys[0], side="left"))
    stop = int(np.searchsorted(updates.key64, keys[1], side="right"))
    return updates.between(start, stop)


def ranges(new: Sequence[Updates], old: Sequence[Updates], most: int) -> list[Keys]:
    """Ranges of the keys of new updates, so that no more than `most` rows are under each.

    A key that has more by itself is a range by itself.

    Parameters
    ----------
    new, old : sequence of Updates
        Each in order of its keys.
    most : int

    Examples
    --------
    >>> new = [Updates(np.array([1, 2, 2, 2, 5, 9]), None, 0, 1)]
    >>> ranges(new, [Updates(np.array([1, 5, 7]), None, 0, 1)], 4)
    [(1, 1), (2, 4), (5, 9)]
    """
    rows = sum(len(updates) for updates in new)
    if rows + sum(len(updates) for updates in old) <= most:
        return [None]
    parts = [updates.key64 for updates in new if len(updates)]
    if not parts:
        return [None]
    stride = max(1, min(most // 64, rows // (FEW + 1)))
    first = np.unique(np.concatenate([keys[::stride] for keys in parts]))
    last = max(int(keys[-1]) for keys in parts)
    until = first
    if stride > 1:
        # A key that is met has a range of its own, as no one knows how many rows it has.
        first = np.union1d(first, first[first < last] + 1)
        until = np.append(first[1:] - 1, last)
    held = [updates.key64 for updates in (*new, *old)]
    count = np.sum([rows_of(keys, first, until) for keys in held], axis=0)
    found: list[Keys] = []
    begin, total = 0, 0
    for i, rows in enumerate(count.tolist()):
        if i > begin and total + rows > most:
            found += _finer((int(first[begin]), int(first[i]) - 1), total, new, old, most)
            begin, total = i, 0
        total += rows
    return [*found, *_finer((int(first[begin]), last), total, new, old, most)]


def _finer(
    keys: tuple[int, int], rows: int, new: Sequence[Updates], old: Sequence[Updates], most: int
) -> list[Keys]:
    """A range with so many rows, or where that is too many the ranges in it."""
    if rows <= most or keys[0] == keys[1]:
        return [keys]
    inside = [within(updates, keys) for updates in new]
    if not any(map(len, inside)):
        return []
    return ranges(inside, [within(updates, keys) for updates in old], most)


def rows_of(keys: Int64, first: Int64, last: Int64) -> Int64:
    """How many of some keys, which are in order, lie in each of several ranges."""
    below = np.searchsorted(keys, first, side="left")
    return np.searchsorted(keys, last, side="right") - below


def keys_at_least(key64: Int64, most: int) -> int:
    """How many keys a batch has at least, as far as a number of them is reached.

    Parameters
    ----------
    key64 : ndarray of int64, in order
    most : int

    Examples
    --------
    >>> key64 = np.array([3, 3, 5, 8])
    >>> keys_at_least(key64, 10), keys_at_least(np.arange(10**6), 10) >= 10
    (3, True)
    """
    found = min(1, key64.size)
    for at in range(0, key64.size, _LOOKED_AT):
        if found >= most:
            break
        rows = key64[at:at + _LOOKED_AT + 1]
        found += int(np.count_nonzero(rows[1:] != rows[:-1]))
    return found


def shards_of(arrangements: Iterable[Int64], most: int) -> list[tuple[int, int]]:
    """Ranges of keys, the least and the greatest of each, in which there is about as much to do.

    Parameters
    ----------
    arrangements : iterable of ndarray of int64
        The keys of each, in order. Of each as many are looked at: as much is done with it, and the
        ends of edges of which one is the lesser lie on one side.
    most : int
        So many ranges.

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
