"""The output of an operator at a coordinate of a loop, over an index by key, in one compiled call.

With ``E`` the updates of a key at smaller coordinates, ``N`` those at the coordinate of the visit,
and ``F`` the operator's function, the output there follows from its input alone::

    output  =  d/dt ( F(E + N accumulated up to t) - F(E accumulated up to t) )    for t in the step

since its outputs at all smaller coordinates add up to ``F(E)``. So no look-up of earlier output is
needed, and ``F`` is evaluated only while the accumulations with and without ``N`` differ.

A key that is touched is touched again at each later coordinate at which it has older updates.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import inlined, kernel
from pyspark_diff.kernels.key_index import (
    AT,
    COUNT,
    DIFF,
    FIRST,
    HIGH,
    LATER,
    LATER_COUNT,
    LIVE,
    LOADED,
    LOW,
    ROOM,
    TIME,
    TOP,
    VALUE,
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
    summed,
)
from pyspark_diff.kernels.key_replay import NEAR, at_once, is_plain, longer, numbered, walk
from pyspark_diff.kernels.search import BLOCK
from pyspark_diff.kernels.updates import Int64


@kernel("int64[:]-, int64[:]-")
def visits(keys, due):  # type: ignore[no-untyped-def]
    """The keys to visit, the start of each key's new updates, and the end of the last key's.

    Parameters
    ----------
    keys : ndarray of int64
        Keys of new updates, in order.
    due : ndarray of int64
        Keys that must be visited in any case, in order.
    """
    visited = np.empty(keys.size + due.size, np.int64)
    starts = np.empty(keys.size + due.size + 1, np.int64)
    n = i = j = 0
    while i < keys.size or j < due.size:
        if j == due.size or (i < keys.size and keys[i] <= due[j]):
            key = keys[i]
        else:
            key = due[j]
        visited[n] = key
        starts[n] = i
        n += 1
        while i < keys.size and keys[i] == key:
            i += 1
        while j < due.size and due[j] == key:
            j += 1
    starts[n] = i
    return visited[:n], starts[: n + 1]


def replay_new(
    keys: Int64, starts: Int64, values: Int64, times: Int64, diffs: Int64, index: KeyIndex,
    at: int, mode: int,
) -> tuple[Int64, Int64, Int64] | None:
    """The output under some keys at a coordinate.

    Parameters
    ----------
    keys : ndarray of int64
        The keys to visit, in order: those with new updates, and those that are due.
    starts : ndarray of int64, shape (keys + 1,)
        The start of the new updates of each key.
    values, times, diffs : ndarray of int64
        The new updates, consolidated, ordered by (key, value, time).
    index : KeyIndex
        Index of the operator's input.
    at : int
        The coordinate of the visit, packed; of a single loop.
    mode : int
        The function.

    Returns
    -------
    output : ndarray of int64, shape (4, rows)
        Key, value, time, diff; ordered by key and time. For `BOTH` the key, the number without the
        new updates, the time, and the number with them: at each time when they change, including
        those before the step (`PAST`).
        the step (`PAST`) included.
    due, when : ndarray of int64
        Keys to visit again, and the next coordinate of each. None if diffs are too large for
        unchecked sums.
    """
    index.room(keys.size)
    output, arena, n, due, again = _replay(
        index.table, index.slots, index.arena, index.counts, index.files, index.first,
        index.narrow, keys, starts, values, times, diffs, at, mode,
    )
    index.arena = arena
    if index.wide:
        return None
    return output[:, :n], due[0, :again], due[1, :again]


@kernel(
    "int64[:], int64[:,:], int64[:,:], int64[:], int64[:,:], int64[:], bool, int64[:]-, "
    "int64[:]-, int64[:]-, int64[:]-, int64[:]-, int64, int64"
)
def _replay(  # type: ignore[no-untyped-def]
    table, slots, arena, counts, files, first, narrow, keys, starts, values, times, diffs, at, mode
):
    out = np.empty((4, 2 * keys.size + 64), np.int64)
    n = 0
    due = np.empty((2, keys.size), np.int64)
    again = 0
    cursors = np.zeros(files.shape[0], np.int64)
    found_slots, rows = np.empty(BLOCK, np.int64), np.empty((BLOCK, most_files(first)), np.int64)
    spare = np.empty((64, 5), np.int64)
    fresh = np.empty((64, 5), np.int64)
    # The new events of a key, from the first change on.
    events = np.empty((64, 5), np.int64)
    work = np.zeros((8, NEAR), np.int64)
    for q in range(keys.size):
        key = keys[q]
        if q % BLOCK == 0:
            end = min(q + BLOCK, keys.size)
            brought(
                table, slots, arena, counts, files, first, narrow, keys, q, end, cursors, True,
                found_slots, rows,
            )
        s = found_slots[q % BLOCK]
        if slots[s, LOADED] == 0:
            slots[s, LOADED] = 1
            if files.shape[0] > 0:
                bucket = bucket_of(first, narrow, key)
                for f in range(first[bucket], first[bucket + 1]):
                    cursors[f] = rows[q % BLOCK, f - first[bucket]]
                arena, spare = _load(
                    slots, s, arena, counts, files, first, narrow, cursors, key, at, spare
                )
        # New events: those of the step, and the older updates at this coordinate.
        size = starts[q + 1] - starts[q]
        if fresh.shape[0] < size + slots[s, LATER_COUNT]:
            fresh = np.empty((2 * (size + slots[s, LATER_COUNT]), 5), np.int64)
        size = 0
        while slots[s, LATER_COUNT] > 0 and arena[slots[s, LATER], AT] <= at:
            copied(arena, slots[s, LATER], fresh, size)
            if slots[s, FIRST] + slots[s, ROOM] == slots[s, LATER]:
                slots[s, ROOM] += 1
            else:
                counts[LIVE] -= 1
            slots[s, LATER] += 1
            slots[s, LATER_COUNT] -= 1
            size += 1
        for i in range(starts[q], starts[q + 1]):
            fresh[size, VALUE] = values[i]
            fresh[size, TIME] = times[i]
            fresh[size, DIFF] = diffs[i]
            if large(diffs[i]):
                counts[WIDE] = 1
            size += 1
        for i in range(size):
            fresh[i, AT] = 0
        if slots[s, LATER_COUNT] > 0:
            due[0, again] = key
            due[1, again] = arena[slots[s, LATER], AT]
            again += 1
        if size == 0:
            continue
        spare = ordered(fresh, 0, size, TIME, VALUE, AT, spare)
        size = summed(fresh, 0, size)
        if size == 0:
            continue
        begin = slots[s, FIRST]
        count = slots[s, COUNT]
        low, high = slots[s, LOW], slots[s, HIGH]
        for i in range(size):
            low = min(low, fresh[i, VALUE])
            high = max(high, fresh[i, VALUE])
        slots[s, LOW], slots[s, HIGH] = low, high
        if n + 4 > out.shape[1]:
            out = longer(out, n)
        if events.shape[0] < count + size:
            events = np.empty((2 * (count + size), 5), np.int64)
        if is_plain(arena, begin, begin + count, fresh, size):
            n, kept_count, m, rest = at_once(
                arena, begin, begin + count, fresh, size, events, mode, out, n, key
            )
        else:
            if work.shape[1] < max(count + size, NEAR):
                work = np.zeros((8, 2 * (count + size)), np.int64)
            span, spare = numbered(
                arena, begin, begin + count, fresh, size, low, high, work, spare
            )
            out, n, kept_count, m, rest = walk(
                arena, begin, begin + count, fresh, size, events, mode, out, n, work, span, low, key
            )
        arena = _put_back(slots, s, arena, counts, kept_count, events, m, rest)
    return out, arena, n, due, again


@inlined
def _put_back(slots, s, arena, counts, kept_count, events, m, rest):  # type: ignore[no-untyped-def]
    """Change the events of a key in place, or move them if they need more room: first
    ``kept_count`` old events, then the new events, then the old events from ``rest`` on."""
    begin = slots[s, FIRST]
    left = slots[s, COUNT] - rest
    total = kept_count + m + left
    if total > slots[s, ROOM]:
        top = counts[TOP]
        room = total + total // 2
        arena = grown(arena, top, top + room)
        for i in range(kept_count):
            copied(arena, begin + i, arena, top + i)
        for i in range(left):
            copied(arena, begin + rest + i, arena, top + kept_count + m + i)
        counts[LIVE] += room - slots[s, ROOM]
        counts[TOP] = top + room
        slots[s, FIRST] = top
        slots[s, ROOM] = room
        begin = top
    elif kept_count + m < rest:
        for i in range(left):
            copied(arena, begin + rest + i, arena, begin + kept_count + m + i)
    elif kept_count + m > rest:
        for i in range(left - 1, -1, -1):
            copied(arena, begin + rest + i, arena, begin + kept_count + m + i)
    for i in range(m):
        copied(events, i, arena, begin + kept_count + i)
    slots[s, COUNT] = total
    return arena


@inlined
def _load(  # type: ignore[no-untyped-def]
    slots, s, arena, counts, files, first, narrow, cursors, key, at, spare
):
    """Look a key up: smaller coordinates are merged into one, and larger ones are stored for
    later."""
    bucket = bucket_of(first, narrow, key)
    begin = counts[TOP]
    arena, top = gathered(
        arena, begin, files, first[bucket], first[bucket + 1], cursors, key, counts
    )
    for i in range(begin, top):
        if arena[i, AT] < at:
            arena[i, AT] = -1
    spare = ordered(arena, begin, top, AT, VALUE, TIME, spare)
    top = summed(arena, begin, top)
    middle = begin
    while middle < top and arena[middle, AT] < 0:
        arena[middle, AT] = 0
        slots[s, LOW] = min(slots[s, LOW], arena[middle, VALUE])
        slots[s, HIGH] = max(slots[s, HIGH], arena[middle, VALUE])
        middle += 1
    slots[s, FIRST] = begin
    slots[s, COUNT] = slots[s, ROOM] = middle - begin
    slots[s, LATER] = middle
    slots[s, LATER_COUNT] = top - middle
    counts[TOP] = top
    counts[LIVE] += top - begin
    return arena, spare
