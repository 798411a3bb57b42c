"""Sorting inside of many groups at once: most are small, and a single group may have all rows.

A sort of all rows by (group, first, second) has to pack the three into one number, and moves rows
that are in their group already. This sort never reads beyond a group.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.updates import Int64

#: Runs of this length are sorted by insertion, and merged to longer ones.
_RUN = 16


def sort_within(starts: Int64, first: Int64, second: Int64) -> Int64:
    """Rows in the order of two columns, group by group.

    Parameters
    ----------
    starts : ndarray of int64, shape (groups + 1,)
        The begin of each group's rows, and the end of the last group's.
    first, second : ndarray of int64, shape (rows,)

    Returns
    -------
    ndarray of int64, shape (rows,)
        The rows of the first group in order, then those of the second, and so on; rows that are
        equal in both columns keep their order.

    Examples
    --------
    >>> sort_within(np.array([0, 3, 5]), np.array([2, 1, 1, 9, 8]), np.array([0, 5, 4, 0, 0]))
    array([2, 1, 0, 4, 3])
    """
    return _sort(starts, np.ascontiguousarray(first), np.ascontiguousarray(second))


@kernel("int64[:], int64[:], int64[:]")
def _sort(starts, first, second):  # type: ignore[no-untyped-def]
    order = np.arange(first.size)
    spare = np.empty(first.size, np.int64)
    for g in range(starts.size - 1):
        begin, end = starts[g], starts[g + 1]
        for low in range(begin, end, _RUN):
            for i in range(low + 1, min(low + _RUN, end)):
                row = order[i]
                j = i - 1
                while j >= low and (
                    first[order[j]] > first[row]
                    or (first[order[j]] == first[row] and second[order[j]] > second[row])
                ):
                    order[j + 1] = order[j]
                    j -= 1
                order[j + 1] = row
        width = _RUN
        while width < end - begin:
            for low in range(begin, end, 2 * width):
                middle = min(low + width, end)
                high = min(low + 2 * width, end)
                i, j = low, middle
                for k in range(low, high):
                    right = i == middle
                    if not right and j < high:
                        a, b = order[i], order[j]
                        right = first[b] < first[a] or (
                            first[b] == first[a] and second[b] < second[a]
                        )
                    if right:
                        spare[k] = order[j]
                        j += 1
                    else:
                        spare[k] = order[i]
                        i += 1
            for k in range(begin, end):
                order[k] = spare[k]
            width *= 2
    return order
