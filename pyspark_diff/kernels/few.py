"""Consolidation of a few rows of plain numbers, or of their hashes, in one call.

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

    Gives how many rows there are, or -1 where the diffs are too large for it, how many records and
    keys, and whether all times were alike; and in one array, as each one has its price, keys,
    values, times and diffs, where records and keys begin, which row that was given each one is the
    first of, and the order of those.
    """
    n = key.size
    found = np.empty((8, n), np.int64)
    keys, values, times, diffs = found[0], found[1], found[2], found[3]
    starts, key_starts, firsts, order = found[4], found[5], found[6], found[7]
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
    count = records = groups = i = 0
    while i < n:
        o = first = order[i]
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
        firsts[count] = first
        count += 1
    return count if fits else -1, records, groups, alike, found
