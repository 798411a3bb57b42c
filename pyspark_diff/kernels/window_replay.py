"""The rows of ordered partitions that a change can affect, and these rows before and after it.

The rows of a partition are in the order of their values, each repeated by its count. A function of
a row reads some rows around it, so a change affects only the rows around it: those of a *region*.
With ``S`` the rows of a region and of the reads of functions from there::

    a function of the rows at t  =  the same outside of all regions of t as just before t
    the segments before and after t  =  S just before t, and S at t

A *segment* is one set ``S``. Trees of sums have the counts of the candidates (Fenwick, *A new data
structure for cumulative frequency tables*, 1994). They find the row with a number, and the number
of a row, at the same cost for any number of candidates that have come and gone.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import inlined, jit, kernel
from pyspark_diff.kernels.overflow import sum_leaves

#: Parts of a segment, as entries or rows of its partition: its begin and end; the begin and end of
#: its region; and its time. The sign is -1 before a change, 1 after it, and 0 for the initial
#: state. Then the number of rows of the partition before it, and in total; the last candidate
#: before it, or -1; and its partition.
START, STOP, FIRST, LAST, TIME, SIGN, OFFSET, TOTAL, PREVIOUS, PARTITION = range(10)
_PARTS = 10

#: The reach of a change, and of the reads from there: see `Reach`.
(
    PRECEDING, FOLLOWING, TO_END, TO_START, COUNTED, TIES, EXPAND, INITIAL, VALID_PRECEDING,
    VALID_FOLLOWING,
) = range(10)

#: The status of a replay.
DONE, MORE, OVERFLOW, NEGATIVE = range(4)

#: Number of absent candidates that are skipped one by one before a look-up of the next present one.
_PASSED = 16


@kernel(
    "int64[:], int64[:], int64[:], int64[:], int64[:], bool[:], int64[:], int64[:], int64[:], "
    "int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], int64[:], "
    "int64[:], int64[:], int64"
)
def replay(  # type: ignore[no-untyped-def]
    bounds, was, now, tree_was, tree_now, valid, valid_was, valid_now, tie_low, tie_high,
    changed_low, changed_high, seen_low, seen_high, starts, cand, time, diff, reach, progress, most
):
    """Segments of the events from ``progress`` on, until they have ``most`` entries.

    Candidates ``bounds[g]`` to ``bounds[g + 1]`` of partition ``g`` are in order, with the counts
    ``was`` and ``now``, which are equal between two calls, and the trees of both. If the reach
    needs valid candidates, there are the flags ``valid`` and the trees of valid candidates. Each
    candidate has three ranges: the candidates that it ties with, the ones that a change of it
    affects in any case, and the ones that are read from it in any case. Events ``starts[g]`` to
    ``starts[g + 1]`` are ordered by time, then candidate.

    Returns the status, the entries (candidate, count), and the segments.
    """
    entries = np.empty((1024, 2), np.int64)
    segments = np.empty((16, _PARTS), np.int64)
    n = s = 0
    widest = 0
    for g in range(starts.size - 1):
        widest = max(widest, starts[g + 1] - starts[g])
    regions = np.empty((widest, 3), np.int64)  # candidate, and the region's first and last
    for g in range(progress[0], starts.size - 1):
        b, size = bounds[g], bounds[g + 1] - bounds[g]
        e = progress[1]
        progress[1] = -1
        if e < 0:
            e = starts[g]
            if reach[INITIAL] and size and e < starts[g + 1]:
                entries, segments, n, s = _segment(
                    entries, segments, n, s, was, tree_was, b, size, b, b + size - 1, 1, 0, 0, 0,
                    g, reach[EXPAND],
                )
        while e < starts[g + 1]:
            if n >= most:
                progress[0], progress[1] = g, e
                return MORE, entries[:n], segments[:s]
            when = time[e]
            changed = 0
            while e < starts[g + 1] and time[e] == when:
                c = cand[e]
                change = np.int64(0)
                while e < starts[g + 1] and time[e] == when and cand[e] == c:
                    if sum_leaves(change, diff[e]):
                        return OVERFLOW, entries[:0], segments[:0]
                    change += diff[e]
                    e += 1
                if change == 0:
                    continue
                if sum_leaves(now[c], change):
                    return OVERFLOW, entries[:0], segments[:0]
                now[c] += change
                if now[c] < 0:
                    progress[0], progress[1], progress[2] = c, when, now[c]
                    return NEGATIVE, entries[:0], segments[:0]
                _add(tree_now, b, size, c - b, change)
                if valid.size and valid[c]:
                    _add(valid_now, b, size, c - b, change)
                regions[changed, 0] = c
                changed += 1
            count = _regions(
                regions, changed, was, now, tree_was, tree_now, valid, valid_was, valid_now, b,
                size, changed_low, changed_high, reach,
            )
            for r in range(count):
                low, high = regions[r, 1], regions[r, 2]
                for side in range(2):
                    tree = tree_was if side == 0 else tree_now
                    among = valid_was if side == 0 else valid_now
                    first, last = low, high
                    if reach[PRECEDING]:
                        row = _before(tree, b, low - b) - reach[PRECEDING]
                        first = min(first, b + _find(tree, b, size, max(row, 0)))
                    if reach[VALID_PRECEDING]:
                        row = _before(among, b, low - b) - reach[VALID_PRECEDING]
                        first = min(first, b + _find(among, b, size, max(row, 0)))
                    first = min(first, seen_low[low])
                    if reach[TO_START]:
                        last = b + size - 1
                    elif reach[FOLLOWING]:
                        row = _before(tree, b, high + 1 - b) + reach[FOLLOWING] - 1
                        last = max(last, b + min(_find(tree, b, size, row), size - 1))
                    if reach[VALID_FOLLOWING]:
                        row = _before(among, b, high + 1 - b) + reach[VALID_FOLLOWING] - 1
                        last = max(last, b + min(_find(among, b, size, row), size - 1))
                    last = max(last, seen_high[high])
                    if reach[TIES]:
                        first, last = tie_low[first], tie_high[last]
                    entries, segments, n, s = _segment(
                        entries, segments, n, s, was if side == 0 else now, tree, b, size, first,
                        last, low, high, when, 2 * side - 1, g, reach[EXPAND],
                    )
            for r in range(changed):
                c = regions[r, 0]
                _add(tree_was, b, size, c - b, now[c] - was[c])
                if valid.size and valid[c]:
                    _add(valid_was, b, size, c - b, now[c] - was[c])
                was[c] = now[c]
    return DONE, entries[:n], segments[:s]


@jit
def _regions(  # type: ignore[no-untyped-def]
    regions, changed, was, now, tree_was, tree_now, valid, valid_was, valid_now, b, size,
    changed_low, changed_high, reach
):
    """Write the regions of some changed candidates; returns their number."""
    delta = np.int64(0)
    for i in range(changed):
        c = regions[i, 0]
        low, high = changed_low[c], changed_high[c]
        delta += now[c] - was[c]
        for tree in (tree_was, tree_now):
            if reach[FOLLOWING]:
                row = _before(tree, b, c - b) - reach[FOLLOWING]
                low = min(low, b + _find(tree, b, size, max(row, 0)))
            if reach[PRECEDING]:
                row = _before(tree, b, c + 1 - b) + reach[PRECEDING] - 1
                high = max(high, b + min(_find(tree, b, size, row), size - 1))
        if valid.size and valid[c]:
            for tree in (valid_was, valid_now):
                if reach[VALID_PRECEDING]:
                    row = _before(tree, b, c + 1 - b) + reach[VALID_PRECEDING] - 1
                    high = max(high, b + min(_find(tree, b, size, row), size - 1))
                if reach[VALID_FOLLOWING]:
                    row = _before(tree, b, c - b) - reach[VALID_FOLLOWING]
                    low = min(low, b + _find(tree, b, size, row) if row >= 0 else b)
        if reach[TO_START]:
            low = b
        if reach[TO_END]:
            high = b + size - 1
        if reach[COUNTED] and delta != 0:
            # Until the same number of rows has come as has gone, all places differ.
            high = max(high, regions[i + 1, 0] if i + 1 < changed else b + size - 1)
        regions[i, 1], regions[i, 2] = low, high
    # A candidate with a value may affect rows before other changed candidates that precede it.
    for i in range(changed - 2, -1, -1):
        regions[i, 1] = min(regions[i, 1], regions[i + 1, 1])
    count = 0
    for i in range(changed):
        if count and regions[i, 1] <= regions[count - 1, 2] + 1:
            regions[count - 1, 2] = max(regions[count - 1, 2], regions[i, 2])
        else:
            regions[count, 1], regions[count, 2] = regions[i, 1], regions[i, 2]
            count += 1
    return count


@jit
def _segment(  # type: ignore[no-untyped-def]
    entries, segments, n, s, counts, tree, b, size, first, last, low, high, when, sign, g, expand
):
    """Append the entries of the candidates from ``first`` to ``last``."""
    if s == segments.shape[0]:
        segments = _grown(segments, s, s + 1)
    before = _before(tree, b, first - b)
    segments[s, START] = segments[s, FIRST] = n
    segments[s, TIME] = when
    segments[s, SIGN] = sign
    segments[s, OFFSET] = before
    segments[s, TOTAL] = _before(tree, b, size)
    segments[s, PREVIOUS] = b + _find(tree, b, size, before - 1) if before else -1
    segments[s, PARTITION] = g
    begun = ended = False
    passed = 0
    c = first
    while c <= last:
        count = counts[c]
        if count <= 0:
            passed += 1
            c += 1
            if passed > _PASSED and c <= last:
                c = b + _find(tree, b, size, _before(tree, b, c - b))
                passed = 0
            continue
        if not begun and c >= low:
            segments[s, FIRST] = n
            begun = True
        if not ended and c > high:
            segments[s, LAST] = n
            ended = True
        if expand:
            if n + count > entries.shape[0]:
                entries = _grown(entries, n, n + count)
            for _ in range(count):
                entries[n, 0] = c
                entries[n, 1] = 1
                n += 1
        else:
            if n == entries.shape[0]:
                entries = _grown(entries, n, n + 1)
            entries[n, 0] = c
            entries[n, 1] = count
            n += 1
        c += 1
    if not begun:
        segments[s, FIRST] = n
    if not ended:
        segments[s, LAST] = n
    segments[s, STOP] = n
    if sign == 0:
        segments[s, FIRST] = segments[s, LAST] = n
    return entries, segments, n, s + 1


@inlined
def _before(tree, b, c):  # type: ignore[no-untyped-def]
    """The number of rows of the first ``c`` candidates of a partition."""
    total = np.int64(0)
    while c > 0:
        total += tree[b + c - 1]
        c -= c & -c
    return total


@jit
def _find(tree, b, size, row):  # type: ignore[no-untyped-def]
    """The candidate that has the row with a number, counted from the first one of the partition;
    the number of candidates if none has it."""
    step = 1
    while 2 * step <= size:
        step *= 2
    position = 0
    while step > 0:
        if position + step <= size and tree[b + position + step - 1] <= row:
            position += step
            row -= tree[b + position - 1]
        step //= 2
    return position


@inlined
def _add(tree, b, size, c, change):  # type: ignore[no-untyped-def]
    i = c + 1
    while i <= size:
        tree[b + i - 1] += change
        i += i & -i


@kernel("int64[:], int64[:]")
def tree_of(bounds, counts):  # type: ignore[no-untyped-def]
    """The tree of sums of each partition's counts."""
    tree = counts.copy()
    for g in range(bounds.size - 1):
        b, size = bounds[g], bounds[g + 1] - bounds[g]
        for i in range(1, size + 1):
            if i + (i & -i) <= size:
                tree[b + i + (i & -i) - 1] += tree[b + i - 1]
    return tree


@kernel("int64[:], int64[:]")
def ties_of(bounds, tie):  # type: ignore[no-untyped-def]
    """For each candidate the first and the last candidate of its partition that it ties with."""
    low, high = np.empty(tie.size, np.int64), np.empty(tie.size, np.int64)
    for g in range(bounds.size - 1):
        first = bounds[g]
        for c in range(bounds[g], bounds[g + 1]):
            if tie[c] != tie[first]:
                first = c
            low[c] = first
        last = bounds[g + 1] - 1
        for c in range(bounds[g + 1] - 1, bounds[g] - 1, -1):
            if tie[c] != tie[last]:
                last = c
            high[c] = last
    return low, high


@jit
def _grown(rows, n, least):  # type: ignore[no-untyped-def]
    more = np.empty((max(2 * rows.shape[0], least), rows.shape[1]), np.int64)
    for i in range(n):
        for part in range(rows.shape[1]):
            more[i, part] = rows[i, part]
    return more
