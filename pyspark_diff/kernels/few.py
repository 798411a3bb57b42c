"""Consolidation of a few rows of plain numbers, in one call.

    sums_of_few(U) = consolidate(U)      rows by (key, value, time), equal ones as one, no zeros

What a step of a few rows costs are the calls that it makes, and here all of them are one.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import kernel

#: So many rows are few: they are put in order one by one.
FEW = 128
#: No sum of so few smaller diffs leaves 64 bits.
_SAFE = 2**62 // FEW


@kernel("int64[:]-, int64[:]-, int64[:]-, int64[:]-, bool")
def sums_of_few(key, value, time, diff, pairs):  # type: ignore[no-untyped-def]
    """Sums of diffs of equal keys, values and times.

    Of times and diffs there may be one for all rows, and without pairs no values.

    Gives how many rows there are, or -1 where the diffs are too large for it; whether all times
    were alike; keys, values, times and diffs; and where records and keys begin.
    """
    n = key.size
    order = np.empty(n, np.int64)
    every_time, every_diff = time.size == n, diff.size == n
    alike, fits = True, True
    for i in range(n):
        k, v, t = key[i], value[i] if pairs else 0, time[i] if every_time else time[0]
        d = diff[i] if every_diff else diff[0]
        fits = fits and -_SAFE < d < _SAFE
        alike = alike and t == time[0]
        j = i
        while j > 0:
            o = order[j - 1]
            if key[o] != k:
                if key[o] < k:
                    break
            elif pairs and value[o] != v:
                if value[o] < v:
                    break
            elif not every_time or time[o] <= t:
                break
            order[j] = o
            j -= 1
        order[j] = i
    keys, values, times = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    diffs, starts = np.empty(n, np.int64), np.empty(n, np.int64)
    key_starts = np.empty(n, np.int64)
    count = records = groups = i = 0
    while i < n:
        o = order[i]
        k, v, t = key[o], value[o] if pairs else 0, time[o] if every_time else time[0]
        total = 0
        while i < n:
            o = order[i]
            if key[o] != k or (pairs and value[o] != v) or (every_time and time[o] != t):
                break
            total += diff[o] if every_diff else diff[0]
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
        count += 1
    return (
        count if fits else -1, alike, keys[:count], values[:count], times[:count], diffs[:count],
        starts[:records], key_starts[:groups],
    )
