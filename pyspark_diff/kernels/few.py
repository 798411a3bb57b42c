"""Consolidation of a few rows of plain numbers, or of their hashes, in one call.

    sums_of_few(U) = consolidate(U)      rows by (key, value, time), equal rows as one, no zeros

The calls make up the cost of a step with a few rows, and here all calls are one.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import kernel

#: No sum of 4,096 smaller diffs leaves 64 bits, and a call has fewer rows.
_SAFE = 2**50


@kernel("int64[:]-, int64[:]-, int64[:]-, int64[:]-, bool")
def sums_of_few(key, value, time, diff, pairs):  # type: ignore[no-untyped-def]
    """Sums of diffs of equal keys, values and times.

    There may be one time and one diff for all rows, and without pairs there are no values.

    Returns the number of rows, or -1 if the diffs are too large for it; the numbers of records and
    keys; and whether all times were equal. The last result is one array, since each array has a
    cost. It has keys, values, times and diffs, the starts of records and of keys, the first input
    row of each row, and the order of the input rows.
    """
    n = key.size
    columns = np.empty((8, n), np.int64)
    keys, values, times, diffs = columns[0], columns[1], columns[2], columns[3]
    starts, key_starts, firsts, order = columns[4], columns[5], columns[6], columns[7]
    many_times, many_diffs = time.size == n, diff.size == n
    same_time, fits = True, True
    for i in range(n):
        k, v, t = key[i], value[i] if pairs else 0, time[i] if many_times else time[0]
        d = diff[i] if many_diffs else diff[0]
        fits = fits and -_SAFE < d < _SAFE
        same_time = same_time and t == time[0]
        j = i
        while j > 0:
            o = order[j - 1]
            if key[o] != k:
                if key[o] < k:
                    break
            elif pairs and value[o] != v:
                if value[o] < v:
                    break
            elif not many_times or time[o] <= t:
                break
            order[j] = o
            j -= 1
        order[j] = i
    count = records = groups = i = 0
    while i < n:
        o = first = order[i]
        k, v, t = key[o], value[o] if pairs else 0, time[o] if many_times else time[0]
        total = 0
        while i < n:
            o = order[i]
            if key[o] != k or (pairs and value[o] != v) or (many_times and time[o] != t):
                break
            total += diff[o] if many_diffs else diff[0]
            i += 1
        if total == 0:
            continue
        if count == 0 or keys[count - 1] != k:
            key_starts[groups] = count
            groups += 1
            starts[records] = count
            records += 1
        elif values[count - 1] != v:
            starts[records] = count
            records += 1
        keys[count], values[count], times[count], diffs[count] = k, v, t, total
        firsts[count] = first
        count += 1
    return count if fits else -1, records, groups, same_time, columns
