"""The results of window functions on segments: see `pyspark_diff.kernels.window_replay`.

With the entries ``e`` of a segment in order, and the frame of an entry from ``low`` to ``high``
(exclusive)::

    picked    the first, last, least or greatest of the entries in the frame
    nth       the n-th row in the frame, from either end
    summed    sum(count * vector of the candidate: entries in the frame)

A frame that begins with its partition has more entries than its segment. Each kernel stores the
running result of each entry's candidate, and reads the stored result of the last candidate before a
segment. So every entry of a segment stores its result: the segments of a partition come in the
order of time, and all entries after a change are in a segment.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.diff_vectors import COUNTER_OVERFLOW, MULTIPLICITY
from pyspark_diff.kernels.double_word import pair_sum
from pyspark_diff.kernels.jit import inlined, jit, kernel
from pyspark_diff.kernels.overflow import sum_leaves
from pyspark_diff.kernels.window_replay import (
    FIRST,
    LAST,
    OFFSET,
    PREVIOUS,
    SIGN,
    START,
    STOP,
)

#: The picks of a frame: the first or the last of all rows or of the valid ones, the least, the
#: greatest.
FIRST_OF, LAST_OF, LEAST_OF, GREATEST_OF = range(4)

#: The limit of counts that vectors are multiplied with.
_LARGE = 1 << 31


@kernel("int64[:,:], int64[:,:], int64[:]")
def places(entries, segments, tie):  # type: ignore[no-untyped-def]
    """For each entry the number of rows of its partition before it, before its ties, and up to the
    last of its ties."""
    count = entries.shape[0]
    own, low, high = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    for s in range(segments.shape[0]):
        start, stop = segments[s, START], segments[s, STOP]
        row = segments[s, OFFSET]
        first = start
        for i in range(start, stop):
            own[i] = row
            if tie[entries[i, 0]] != tie[entries[first, 0]]:
                for k in range(first, i):
                    high[k] = row
                first = i
            low[i] = own[first]
            row += entries[i, 1]
        for k in range(first, stop):
            high[k] = row
    return own, low, high


@kernel("int64[:,:], int64[:,:], int64[:], int64[:]")
def dense_ranks(entries, segments, tie, record):  # type: ignore[no-untyped-def]
    """The number of different ties up to each entry; ``record`` stores it for each candidate."""
    ranks = np.empty(entries.shape[0], np.int64)
    for s in range(segments.shape[0]):
        before = segments[s, PREVIOUS]
        rank = record[before] if before >= 0 else np.int64(0)
        for i in range(segments[s, START], segments[s, STOP]):
            c = entries[i, 0]
            if before < 0 or tie[before] != tie[c]:
                rank += 1
            ranks[i] = record[c] = rank
            before = c
    return ranks


@kernel("int64[:,:]")
def emitted(segments):  # type: ignore[no-untyped-def]
    """The entries of all regions, and the segment of each entry."""
    count = 0
    for s in range(segments.shape[0]):
        count += segments[s, LAST] - segments[s, FIRST]
    at, owner = np.empty(count, np.int64), np.empty(count, np.int64)
    n = 0
    for s in range(segments.shape[0]):
        for i in range(segments[s, FIRST], segments[s, LAST]):
            at[n], owner[n] = i, s
            n += 1
    return at, owner


@kernel("int64[:,:], int64[:,:], int64[:], int64[:]")
def frames_of(entries, segments, first, last):  # type: ignore[no-untyped-def]
    """The frame of each entry in a region: the entries of candidates from ``first`` to ``last`` of
    its own candidate. Both are ascending for ascending candidates."""
    count = 0
    for s in range(segments.shape[0]):
        count += segments[s, LAST] - segments[s, FIRST]
    low, high = np.empty(count, np.int64), np.empty(count, np.int64)
    n = 0
    for s in range(segments.shape[0]):
        begin = end = segments[s, START]
        stop = segments[s, STOP]
        for i in range(segments[s, FIRST], segments[s, LAST]):
            c = entries[i, 0]
            while begin < stop and entries[begin, 0] < first[c]:
                begin += 1
            while end < stop and entries[end, 0] <= last[c]:
                end += 1
            low[n], high[n] = begin, max(begin, end)
            n += 1
    return low, high


@kernel(
    "int64[:,:], int64[:,:], int64[:], int64[:], bool[:], int64[:], int64, bool, int64[:]"
)
def picked(  # type: ignore[no-untyped-def]
    entries, segments, low, high, valid, code, what, running, record
):
    """The picked candidate of each frame, or -1.

    Parameters
    ----------
    entries, segments : ndarray of int64
    low, high : ndarray of int64
        The frame of each entry in a region; both are ascending inside of a segment.
    valid : ndarray of bool
        Whether a candidate may be picked.
    code : ndarray of int64
        The code of each candidate, for the least and the greatest.
    what : int
    running : bool
        Whether frames begin with their partition.
    record : ndarray of int64
        If they do, the stored pick of each candidate.
    """
    out = np.empty(low.size, np.int64)
    widest = 0
    for s in range(segments.shape[0]):
        widest = max(widest, segments[s, STOP] - segments[s, START])
    queue = np.empty(0 if running else widest, np.int64)
    n = 0
    for s in range(segments.shape[0]):
        start, stop = segments[s, START], segments[s, STOP]
        until = n + segments[s, LAST] - segments[s, FIRST]
        if running:
            previous = segments[s, PREVIOUS]
            best = record[previous] if previous >= 0 else np.int64(-1)
            for i in range(start, stop):
                while n < until and high[n] <= i:
                    out[n] = best
                    n += 1
                c = entries[i, 0]
                if valid[c] and (best < 0 or _better(code, what, c, best)):
                    best = c
                record[c] = best
            while n < until:
                out[n] = best
                n += 1
            continue
        # The entries that may still be picked; the next pick is at the front.
        head = tail = 0
        i = start
        while n < until:
            while i < high[n]:
                c = entries[i, 0]
                if valid[c]:
                    if what != FIRST_OF:
                        while tail > head and _better(code, what, c, entries[queue[tail - 1], 0]):
                            tail -= 1
                    queue[tail] = i
                    tail += 1
                i += 1
            while head < tail and queue[head] < low[n]:
                head += 1
            out[n] = entries[queue[head], 0] if head < tail else -1
            n += 1
    return out


@kernel("int64[:,:], int64[:,:], int64[:], int64[:], bool[:], int64, bool, int64[:,:]")
def nth(  # type: ignore[no-untyped-def]
    entries, segments, low, high, valid, number, running, record
):
    """The candidate of the row with a number in each frame, or -1.

    Parameters
    ----------
    entries, segments, low, high, valid
        As in `picked`.
    number : int
        From 1 on, or from the end from -1 on.
    running : bool
        Whether frames begin with their partition, outside of the segment. Of the numbers from
        the end, only the last one is supported for these.
    record : ndarray of int64
        If they do, the stored candidate, and the number of rows up to each candidate.
    """
    out = np.empty(low.size, np.int64)
    widest = 0
    for s in range(segments.shape[0]):
        widest = max(widest, segments[s, STOP] - segments[s, START])
    # The number of rows before each entry of a segment.
    rows = np.empty(widest + 1, np.int64)
    n = 0
    for s in range(segments.shape[0]):
        start, stop = segments[s, START], segments[s, STOP]
        until = n + segments[s, LAST] - segments[s, FIRST]
        if running:
            previous = segments[s, PREVIOUS]
            best = record[previous, 0] if previous >= 0 else np.int64(-1)
            count = record[previous, 1] if previous >= 0 else np.int64(0)
            for i in range(start, stop):
                while n < until and high[n] <= i:
                    out[n] = best
                    n += 1
                c = entries[i, 0]
                if valid[c]:
                    if number == -1 or count < number <= count + entries[i, 1]:
                        best = c
                    count += entries[i, 1]
                record[c, 0], record[c, 1] = best, count
            while n < until:
                out[n] = best
                n += 1
            continue
        rows[0] = 0
        for i in range(start, stop):
            rows[i + 1 - start] = rows[i - start] + (entries[i, 1] if valid[entries[i, 0]] else 0)
        while n < until:
            before, after = rows[low[n] - start], rows[high[n] - start]
            wanted = before + number if number > 0 else after + number + 1
            out[n] = -1
            if before < wanted <= after:
                left, right = low[n], high[n] - 1
                while left < right:
                    middle = (left + right) // 2
                    if rows[middle + 1 - start] < wanted:
                        left = middle + 1
                    else:
                        right = middle
                out[n] = entries[left, 0]
            n += 1
    return out


@inlined
def _better(code, what, c, than):  # type: ignore[no-untyped-def]
    """Whether a candidate is picked in preference to an earlier one."""
    if what == FIRST_OF:
        return False
    if what == LAST_OF:
        return True
    return code[c] < code[than] if what == LEAST_OF else code[c] > code[than]


@kernel(
    "int64[:,:], int64[:,:], int64[:], int64[:], int64[:,:]-, float64[:,:]-, int64[:], bool, "
    "int64[:,:], float64[:,:], int64[:,:], float64[:,:]"
)
def summed(  # type: ignore[no-untyped-def]
    entries, segments, low, high, units, unit_reals, role, running, record, record_reals, out,
    out_reals
):
    """The sum of the candidates' vectors over each frame, in the order of the entries.

    Sums of doubles depend only on the content of the frame, not on its history: no value is
    subtracted from them. If frames do not begin with their partition, each is summed separately.
    """
    status = 0
    width = role.size
    paired = False
    for k in range(width):
        paired |= role[k] != 0
    sums = np.zeros((1, width), np.int64)
    sum_reals = sums.view(np.float64)
    n = 0
    for s in range(segments.shape[0]):
        start, stop = segments[s, START], segments[s, STOP]
        until = n + segments[s, LAST] - segments[s, FIRST]
        for k in range(width):
            sums[0, k] = 0
        if running:
            previous = segments[s, PREVIOUS]
            if previous >= 0:
                for k in range(width):
                    sums[0, k] = record[previous, k]
            for i in range(start, stop):
                while n < until and high[n] <= i:
                    _copy(sums, 0, out, n)
                    n += 1
                c, count = entries[i, 0], entries[i, 1]
                status |= _add(units, unit_reals, c, count, role, sums, sum_reals, 0)
                _copy(sums, 0, record, c)
            while n < until:
                _copy(sums, 0, out, n)
                n += 1
            continue
        if paired:
            while n < until:
                for i in range(low[n], high[n]):
                    c, count = entries[i, 0], entries[i, 1]
                    status |= _add(units, unit_reals, c, count, role, out, out_reals, n)
                n += 1
            continue
        begin = end = start
        while n < until:
            while end < high[n]:
                c, count = entries[end, 0], entries[end, 1]
                status |= _add(units, unit_reals, c, count, role, sums, sum_reals, 0)
                end += 1
            while begin < low[n]:
                c, count = entries[begin, 0], entries[begin, 1]
                status |= _add(units, unit_reals, c, -count, role, sums, sum_reals, 0)
                begin += 1
            _copy(sums, 0, out, n)
            n += 1
    return status


@inlined
def _copy(sums, row, out, at):  # type: ignore[no-untyped-def]
    for k in range(sums.shape[1]):
        out[at, k] = sums[row, k]


@jit
def _add(units, unit_reals, row, count, role, sums, reals, at):  # type: ignore[no-untyped-def]
    """Add a vector ``count`` times."""
    status = 0
    if abs(count) >= _LARGE:
        return MULTIPLICITY
    for k in range(role.size):
        if role[k] == 0:
            more = units[row, k] * count
            if sum_leaves(sums[at, k], more):
                status |= COUNTER_OVERFLOW
            sums[at, k] += more
        elif role[k] == 1:
            a, b = unit_reals[row, k], unit_reals[row, k + 1]
            left = count
            while left > 0:
                if left & 1:
                    reals[at, k], reals[at, k + 1] = pair_sum(
                        reals[at, k], reals[at, k + 1], a, b
                    )
                left >>= 1
                if left:
                    a, b = pair_sum(a, b, a, b)
    return status


@kernel("int64[:,:], int64[:,:]")
def pairs_of(entries, segments):  # type: ignore[no-untyped-def]
    """The entries in regions that may be equal before and after a change.

    Returns pairs of entries, before and after, for the same copy of a candidate; and the entries
    before and after that have no counterpart. Entries are numbered in the order of `emitted`.
    """
    most = 0
    for s in range(segments.shape[0]):
        most += segments[s, LAST] - segments[s, FIRST]
    pair = np.empty((most, 2), np.int64)
    gone, come = np.empty(most, np.int64), np.empty(most, np.int64)
    p = g = c = n = 0
    for s in range(segments.shape[0]):
        if segments[s, SIGN] != -1:
            continue
        i, last = segments[s, FIRST], segments[s, LAST]
        j, other = segments[s + 1, FIRST], segments[s + 1, LAST]
        # The number of an entry is its distance from the first entry in a region.
        left, right = n - i, n + last - i - j
        n += last - i + other - j
        while i < last or j < other:
            if j == other or (i < last and entries[i, 0] < entries[j, 0]):
                gone[g] = left + i
                g += 1
                i += 1
            elif i == last or entries[j, 0] < entries[i, 0]:
                come[c] = right + j
                c += 1
                j += 1
            else:
                pair[p, 0], pair[p, 1] = left + i, right + j
                p += 1
                i += 1
                j += 1
    return pair[:p], gone[:g], come[:c]


@kernel("int64[:], int64[:], bool[:], int64[:], int64[:]")
def range_frames(bounds, code, valid, low_code, high_code):  # type: ignore[no-untyped-def]
    """For each valid candidate the first and the last one whose code lies between its limits.

    The valid candidates of a partition are adjacent. Their codes and both limits are ascending.
    """
    low, high = np.zeros(code.size, np.int64), np.zeros(code.size, np.int64)
    for g in range(bounds.size - 1):
        begin, stop = bounds[g], bounds[g + 1]
        while begin < stop and not valid[begin]:
            begin += 1
        while stop > begin and not valid[stop - 1]:
            stop -= 1
        i = j = begin
        for c in range(begin, stop):
            while i < stop and code[i] < low_code[c]:
                i += 1
            while j < stop and code[j] <= high_code[c]:
                j += 1
            low[c], high[c] = i, j - 1
    return low, high


@kernel("int64[:], int64[:], int64[:]")
def changed_by(bounds, first, last):  # type: ignore[no-untyped-def]
    """For each candidate the first and the last one whose frame may contain it, itself included.

    Frames are from the candidate ``first`` to ``last``, and both are ascending.
    """
    low, high = np.empty(first.size, np.int64), np.empty(first.size, np.int64)
    for g in range(bounds.size - 1):
        i = j = bounds[g]
        for c in range(bounds[g], bounds[g + 1]):
            while i < c and last[i] < c:
                i += 1
            while j + 1 < bounds[g + 1] and first[j + 1] <= c:
                j += 1
            low[c], high[c] = min(i, c), max(j, c)
    return low, high
