"""Merging of sorted batches into one, with logical compaction.

For batches ``B`` with a common ``since``::

    accumulate(merge(B), t) = sum(accumulate(b, t) for b in B)      for every t beyond since
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.updates import Int64, Updates, advanced, concat

#: From this many rows on, batches of plain numbers are merged as they are; fewer are added up.
MERGED = 1 << 16


def merge(batches: list[Updates], since: int | None) -> Updates:
    """One consolidated batch out of several, times advanced to ``since``.

    Parameters
    ----------
    batches : list of Updates
        Each consolidated and in order.
    since : int or None
        See `pyspark_diff.kernels.replay.compact`.

    Returns
    -------
    Updates

    Examples
    --------
    >>> import numpy as np
    >>> a = Updates(np.array([1, 2]), None, 0, 1)
    >>> b = Updates(np.array([2]), None, 3, -1)
    >>> merge([a, b], 3).key64.tolist()
    [1]
    """
    if sum(map(len, batches)) >= MERGED and all(map(_is_plain, batches)):
        found = _merged(batches, since)
        if found is not None:
            return found
    return consolidate(advanced(concat(batches), since)).updates


def _is_plain(batch: Updates) -> bool:
    """Whether updates are pairs of numbers at one coordinate, and diffs are numbers."""
    return (
        batch.val64 is not None and batch.values is None and batch.columns is None
        and not isinstance(batch.diff, DiffVectors) and not isinstance(batch.coordinate, np.ndarray)
    )


def _merged(batches: list[Updates], since: int | None) -> Updates | None:
    """The batches two by two, the smallest first; None where sums or coordinates ask for more."""
    if len({batch.coordinate for batch in batches}) > 1 or len(batches) < 2:
        return None
    least = np.iinfo(np.int64).min if since is None else since
    held = [(b.key64, b.val64, b.times(), b.diffs()) for b in batches]
    while len(held) > 1:
        held.sort(key=lambda one: one[0].size)
        *rows, count = _merge_two(*held[0], *held[1], least)
        if count < 0:
            return None
        held = [tuple(column[:count] for column in rows), *held[2:]]
    key, value, time, diff = held[0]
    if not key.size:
        return None
    one: Int64 | int = time
    if int(time.min()) == int(time.max()):
        one = int(time[0])
    return Updates(
        key, None, one, diff, value, None, batches[0].ordering, batches[0].coordinate
    )


@kernel(", ".join([*["int64[:]-"] * 8, "int64"]))
def _merge_two(ak, av, at, ad, bk, bv, bt, bd, since):  # type: ignore[no-untyped-def]
    """Rows in order, sums that are zero left out, and their number; -1 where a sum is too large."""
    size = ak.size + bk.size
    key, value = np.empty(size, np.int64), np.empty(size, np.int64)
    time, diff = np.empty(size, np.int64), np.empty(size, np.int64)
    i = j = 0
    n = -1  # the row that is added up
    while i < ak.size or j < bk.size:
        ours = j == bk.size
        if not ours and i < ak.size:
            if ak[i] != bk[j]:
                ours = ak[i] < bk[j]
            elif av[i] != bv[j]:
                ours = av[i] < bv[j]
            else:
                ours = at[i] <= bt[j]
        if ours:
            k, v, t, d = ak[i], av[i], at[i], ad[i]
            i += 1
        else:
            k, v, t, d = bk[j], bv[j], bt[j], bd[j]
            j += 1
        t = max(t, since)
        if n >= 0 and key[n] == k and value[n] == v and time[n] == t:
            total = diff[n] + d
            if (diff[n] < 0) == (d < 0) and (total < 0) != (d < 0):
                return key, value, time, diff, -1
            diff[n] = total
            continue
        if n < 0 or diff[n] != 0:
            n += 1
        key[n] = k
        value[n] = v
        time[n] = t
        diff[n] = d
    if n >= 0 and diff[n] == 0:
        n -= 1
    return key, value, time, diff, n + 1
