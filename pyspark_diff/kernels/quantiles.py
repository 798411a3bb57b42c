"""Values at some places of each key's ordered values, by search.

For the input ``I`` of pairs of a key and a number, every key ``k`` and time ``t``::

    the value at place p  =  the least v with  sum(max(accumulate(I, t)[(k, w)], 0) for w <= v) > p

A batch has the values of a key in order. So binary search counts the values that are not greater
than a bound in each batch, and binary search over the bounds finds the value. New values, and
values with removed rows, are few. A tree of partial sums has their corrections of the batches'
counts, so that no value counts less than zero.
Source: P. M. Fenwick, "A New Data Structure for Cumulative Frequency Tables", 1994.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.consolidate import Grouped
from pyspark_diff.kernels.coordinates import Limit
from pyspark_diff.kernels.history import key_starts
from pyspark_diff.kernels.jit import jit, kernel
from pyspark_diff.kernels.lookup import key_ranges
from pyspark_diff.kernels.overflow import sum_leaves
from pyspark_diff.kernels.ranking import float_codes, from_float_codes
from pyspark_diff.kernels.search import word
from pyspark_diff.kernels.updates import Int64, UpdateChunk, spread

#: Decimals with at most this many digits are 64-bit numbers.
DIGITS = 18


@dataclass(frozen=True)
class Quantiles:
    """A function of values at some places.

    Parameters
    ----------
    parts : tuple of float
        From 0 to 1.
    listed : bool
        Whether the result is a list.
    times : int
        The number of times that each value counts.
    between : bool
        Whether the result between two values is interpolated, as a double. Otherwise it is the
        first value with at least the wanted part of all values not greater.
    value : pyarrow.DataType
        Type of the values, see `has_codes`.
    kind : pyarrow.DataType
        Type of the result.
    """

    parts: tuple[float, ...]
    listed: bool
    times: int
    between: bool
    value: pa.DataType
    kind: pa.DataType

    def evaluate(self, totals: Int64, codes_by_part: Int64) -> pa.Array:
        """The results.

        Parameters
        ----------
        totals : ndarray of int64
            The number of values of each result; positive.
        codes_by_part : ndarray of int64, shape (results, 2 * parts)
            Codes of the values below and above each part, as `at_places` returns them.
        """
        low, high = codes_by_part[:, 0::2], codes_by_part[:, 1::2]
        kind = self.kind.value_type if self.listed else self.kind
        if self.between:
            lower, upper = (_doubles(codes.reshape(-1), self.value) for codes in (low, high))
            where = (totals * self.times - 1)[:, None].astype(np.float64) * np.array(self.parts)
            below, above = np.floor(where).reshape(-1), np.ceil(where).reshape(-1)
            where = where.reshape(-1)
            with np.errstate(invalid="ignore"):
                mixed = (above - where) * lower + (where - below) * upper
            same = (lower == upper) | (below == above) | np.isnan(lower) & np.isnan(upper)
            flat = pa.array(np.where(same, lower, mixed)).cast(kind)
        else:
            flat = from_codes(low.reshape(-1), self.value).cast(kind)
        if not self.listed:
            return flat
        starts = np.arange(totals.size + 1, dtype=np.int32) * len(self.parts)
        return pa.ListArray.from_arrays(pa.array(starts), flat).cast(self.kind)


def has_codes(kind: pa.DataType) -> bool:
    """Whether values of a type are 64-bit numbers in their order."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_float32(kind)
        or pa.types.is_date32(kind) or buffers.is_timestamp(kind) or pa.types.is_duration(kind)
        or pa.types.is_decimal(kind) and kind.precision <= DIGITS
    )


def codes(column: pa.Array) -> pa.Array:
    """The numbers of values, in their order; null for a null.

    Examples
    --------
    >>> numbers = codes(pa.array([1.5, None, float("nan"), -0.0]))
    >>> from_codes(numbers.drop_null().to_numpy(), pa.float64()).to_pylist()
    [1.5, nan, 0.0]
    """
    kind = column.type
    if pa.types.is_floating(kind):
        numbers = float_codes(column)
    elif pa.types.is_decimal(kind):
        numbers = buffers.decimal_words(column)[:, 0]
    else:
        numbers = buffers.fixed(column).astype(np.int64)
    return pa.array(numbers, mask=~buffers.validity(column) if column.null_count else None)


def from_codes(numbers: Int64, kind: pa.DataType) -> pa.Array:
    """Undo `codes`."""
    if pa.types.is_floating(kind):
        return from_float_codes(numbers, kind)
    if pa.types.is_decimal(kind):
        words = np.stack((numbers, numbers >> 63), axis=1)
        return pa.Array.from_buffers(kind, numbers.size, [None, pa.py_buffer(words.tobytes())])
    if pa.types.is_date32(kind):
        return pa.array(numbers.astype(np.int32)).cast(kind)
    return pa.array(numbers).cast(kind)


def _doubles(numbers: Int64, kind: pa.DataType) -> np.ndarray:
    if pa.types.is_decimal(kind):
        if np.abs(numbers).max(initial=0) > 2**53:
            return np.array([float(Decimal(n).scaleb(-kind.scale)) for n in numbers.tolist()])
        return numbers / 10.0**kind.scale  # rounded once
    if pa.types.is_floating(kind):
        doubles: np.ndarray = buffers.fixed(from_float_codes(numbers, kind)).astype(np.float64)
        return doubles
    return numbers.astype(np.float64)


def at_places(
    keys: UpdateChunk, place: Int64, old: list[UpdateChunk], new: Grouped, events: Int64,
    width: int, wanted: Quantiles, limit: Limit | None = None,
) -> tuple[Int64, Int64, Int64, int]:
    """The values at some places, before some new updates and at their times.

    Parameters
    ----------
    keys : UpdateChunk
        Distinct keys in order: those of the new updates, and possibly others.
    place : ndarray of int64
        For each key of the new updates its index in ``keys``.
    old : list of UpdateChunk
        Batches of updates before the new ones, each ordered by (key64, key, value, time). The value
        is a number.
    events : ndarray of int64
        For each new update: the number of its key times `width`, plus the number of its time from 1
        on.
    limit : Limit or None
        In a loop, the coordinates whose rows count.

    Returns
    -------
    events : ndarray of int64
        ``key * width`` for the state before, and the distinct events of the new updates.
    totals : ndarray of int64
        The number of values from each event on.
    values : ndarray of int64, shape (events, 2 * parts)
        Codes of the values below and above each part; zeros if there is no value.
    read : int
        Number of old rows that were summed.

    Raises
    ------
    DiffOverflowError
        If the number of values leaves 64 bits.

    Examples
    --------
    >>> from pyspark_diff.kernels.consolidate import consolidate
    >>> old = UpdateChunk(np.array([1, 1, 1]), None, 0, 1, np.array([10, 20, 30]))
    >>> new = consolidate(UpdateChunk(np.array([1]), None, 5, -1, np.array([30])))
    >>> median = Quantiles((0.5,), False, 1, True, pa.int64(), pa.float64())
    >>> keys, first = UpdateChunk(np.array([1]), None, 0, 1), np.array([0])
    >>> _, totals, values, _ = at_places(keys, first, [old], new, np.array([1]), 2, median)
    >>> totals.tolist(), median.evaluate(totals, values).to_pylist()
    ([3, 2], [20.0, 15.0])
    """
    buffers_in_use, files, ranges = [], [], []
    read = 0
    for batch in old:
        if not len(batch):
            continue
        low, high = key_ranges(keys, batch)
        if not (high > low).any():
            continue
        diff = batch.scalars()
        if limit is not None:
            at = limit.mask(spread(batch.coordinate, len(batch)))
            diff = np.where(at, spread(diff, len(batch)), 0)
        if isinstance(diff, np.ndarray):
            diff = np.ascontiguousarray(diff, np.int64)
            read += int((high - low).sum())
        values = np.ascontiguousarray(batch.val64, np.int64)
        buffers_in_use.append((values, diff))  # while the kernel reads their addresses
        address, constant = (_address(diff), 0) if isinstance(diff, np.ndarray) else (0, diff)
        files.append((_address(values), address, constant))
        ranges.append((low, high))
    rows = new.updates
    order = np.argsort(events, kind="stable")
    begins = np.arange(len(keys)) * width
    stops = np.append(begins, len(keys) * width)
    # The records of each key: the first one, and the end.
    first, last = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    starts = np.searchsorted(new.starts, key_starts(new))
    first[place], last[place] = starts, np.append(starts[1:], new.starts.size)
    room = len(keys) + order.size
    out_events, totals = np.empty(room, np.int64), np.zeros(room, np.int64)
    output = np.zeros((room, 2 * len(wanted.parts)), np.int64)
    values = np.empty(0, np.int64) if rows.val64 is None else rows.val64
    count = _at_places(
        np.array(files, np.int64).reshape(len(files), 3),
        np.array([low for low, _ in ranges], np.int64).reshape(len(files), len(keys)),
        np.array([high for _, high in ranges], np.int64).reshape(len(files), len(keys)),
        np.ascontiguousarray(events[order]), np.searchsorted(events[order], stops),
        np.ascontiguousarray(values[order], np.int64), rows.diffs()[order],
        np.ascontiguousarray(values[new.starts], np.int64), first, last, begins,
        np.array(wanted.parts, np.float64), wanted.times, wanted.between,
        out_events, totals, output,
    )
    del buffers_in_use
    if count < 0:
        raise DiffOverflowError(
            "a group has more values than 64-bit integers can count: check the diffs of the input"
        )
    return out_events[:count], totals[:count], output[:count], read


def _address(values: np.ndarray) -> int:
    address: int = values.__array_interface__["data"][0]
    return address


@kernel(
    "int64[:,:], int64[:,:], int64[:,:], int64[:], int64[:], int64[:], int64[:], int64[:], "
    "int64[:], int64[:], int64[:], float64[:], int64, bool, int64[:], int64[:], int64[:,:]"
)
def _at_places(  # type: ignore[no-untyped-def]
    files, lows, highs, events, bounds, values, diffs, new, first, last, begins, parts, times,
    between, out_events, totals, out_values,
):
    n = 0
    at = np.zeros(files.shape[0], np.int64)
    sums = np.empty(0, np.int64)
    for k in range(begins.size):
        # Partial sums of the old rows, if their diffs differ.
        size = removed = 0
        for f in range(files.shape[0]):
            at[f] = size
            if files[f, 1] != 0:
                size += highs[f, k] - lows[f, k]
            elif files[f, 2] < 0:
                removed += highs[f, k] - lows[f, k]
        if sums.size < size:
            sums = np.empty(2 * size, np.int64)
        total = 0
        for f in range(files.shape[0]):
            here = 0
            if files[f, 1] == 0:
                here = files[f, 2] * (highs[f, k] - lows[f, k])
            else:
                for row in range(lows[f, k], highs[f, k]):
                    diff = word(files[f, 1] + 8 * row)
                    if sum_leaves(here, diff):
                        return -1
                    here += diff
                    sums[at[f] + row - lows[f, k]] = here
                    removed += diff < 0
            if sum_leaves(total, here):
                return -1
            total += here
        some = new[first[k] : last[k]]
        if removed:
            some = _with_removed(some, removed, k, files, lows, highs)
        tree = np.zeros(some.size + 1, np.int64)
        # The count of each value in ``some``, including negative counts.
        counts = np.zeros(some.size, np.int64)
        for i in range(some.size):
            count = _old(some[i], k, files, lows, highs, at, sums)
            if some[i] > -(2**63):
                count -= _old(some[i] - 1, k, files, lows, highs, at, sums)
            counts[i] = count
            if count < 0:
                total -= count
                _add(tree, i, -count)
        row, stop = bounds[k], bounds[k + 1]
        event = begins[k]
        while True:
            out_events[n] = event
            totals[n] = total
            if total > 0:
                for j in range(parts.size):
                    if between:
                        where = float(total * times - 1) * parts[j]
                        low = np.int64(np.floor(where)) // times
                        high = np.int64(np.ceil(where)) // times
                    else:
                        low = max(np.int64(np.ceil(parts[j] * total)), 1) - 1
                        high = low
                    low, high = min(low, total - 1), min(high, total - 1)
                    value = _value_at(low, k, files, lows, highs, at, sums, some, tree)
                    out_values[n, 2 * j] = out_values[n, 2 * j + 1] = value
                    if high != low:
                        value = _value_at(high, k, files, lows, highs, at, sums, some, tree)
                        out_values[n, 2 * j + 1] = value
            n += 1
            if row == stop:
                break
            event = events[row]
            while row < stop and events[row] == event:
                i = _until(some, values[row]) - 1
                if sum_leaves(counts[i], diffs[row]):
                    return -1
                change = max(counts[i] + diffs[row], 0) - max(counts[i], 0)
                if sum_leaves(total, change):
                    return -1
                counts[i] += diffs[row]
                total += change
                _add(tree, i, change)
                row += 1
    return n


@jit
def _with_removed(new, removed, k, files, lows, highs):  # type: ignore[no-untyped-def]
    """Some values and the values of old rows with negative diffs, in order; each once."""
    result = np.empty(new.size + removed, np.int64)
    result[: new.size] = new
    n = new.size
    for f in range(files.shape[0]):
        for row in range(lows[f, k], highs[f, k]):
            diff = files[f, 2] if files[f, 1] == 0 else word(files[f, 1] + 8 * row)
            if diff < 0:
                result[n] = word(files[f, 0] + 8 * row)
                n += 1
    result.sort()
    n = 0
    for i in range(result.size):
        if i == 0 or result[i] != result[i - 1]:
            result[n] = result[i]
            n += 1
    return result[:n]


@jit
def _until(values, value):  # type: ignore[no-untyped-def]
    """The number of values, from an ordered array, that are not greater than ``value``."""
    left, right = 0, values.size
    while left < right:
        row = (left + right) >> 1
        if values[row] <= value:
            left = row + 1
        else:
            right = row
    return left


@jit
def _add(tree, i, change):  # type: ignore[no-untyped-def]
    i += 1
    while i < tree.size:
        tree[i] += change
        i += i & -i


@jit
def _old(value, k, files, lows, highs, at, sums):  # type: ignore[no-untyped-def]
    """The sum of diffs of the old rows whose value is not greater than a value."""
    count = 0
    for f in range(files.shape[0]):
        left, right = lows[f, k], highs[f, k]
        while left < right:
            row = (left + right) >> 1
            if word(files[f, 0] + 8 * row) <= value:
                left = row + 1
            else:
                right = row
        if left > lows[f, k]:
            if files[f, 1] == 0:
                count += files[f, 2] * (left - lows[f, k])
            else:
                count += sums[at[f] + left - lows[f, k] - 1]
    return count


@jit
def _value_at(  # type: ignore[no-untyped-def]
    place, k, files, lows, highs, at, sums, some, tree
):
    """The least value with more than `place` values less than or equal to it."""
    low, high = np.int64(2**63 - 1), np.int64(-(2**63))
    for f in range(files.shape[0]):
        if lows[f, k] < highs[f, k]:
            low = min(low, word(files[f, 0] + 8 * lows[f, k]))
            high = max(high, word(files[f, 0] + 8 * (highs[f, k] - 1)))
    if some.size:
        low, high = min(low, some[0]), max(high, some[some.size - 1])
    while low < high:
        middle = (low & high) + ((low ^ high) >> 1)
        count = _old(middle, k, files, lows, highs, at, sums)
        i = _until(some, middle)
        while i > 0:
            count += tree[i]
            i -= i & -i
        if count > place:
            high = middle
        else:
            low = middle + 1
    return low
