"""Look-ups of touched records in sorted batches.

A batch is sorted by ``key64``, so a step finds its rows by search, and reads only those: the cost
follows the number of touched records, not the size of the batch. With ``B`` the batches of a
record::

    accumulated(B)[g] = sum(diff of rows of B whose record is g)
"""

from __future__ import annotations

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.buffers import read_only
from pyspark_diff.kernels.consolidate import Grouped
from pyspark_diff.kernels.coordinates import Limit
from pyspark_diff.kernels.diff_vectors import DiffVectors, add_at
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.jit import jit, kernel
from pyspark_diff.kernels.key_index import DIFF_OF_ALL, DIFFS, KEYS, LENGTH, part
from pyspark_diff.kernels.replay import replay
from pyspark_diff.kernels.overflow import sum_leaves
from pyspark_diff.kernels.search import bounds, gallop, guess_of, seek, word
from pyspark_diff.kernels.updates import Int64, UpdateChunk, joined, pick, spread


def accumulated(
    records: UpdateChunk, batches: list[UpdateChunk], limit: Limit | None = None
) -> tuple[Int64, int]:
    """Sum of diffs of each record over all rows of some batches.

    Parameters
    ----------
    records : UpdateChunk
        Distinct records in order; their times and diffs are not read.
    batches : list of UpdateChunk
        Each is in order; if records have values, not in an ordering of their own.
    limit : Limit or None
        In a loop, the coordinates that count.

    Returns
    -------
    sums : ndarray of int64, shape (records,)
    rows : int
        Number of rows of the batches that were read.

    Raises
    ------
    DiffOverflowError
        If a sum leaves 64 bits.

    Examples
    --------
    >>> records = UpdateChunk(np.array([2, 5]), None, 0, 1)
    >>> batch = UpdateChunk(np.array([1, 2, 2]), None, 0, np.array([9, 3, 4]))
    >>> accumulated(records, [batch])
    (array([7, 0]), 2)
    """
    sums = np.zeros(len(records), dtype=np.int64)
    read = 0
    few = limit is None and len(records) <= thresholds.current.look_up_few_rows_max
    words = _plain_words(records, batches) if few else None
    if words:
        read = _sums_at(read_only(records.key64), np.array(words, np.int64), sums)
        if read < 0:
            raise _leaves()
        return sums, read
    for batch in batches:
        if not len(batch) or not len(records):
            continue
        group, row = matching_records(records, batch, limit)
        read += row.size
        if not row.size:
            continue
        diffs = spread(pick(batch.scalars(), row), row.size)
        if not _add_at(sums, group, diffs):
            raise _leaves()
    return sums, read


def _leaves() -> DiffOverflowError:
    return DiffOverflowError(
        "the accumulated diff of a record leaves the range of 64-bit integers: check the diffs "
        "of the input"
    )


def _plain_words(records: UpdateChunk, batches: list[UpdateChunk]) -> list[tuple[int, ...]] | None:
    """The `words` of batches, if they and the records are plain numbers; else None."""
    if records.columns is not None or records.val64 is not None:
        return None
    result: list[tuple[int, ...]] = []
    for batch in batches:
        words = batch.words if batch.val64 is None else None
        if words is None:
            return None
        result.append(words)
    return result


def accumulated_vectors(
    records: UpdateChunk, batches: list[UpdateChunk], like: DiffVectors, limit: Limit | None = None
) -> tuple[DiffVectors, int]:
    """As `accumulated`, for diffs that are vectors of the form of ``like``."""
    sums = like.zeros(len(records))
    read = 0
    for batch in batches:
        if not len(batch) or not len(records) or not isinstance(batch.diff, DiffVectors):
            continue
        group, row = matching_within(records, batch, limit)
        read += row.size
        add_at(sums, group, batch.diff.take(row))
    return sums, read


def replay_on(
    old: list[UpdateChunk], new: Grouped, limit: Limit | None = None
) -> tuple[Int64, Int64, int]:
    """The replay of each record's new updates on top of its old accumulation: see `replay`.

    Parameters
    ----------
    old : list of UpdateChunk
        Batches of updates before the new ones, each ordered by ``key64``.
    limit : Limit or None
        In a loop, the coordinates of old updates that count.

    Returns
    -------
    before, after : ndarray of int64, shape (rows,)
    read : int
        Number of old rows that were read.
    """
    base, read = np.zeros(new.starts.size, dtype=np.int64), 0
    if old:
        base, read = accumulated(new.records(), old, limit)
    return (*replay(new, base), read)


def counted_on(
    old: list[UpdateChunk], new: Grouped, limit: Limit | None = None
) -> tuple[Int64, Int64, Int64, int]:
    """The count of each record, if that changes: the result of `replay_on` as rows.

    Returns
    -------
    rows : ndarray of int64
        Rows of the new updates: first for counts that go, then for counts that come.
    counts : ndarray of int64
        The counts; none is zero.
    diffs : ndarray of int64
        -1 if the count goes and 1 if it comes.
    read : int
        Number of old rows that were read.
    """
    updates = new.updates
    few = limit is None and len(updates) <= thresholds.current.look_up_few_rows_max
    words = _plain_words(updates, old) if few else None
    if words is not None:
        files = np.array(words, np.int64).reshape(len(words), LENGTH + 1)
        keys, diffs = read_only(updates.key64), read_only(updates.diffs())
        size, read, table = _counted(keys, diffs, read_only(new.starts), files)
        if read < 0:
            raise _leaves()
        rows, counts, diffs = table[:, :size]
        return rows, counts, diffs, read
    before, after, read = replay_on(old, new, limit)
    gone, come = np.flatnonzero(before), np.flatnonzero(after)
    counts = np.concatenate((before[gone], after[come]))
    diffs = np.repeat(np.array([-1, 1]), (gone.size, come.size))
    return np.concatenate((gone, come)), counts, diffs, read


def matching_within(
    records: UpdateChunk, batch: UpdateChunk, limit: Limit | None
) -> tuple[Int64, Int64]:
    """As `matching_rows`, for the rows at coordinates up to a limit."""
    if limit is None:
        return matching_rows(records, batch)
    if not isinstance(batch.coordinate, np.ndarray):
        if not limit.mask(np.array([batch.coordinate]))[0]:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return matching_rows(records, batch)
    group, row = matching_rows(records, batch)
    counts = limit.mask(batch.coordinate[row])
    return (group, row) if counts.all() else (group[counts], row[counts])


def matching_rows(records: UpdateChunk, batch: UpdateChunk) -> tuple[Int64, Int64]:
    """Pairs of (index of a record, row of the batch with that key), in order of the record.

    If records are pairs of a key and a value, only the keys are compared.
    """
    group, row = _matches(np.ascontiguousarray(records.key64), batch.key64)
    if group.size and (records.columns is not None or batch.columns is not None):
        # Hashes only preselect: the columns of both sides are concatenated and compared.
        columns = batch.keys().take(row).with_columns()
        both = [joined([a, b]) for a, b in zip(records.with_columns(), columns)]
        equal = rows_equal(both, group, np.arange(row.size) + len(records))
        group, row = group[equal], row[equal]
    return group, row


def key_ranges(keys: UpdateChunk, batch: UpdateChunk) -> tuple[Int64, Int64]:
    """The begin and the end of the rows of each key in a batch.

    Keys may repeat. The ranges have the rows of `matching_rows`, but rows of long ranges are not
    read.
    """
    low, high = _ranges(read_only(keys.key64), read_only(batch.key64))
    if keys.columns is None and batch.columns is None:
        return low, high
    # The rows of a key are adjacent: a range that begins and ends with a key has no other key.
    hits = np.flatnonzero(high > low)
    if not hits.size:  # an empty set of keys has no columns to concatenate
        return low, high
    ends = np.concatenate((low[hits], high[hits] - 1))
    shared = hits[~_keys_equal(keys, np.tile(hits, 2), batch, ends).reshape(2, -1).all(axis=0)]
    while shared.size:  # few keys: only null and 0 are likely to share a number
        stops = _run_ends(batch, low[shared], high[shared])
        equal = _keys_equal(keys, shared, batch, low[shared])
        high[shared[equal]] = stops[equal]
        shared, stops = shared[~equal], stops[~equal]
        low[shared] = stops
        shared = shared[stops < high[shared]]
    return low, high


def _run_ends(batch: UpdateChunk, first: Int64, stop: Int64) -> Int64:
    """The ends of the keys of some rows: by search, without reading all their rows."""
    columns, low, high = batch.with_columns(), first, stop
    while (high - low > 1).any():
        middle = (low + high) // 2
        equal = rows_equal(columns, first, middle)
        low, high = np.where(equal, middle, low), np.where(equal, high, middle)
    return high


def _keys_equal(keys: UpdateChunk, group: Int64, batch: UpdateChunk, rows: Int64) -> np.ndarray:
    columns = batch.keys().take(rows).with_columns()
    both = [joined([a, b]) for a, b in zip(keys.with_columns(), columns)]
    return rows_equal(both, group, np.arange(rows.size) + len(keys))


def matching_records(
    records: UpdateChunk, batch: UpdateChunk, limit: Limit | None
) -> tuple[Int64, Int64]:
    """Pairs of (index of a record, row of the batch with that record), in order of the record."""
    if records.val64 is None or batch.val64 is None:
        return matching_within(records, batch, limit)
    low, high = key_ranges(records.keys(), batch)
    # If values are hashes or numbers, the rows of a key have their order.
    group, row = _matches_within(
        low, high, read_only(records.val64), read_only(batch.val64)
    )
    if group.size and (records.values is not None or batch.values is not None):
        values = batch.take(row).with_values()
        both = [joined([a, b]) for a, b in zip(records.with_values(), values)]
        equal = rows_equal(both, group, np.arange(row.size) + len(records))
        group, row = group[equal], row[equal]
    if limit is not None and row.size:
        counts = limit.mask(spread(pick(batch.coordinate, row), row.size))
        group, row = group[counts], row[counts]
    return group, row


@kernel("int64[:]-, int64[:]-")
def _matches(needles, hay):  # type: ignore[no-untyped-def]
    """For each needle (ordered) the equal rows of ``hay`` (ordered): pairs of their numbers."""
    low = bounds(needles, hay)
    high = np.empty(needles.size, np.int64)
    for i in range(needles.size):
        at = low[i]
        while at < hay.size and hay[at] == needles[i]:
            at += 1
        high[i] = at
    return _pairs(low, high)


@jit
def _pairs(low, high):  # type: ignore[no-untyped-def]
    """All rows of some ranges, and the number of each row's range."""
    total = 0
    for i in range(low.size):
        total += high[i] - low[i]
    group, row = np.empty(total, np.int64), np.empty(total, np.int64)
    n = 0
    for i in range(low.size):
        for j in range(low[i], high[i]):
            group[n] = i
            row[n] = j
            n += 1
    return group, row


@kernel("int64[:]-, int64[:,:], int64[:]")
def _sums_at(keys, files, sums):  # type: ignore[no-untyped-def]
    return _add_rows(keys, files, sums)


@jit
def _add_rows(keys, files, sums):  # type: ignore[no-untyped-def]
    """Add the diffs of each key (ordered, without repetition) in all of some files; returns the
    number of rows read, or -1 if a sum leaves 64 bits."""
    read = 0
    for f in range(files.shape[0]):
        address, length = files[f, KEYS], files[f, LENGTH]
        row = 0
        for i in range(keys.size):
            row = seek(address, length, row, keys[i], guess_of(address, length, row, keys[i]))
            while row < length and word(address + 8 * row) == keys[i]:
                diff = part(files, f, DIFFS, DIFF_OF_ALL, row)
                if sum_leaves(sums[i], diff):
                    return -1
                sums[i] += diff
                read += 1
                row += 1
    return read


@kernel("int64[:]-, int64[:]-, int64[:]-, int64[:,:]")
def _counted(keys, diffs, starts, files):  # type: ignore[no-untyped-def]
    """The number of changes, and the number of rows read, or -1 if a sum leaves 64 bits; and for
    each change the row, the count, and its diff."""
    n = keys.size
    changes = np.empty((3, 2 * n), np.int64)
    sums = np.zeros(starts.size, np.int64)
    before, after = np.empty(n, np.int64), np.empty(n, np.int64)
    read = _add_rows(keys[starts], files, sums)
    for r in range(starts.size):
        total = sums[r]
        for i in range(starts[r], starts[r + 1] if r + 1 < starts.size else n):
            if sum_leaves(total, diffs[i]):
                return 0, -1, changes
            before[i] = total
            total += diffs[i]
            after[i] = total
    size = 0
    for counts, diff in ((before, -1), (after, 1)):
        for i in range(n):
            if counts[i] != 0:
                changes[0, size], changes[1, size], changes[2, size] = i, counts[i], diff
                size += 1
    return size, read, changes


@kernel("int64[:], int64[:], int64[:]")
def _add_at(sums, group, diffs):  # type: ignore[no-untyped-def]
    for i in range(group.size):
        old = sums[group[i]]
        new = old + diffs[i]
        if sum_leaves(old, diffs[i]):
            return False
        sums[group[i]] = new
    return True


@kernel("int64[:]-, int64[:]-")
def _ranges(needles, hay):  # type: ignore[no-untyped-def]
    """For each needle (ordered) the equal rows of ``hay`` (ordered).

    As `_matches`, but the end of a range is searched as well: ranges may be long, and their rows
    are not read.
    """
    low = bounds(needles, hay)
    high = np.empty(needles.size, np.int64)
    for i in range(needles.size):
        high[i] = gallop(hay, low[i], needles[i], True)
    return low, high


@kernel("int64[:], int64[:], int64[:]-, int64[:]-")
def _matches_within(low, high, needles, hay):  # type: ignore[no-untyped-def]
    """For each needle the equal rows of ``hay`` in a range that is ordered: pairs of numbers."""
    first, stop = np.empty(needles.size, np.int64), np.empty(needles.size, np.int64)
    for i in range(needles.size):
        left, right = low[i], high[i]
        while left < right:
            middle = (left + right) // 2
            if hay[middle] < needles[i]:
                left = middle + 1
            else:
                right = middle
        first[i] = left
        while left < high[i] and hay[left] == needles[i]:
            left += 1
        stop[i] = left
    return _pairs(first, stop)
