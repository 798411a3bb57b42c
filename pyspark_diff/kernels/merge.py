"""Merging of sorted batches into one, with logical compaction.

For batches ``B`` with a common ``since``::

    accumulate(merge(B), t) = sum(accumulate(b, t) for b in B)      for every t beyond since
"""

from __future__ import annotations

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.updates import (
    Int64,
    PerRow,
    UpdateChunk,
    advanced,
    concat,
    empty,
    one_or_all,
)


def merge(batches: list[UpdateChunk], since: int | None) -> UpdateChunk:
    """One consolidated batch out of several, times advanced to ``since``.

    Parameters
    ----------
    batches : list of UpdateChunk
        Each is consolidated and in order.
    since : int or None
        See `pyspark_diff.kernels.replay.compact`.

    Examples
    --------
    >>> import numpy as np
    >>> a = UpdateChunk(np.array([1, 2]), None, 0, 1)
    >>> b = UpdateChunk(np.array([2]), None, 3, -1)
    >>> merge([a, b], 3).key64.tolist()
    [1]
    """
    if sum(map(len, batches)) >= thresholds.current.merge_rows_min and all(map(_is_plain, batches)):
        merged = _merged(batches, since)
        if merged is not None:
            return merged
    return consolidate(advanced(concat(batches), since)).updates


def _is_plain(batch: UpdateChunk) -> bool:
    """Whether updates are numbers, or pairs of numbers, and diffs are numbers."""
    return (
        batch.values is None and batch.columns is None and not isinstance(batch.diff, DiffVectors)
    )


def _merged(batches: list[UpdateChunk], since: int | None) -> UpdateChunk | None:
    """The batches, merged two by two, the smallest first; None if a sum is too large."""
    least = np.iinfo(np.int64).min if since is None else since
    batches = [batch for batch in batches if len(batch)]
    if len(batches) < 2:
        return None
    pairs = batches[0].val64 is not None
    # A value that all rows share is not a column of the result either.
    coordinates = [batch.coordinate for batch in batches]
    places = any(map(np.ndim, coordinates)) or len(set(coordinates)) > 1
    last = [max(int(np.max(batch.time)), least) for batch in batches]
    timed = len(set(last)) > 1 or last[0] > least and any(np.ndim(b.time) for b in batches)
    parts = [
        (b.key64, b.key64 if b.val64 is None else b.val64, *map(_column, rest))
        for b in batches for rest in [(b.coordinate, b.time, b.diff)]
    ]
    while len(parts) > 1:
        parts.sort(key=lambda part: part[0].size)
        *rows, count = _merge_two(*parts[0], *parts[1], least, pairs, places, timed)
        if count < 0:
            return None
        parts = [tuple(column[:count] for column in rows), *parts[2:]]
    key, value, place, time, diff = parts[0]
    if not key.size:
        return empty()
    return UpdateChunk(
        key, None, one_or_all(time), diff, value if pairs else None, None, batches[0].ordering,
        one_or_all(place),
    )


def _column(values: PerRow | DiffVectors) -> Int64:
    return values if isinstance(values, np.ndarray) else np.array([values], np.int64)


@kernel(", ".join([*["int64[:]-"] * 10, "int64", *["bool"] * 3]))
def _merge_two(  # type: ignore[no-untyped-def]
    ak, av, ac, at, ad, bk, bv, bc, bt, bd, since, pairs, places, timed
):
    """Rows in order without sums that are zero, and their number; -1 if a sum is too large.

    There may be one coordinate, time or diff for all rows. Without pairs, places or times, the
    corresponding arguments are not used.
    """
    m, n = ak.size, bk.size
    key, diff = np.empty(m + n, np.int64), np.empty(m + n, np.int64)
    value = np.empty(m + n if pairs else 0, np.int64)
    place = np.empty(m + n if places else 1, np.int64)
    time = np.empty(m + n if timed else 1, np.int64)
    place[:1] = ac[:1] if m else bc[:1]
    time[:1] = np.maximum(at[:1] if m else bt[:1], since)
    i = j = 0
    count = -1  # the row of the current sum
    while i < m or j < n:
        if j == n:
            ours = True
        elif i == m:
            ours = False
        elif ak[i] != bk[j]:
            ours = ak[i] < bk[j]
        elif pairs and av[i] != bv[j]:
            ours = av[i] < bv[j]
        else:
            x, y = ac[i if ac.size == m else 0], bc[j if bc.size == n else 0]
            ours = x < y or x == y and at[i if at.size == m else 0] <= bt[j if bt.size == n else 0]
        if ours:
            k, v, d = ak[i], av[i] if pairs else 0, ad[i if ad.size == m else 0]
            c, t = ac[i if ac.size == m else 0], at[i if at.size == m else 0]
            i += 1
        else:
            k, v, d = bk[j], bv[j] if pairs else 0, bd[j if bd.size == n else 0]
            c, t = bc[j if bc.size == n else 0], bt[j if bt.size == n else 0]
            j += 1
        t = max(t, since)
        if (
            count >= 0 and key[count] == k and (not pairs or value[count] == v)
            and (not places or place[count] == c) and (not timed or time[count] == t)
        ):
            total = diff[count] + d
            if (diff[count] < 0) == (d < 0) and (total < 0) != (d < 0):
                return key, value, place, time, diff, -1
            diff[count] = total
            continue
        if count < 0 or diff[count] != 0:
            count += 1
        key[count] = k
        diff[count] = d
        if pairs:
            value[count] = v
        if places:
            place[count] = c
        if timed:
            time[count] = t
    if count >= 0 and diff[count] == 0:
        count -= 1
    return key, value, place, time, diff, count + 1
