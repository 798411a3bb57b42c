"""The output of one key at one coordinate of a loop, from its events in order of time: the walk of
`pyspark_diff.kernels.indexed_replay` through them, with and without the new events.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import inlined, jit
from pyspark_diff.kernels.key_index import AT, DIFF, PAST, TIME, VALUE, copied, ordered
from pyspark_diff.kernels.overflow import lie_near

#: The output of a key: its least present value, once; its count, if that is not zero; the key, if
#: its count is positive. Or its counts without and with the new events.
LEAST, NUMBER, PRESENT, BOTH = range(4)

#: If the least and the greatest value are closer to each other than this, each value has a slot.
NEAR = 256
#: More values than this are stored in heaps, and not scanned.
FEW = 64
#: Working memory of one key: the number of each event's value, and the value of each number. Then
#: its count without and with the new events, whether it is in the heaps, and the heaps.
NUMBERS, VALUES, SUMS, INSIDE, HEAPS = 0, 1, 2, 4, 6


@inlined
def is_plain(arena, begin, end, fresh, size):  # type: ignore[no-untyped-def]
    """Whether all new events have one time, and all old events have one time that is not later."""
    time = fresh[0, TIME]
    if fresh[size - 1, TIME] != time:
        return False
    return begin == end or arena[begin, TIME] == arena[end - 1, TIME] <= time


@inlined
def at_once(  # type: ignore[no-untyped-def]
    arena, begin, end, fresh, size, made_events, mode, out, n, key
):
    """As `walk`, if changes happen at one time only, as in a load."""
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
        written = total if merged else change
        if written != 0:
            made_events[m, VALUE] = value
            made_events[m, TIME] = time
            made_events[m, AT] = 0
            made_events[m, DIFF] = written
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
            n = _write(out, n, n, key, new, time, 1)
        if there:
            n = _write(out, n, n, key, old, time, -1)
    return n, stay, m, end - begin


@jit
def numbered(  # type: ignore[no-untyped-def]
    arena, begin, end, fresh, size, low, high, work, spare
):
    """Number the values of a key in their order; returns the number of numbers, below zero if each
    number is the distance of the value from the least."""
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
        rows = np.empty((count, 5), np.int64)
        for i in range(count):
            rows[i, VALUE] = arena[begin + i, VALUE] if i < old else fresh[i - old, VALUE]
        spare = ordered(rows, 0, count, VALUE, VALUE, VALUE, spare)
        for i in range(count):
            if i == 0 or rows[i, VALUE] != rows[i - 1, VALUE]:
                work[VALUES, span] = rows[i, VALUE]
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
def walk(  # type: ignore[no-untyped-def]
    arena, begin, end, fresh, size, made_events, mode, out, n, work, span, low, key
):
    """Walk through the events of a key in order of time, old and new.

    Returns, in addition to the rows: the number of old events that stay first, the number of events
    in ``made_events`` that follow them, and the first old event that follows those.

    If there are many values, a heap has the first present values; it may also contain values that
    are no longer present.
    """
    near = span < 0
    span = abs(span)
    heaps = mode == LEAST and span > NEAR
    heaped = np.zeros(2, np.int64)
    # The least present number without and with the new events, if there are no heaps.
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
    first_count = i - begin
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
            # Before the next new event there is no output.
            v = arena[i, VALUE] - low if near else work[NUMBERS, i - begin]
            copied(arena, i, made_events, m)
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
                made_events[m, VALUE] = value
                made_events[m, TIME] = time
                made_events[m, AT] = 0
                made_events[m, DIFF] = diff + change
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
        there = here = False  # whether there is output without and with the new events, and which
        old = new = np.int64(0)
        if mode == BOTH:
            if n + 1 > out.shape[1]:
                out = longer(out, n)
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
    return out, n, first_count, m, i - begin


@jit
def _least(work, side, v, least, span):  # type: ignore[no-untyped-def]
    """The least present number, after the count of a number has changed."""
    if work[side, v] > 0:
        return min(v, least)
    if v == least:
        while least < span and work[side, least] <= 0:
            least += 1
    return least


@jit
def _first(work, heaped, side, span):  # type: ignore[no-untyped-def]
    """The first present number, by the heaps; ``span`` if none is present."""
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
    """Write the new difference of the two results, minus the previous difference."""
    if n + 4 > out.shape[1]:
        out = longer(out, n)
    begin = n
    if here:
        n = _write(out, begin, n, key, new, time, 1)
    if there:
        n = _write(out, begin, n, key, old, time, -1)
    if was_in:
        n = _write(out, begin, n, key, was_new, time, -1)
    if was_out:
        n = _write(out, begin, n, key, was_old, time, 1)
    top = begin
    for i in range(begin, n):
        if out[3, i] != 0:
            out[1, top] = out[1, i]
            out[3, top] = out[3, i]
            top += 1
    return out, top


@jit
def _write(out, begin, n, key, value, time, diff):  # type: ignore[no-untyped-def]
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
def longer(out, n):  # type: ignore[no-untyped-def]
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
