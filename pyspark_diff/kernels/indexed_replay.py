"""What an operator gives at one coordinate of a loop, over an index by key, in one compiled call.

With ``E`` the updates of a key at smaller coordinates, ``N`` those at the one that is processed,
and ``F`` the operator's function, what it gives there is known from its input alone::

    given  =  d/dt ( F(E + N accumulated up to t) - F(E accumulated up to t) )    for t in the step

since what it gave at all smaller coordinates adds up to ``F(E)``. So what was given is never looked
up, and ``F`` is evaluated only while the accumulations with and without ``N`` differ.

A key that is touched is touched again at each later coordinate at which it has older updates.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import jit, kernel
from pyspark_diff.kernels.key_index import (
    AT,
    BLOCK,
    COUNT,
    DIFF,
    FIRST,
    HIGH,
    LATER,
    LATER_COUNT,
    LIVE,
    LOADED,
    LOW,
    PAST,
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
from pyspark_diff.kernels.overflow import lie_near
from pyspark_diff.kernels.updates import Int64

#: What is given of a key: its least value that stands, once; how often it stands, if not zero
#: times; itself, if it stands; or how often it stands without and with what is new.
LEAST, NUMBER, PRESENT, BOTH = range(4)

#: With no more numbers than this between the least and the greatest value, each has its place.
NEAR = 256
#: More values than this are in heaps, and not looked through.
FEW = 64
#: Of what is worked with for one key: the number of each event's value, the value of each number,
#: how often it stands without and with what is new, whether it is in the heaps, and these.
NUMBERS, VALUES, SUMS, INSIDE, HEAPS = 0, 1, 2, 4, 6


@kernel("int64[:]-, int64[:]-")
def visits(keys, due):  # type: ignore[no-untyped-def]
    """The keys to visit and where the new updates of each begin, and the last one's end.

    Parameters
    ----------
    keys : ndarray of int64
        Of new updates, in order.
    due : ndarray of int64
        Keys to be visited in any case, in order.
    """
    every = np.empty(keys.size + due.size, np.int64)
    starts = np.empty(keys.size + due.size + 1, np.int64)
    n = i = j = 0
    while i < keys.size or j < due.size:
        if j == due.size or (i < keys.size and keys[i] <= due[j]):
            key = keys[i]
        else:
            key = due[j]
        every[n] = key
        starts[n] = i
        n += 1
        while i < keys.size and keys[i] == key:
            i += 1
        while j < due.size and due[j] == key:
            j += 1
    starts[n] = i
    return every[:n], starts[: n + 1]


def replay_new(
    keys: Int64, starts: Int64, values: Int64, times: Int64, diffs: Int64, index: KeyIndex,
    at: int, mode: int,
) -> tuple[Int64, Int64, Int64] | None:
    """What is given under some keys at a coordinate.

    Parameters
    ----------
    keys : ndarray of int64
        The keys to visit, in order: those with new updates, and those that are due.
    starts : ndarray of int64, shape (keys + 1,)
        Where the new updates of each begin.
    values, times, diffs : ndarray of int64
        The new updates, consolidated, ordered by (key, value, time).
    index : KeyIndex
        Of the operator's input.
    at : int
        The coordinate that is processed, packed; of a single loop.
    mode : int
        The function.

    Returns
    -------
    given : ndarray of int64, shape (4, rows)
        Key, value, time, diff; ordered by key and time. For `BOTH` the key, the number without what
        is new, the time, and the number with it: at each time where they change, those of before
        the step (`PAST`) included.
    due, when : ndarray of int64
        Keys to be visited again, and at which coordinate next.
        None where diffs are too large for sums that nobody looks at.
    """
    index.room(keys.size)
    found, arena, n, due, again = _replay(
        index.table, index.slots, index.arena, index.counts, index.files, index.first,
        index.narrow, keys, starts, values, times, diffs, at, mode,
    )
    index.arena = arena
    if index.wide:
        return None
    return found[:, :n], due[0, :again], due[1, :again]


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
    found, rows = np.empty(BLOCK, np.int64), np.empty((BLOCK, most_files(first)), np.int64)
    spare = np.empty((64, 5), np.int64)
    fresh = np.empty((64, 5), np.int64)
    # What becomes of the events of a key, from the first that changes on.
    made = np.empty((64, 5), np.int64)
    work = np.zeros((8, NEAR), np.int64)
    for q in range(keys.size):
        key = keys[q]
        if q % BLOCK == 0:
            end = min(q + BLOCK, keys.size)
            brought(
                table, slots, arena, counts, files, first, narrow, keys, q, end, cursors, True,
                found, rows,
            )
        s = found[q % BLOCK]
        if slots[s, LOADED] == 0:
            slots[s, LOADED] = 1
            if files.shape[0] > 0:
                bucket = bucket_of(first, narrow, key)
                for f in range(first[bucket], first[bucket + 1]):
                    cursors[f] = rows[q % BLOCK, f - first[bucket]]
                arena, spare = _load(
                    slots, s, arena, counts, files, first, narrow, cursors, key, at, spare
                )
        # What is new: of the step, and what older updates there are at this coordinate.
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
            out = _longer(out, n)
        if made.shape[0] < count + size:
            made = np.empty((2 * (count + size), 5), np.int64)
        if _is_plain(arena, begin, begin + count, fresh, size):
            n, kept, m, rest = _at_once(
                arena, begin, begin + count, fresh, size, made, mode, out, n, key
            )
        else:
            if work.shape[1] < max(count + size, NEAR):
                work = np.zeros((8, 2 * (count + size)), np.int64)
            span, spare = _numbered(
                arena, begin, begin + count, fresh, size, low, high, work, spare
            )
            out, n, kept, m, rest = _walk(
                arena, begin, begin + count, fresh, size, made, mode, out, n, work, span, low, key
            )
        arena = _put_back(slots, s, arena, counts, kept, made, m, rest)
    return out, arena, n, due, again


@jit
def _put_back(slots, s, arena, counts, kept, made, m, rest):  # type: ignore[no-untyped-def]
    """Change the events of a key where they are, or where there is room for more: so many stay,
    then come those that were made, and then those of the old ones from ``rest`` on."""
    begin = slots[s, FIRST]
    left = slots[s, COUNT] - rest
    total = kept + m + left
    if total > slots[s, ROOM]:
        top = counts[TOP]
        room = total + total // 2
        arena = grown(arena, top, top + room)
        for i in range(kept):
            copied(arena, begin + i, arena, top + i)
        for i in range(left):
            copied(arena, begin + rest + i, arena, top + kept + m + i)
        counts[LIVE] += room - slots[s, ROOM]
        counts[TOP] = top + room
        slots[s, FIRST] = top
        slots[s, ROOM] = room
        begin = top
    elif kept + m < rest:
        for i in range(left):
            copied(arena, begin + rest + i, arena, begin + kept + m + i)
    elif kept + m > rest:
        for i in range(left - 1, -1, -1):
            copied(arena, begin + rest + i, arena, begin + kept + m + i)
    for i in range(m):
        copied(made, i, arena, begin + kept + i)
    slots[s, COUNT] = total
    return arena


@jit
def _load(  # type: ignore[no-untyped-def]
    slots, s, arena, counts, files, first, narrow, cursors, key, at, spare
):
    """Look a key up: what belongs to smaller coordinates is one, the rest waits for its turn."""
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


@jit
def _is_plain(arena, begin, end, fresh, size):  # type: ignore[no-untyped-def]
    """Whether all that is new has one time, and all that is old has one that is not later."""
    time = fresh[0, TIME]
    if fresh[size - 1, TIME] != time:
        return False
    return begin == end or arena[begin, TIME] == arena[end - 1, TIME] <= time


@jit
def _at_once(  # type: ignore[no-untyped-def]
    arena, begin, end, fresh, size, made, mode, out, n, key
):
    """What `_walk` does, where there is one time at which anything changes, as in a load."""
    time = fresh[0, TIME]
    merged = begin == end or arena[begin, TIME] == time
    m = 0
    there = here = False
    old = new = value = np.int64(0)
    i = begin
    j = 0
    while i < end or j < size:
        diff = change = np.int64(0)
        if j == size or (i < end and arena[i, VALUE] <= fresh[j, VALUE]):
            value = arena[i, VALUE]
        else:
            value = fresh[j, VALUE]
        if i < end and arena[i, VALUE] == value:
            diff = arena[i, DIFF]
            i += 1
        if j < size and fresh[j, VALUE] == value:
            change = fresh[j, DIFF]
            j += 1
        total = diff + change
        kept = total if merged else change
        if kept != 0:
            made[m, VALUE] = value
            made[m, TIME] = time
            made[m, AT] = 0
            made[m, DIFF] = kept
            m += 1
        if mode == LEAST:
            if not there and diff > 0:
                there = True
                old = value
            if not here and total > 0:
                here = True
                new = value
            if there and here and not merged and j == size:
                break
        elif mode == PRESENT:
            there = diff > 0
            here = total > 0
        else:
            there = diff != 0
            here = total != 0
            old = diff
            new = total
    stay = 0 if merged else end - begin
    if mode == BOTH:
        out[0, n] = key
        out[1, n] = old
        out[2, n] = time
        out[3, n] = new
        n += 1
    elif time != PAST and not (there and here and old == new):
        if here:
            n = _put(out, n, n, key, new, time, 1)
        if there:
            n = _put(out, n, n, key, old, time, -1)
    return n, stay, m, end - begin


@jit
def _numbered(  # type: ignore[no-untyped-def]
    arena, begin, end, fresh, size, low, high, work, spare
):
    """Number the values of a key in their order; gives how many there may be, below zero where
    each number is how far the value lies beyond the least."""
    old = end - begin
    count = old + size
    if lie_near(low, high, NEAR):
        return low - high - 1, spare
    span = 0
    if count <= FEW:
        for i in range(count):
            value = arena[begin + i, VALUE] if i < old else fresh[i - old, VALUE]
            at = span
            while at > 0 and work[VALUES, at - 1] > value:
                at -= 1
            if at == 0 or work[VALUES, at - 1] != value:
                for k in range(span, at, -1):
                    work[VALUES, k] = work[VALUES, k - 1]
                work[VALUES, at] = value
                span += 1
    else:
        every = np.empty((count, 5), np.int64)
        for i in range(count):
            every[i, VALUE] = arena[begin + i, VALUE] if i < old else fresh[i - old, VALUE]
        spare = ordered(every, 0, count, VALUE, VALUE, VALUE, spare)
        for i in range(count):
            if i == 0 or every[i, VALUE] != every[i - 1, VALUE]:
                work[VALUES, span] = every[i, VALUE]
                span += 1
    for i in range(count):
        value = arena[begin + i, VALUE] if i < old else fresh[i - old, VALUE]
        left, right = 0, span
        while left < right:
            middle = (left + right) // 2
            if work[VALUES, middle] < value:
                left = middle + 1
            else:
                right = middle
        work[NUMBERS, i] = left
    return span, spare


@jit
def _walk(  # type: ignore[no-untyped-def]
    arena, begin, end, fresh, size, made, mode, out, n, work, span, low, key
):
    """Walk through the events of a key in order of time, those that are new among them.

    Gives, beside the rows: how many of the old events stay first, how many were made to follow
    them, and the first of the old ones that follow those.

    Where values are many, a heap knows the first of those that stand, or that have stood and were
    not taken off yet.
    """
    near = span < 0
    span = abs(span)
    heaps = mode == LEAST and span > NEAR
    heaped = np.zeros(2, np.int64)
    # The least number that stands without and with what is new, where there are no heaps.
    least = least_new = span
    i = begin
    until = fresh[0, TIME]
    while i < end and arena[i, TIME] < until:
        v = arena[i, VALUE] - low if near else work[NUMBERS, i - begin]
        work[SUMS, v] += arena[i, DIFF]
        if heaps:
            if work[SUMS, v] > 0:
                _push(work, heaped, 0, v)
                _push(work, heaped, 1, v)
            work[SUMS + 1, v] = work[SUMS, v]
        else:
            least = _least(work, SUMS, v, least, span)
        i += 1
    if not heaps:
        for v in range(span):
            work[SUMS + 1, v] = work[SUMS, v]
        least_new = least
    kept = i - begin
    m = 0
    j = 0
    differing = 0
    was_out = was_in = False
    was_old = was_new = np.int64(0)
    while j < size or differing > 0 or was_out or was_in:
        if i == end and j == size:
            break
        if j == size or (i < end and arena[i, TIME] <= fresh[j, TIME]):
            time = arena[i, TIME]
        else:
            time = fresh[j, TIME]
        quiet = differing == 0 and not was_out and not was_in
        if quiet and time < fresh[j, TIME]:
            # Up to the next new update nothing can be given.
            v = arena[i, VALUE] - low if near else work[NUMBERS, i - begin]
            copied(arena, i, made, m)
            for side in range(2):
                work[SUMS + side, v] += arena[i, DIFF]
                if heaps and work[SUMS + side, v] > 0:
                    _push(work, heaped, side, v)
            if not heaps:
                least = _least(work, SUMS, v, least, span)
                least_new = _least(work, SUMS + 1, v, least_new, span)
            m += 1
            i += 1
            continue
        while True:
            older = i < end and arena[i, TIME] == time
            newer = j < size and fresh[j, TIME] == time
            if older and newer:
                if arena[i, VALUE] < fresh[j, VALUE]:
                    newer = False
                elif arena[i, VALUE] > fresh[j, VALUE]:
                    older = False
            if not older and not newer:
                break
            diff = change = value = v = np.int64(0)
            if older:
                value = arena[i, VALUE]
                v = value - low if near else work[NUMBERS, i - begin]
                diff = arena[i, DIFF]
                i += 1
            if newer:
                value = fresh[j, VALUE]
                v = value - low if near else work[NUMBERS, end - begin + j]
                change = fresh[j, DIFF]
                j += 1
            if diff + change != 0:
                made[m, VALUE] = value
                made[m, TIME] = time
                made[m, AT] = 0
                made[m, DIFF] = diff + change
                m += 1
            differed = work[SUMS, v] != work[SUMS + 1, v]
            work[SUMS, v] += diff
            work[SUMS + 1, v] += diff + change
            differs = work[SUMS, v] != work[SUMS + 1, v]
            if differs and not differed:
                differing += 1
            elif differed and not differs:
                differing -= 1
            if heaps:
                for side in range(2):
                    if work[SUMS + side, v] > 0:
                        _push(work, heaped, side, v)
            else:
                least = _least(work, SUMS, v, least, span)
                least_new = _least(work, SUMS + 1, v, least_new, span)
        if quiet and differing == 0:
            continue
        there = here = False  # whether anything is given without and with what is new, and what
        old = new = np.int64(0)
        if mode == BOTH:
            if n + 1 > out.shape[1]:
                out = _longer(out, n)
            out[0, n] = key
            out[1, n] = work[SUMS, 0]
            out[2, n] = time
            out[3, n] = work[SUMS + 1, 0]
            n += 1
            was_out = differing > 0
            continue
        if differing > 0:
            if mode == LEAST:
                if heaps:
                    least = _first(work, heaped, 0, span)
                    least_new = _first(work, heaped, 1, span)
                there = least < span
                here = least_new < span
                if there:
                    old = low + least if near else work[VALUES, least]
                if here:
                    new = low + least_new if near else work[VALUES, least_new]
            else:
                old = work[SUMS, 0]
                new = work[SUMS + 1, 0]
                there = old != 0
                here = new != 0
                if mode == PRESENT:
                    there = old > 0
                    here = new > 0
                    old = new = np.int64(0)
        if there and here and old == new:
            there = here = False
        if time != PAST:
            out, n = _emit(out, n, key, time, here, new, there, old, was_in, was_new, was_out,
                           was_old)
        was_out, was_in, was_old, was_new = there, here, old, new
    for p in range(SUMS, HEAPS):
        for v in range(span):
            work[p, v] = 0
    return out, n, kept, m, i - begin


@jit
def _least(work, side, v, least, span):  # type: ignore[no-untyped-def]
    """The least number that stands, after how often one stands has changed."""
    if work[side, v] > 0:
        return min(v, least)
    if v == least:
        while least < span and work[side, least] <= 0:
            least += 1
    return least


@jit
def _first(work, heaped, side, span):  # type: ignore[no-untyped-def]
    """The number of the first value that stands, by the heaps; ``span`` if none does."""
    while heaped[side] > 0:
        v = work[HEAPS + side, 0]
        if work[SUMS + side, v] > 0:
            return v
        work[INSIDE + side, v] = 0
        _pop(work[HEAPS + side], heaped, side)
    return np.int64(span)


@jit
def _emit(  # type: ignore[no-untyped-def]
    out, n, key, time, here, new, there, old, was_in, was_new, was_out, was_old
):
    """Give what the difference of the two results has become, less what it was before."""
    if n + 4 > out.shape[1]:
        out = _longer(out, n)
    begin = n
    if here:
        n = _put(out, begin, n, key, new, time, 1)
    if there:
        n = _put(out, begin, n, key, old, time, -1)
    if was_in:
        n = _put(out, begin, n, key, was_new, time, -1)
    if was_out:
        n = _put(out, begin, n, key, was_old, time, 1)
    top = begin
    for i in range(begin, n):
        if out[3, i] != 0:
            out[1, top] = out[1, i]
            out[3, top] = out[3, i]
            top += 1
    return out, top


@jit
def _put(out, begin, n, key, value, time, diff):  # type: ignore[no-untyped-def]
    for i in range(begin, n):
        if out[1, i] == value:
            out[3, i] += diff
            return n
    out[0, n] = key
    out[1, n] = value
    out[2, n] = time
    out[3, n] = diff
    return n + 1


@jit
def _longer(out, n):  # type: ignore[no-untyped-def]
    more = np.empty((out.shape[0], 2 * out.shape[1] + 4), np.int64)
    for p in range(out.shape[0]):
        for i in range(n):
            more[p, i] = out[p, i]
    return more


@jit
def _push(work, heaped, side, v):  # type: ignore[no-untyped-def]
    if work[INSIDE + side, v] != 0:
        return
    work[INSIDE + side, v] = 1
    heap = work[HEAPS + side]
    i = heaped[side]
    heaped[side] = i + 1
    while i > 0 and heap[(i - 1) // 2] > v:
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = v


@jit
def _pop(heap, heaped, side):  # type: ignore[no-untyped-def]
    heaped[side] -= 1
    size = heaped[side]
    v = heap[size]
    i = 0
    while 2 * i + 1 < size:
        below = 2 * i + 1
        if below + 1 < size and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= v:
            break
        heap[i] = heap[below]
        i = below
    if size > 0:
        heap[i] = v
