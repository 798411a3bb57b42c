"""Updates by key within one step of a loop: looked up in batches once, and stored afterwards.

For the batches ``B`` of a collection, in all buckets, and the updates ``N`` of the step so far::

    events(k)  =  consolidate({ (v, t, c, d) in B + N under k })     with t = PAST before the step

A key is looked up at its first touch, in the few batches of its own bucket, by their addresses. One
compiled call looks up all keys of a visit in all buckets, so the cost of a visit does not grow with
the number of buckets.
"""

from __future__ import annotations

from typing import Iterable

import numpy as np
from pyspark_diff import thresholds
from pyspark_diff.kernels.jit import inlined, jit, kernel
from pyspark_diff.kernels.murmur3 import bucket_of_int, bucket_of_long
from pyspark_diff.kernels.search import FAR, NEARER, fetch, guess_of, nearer, seek, word
from pyspark_diff.kernels.updates import Int64, UpdateChunk, one_or_all

#: The time of all updates before the step.
PAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

#: Parts of an event. Events of one value at one coordinate have one rank.
VALUE, TIME, AT, DIFF, RANK = range(5)
#: Parts of a slot: a key; the place and number of its events; the place and number of its events
#: at later coordinates; the last added event; whether the batches have been searched. Then the
#: least and the greatest of its values so far, and the number of events with room at its place.
KEY, FIRST, COUNT, LATER, LATER_COUNT, HEAD, LOADED, LOW, HIGH, ROOM = range(10)
#: Parts of a batch: addresses of its columns, or zero and the value of all rows; and its rows.
KEYS, VALUES, TIMES, TIME_OF_ALL, PLACES, PLACE_OF_ALL, DIFFS, DIFF_OF_ALL, LENGTH = range(9)
#: Counters of an index: the slots; the events in the arena; those events that are not garbage, with
#: the spare room of keys; the added events. Then whether a diff is so large that sums may leave 64
#: bits, and the number of rows read from batches before the step.
SLOTS, TOP, LIVE, ADDED, WIDE, READ = range(6)
#: The next added event, in the place of a rank.
NEXT = RANK

#: Larger diffs need kernels that check each sum.
LARGE = 1 << 31


class KeyIndex:
    """The updates of one collection, by key. It has state, for one step.

    Parameters
    ----------
    batches : iterable of (int or None, UpdateChunk, bool)
        Bucket, or None for updates of all buckets; updates; and whether they are from before the
        step. They have `words`.
    narrow : bool
        Whether Spark hashes the key as 32 bits.
    """

    def __init__(
        self, batches: Iterable[tuple[int | None, UpdateChunk, bool]], buckets: int, narrow: bool
    ):
        rows: list[list[int]] = [[] for _ in range(buckets)]
        flat: list[tuple[int, ...]] = []
        self._sources = []
        for bucket, updates, past in batches:
            words = updates.words
            if words is None:
                raise ValueError("these updates are no plain numbers")
            if words[LENGTH]:
                if past:
                    words = (*words[:TIMES], 0, PAST, *words[PLACES:])
                for of_bucket in rows if bucket is None else rows[bucket:bucket + 1]:
                    of_bucket.append(len(flat))
                flat.append(words)
                self._sources.append(updates)  # keeps the memory that the kernels read
        order = np.array([number for of_bucket_rows in rows for number in of_bucket_rows], np.int64)
        #: The batches of all buckets in order, and the start of each bucket's batches.
        self.files = np.array(flat, np.int64).reshape(len(flat), 9)[order]
        self.first = np.cumsum([0, *map(len, rows)])
        self.narrow = narrow
        self.table = np.zeros(64, np.int64)
        self.slots = np.empty((16, 10), np.int64)
        self.arena = np.empty((64, 5), np.int64)
        self.added = np.empty((16, 5), np.int64)
        self.counts = np.zeros(6, np.int64)

    @property
    def wide(self) -> bool:
        """Whether a diff is so large that sums may leave 64 bits."""
        return bool(self.counts[WIDE])

    def room(self, keys: int) -> None:
        """Make room for a number of further keys."""
        used = int(self.counts[SLOTS])
        if used + keys > len(self.slots):
            more = np.empty((2 * (used + keys), 10), np.int64)
            more[:used] = self.slots[:used]
            self.slots = more
        if 2 * (used + keys) > self.table.size:
            self.table = np.zeros(1 << (4 * (used + keys)).bit_length(), np.int64)
            _refill(self.table, self.slots, used)
        top, live = int(self.counts[TOP]), int(self.counts[LIVE])
        if top > (1 << 16) and top > 3 * live:
            self.arena = _without_garbage(self.slots, self.counts, self.arena)

    def add(self, keys: Int64, values: Int64, times: Int64, diffs: Int64, at: int) -> None:
        """Add updates of the step, at one coordinate: consolidated, ordered by (key, value, time).
        """
        if keys.size >= thresholds.current.index_batch_rows_min:
            # They form a batch in their order. Updates of keys that have been looked up are added
            # key by key too, since these keys are not looked up again.
            updates = UpdateChunk(keys, None, one_or_all(times), diffs, values, coordinate=at)
            words = updates.words
            assert words is not None
            self.files = np.insert(self.files, self.first[1:], words, axis=0)
            self.first = self.first + np.arange(self.first.size)
            self._sources.append(updates)
            rows = _of_loaded(self.table, self.slots, self.counts, keys)
            keys, values, times, diffs = keys[rows], values[rows], times[rows], diffs[rows]
        self.room(keys.size)
        used = int(self.counts[ADDED])
        if used + keys.size > len(self.added):
            more = np.empty((2 * (used + keys.size), 5), np.int64)
            more[:used] = self.added[:used]
            self.added = more
        _add(self.table, self.slots, self.added, self.counts, keys, values, times, diffs, at)


@jit
def part(files, f, addresses, shared, row):  # type: ignore[no-untyped-def]
    """A part of a row of a batch."""
    address = files[f, addresses]
    if address == 0:
        return files[f, shared]
    return word(address + 8 * row)


@jit
def most_files(first):  # type: ignore[no-untyped-def]
    """The largest number of batches of a bucket."""
    most = 0
    for bucket in range(first.size - 1):
        most = max(most, first[bucket + 1] - first[bucket])
    return most


@jit
def brought(  # type: ignore[no-untyped-def]
    table, slots, arena, counts, files, first, narrow, keys, begin, end, cursors, make,
    found_slots, rows,
):
    """Look some keys up, with prefetches, so that all their cache misses overlap. Writes the slot
    of each key, and if it is not loaded, the begin of its rows in each batch of its bucket."""
    mask = table.size - 1
    # In a batch with fewer rows than this the next key is close to the last one.
    near = FAR * keys.size // (first.size - 1)
    # A key, a batch of its look-up, and its approximate row there.
    sought = np.empty((rows.size, 3), np.int64)
    n = 0
    for q in range(begin, end):
        fetch(table.ctypes.data + 8 * (_place_of(keys[q]) & mask))
    for q in range(begin, end):
        s = table[_place_of(keys[q]) & mask] - 1
        if s >= 0:
            fetch(slots.ctypes.data + 8 * slots.shape[1] * s)
    for q in range(begin, end):
        s = slot_of(table, slots, counts, keys[q], make)
        found_slots[q - begin] = s
        if s >= 0 and slots[s, LOADED] != 0:
            fetch(arena.ctypes.data + 40 * slots[s, FIRST])
            fetch(arena.ctypes.data + 40 * slots[s, FIRST] + 64)
            continue
        bucket = bucket_of(first, narrow, keys[q])
        for f in range(first[bucket], first[bucket + 1]):
            sought[n, 0], sought[n, 1] = q, f
            if files[f, LENGTH] < near:
                sought[n, 2] = -1
            else:
                sought[n, 2] = guess_of(files[f, KEYS], files[f, LENGTH], cursors[f], keys[q])
            n += 1
    for _ in range(NEARER):
        for i in range(n):
            q, f, guess = sought[i]
            if guess >= 0:
                sought[i, 2] = nearer(files[f, KEYS], files[f, LENGTH], cursors[f], keys[q], guess)
    for i in range(n):
        q, f, guess = sought[i]
        if guess < 0:
            guess = cursors[f]
        row = seek(files[f, KEYS], files[f, LENGTH], cursors[f], keys[q], guess)
        cursors[f] = rows[q - begin, f - first[bucket_of(first, narrow, keys[q])]] = row
        for p in (VALUES, PLACES, DIFFS):
            if files[f, p] != 0 and row < files[f, LENGTH]:
                fetch(files[f, p] + 8 * row)


@jit
def large(diff):  # type: ignore[no-untyped-def]
    """Whether sums of such large diffs may leave 64 bits. `abs` of the least number is negative."""
    return diff > LARGE or diff < -LARGE


@jit
def bucket_of(first, narrow, key):  # type: ignore[no-untyped-def]
    """The bucket of a key."""
    if first.size == 2:
        return 0
    if narrow:
        return np.int64(bucket_of_int(key, first.size - 1))
    return np.int64(bucket_of_long(key, first.size - 1))


@jit
def _place_of(key):  # type: ignore[no-untyped-def]
    """The first slot of a key's look-up in a table. Keys that are close together stay close, since
    they are visited in order. Each run of 64 keys begins anywhere, since otherwise multiples of 64
    would share places.
    """
    run = key >> 6
    mixed = (run ^ (run >> 31)) * 0x1E3779B97F4A7C15
    mixed ^= mixed >> 29
    return (mixed << 6) + ((mixed >> 40) & 63) + (key & 63)


@jit
def slot_of(table, slots, counts, key, make):  # type: ignore[no-untyped-def]
    """The slot of a key; -1 if it has none and ``make`` is false."""
    place = _place_of(key) & (table.size - 1)
    while table[place] != 0:
        s = table[place] - 1
        if slots[s, KEY] == key:
            return s
        place = (place + 1) & (table.size - 1)
    if not make:
        return -1
    s = counts[SLOTS]
    counts[SLOTS] = s + 1
    table[place] = s + 1
    slots[s, KEY] = key
    slots[s, FIRST] = 0
    slots[s, COUNT] = 0
    slots[s, LATER] = 0
    slots[s, LATER_COUNT] = 0
    slots[s, HEAD] = -1
    slots[s, LOADED] = 0
    slots[s, LOW] = MOST
    slots[s, HIGH] = PAST
    slots[s, ROOM] = 0
    return s


@kernel("int64[:], int64[:,:], int64[:], int64[:]-")
def _of_loaded(table, slots, counts, keys):  # type: ignore[no-untyped-def]
    """The rows of the keys whose batches have been searched."""
    loaded = np.empty(keys.size if counts[SLOTS] else 0, np.int64)
    n = 0
    s = -1
    for i in range(loaded.size):
        if i == 0 or keys[i] != keys[i - 1]:
            s = slot_of(table, slots, counts, keys[i], False)
        if s >= 0 and slots[s, LOADED] != 0:
            loaded[n] = i
            n += 1
    return loaded[:n]


@kernel("int64[:], int64[:,:], int64")
def _refill(table, slots, used):  # type: ignore[no-untyped-def]
    for s in range(used):
        place = _place_of(slots[s, KEY]) & (table.size - 1)
        while table[place] != 0:
            place = (place + 1) & (table.size - 1)
        table[place] = s + 1


@kernel("int64[:,:], int64[:], int64[:,:]")
def _without_garbage(slots, counts, arena):  # type: ignore[no-untyped-def]
    compacted = np.empty((2 * counts[LIVE] + 64, 5), np.int64)
    top = 0
    for s in range(counts[SLOTS]):
        # Events of later coordinates have their own place.
        for where, count in ((FIRST, COUNT), (LATER, LATER_COUNT)):
            begin = slots[s, where]
            slots[s, where] = top
            for i in range(begin, begin + slots[s, count]):
                copied(arena, i, compacted, top)
                top += 1
        slots[s, ROOM] = slots[s, COUNT]
    counts[TOP] = top
    counts[LIVE] = top
    return compacted


@kernel(
    "int64[:], int64[:,:], int64[:,:], int64[:], int64[:]-, int64[:]-, int64[:]-, int64[:]-, int64"
)
def _add(table, slots, added, counts, keys, values, times, diffs, at):  # type: ignore
    for i in range(keys.size):
        s = slot_of(table, slots, counts, keys[i], True)
        n = counts[ADDED]
        counts[ADDED] = n + 1
        added[n, VALUE] = values[i]
        added[n, TIME] = times[i]
        added[n, AT] = at
        added[n, DIFF] = diffs[i]
        added[n, NEXT] = slots[s, HEAD]
        slots[s, HEAD] = n
        if large(diffs[i]):
            counts[WIDE] = 1


@jit
def copied(source, i, target, j):  # type: ignore[no-untyped-def]
    """Copy one event."""
    for p in range(5):
        target[j, p] = source[i, p]


@inlined
def grown(arena, used, least):  # type: ignore[no-untyped-def]
    """The same events with more room."""
    if arena.shape[0] >= least:
        return arena
    # Untouched memory costs nothing, and copied events have been touched.
    more = np.empty((max(4 * arena.shape[0], least), 5), np.int64)
    for i in range(used):
        copied(arena, i, more, i)
    return more


@inlined
def gathered(arena, top, files, begin, end, cursors, key, counts):  # type: ignore[no-untyped-def]
    """Append the rows of a key in some batches; returns the events and their number."""
    for f in range(begin, end):
        address = files[f, KEYS]
        length = files[f, LENGTH]
        row = seek(address, length, cursors[f], key, cursors[f])
        cursors[f] = row
        while row < length and word(address + 8 * row) == key:
            arena = grown(arena, top, top + 1)
            arena[top, VALUE] = part(files, f, VALUES, VALUES, row)
            arena[top, TIME] = part(files, f, TIMES, TIME_OF_ALL, row)
            arena[top, AT] = part(files, f, PLACES, PLACE_OF_ALL, row)
            arena[top, DIFF] = part(files, f, DIFFS, DIFF_OF_ALL, row)
            if large(arena[top, DIFF]):
                counts[WIDE] = 1
            if arena[top, TIME] == PAST:
                counts[READ] += 1
            top += 1
            row += 1
    return arena, top


@jit
def before(events, i, j, a, b, c):  # type: ignore[no-untyped-def]
    """Whether an event comes strictly before another one, by three parts."""
    if events[i, a] != events[j, a]:
        return events[i, a] < events[j, a]
    if events[i, b] != events[j, b]:
        return events[i, b] < events[j, b]
    return events[i, c] < events[j, c]


@jit
def ordered(events, low, high, a, b, c, spare):  # type: ignore[no-untyped-def]
    """Sort a run of events by three parts, in place and stably; returns the buffer for the next
    call."""
    for i in range(low + 1, high):
        if before(events, i, i - 1, a, b, c):
            break
    else:
        return spare
    if spare.shape[0] < high - low + 1:
        spare = np.empty((2 * (high - low) + 16, 5), np.int64)
    for start in range(low, high, 12):
        for i in range(start + 1, min(start + 12, high)):
            j = i
            while j > start and before(events, j, j - 1, a, b, c):
                for p in range(5):
                    events[j, p], events[j - 1, p] = events[j - 1, p], events[j, p]
                j -= 1
    width = 12
    while width < high - low:
        for start in range(low, high, 2 * width):
            middle = min(start + width, high)
            end = min(start + 2 * width, high)
            if middle >= end or not before(events, middle, middle - 1, a, b, c):
                continue
            i, j = start, middle
            for k in range(end - start):
                if i < middle and (j == end or not before(events, j, i, a, b, c)):
                    copied(events, i, spare, k)
                    i += 1
                else:
                    copied(events, j, spare, k)
                    j += 1
            for k in range(end - start):
                copied(spare, k, events, start + k)
        width *= 2
    return spare


@jit
def summed(events, low, high):  # type: ignore[no-untyped-def]
    """Add up adjacent equal events, and drop zeros; returns the end of the sums."""
    top = low
    i = low
    while i < high:
        total = events[i, DIFF]
        j = i + 1
        while (
            j < high and events[j, VALUE] == events[i, VALUE] and events[j, TIME] == events[i, TIME]
            and events[j, AT] == events[i, AT]
        ):
            total += events[j, DIFF]
            j += 1
        if total != 0:
            if top != i:
                copied(events, i, events, top)
            events[top, DIFF] = total
            top += 1
        i = j
    return top
