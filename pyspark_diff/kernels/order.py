"""Rows in the order of a 64-bit number, which is usually a hash.

For numbers ``v`` and ``order = order_of(v)``::

    v[order] ascends;   rows of one number keep their order

The upper bits of a number and its row form one integer. A sort by as many bits as are needed to
distinguish that many rows leaves few in a wrong place. It takes 0.06 to 0.2 s for 6 million hashes;
a sort of rows by their numbers takes 0.8 s.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.jit import jit, kernel
from pyspark_diff.kernels.updates import Int64

#: A row that would pass this many other rows is not moved: all rows are sorted instead.
_FAR = 64


def order_of(values: Int64) -> Int64:
    """The rows in the order of their numbers.

    Examples
    --------
    >>> order_of(np.array([5, 3, 5, 3]))
    array([1, 3, 0, 2])
    """
    if values.size < thresholds.current.sort_packed_rows_min:
        return np.argsort(values, kind="stable")
    low, high = int(values.min()), int(values.max())
    reach, bits = (high - low).bit_length(), (values.size - 1).bit_length()
    shift = max(0, reach + bits - 63)
    rows = _ordered(np.ascontiguousarray(values), low, reach, shift, bits)
    return np.argsort(values, kind="stable") if rows is None else rows


def order_of_pairs(keys: Int64, values: Int64) -> Int64:
    """The rows in the order of their keys, and rows of a key in the order of their values.

    Rows with equal keys and equal values have any order.

    Examples
    --------
    >>> order_of_pairs(np.array([5, 3, 5]), np.array([9, 0, 8]))
    array([1, 2, 0])
    """
    ascend = bool((keys[1:] >= keys[:-1]).all())
    order = np.arange(keys.size) if ascend else order_of(keys)
    _order_values(order, keys, values)
    return order


def distinct(values: Int64) -> Int64:
    """The numbers, each once and in order.

    Examples
    --------
    >>> distinct(np.array([5, 3, 5]))
    array([3, 5])
    """
    if not values.size:
        return values
    low, high = int(values.min()), int(values.max())
    if high - low < thresholds.current.dense_slots_per_row_max * values.size:
        there = np.zeros(high - low + 1, np.bool_)
        there[values - low] = True
        return np.flatnonzero(there) + low
    ordered = values[order_of(values)]
    return ordered[starts_of(ordered)]


def ranked(values: Int64) -> tuple[Int64, Int64]:
    """The numbers, each once and in order, and for each row the rank of its number.

    Examples
    --------
    >>> ranked(np.array([5, 3, 5]))
    (array([3, 5]), array([1, 0, 1]))
    """
    if not values.size:
        return values, values
    low, high = int(values.min()), int(values.max())
    rank = np.empty(values.size, np.int64)
    if high - low < thresholds.current.dense_slots_per_row_max * values.size:
        table = np.zeros(high - low + 1, np.int32)
        _place(np.ascontiguousarray(values), low, table, rank)
        return np.flatnonzero(table) + low, rank
    order = order_of(values)
    ordered = values[order]
    starts = starts_of(ordered)
    rank[order] = np.repeat(np.arange(starts.size), np.diff(starts, append=order.size))
    return ordered[starts], rank


def among(values: Int64, others: Int64) -> np.ndarray:
    """For each number whether it is one of the others.

    Examples
    --------
    >>> among(np.array([5, 3, 5]), np.array([9, 5]))
    array([ True, False,  True])
    """
    if not others.size:
        return np.zeros(values.size, np.bool_)
    there = distinct(others)
    place = np.searchsorted(there, values)
    return there[np.minimum(place, there.size - 1)] == values


def starts_of(ordered: Int64) -> Int64:
    """Index of the first row of each run of equal numbers."""
    if not ordered.size:
        return np.empty(0, np.int64)
    return np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))


@kernel("int64[:], int64[:]-, int64[:]-")
def _order_values(order, keys, values):  # type: ignore[no-untyped-def]
    """Sort the rows of each key by their values."""
    start = 0
    while start < order.size:
        stop = start + 1
        while stop < order.size and keys[order[stop]] == keys[order[start]]:
            stop += 1
        if stop - start > 16:
            rows = order[start:stop].copy()
            order[start:stop] = rows[np.argsort(values[rows])]
        else:
            for i in range(start + 1, stop):
                row, j = order[i], i
                while j > start and values[order[j - 1]] > values[row]:
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = row
        start = stop


@kernel("int64[:]-, int64, int32[:], int64[:]")
def _place(values, low, table, rank):  # type: ignore[no-untyped-def]
    for i in range(values.size):
        table[values[i] - low] = 1
    count = 0
    for s in range(table.size):
        if table[s]:
            count += 1
            table[s] = count
    for i in range(values.size):
        rank[i] = table[values[i] - low] - 1


@jit
def to_begins(counts):  # type: ignore[no-untyped-def]
    """Replace the number of rows of each part by its begin."""
    total = 0
    for p in range(counts.size):
        count = counts[p]
        counts[p] = total
        total += count


@kernel("int64[:]-, int64, int64, int64, int64")
def _ordered(values, low, reach, shift, bits):  # type: ignore[no-untyped-def]
    """The rows in order, or None if many numbers need more than a few further bits.

    After a sort by as many upper bits as the number of rows needs, few rows are in a wrong place.
    """
    packed = np.empty(values.size, np.int64)
    for i in range(values.size):
        upper = np.uint64(values[i] - low) >> np.uint64(shift)
        packed[i] = np.int64(upper) << bits | i
    sort_bits = min(reach - shift, bits + 1)
    packed = by_bits(packed, bits + reach - shift - sort_bits, sort_bits)
    mask = (np.int64(1) << bits) - 1
    for i in range(1, packed.size):
        row, j = packed[i], i
        while j > 0 and packed[j - 1] >> bits >= row >> bits:
            before = packed[j - 1]
            if before >> bits == row >> bits and (
                shift == 0 or values[before & mask] <= values[row & mask]
            ):
                break
            if i - j >= _FAR:
                return None
            packed[j] = before
            j -= 1
        packed[j] = row
    for i in range(packed.size):
        packed[i] &= mask
    return packed


@jit
def by_bits(numbers, shift, bits):  # type: ignore[no-untyped-def]
    """Numbers in the order of some of their bits: a radix sort of a few bits at a time.

    It is stable for numbers with equal bits.
    """
    wide = 4
    while wide < 11 and 1 << wide < numbers.size:
        wide += 1
    passes = max(1, (bits + wide - 1) // wide)
    wide = (bits + passes - 1) // passes
    other = np.empty_like(numbers)
    counts = np.empty(1 << wide, np.int64)
    for _ in range(passes):
        counts[:] = 0
        for i in range(numbers.size):
            counts[numbers[i] >> shift & counts.size - 1] += 1
        to_begins(counts)
        for i in range(numbers.size):
            digit = numbers[i] >> shift & counts.size - 1
            other[counts[digit]] = numbers[i]
            counts[digit] += 1
        numbers, other = other, numbers
        shift += wide
    return numbers
