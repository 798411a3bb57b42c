"""The accumulation before an interval under the keys of its updates.

With ``B`` the batches below the interval, and ``K`` the keys of the new updates::

    history(new, B)  =  { (k, v): sum(diff of (k, v) in B) : k in K }

New updates see a history of any length as one accumulation.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.consolidate import Grouped, consolidate, runs_of
from pyspark_diff.kernels.coordinates import Limit, lub, pack
from pyspark_diff.kernels.lookup import matching_rows, matching_within
from pyspark_diff.kernels.updates import Int64, UpdateChunk, advanced, concat, pick, spread
from pyspark_diff.times import Coordinate


def key_starts(grouped: Grouped) -> Int64:
    """Index of the first row of each key."""
    return grouped.starts if grouped.key_starts is None else grouped.key_starts


def distinct_keys(grouped: Grouped) -> UpdateChunk:
    """The first row of each key, without its value."""
    return grouped.updates.keys().take(key_starts(grouped))


def key_lengths(grouped: Grouped) -> Int64:
    """Number of rows of each key."""
    return np.diff(key_starts(grouped), append=len(grouped.updates))


def history(
    new: Grouped,
    batches: list[UpdateChunk],
    lower: int | None,
    *,
    null_safe: bool = True,
    limit: Limit | None = None,
) -> tuple[Int64, int, UpdateChunk | None]:
    """The accumulation before the interval under the keys of new updates.

    Parameters
    ----------
    new : Grouped
        Updates of the interval.
    batches : list of UpdateChunk
        Updates before it; each batch is in order.
    lower : int or None
        Lower bound of the interval.
    null_safe : bool
        Whether a null matches a null; otherwise it matches nothing.
    limit : Limit or None
        In a loop, the coordinates that count; they are merged into one. None keeps them separate.

    Returns
    -------
    group : ndarray of int64
        For each row the number of its key among the distinct keys of ``new``; ascending.
    read : int
        Number of rows read.
    rows : UpdateChunk or None
        One row for each present record; None if there is none.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> new = consolidate(UpdateChunk(np.array([7]), None, 5, 1, np.array([1])))
    >>> old = UpdateChunk(np.array([3, 7, 7]), None, np.array([0, 0, 4]), 1, np.array([9, 2, 2]))
    >>> group, read, rows = history(new, [old], 5)
    >>> group.tolist(), read, rows.val64.tolist(), rows.diff.tolist()
    ([0], 2, [2], [2])
    """
    keys = distinct_keys(new)
    parts, numbers = [], []
    mixed = False
    for batch in batches:
        if not len(batch):
            continue
        group, row = matches(keys, batch, null_safe, limit)
        if row.size:
            rows = batch.take(row)
            if limit is not None:
                rows = rows.placed(0)
                mixed = mixed or isinstance(batch.coordinate, np.ndarray)
            parts.append(rows)
            numbers.append(group)
    read = sum(len(part) for part in parts)
    if not parts:
        return np.empty(0, np.int64), 0, None
    if len(parts) == 1 and not isinstance(parts[0].time, np.ndarray) and not mixed:
        return numbers[0], read, parts[0]
    # Histories below the interval are one accumulation to new updates, at any length.
    constant = not (mixed or any(isinstance(part.time, np.ndarray) for part in parts))
    rows = advanced(concat(parts), lower)
    constant &= not (isinstance(rows.time, np.ndarray) or isinstance(rows.coordinate, np.ndarray))
    if read >= thresholds.current.disjoint_check_rows_min and constant and (
        _are_disjoint(numbers, len(keys))
    ):
        # Each part has one row for each record, and so has their union: no key is in two parts.
        group = np.concatenate(numbers)
        order = np.argsort(group, kind="stable")
        return group[order], read, rows.take(order)
    rows = consolidate(rows).updates
    if not len(rows):
        return np.empty(0, np.int64), read, None
    group, row = matching_rows(keys, rows)
    return group, read, rows.take(row)


def _are_disjoint(numbers: list[np.ndarray], keys: int) -> bool:
    """Whether no key, by its number, is in two of the parts."""
    present = np.zeros(keys, bool)
    for group in numbers:
        if present[group].any():
            return False
        present[group] = True
    return True


def recent(
    keys: UpdateChunk, batches: list[UpdateChunk], limit: Limit | None
) -> tuple[Grouped, int]:
    """The updates under some keys at coordinates up to a limit; these coordinates are merged into
    one.

    Parameters
    ----------
    keys : UpdateChunk
        Distinct keys in order.
    batches : list of UpdateChunk
        Each in order.
    limit : Limit or None
        None outside loops, since all updates have one coordinate there.

    Returns
    -------
    rows : Grouped
    read : int
        Number of rows read.
    """
    parts = []
    mixed = False
    for batch in batches:
        _, row = matching_within(keys, batch, limit)
        if row.size:
            parts.append(batch.take(row).placed(0))
            mixed = mixed or isinstance(batch.coordinate, np.ndarray)
    read = sum(len(part) for part in parts)
    if len(parts) == 1 and not mixed:
        return runs_of(parts[0]), read
    return consolidate(concat(parts)), read


def due_after(
    keys: UpdateChunk, sides: Sequence[tuple[list[UpdateChunk], int]], at: Coordinate
) -> dict[int, UpdateChunk]:
    """The coordinates of the next visits of some keys that are visited at ``at``.

    A key that is visited at ``c`` and has an update at ``s`` is due at their least upper bound.
    So visits in lexicographic order reach the joins of all sets of the key's coordinates that
    contain a new update. In a single loop the next coordinate is enough: its visit finds the
    following ones.

    Parameters
    ----------
    keys : UpdateChunk
        Distinct keys in order.
    sides : sequence of (list of UpdateChunk, int)
        Batches of all updates, and the number of loops around them.
    at : tuple of int
        The coordinate of this visit.

    Returns
    -------
    dict of int to UpdateChunk
        Keys by coordinate, packed.
    """
    now = pack(at)
    groups, codes = [], []
    for batches, depth in sides:
        for batch in batches if depth else ():
            shared = batch.coordinate
            if not isinstance(shared, np.ndarray) and lub(shared, depth, at) == now:
                continue
            group, row = matching_rows(keys, batch)
            code = spread(lub(pick(shared, row), depth, at), row.size)
            later = code != now
            groups.append(group[later])
            codes.append(code[later])
    if not sum(code.size for code in codes):
        return {}
    group, code = np.concatenate(groups), np.concatenate(codes)
    if len(at) == 1:
        least = np.full(len(keys), np.iinfo(np.int64).max)
        np.minimum.at(least, group, code)
        group = np.flatnonzero(least < np.iinfo(np.int64).max)
        code = least[group]
    due = {}
    for which in np.unique(code):
        due[int(which)] = keys.take(np.unique(group[code == which])).at(0, 1)
    return due


def matches(
    keys: UpdateChunk, batch: UpdateChunk, null_safe: bool, limit: Limit | None = None
) -> tuple[Int64, Int64]:
    """Pairs of (number of a key, row of the batch with that key), in order of the key."""
    group, row = matching_within(keys, batch, limit)
    if not null_safe and keys.columns is not None and row.size:
        for column in keys.columns:
            if column.null_count:
                valid = column.is_valid().to_numpy(zero_copy_only=False)[group]
                group, row = group[valid], row[valid]
    return group, row
