"""Ranges of keys: how updates that are too many to hold are worked through in pieces.

For ranges ``r`` of the keys of ``new``, and updates ``A``, in order of their keys::

    ranges are disjoint, and each key of new is in one
    rows(A within r) <= most, or r is one key
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from pyspark_diff.kernels.updates import Int64, Updates

#: Keys from the one to the other, both included, by their ``key64``. None are all keys.
Keys = tuple[int, int] | None

#: So few new rows are looked up one by one; of more, ranges are counted with all that lies between.
FEW = 1 << 16


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
    [(1, 1), (2, 2), (5, 9)]
    """
    rows = sum(len(updates) for updates in new)
    if rows + sum(len(updates) for updates in old) <= most:
        return [None]
    held = [updates.key64 for updates in (*new, *old)]
    stride = 1 if rows <= FEW else max(1, most // 64)
    first = np.unique(np.concatenate([updates.key64[::stride] for updates in new]))
    if not first.size:
        return [None]
    first[0] = min(int(updates.key64[0]) for updates in new if len(updates))
    last = max(int(updates.key64[-1]) for updates in new if len(updates))
    if stride == 1:
        until = first
    else:
        until = np.append(first[1:] - 1, last)
    count = np.sum([rows_of(keys, first, until) for keys in held], axis=0)
    found: list[Keys] = []
    begin, total = 0, 0
    for i, rows in enumerate(count.tolist()):
        if i > begin and total + rows > most:
            found.append((int(first[begin]), int(first[i]) - 1))
            begin, total = i, 0
        total += rows
    return [*found, (int(first[begin]), last)]


def rows_of(keys: Int64, first: Int64, last: Int64) -> Int64:
    """How many of some keys, which are in order, lie in each of several ranges."""
    below = np.searchsorted(keys, first, side="left")
    return np.searchsorted(keys, last, side="right") - below
