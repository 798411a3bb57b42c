"""Sums of diffs by 64-bit codes: the core of consolidation.

For codes ``c`` and diffs ``d``::

    sum_by_code(c, d)[k] = sum(d[i] for c[i] == k)        ordered by k, without zeros

in a table if codes are dense, else by sorting, with as few passes over memory as possible.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.jit import inlined, kernel
from pyspark_diff.kernels.order import ranked, starts_of, to_begins
from pyspark_diff.kernels.updates import Int64, PerRow, spread


def sum_by_code_and_time(
    key: Int64, low: int, span: int, time: PerRow, diff: PerRow
) -> tuple[Int64, PerRow, Int64]:
    """Sums by (key, time) for keys in ``[low, low + span]``, ordered by both."""
    if not isinstance(time, np.ndarray):
        code, total = sum_by_code(key, low, span, diff)
        return code, time, total
    first = int(time.min())
    reach = int(time.max()) - first
    if reach == 0:
        code, total = sum_by_code(key, low, span, diff)
        return code, first, total
    bits = reach.bit_length()
    if key.size >= thresholds.current.partition_rows_min:
        sums = _sum_partitioned(key, low, span, time, first, reach, diff)
        if sums is not None:
            return sums
    if span.bit_length() + bits > 62:
        # Ranks of both always fit: one kernel call has fewer than 2^31 rows.
        keys, key_rank = ranked(key)
        times, time_rank = ranked(time)
        ranks, rank_time, total = sum_by_code_and_time(
            key_rank, 0, keys.size, time_rank, diff
        )
        return keys[ranks], times[spread(rank_time, ranks.size)], total
    packed = ((key - low) << bits) | (time - first)
    code, total = sum_by_code(packed, 0, (span << bits) | reach, diff)
    return (code >> bits) + low, (code & ((1 << bits) - 1)) + first, total


def _sum_partitioned(
    key: Int64, low: int, span: int, time: Int64, first: int, reach: int, diff: PerRow
) -> tuple[Int64, Int64, Int64] | None:
    """Sums by (key, time), or None if the ranges are too wide.

    The upper bits of the key are a row's partition, and all other bits and the diff form one
    integer. So plain sorts process more than 64 bits, and each sort stays in the processor's cache
    (20 million rows of 72 bits: 1 s, while ranking and sorting took 15 s).
    """
    low_diff, high_diff = int(np.min(diff)), int(np.max(diff))
    if max(abs(low_diff), abs(high_diff)) * key.size >= 2**63:
        return None
    key_bits, time_bits = span.bit_length(), reach.bit_length()
    diff_bits = (high_diff - low_diff).bit_length()
    wanted = min(_upper_bits(key.size), key_bits)
    upper = max(key_bits + time_bits + diff_bits - 62, wanted)
    if upper > 16 or upper > key_bits:
        return None
    rows, stops = _partition(
        key, low, key_bits - upper, time, first, time_bits, spread(diff, key.size), low_diff,
        diff_bits, (span >> (key_bits - upper)) + 1,
    )
    begin = 0
    for stop in stops:
        rows[begin:stop].sort()
        begin = stop
    count = _sum_runs(rows, stops, diff_bits, low_diff)
    codes, times, sums = np.empty((3, count), dtype=np.int64)
    _runs(
        rows, stops, key_bits - upper, low, time_bits, first, diff_bits, low_diff, codes, times,
        sums,
    )
    return codes, times, sums


def sum_parts(
    parts: list[tuple[Int64, Int64 | None, PerRow, PerRow]]
) -> tuple[Int64, Int64 | None, PerRow, PerRow] | None:
    """Sums by (key, value, time), ordered by these, of rows in several parts.

    As `_sum_partitioned`, directly from columns: the only intermediate is one integer for each row,
    and for keys without values at one time there is none. The list is emptied after the integers
    are complete: if no other variable refers to the parts, the sums reuse their memory.

    Parameters
    ----------
    parts : list of (ndarray, ndarray or None, ndarray or int, ndarray or int)
        Keys, values, times and diffs; there are rows, and values in all parts or in none.

    Returns
    -------
    tuple of keys, values, times and diffs, or None
        None if ranges are too wide, or so narrow that a table is better. Then the list is not
        emptied.

    Examples
    --------
    >>> sums = sum_parts([(np.array([2, 1]), np.array([9 << 40, 5]), 0, 1)])
    >>> [part.tolist() if isinstance(part, np.ndarray) else part for part in sums]
    [[1, 2], [5, 9895604649984], 0, 1]
    """
    if parts[0][1] is None:
        return _sum_keys(parts)
    rows = sum(part[0].size for part in parts)
    bounds = [_bounds([x for x in column if x is not None]) for column in zip(*parts)]
    lows = [low for low, _ in bounds]
    bits = [(high - low).bit_length() for low, high in bounds]
    code = bits[0] + bits[1]
    slots = thresholds.current.dense_slots_per_row_max * rows
    if code > 62 or max(map(abs, bounds[3])) * rows >= 2**63 or 1 << code < slots:
        return None
    upper = max(code + bits[2] + bits[3] - 62, min(_upper_bits(rows), code))
    if upper > 16:
        return None
    shift, widths = code - upper, np.array([*bits, *lows])
    stops = np.zeros(1 << upper, np.int64)
    for key, value, _, _ in parts:
        _tally_pairs(key, value, widths, shift, stops)
    packed = np.empty(rows, np.int64)
    stops = np.cumsum(stops) - stops
    for key, value, *both in parts:
        columns = [x if isinstance(x, np.ndarray) else np.array([x]) for x in both]
        _pack_pairs(key, value, *columns, widths, shift, stops, packed)
    parts.clear()
    begin = 0
    for stop in stops.tolist():
        packed[begin:stop].sort()
        begin = stop
    count = _sum_runs(packed, stops, bits[3], lows[3])
    keys, values = np.empty(count, np.int64), np.empty(count, np.int64)
    times = np.empty(count if bits[2] else 0, np.int64)
    diffs = np.empty(count, np.int64)
    equal = _unpack_pairs(packed, stops, widths, shift, keys, values, times, diffs)
    return keys, values, times if bits[2] else lows[2], int(diffs[0]) if equal and count else diffs


def _sum_keys(
    parts: list[tuple[Int64, Int64 | None, PerRow, PerRow]]
) -> tuple[Int64, None, PerRow, Int64] | None:
    """As `sum_parts`, for keys without values, if all times are equal and a table has room."""
    rows = sum(part[0].size for part in parts)
    low, high = _bounds([key for key, _, _, _ in parts])
    first, last = _bounds([time for _, _, time, _ in parts])
    diffs = _bounds([diff for _, _, _, diff in parts])
    slots = thresholds.current.dense_slots_per_row_max * rows
    if first != last or high - low >= slots or max(map(abs, diffs)) * rows >= 2**63:
        return None
    sums = np.zeros(high - low + 1, np.int64)
    for key, _, _, diff in parts:
        _tally_diffs(key, low, diff if isinstance(diff, np.ndarray) else np.array([diff]), sums)
    parts.clear()
    keys, totals = _nonzero(sums, low, 1)
    return keys, None, first, totals


def _bounds(columns: list[PerRow]) -> tuple[int, int]:
    return (
        min(int(np.min(column)) for column in columns),
        max(int(np.max(column)) for column in columns),
    )


def sum_by_code(code: Int64, low: int, span: int, diff: PerRow) -> tuple[Int64, Int64]:
    """Sum of diffs of each code, ordered by code, without zeros.

    Parameters
    ----------
    code : ndarray of int64, shape (n,)
        Codes in ``[low, low + span]``.
    low, span : int
        Bounds of the codes.
    diff : ndarray of int64, shape (n,), or int
        One diff for each row, or one diff for all rows.

    Returns
    -------
    codes : ndarray of int64
    sums : ndarray of int64
    """
    rows = code.size
    if not isinstance(diff, np.ndarray):
        if not diff:
            return code[:0], code[:0]
        if abs(diff) * rows >= 2**63:
            return _sum_wide(code, spread(diff, rows))
        if span < thresholds.current.dense_slots_per_row_max * rows:
            table = np.zeros(span + 1, dtype=np.int32)
            _tally(code, low, table)
            return _nonzero(table, low, diff)
        ordered = _sorted(code, low, span)
        starts = starts_of(ordered)
        return ordered[starts], np.diff(starts, append=rows) * diff
    low_diff, high_diff = int(diff.min()), int(diff.max())
    if max(abs(low_diff), abs(high_diff)) * rows >= 2**63:
        return _sum_wide(code, diff)
    if span < thresholds.current.dense_slots_per_row_max * rows:
        sums = np.zeros(span + 1, dtype=np.int64)
        _tally_diffs(code, low, diff, sums)
        return _nonzero(sums, low, 1)
    bits = (high_diff - low_diff).bit_length()
    if span.bit_length() + bits <= 62:
        # With the diff in the low bits, one plain sort is enough: no index, and no second read.
        packed = ((code - low) << bits) | (diff - low_diff)
        packed = _sorted(packed, 0, (span << bits) | ((1 << bits) - 1))
        ordered, weights = (packed >> bits) + low, (packed & ((1 << bits) - 1)) + low_diff
    else:
        order = np.argsort(code)
        ordered, weights = code[order], diff[order]
    starts = starts_of(ordered)
    if starts.size == rows:
        totals, codes = weights, ordered
    else:
        totals, codes = np.add.reduceat(weights, starts), ordered[starts]
    nonzero = totals != 0
    return (codes, totals) if nonzero.all() else (codes[nonzero], totals[nonzero])


def _sorted(code: Int64, low: int, span: int) -> Int64:
    """Codes in ``[low, low + span]`` in order: partitioned by their upper bits, then sorted by
    part.

    Parts of some hundred rows are sorted inside of the cache of a processor (measured, 8 million
    rows: 20 ns a row, while a single sort takes 65).
    """
    upper = min(_upper_bits(code.size), span.bit_length())
    if upper < 3:
        return np.sort(code)
    shift = span.bit_length() - upper
    rows, stops = _scattered(code, low, shift, (span >> shift) + 1)
    begin = 0
    for stop in stops:
        rows[begin:stop].sort()
        begin = stop
    return rows


def _upper_bits(rows: int) -> int:
    """The best number of bits for a partition of rows before they are sorted."""
    return max(0, min(rows.bit_length() - 9, 13))


def _sum_wide(code: Int64, diff: Int64) -> tuple[Int64, Int64]:
    """As `sum_by_code` for diffs so large that a sum may leave 64 bits: halves are summed
    separately.
    """
    order = np.argsort(code, kind="stable")
    ordered, weights = code[order], diff[order]
    starts = starts_of(ordered)
    low = np.add.reduceat(weights & 0xFFFFFFFF, starts)
    high = np.add.reduceat(weights >> 32, starts) + (low >> 32)
    if ((high > 2**31 - 1) | (high < -(2**31))).any():
        raise DiffOverflowError(
            "a sum of diffs leaves the range of 64-bit integers: the updates of one record at one "
            "time add up to more than 9223372036854775807 in size. Check the diffs of the input"
        )
    sums = (high << 32) | (low & 0xFFFFFFFF)
    nonzero = sums != 0
    return ordered[starts][nonzero], sums[nonzero]


@kernel("int64[:]-, int64, int32[:]")
def _tally(code, low, table):  # type: ignore[no-untyped-def]
    for i in range(code.size):
        table[code[i] - low] += 1


@kernel("int64[:]-, int64, int64[:]-, int64[:]")
def _tally_diffs(code, low, diff, table):  # type: ignore[no-untyped-def]
    each = -(diff.size > 1)  # one diff may be shared by all
    for i in range(code.size):
        table[code[i] - low] += diff[i & each]


@kernel("int64[:]-, int64, int64, int64")
def _scattered(code, low, shift, parts):  # type: ignore[no-untyped-def]
    at = np.zeros(parts, np.int64)
    # As in `_partition`: the distance of codes may exceed a signed difference.
    number = (np.int64(1) << (64 - shift)) - 1 if shift else np.int64(-1)
    for i in range(code.size):
        at[((code[i] - low) >> shift) & number] += 1
    to_begins(at)
    rows = np.empty(code.size, np.int64)
    for i in range(code.size):
        p = ((code[i] - low) >> shift) & number
        rows[at[p]] = code[i]
        at[p] += 1
    return rows, at


@kernel("int32[:]-, int64, int64", "int64[:]-, int64, int64")
def _nonzero(table, low, times):  # type: ignore[no-untyped-def]
    """The codes with nonzero entries in a table, and these entries times ``times``."""
    count = 0
    for i in range(table.size):
        count += table[i] != 0
    codes, sums = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    n = 0
    # Rows are written in any case: zeros are as good as random, and a branch costs more.
    for i in range(table.size):
        codes[n] = low + i
        sums[n] = table[i] * times
        n += table[i] != 0
    return codes[:count], sums[:count]


@kernel("int64[:]-, int64, int64, int64[:]-, int64, int64, int64[:]-, int64, int64, int64")
def _partition(  # type: ignore[no-untyped-def]
    key, low, shift, time, first, time_bits, diff, low_diff, diff_bits, parts
):
    at = np.zeros(parts, np.int64)
    # The distance of keys may exceed a signed difference: without the sign it is correct.
    number = (np.int64(1) << (64 - shift)) - 1 if shift else np.int64(-1)
    for i in range(key.size):
        at[((key[i] - low) >> shift) & number] += 1
    to_begins(at)
    rows = np.empty(key.size, np.int64)
    mask = (np.int64(1) << shift) - 1
    for i in range(key.size):
        code = key[i] - low
        p = (code >> shift) & number
        rows[at[p]] = (
            ((((code & mask) << time_bits) | (time[i] - first)) << diff_bits) | (diff[i] - low_diff)
        )
        at[p] += 1
    return rows, at  # `at` now has the end of each partition


@inlined
def _run(rows, i, stop, diff_bits, low_diff):  # type: ignore[no-untyped-def]
    """The end of the next run of rows that differ in their diffs only, its code, and its sum."""
    mask = (np.int64(1) << diff_bits) - 1
    same = rows[i] >> diff_bits
    total = 0
    while i < stop and rows[i] >> diff_bits == same:
        total += (rows[i] & mask) + low_diff
        i += 1
    return i, same, total


@kernel("int64[:], int64[:], int64, int64")
def _sum_runs(rows, stops, diff_bits, low_diff):  # type: ignore[no-untyped-def]
    """The number of (key, time) with a nonzero sum."""
    count = 0
    begin = 0
    for p in range(stops.size):
        i = begin
        while i < stops[p]:
            i, _, total = _run(rows, i, stops[p], diff_bits, low_diff)
            count += total != 0
        begin = stops[p]
    return count


@kernel(
    "int64[:], int64[:], int64, int64, int64, int64, int64, int64, int64[:], int64[:], int64[:]"
)
def _runs(  # type: ignore[no-untyped-def]
    rows, stops, shift, low, time_bits, first, diff_bits, low_diff, codes, times, sums
):
    n = 0
    begin = 0
    time_mask = (np.int64(1) << time_bits) - 1
    for p in range(stops.size):
        i = begin
        while i < stops[p]:
            i, same, total = _run(rows, i, stops[p], diff_bits, low_diff)
            if total != 0:
                codes[n] = ((np.int64(p) << shift) | (same >> time_bits)) + low
                times[n] = (same & time_mask) + first
                sums[n] = total
                n += 1
        begin = stops[p]


@kernel("int64[:]-, int64[:]-, int64[:], int64, int64[:]")
def _tally_pairs(key, value, widths, shift, counts):  # type: ignore[no-untyped-def]
    bits, low, value_low = widths[1], widths[4], widths[5]
    for i in range(key.size):
        counts[(((key[i] - low) << bits) | (value[i] - value_low)) >> shift] += 1


@kernel(
    "int64[:]-, int64[:]-, int64[:]-, int64[:]-, int64[:], int64, int64[:], int64[:]"
)
def _pack_pairs(key, value, time, diff, widths, shift, at, rows):  # type: ignore[no-untyped-def]
    bits, time_bits, diff_bits = widths[1], widths[2], widths[3]
    low, value_low, first, diff_low = widths[4], widths[5], widths[6], widths[7]
    times, diffs = -(time.size > 1), -(diff.size > 1)  # one value may be shared by all
    mask = (np.int64(1) << shift) - 1
    for i in range(key.size):
        code = ((key[i] - low) << bits) | (value[i] - value_low)
        row = ((code & mask) << time_bits) | (time[i & times] - first)
        p = code >> shift
        rows[at[p]] = (row << diff_bits) | (diff[i & diffs] - diff_low)
        at[p] += 1


@kernel(
    "int64[:], int64[:], int64[:], int64, int64[:], int64[:], int64[:], int64[:]"
)
def _unpack_pairs(  # type: ignore[no-untyped-def]
    rows, stops, widths, shift, keys, values, times, sums
):
    """Write the nonzero sums; returns whether all are equal."""
    bits, time_bits, diff_bits = widths[1], widths[2], widths[3]
    low, value_low, first, diff_low = widths[4], widths[5], widths[6], widths[7]
    value_mask = (np.int64(1) << bits) - 1
    time_mask = (np.int64(1) << time_bits) - 1
    n = 0
    begin = 0
    same_sum = True
    for p in range(stops.size):
        i = begin
        while i < stops[p]:
            i, same, total = _run(rows, i, stops[p], diff_bits, diff_low)
            if total != 0:
                code = (np.int64(p) << shift) | (same >> time_bits)
                keys[n] = (code >> bits) + low
                values[n] = (code & value_mask) + value_low
                if times.size:
                    times[n] = (same & time_mask) + first
                sums[n] = total
                same_sum = same_sum and total == sums[0]
                n += 1
        begin = stops[p]
    return same_sum
