"""The join of one coordinate of a loop, over indices by key: all keys in one compiled call.

New updates of one side meet all updates of the other side, as in `pyspark_diff.kernels.join`::

    output = { (a, b, max(times), lub(coordinates)): diff * diff : a new, b of the other side }

If all matches of a key are from before the step, the join multiplies them out. Other keys are
replayed in order of time, with the present values of both sides. Values that are never present at
the same time never meet, so the number of pairs follows the changes of the result, not the product
of the lengths of two histories.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.jit import inlined, jit, kernel
from pyspark_diff.kernels.join import TOO_LARGE, changed
from pyspark_diff.kernels.key_index import (
    AT,
    COUNT,
    DIFF,
    DIFF_OF_ALL,
    DIFFS,
    FIRST,
    HEAD,
    KEY,
    KEYS,
    LENGTH,
    LIVE,
    LOADED,
    NEXT,
    PAST,
    PLACE_OF_ALL,
    PLACES,
    RANK,
    TIME,
    TIME_OF_ALL,
    TIMES,
    TOP,
    VALUE,
    VALUES,
    WIDE,
    KeyIndex,
    brought,
    bucket_of,
    copied,
    gathered,
    grown,
    large,
    most_files,
    ordered,
    part,
    slot_of,
    summed,
    word,
)
from pyspark_diff.kernels.overflow import product_leaves
from pyspark_diff.kernels.search import BLOCK
from pyspark_diff.kernels.updates import Int64

#: Rows of the result: key, the value of the new update, the value of its match, time, diff,
#: coordinate.
OURS_KEY, OURS, THEIRS, WHEN, PRODUCT, WHERE = range(6)


def join_new(
    keys: Int64, values: Int64, times: Int64, diffs: Int64, theirs: KeyIndex, at: int, most: int,
    keyed: bool = True, placed: bool = True,
) -> Int64 | None:
    """Pairs of new updates at a coordinate with all updates of the other side.

    Parameters
    ----------
    keys, values, times, diffs : ndarray of int64
        Consolidated, ordered by (key, value, time).
    at : int
        The coordinate of the visit, packed; of a single loop.
    keyed, placed : bool
        Whether the caller reads keys and coordinates; else their rows are not written.

    Returns
    -------
    ndarray of int64, shape (6, pairs), or None
        By key. None if there are more than `most` pairs, or diffs are too large.

    Raises
    ------
    DiffOverflowError
        If a product of diffs leaves 64 bits.
    """
    theirs.room(keys.size)
    pairs, arena, n = _join(
        theirs.table, theirs.slots, theirs.arena, theirs.added, theirs.counts, theirs.files,
        theirs.first, theirs.narrow, keys, values, times, diffs, at, most, keyed, placed,
    )
    theirs.arena = arena
    if n == -1:
        raise DiffOverflowError(TOO_LARGE)
    return None if n < 0 or theirs.wide else pairs[:, :n]


@kernel(
    "int64[:], int64[:,:], int64[:,:], int64[:,:], int64[:], int64[:,:], int64[:], bool, "
    "int64[:]-, int64[:]-, int64[:]-, int64[:]-, int64, int64, bool, bool"
)
def _join(  # type: ignore[no-untyped-def]
    table, slots, arena, added, counts, files, first, narrow, keys, values, times, diffs, at, most,
    keyed, placed,
):
    out = np.empty((6, 2 * keys.size + 64), np.int64)
    n = 0
    cursors = np.zeros(files.shape[0], np.int64)
    found_slots, rows = np.empty(BLOCK, np.int64), np.empty((BLOCK, most_files(first)), np.int64)
    base = ready = 0
    spare = np.empty((64, 5), np.int64)
    ours = np.empty((64, 5), np.int64)
    # Sums, present values, the place of each among them, and an event of each: ours, and theirs.
    our_sums, our_live, our_place, our_event = _sides(64)
    sums, live, place, event = _sides(64)
    stop = 0
    while stop < keys.size:
        start = stop
        key = keys[start]
        while stop < keys.size and keys[stop] == key:
            stop += 1
        if start >= ready:
            base, ready = start, min(start + BLOCK, keys.size)
            brought(
                table, slots, arena, counts, files, first, narrow, keys, base, ready, cursors,
                False, found_slots, rows,
            )
        s = found_slots[start - base]
        if s < 0 or slots[s, LOADED] == 0:
            bucket = bucket_of(first, narrow, key)
            for f in range(first[bucket], first[bucket + 1]):
                cursors[f] = rows[start - base, f - first[bucket]]
        if s < 0 or (slots[s, LOADED] == 0 and slots[s, HEAD] < 0):
            # Most keys are in only one batch: their rows need not be copied.
            batches = 0
            batch = -1
            for f in range(first[bucket], first[bucket + 1]):
                row = cursors[f]
                if row < files[f, LENGTH] and word(files[f, KEYS] + 8 * row) == key:
                    batches += 1
                    batch = f
            if batches == 0:
                continue
            simple = batches == 1 and files[batch, TIMES] == 0 and files[batch, PLACES] == 0
            if simple and files[batch, PLACE_OF_ALL] <= at:
                begin = cursors[batch]
                end = begin
                while end < files[batch, LENGTH] and word(files[batch, KEYS] + 8 * end) == key:
                    end += 1
                out = _room(out, n, n + (end - begin) * (stop - start), start / keys.size, most)
                for i in range(start, stop):
                    time = max(times[i], files[batch, TIME_OF_ALL])
                    for row in range(begin, end):
                        value = part(files, batch, VALUES, VALUES, row)
                        diff = part(files, batch, DIFFS, DIFF_OF_ALL, row)
                        n = _pair(
                            out, n, key, values[i], value, time, diff, diffs[i], at, keyed, placed
                        )
                        if n < 0:
                            return out, arena, n
                if n > most:
                    return out, arena, -2
                continue
            s = slot_of(table, slots, counts, key, True)
        if slots[s, LOADED] == 0 or slots[s, HEAD] >= 0:
            arena, spare = _ready(
                slots, s, arena, added, counts, files, first, narrow, cursors, at, spare
            )
        begin = slots[s, FIRST]
        end = begin + slots[s, COUNT]
        if begin == end:
            continue
        if arena[end - 1, TIME] == PAST:
            out = _room(out, n, n + (end - begin) * (stop - start), start / keys.size, most)
            for i in range(start, stop):
                for j in range(begin, end):
                    n = _pair(
                        out, n, key, values[i], arena[j, VALUE], times[i], arena[j, DIFF],
                        diffs[i], max(at, arena[j, AT]), keyed, placed,
                    )
                    if n < 0:
                        return out, arena, n
            if n > most:
                return out, arena, -2
            continue
        count = stop - start
        if ours.shape[0] < count:
            ours = np.empty((2 * count, 5), np.int64)
        rank = -1
        for i in range(count):
            if i == 0 or values[start + i] != values[start + i - 1]:
                rank += 1
            ours[i, VALUE] = values[start + i]
            ours[i, TIME] = times[start + i]
            ours[i, AT] = at
            ours[i, DIFF] = diffs[start + i]
            if large(diffs[start + i]):
                counts[WIDE] = 1
            ours[i, RANK] = rank
        spare = ordered(ours, 0, count, TIME, RANK, AT, spare)
        least = max(count, end - begin)
        if sums.size < least:
            our_sums, our_live, our_place, our_event = _sides(2 * least)
            sums, live, place, event = _sides(2 * least)
        their_count = 0
        our_count = 0
        i = 0
        j = begin
        # Values that come and go before our first event meet nothing.
        while j < end and arena[j, TIME] < ours[0, TIME]:
            r = arena[j, RANK]
            event[r] = j
            their_count = changed(r, arena[j, DIFF], sums, live, place, their_count)
            j += 1
        while i < count or (j < end and our_count > 0):
            out = _room(out, n, n + max(their_count, our_count), start / keys.size, most)
            if j == end or (i < count and ours[i, TIME] <= arena[j, TIME]):
                for k in range(their_count):
                    r = live[k]
                    e = event[r]
                    n = _pair(
                        out, n, key, ours[i, VALUE], arena[e, VALUE], ours[i, TIME], sums[r],
                        ours[i, DIFF], max(at, arena[e, AT]), keyed, placed,
                    )
                    if n < 0:
                        return out, arena, n
                r = ours[i, RANK]
                our_event[r] = i
                our_count = changed(r, ours[i, DIFF], our_sums, our_live, our_place, our_count)
                i += 1
            else:
                r = arena[j, RANK]
                for k in range(our_count):
                    e = our_event[our_live[k]]
                    n = _pair(
                        out, n, key, ours[e, VALUE], arena[j, VALUE], arena[j, TIME],
                        our_sums[our_live[k]], arena[j, DIFF], max(at, arena[j, AT]),
                        keyed, placed,
                    )
                    if n < 0:
                        return out, arena, n
                event[r] = j
                their_count = changed(r, arena[j, DIFF], sums, live, place, their_count)
                j += 1
            if n > most:
                return out, arena, -2
        for k in range(their_count):
            sums[live[k]] = 0
        for k in range(our_count):
            our_sums[our_live[k]] = 0
    return out, arena, n


@inlined
def _ready(  # type: ignore[no-untyped-def]
    slots, s, arena, added, counts, files, first, narrow, cursors, at, spare
):
    """Bring the events of a key together, in order of time and with ranks. Events at reached
    coordinates get one coordinate."""
    begin = counts[TOP]
    count = slots[s, COUNT]
    arena = grown(arena, begin, begin + count)
    for i in range(count):
        copied(arena, slots[s, FIRST] + i, arena, begin + i)
    top = begin + count
    key = slots[s, KEY]
    if slots[s, LOADED] == 0:
        bucket = bucket_of(first, narrow, key)
        arena, top = gathered(
            arena, top, files, first[bucket], first[bucket + 1], cursors, key, counts
        )
        slots[s, LOADED] = 1
    entry = slots[s, HEAD]
    while entry >= 0:
        arena = grown(arena, top, top + 1)
        copied(added, entry, arena, top)
        top += 1
        entry = added[entry, NEXT]
    slots[s, HEAD] = -1
    for i in range(begin, top):
        if arena[i, AT] <= at:
            arena[i, AT] = 0
    spare = ordered(arena, begin, top, VALUE, AT, TIME, spare)
    top = summed(arena, begin, top)
    rank = -1
    for i in range(begin, top):
        other = i == begin or arena[i, VALUE] != arena[i - 1, VALUE]
        if other or arena[i, AT] != arena[i - 1, AT]:
            rank += 1
        arena[i, RANK] = rank
    spare = ordered(arena, begin, top, TIME, RANK, AT, spare)
    slots[s, FIRST] = begin
    slots[s, COUNT] = top - begin
    counts[TOP] = top
    counts[LIVE] += top - begin - count
    return arena, spare


@inlined
def _pair(  # type: ignore[no-untyped-def]
    out, n, key, ours, theirs, time, a, b, at, keyed, placed
):
    """Write a pair; returns the number of pairs, or -1 if the product of the diffs is too large."""
    if product_leaves(a, b):
        return -1
    if keyed:
        out[OURS_KEY, n] = key
    out[OURS, n] = ours
    out[THEIRS, n] = theirs
    out[WHEN, n] = time
    out[PRODUCT, n] = a * b
    if placed:
        out[WHERE, n] = at
    return n + 1


@jit
def _sides(size):  # type: ignore[no-untyped-def]
    work = np.zeros((4, size), np.int64)
    return work[0], work[1], work[2], work[3]


@inlined
def _room(out, n, least, done, most):  # type: ignore[no-untyped-def]
    """The same pairs with more room: an estimate of the final number, from the finished share."""
    if out.shape[1] >= least:
        return out
    least = max(2 * out.shape[1], least)
    if done > 0.05:
        least = max(least, np.int64(min(1.05 * n / done, most)))
    more = np.empty((6, least), np.int64)
    for p in range(6):
        for i in range(n):
            more[p, i] = out[p, i]
    return more
