"""What stood before an interval under the keys that its updates touch.

With ``B`` the batches below the interval, and ``K`` the keys of the new updates::

    history(new, B)  =  { (k, v): sum(diff of (k, v) in B) : k in K }

A history is one accumulation to what comes after it, however long it was.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.gather import matching_rows
from pyspark_diff.kernels.updates import Int64, Updates, advanced, concat


def key_starts(grouped: Grouped) -> Int64:
    """Index of the first row of each key."""
    return grouped.starts if grouped.key_starts is None else grouped.key_starts


def distinct_keys(grouped: Grouped) -> Updates:
    """The first row of each key, without its value."""
    return grouped.updates.keys().take(key_starts(grouped))


def key_lengths(grouped: Grouped) -> Int64:
    """Number of rows of each key."""
    return np.diff(key_starts(grouped), append=len(grouped.updates))


def history(
    new: Grouped, batches: list[Updates], lower: int | None, *, null_safe: bool = True
) -> tuple[Int64, int, Updates | None]:
    """What stood before the interval under the keys of new updates.

    Parameters
    ----------
    new : Grouped
        Updates of the interval.
    batches : list of Updates
        Updates before it, each batch in order.
    lower : int or None
        Where the interval begins.
    null_safe : bool
        Whether a null matches a null; else it matches nothing.

    Returns
    -------
    group : ndarray of int64
        For each row the number of its key among the distinct keys of ``new``; ascending.
    read : int
        Number of rows that were read.
    rows : Updates or None
        One row for each record that is there; None where there is nothing.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> new = consolidate(Updates(np.array([7]), None, 5, 1, np.array([1])))
    >>> old = Updates(np.array([3, 7, 7]), None, np.array([0, 0, 4]), 1, np.array([9, 2, 2]))
    >>> group, read, rows = history(new, [old], 5)
    >>> group.tolist(), read, rows.val64.tolist(), rows.diff.tolist()
    ([0], 2, [2], [2])
    """
    keys = distinct_keys(new)
    parts, numbers = [], []
    for batch in batches:
        if not len(batch):
            continue
        group, row = matches(keys, batch, null_safe)
        if row.size:
            parts.append(batch.take(row))
            numbers.append(group)
    read = sum(len(part) for part in parts)
    if not parts:
        return np.empty(0, np.int64), 0, None
    if len(parts) == 1 and not isinstance(parts[0].time, np.ndarray):
        return numbers[0], read, parts[0]
    # Histories below the interval are one accumulation to new updates, however long they are.
    rows = consolidate(advanced(concat(parts), lower)).updates
    if not len(rows):
        return np.empty(0, np.int64), read, None
    group, row = matching_rows(keys, rows)
    return group, read, rows.take(row)


def matches(keys: Updates, batch: Updates, null_safe: bool) -> tuple[Int64, Int64]:
    """Pairs of (number of a key, row of the batch with that key), in order of the key."""
    group, row = matching_rows(keys, batch)
    if not null_safe and keys.columns is not None and row.size:
        for column in keys.columns:
            if column.null_count:
                valid = column.is_valid().to_numpy(zero_copy_only=False)[group]
                group, row = group[valid], row[valid]
    return group, row
