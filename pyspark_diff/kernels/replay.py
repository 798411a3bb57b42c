"""Replay of each record's updates in time order, on top of its old accumulation.

With ``base[g]`` the accumulation of record ``g`` below the interval, and its rows ordered by time::

    after[i]  = base[g] + sum of diffs of the rows of g up to and including i
    before[i] = after[i] - diff[i]

One pass over arrays, no loop over records: over a total order the accumulation is a running sum.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.updates import Int64, UpdateChunk, advanced


def replay(grouped: Grouped, base: Int64) -> tuple[Int64, Int64]:
    """Accumulated diff of the record just before and just after each row.

    Parameters
    ----------
    grouped : Grouped
        Consolidated updates of one interval.
    base : ndarray of int64, shape (records,)
        Accumulation of each record below the interval.

    Returns
    -------
    before, after : ndarray of int64, shape (rows,)

    Raises
    ------
    DiffOverflowError
        If an accumulation leaves 64 bits.

    Examples
    --------
    >>> u = UpdateChunk(np.array([4, 4, 8]), None, np.array([0, 3, 1]), np.array([2, -1, 5]))
    >>> before, after = replay(consolidate(u), np.array([10, 0]))
    >>> before.tolist(), after.tolist()
    ([10, 12, 0], [12, 11, 5])
    """
    diff = grouped.updates.diffs()
    starts = grouped.starts
    if starts.size == diff.size:
        before = base
        after = base + diff
    else:
        running = np.cumsum(diff)
        shift = base - (running[starts] - diff[starts])
        after = running + np.repeat(shift, grouped.lengths())
        before = after - diff
    # Integers wrap silently in numpy; the signs detect it, and always for the first wrapped row.
    if (((before ^ after) & (diff ^ after)) < 0).any():
        raise DiffOverflowError(
            "the accumulated diff of a record leaves the range of 64-bit integers: check the diffs "
            "of the input"
        )
    return before, after


def compact(grouped: Grouped, since: int | None) -> UpdateChunk:
    """Advance times to ``since`` and consolidate: exact at every time beyond ``since``.

    Parameters
    ----------
    grouped : Grouped
        Consolidated updates.
    since : int or None
        Times before it are advanced to it; None changes no time.

    Returns
    -------
    UpdateChunk
        Consolidated rows, in the same order.

    Examples
    --------
    >>> u = UpdateChunk(np.array([4, 4]), None, np.array([0, 3]), np.array([2, -1]))
    >>> c = compact(consolidate(u), 5)
    >>> c.key64.tolist(), c.time, c.diffs().tolist()
    ([4], 5, [1])
    """
    updates = advanced(grouped.updates, since)
    if not len(updates):
        return updates
    if isinstance(updates.time, np.ndarray):
        moved = since is not None and int(grouped.updates.times().min()) < since
        return consolidate(updates).updates if moved else updates
    if not isinstance(grouped.updates.time, np.ndarray):
        return updates  # each record has one row
    if grouped.starts.size == len(updates):
        return updates
    if isinstance(updates.diff, DiffVectors):
        return consolidate(updates).updates
    diffs = updates.diffs()
    if max(abs(int(diffs.min())), abs(int(diffs.max()))) * len(updates) >= 2**63:
        return consolidate(updates).updates
    sums = np.add.reduceat(diffs, grouped.starts)
    nonzero = np.flatnonzero(sums)
    rows = updates.take(grouped.starts[nonzero])
    return rows.at(updates.time, sums[nonzero])
