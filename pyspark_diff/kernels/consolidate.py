"""Consolidation: equal ``(record, time)`` become one row, and zeros vanish. In a loop the loop's
coordinate is a part of the time.

For updates ``U`` and ``C = consolidate(U)``::

    accumulate(C, t) = accumulate(U, t)      for every t
    no two rows of C share (record, time);  no diff of C is zero
    rows of C are ordered by (key64, key, value, coordinate, time)

Everything is reduced to one problem: sums of diffs by one 64-bit code. Records and times are packed
into the code if their ranges allow, and ranked first if they do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.kernels import ranking
from pyspark_diff.kernels.diff_vectors import DiffVectors, sum_vectors
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.few import sums_of_few
from pyspark_diff.kernels.grouping import group_records
from pyspark_diff.kernels.order import order_of_pairs, ranked, starts_of
from pyspark_diff.kernels.sums import sum_by_code_and_time, sum_parts
from pyspark_diff.kernels.updates import (
    Int64,
    Ordering,
    PerRow,
    UpdateChunk,
    concat,
    empty,
    one_or_all,
    take_columns,
)


@dataclass(frozen=True)
class Grouped:
    """Consolidated updates, and the first row of each record.

    Parameters
    ----------
    updates : UpdateChunk
        Rows ordered by (key64, key, value, time).
    starts : ndarray of int64, shape (records,)
        Index of the first row of each record.
    key_starts : ndarray of int64, shape (keys,), or None
        Index of the first row of each key, if records are pairs of a key and a value.
    """

    updates: UpdateChunk
    starts: Int64
    key_starts: Int64 | None = None

    def records(self) -> UpdateChunk:
        """The first row of each record."""
        if self.starts.size == len(self.updates):
            return self.updates
        return self.updates.take(self.starts)

    def lengths(self) -> Int64:
        """Number of rows of each record."""
        return np.diff(self.starts, append=len(self.updates))


class Runs(Grouped):
    """As `Grouped`, but the starts of records and keys are computed on demand.

    Parameters
    ----------
    updates : UpdateChunk
        Consolidated rows, in order.
    """

    def __init__(self, updates: UpdateChunk):
        object.__setattr__(self, "updates", updates)

    @cached_property
    def starts(self) -> Int64:  # type: ignore[override]
        """Index of the first row of each record."""
        new = self._new_keys()
        if self.updates.val64 is not None:
            new |= _changes(self.updates.val64, self.updates.values)
        return np.flatnonzero(new)

    @cached_property
    def key_starts(self) -> Int64 | None:  # type: ignore[override]
        """Index of the first row of each key, if records are pairs of a key and a value."""
        return None if self.updates.val64 is None else np.flatnonzero(self._new_keys())

    def _new_keys(self) -> np.ndarray:
        return _changes(self.updates.key64, self.updates.columns)


def consolidate_parts(parts: list[UpdateChunk]) -> Grouped:
    """As `consolidate`, of all rows of several parts. The list is emptied.

    If no other variable refers to the parts, their memory is free before the result is complete.
    """
    parts[:] = [part for part in parts if len(part)]
    if parts and sum(map(len, parts)) >= thresholds.current.partition_rows_min:
        coordinate, ordering = parts[0].coordinate, parts[0].ordering
        columns = [
            (part.key64, part.val64, part.time, part.diff) for part in parts
            if part.columns is None and part.values is None
            and (part.val64 is None) == (parts[0].val64 is None)
            and not isinstance(part.diff, DiffVectors)
            and not isinstance(part.coordinate, np.ndarray) and part.coordinate == coordinate
        ]
        if len(columns) == len(parts):
            parts.clear()
            summed = sum_parts(columns)
            parts += [
                UpdateChunk(key, None, time, diff, value, None, ordering, coordinate)
                for key, value, time, diff in (columns if summed is None else [summed])
            ]
            if summed is not None:
                return Runs(parts.pop())
    rows = concat(parts)
    parts.clear()
    return consolidate(rows)


def consolidate(updates: UpdateChunk) -> Grouped:
    """Add the diffs of equal ``(record, time)`` and drop zeros.

    Parameters
    ----------
    updates : UpdateChunk
        Rows in any order.

    Returns
    -------
    Grouped
        The same collection in its smallest form.

    Raises
    ------
    DiffOverflowError
        If a sum of diffs leaves 64 bits.

    Examples
    --------
    >>> u = UpdateChunk(np.array([7, 3, 7]), None, np.array([1, 0, 1]), np.array([1, 1, -1]))
    >>> consolidate(u).updates.key64.tolist()
    [3]
    """
    if not len(updates):
        return Grouped(empty(), np.empty(0, np.int64))
    if len(updates) == 1:
        return _single(updates)
    if isinstance(updates.coordinate, np.ndarray):
        return _consolidate_places(updates, updates.coordinate)
    few = len(updates) <= thresholds.current.consolidate_few_rows_max
    if few and (updates.val64 is None or not (updates.columns or updates.values)):
        result = _consolidate_few(updates)
        if result is not None:
            return result
    if not few and updates.columns is None and updates.values and (
        updates.ordering is None
    ):
        result = _consolidate_hashed(updates)
        if result is not None:
            return result
    key, key_first = codes_of(updates.key64, updates.columns, None)
    if isinstance(updates.diff, DiffVectors):
        return _consolidate_vectors(updates, updates.diff, key, key_first)
    if updates.val64 is None:
        code, time, diff = sum_by_code_and_time(*span_of(key), updates.time, updates.diff)
        rows = rows_of(updates, code, time, _narrowed(diff), key_first).placed(updates.coordinate)
        alone = not isinstance(time, np.ndarray)
        return Grouped(rows, np.arange(code.size) if alone else starts_of(code))
    value, value_first = codes_of(updates.val64, updates.values, updates.ordering)
    pairs = PairCodes(key, value)
    code, time, diff = sum_by_code_and_time(pairs.code, 0, pairs.span, updates.time, updates.diff)
    key, value = pairs.parts(code)
    diffs = _narrowed(diff)
    rows = rows_of(updates, key, time, diffs, key_first)
    val64, values = value, None
    if value_first is not None and updates.values is not None:
        val64 = updates.val64[value_first[value]]
        values = take_columns(updates.values, value_first[value])
    rows = UpdateChunk(
        rows.key64, rows.columns, time, diffs, val64, values, updates.ordering, updates.coordinate
    )
    return Grouped(rows, starts_of(code), starts_of(key))


def _narrowed(diff: Int64) -> PerRow:
    """Diffs of many rows as one number if all are equal: it need not be moved or written per
    row."""
    return one_or_all(diff) if diff.size >= thresholds.current.partition_rows_min else diff


def _single(updates: UpdateChunk) -> Grouped:
    """As `consolidate`, of one row: a small step has one row in each bucket."""
    diff = updates.diff if isinstance(updates.diff, DiffVectors) else updates.diffs()
    if not (diff.nonzero() if isinstance(diff, DiffVectors) else diff)[0]:
        return Grouped(empty(), np.empty(0, np.int64))
    time, coordinate = (
        int(value[0]) if isinstance(value, np.ndarray) else value
        for value in (updates.time, updates.coordinate)
    )
    starts = np.zeros(1, np.int64)
    rows = updates.at(time, diff).placed(coordinate)
    return Grouped(rows, starts, None if updates.val64 is None else starts)


def _consolidate_few(updates: UpdateChunk) -> Grouped | None:
    """As `consolidate`, of few rows of numbers, or of any records without values; None if that is
    not enough."""
    key, value, time, diff = updates.key64, updates.val64, updates.time, updates.diff
    if isinstance(diff, DiffVectors):
        return None
    columns = [
        np.ascontiguousarray(part) if isinstance(part, np.ndarray) else np.array([part], np.int64)
        for part in (key, key if value is None else value, time, diff)
    ]
    count, alone, groups, same_time, sums = sums_of_few(*columns, value is not None)
    if count < 0:
        return None
    keys, values, times, diffs, _, _, first = sums[:7, :count]
    starts, key_starts, order = sums[4, :alone], sums[5, :groups], sums[7]
    records = None
    if updates.columns is not None:
        # Rows with one hash are one record, or the hash does not distinguish the records.
        met = np.flatnonzero(key[order[1:]] == key[order[:-1]])
        if met.size and not rows_equal(updates.columns, order[met], order[met + 1]).all():
            return None
        records = take_columns(updates.columns, first)
    rows = UpdateChunk(
        keys, records, int(columns[2][0]) if same_time else times, diffs,
        None if value is None else values, None, updates.ordering, updates.coordinate,
    )
    return Grouped(rows, starts, None if value is None else key_starts)


def _consolidate_hashed(updates: UpdateChunk) -> Grouped | None:
    """As `consolidate`, of keys that are numbers and of hashed values, all with one time and one
    diff: the rows are sorted directly, without numbering. None if that is not enough."""
    key, value, diff = updates.key64, updates.val64, updates.diff
    if value is None or isinstance(updates.time, np.ndarray) or not isinstance(diff, int):
        return None
    if not diff or abs(diff) * key.size >= 2**63:
        return None
    order = order_of_pairs(key, value)
    key, value = key[order], value[order]
    new = np.ones(key.size, np.bool_)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    key_starts = np.flatnonzero(new)
    new[1:] |= value[1:] != value[:-1]
    again = np.flatnonzero(~new)
    diffs: PerRow = diff
    if again.size:
        if not rows_equal(updates.values or (), order[again - 1], order[again]).all():
            return None  # two values with one hash
        starts = np.flatnonzero(new)
        diffs = one_or_all(np.diff(starts, append=key.size) * diff)
        key_starts = np.searchsorted(starts, key_starts)
        key, value, order = key[starts], value[starts], order[starts]
    rows = UpdateChunk(
        key, None, updates.time, diffs, value, take_columns(updates.values, order), None,
        updates.coordinate,
    )
    return Grouped(rows, np.arange(key.size), key_starts)


def _consolidate_places(updates: UpdateChunk, coordinate: Int64) -> Grouped:
    """As `consolidate`, of times with several coordinates: coordinate and time make one code."""
    first = int(coordinate[0])
    if (coordinate == first).all():
        return consolidate(updates.placed(first))
    when = PairCodes(coordinate, updates.times())
    grouped = consolidate(updates.at(when.code, updates.diff).placed(0))
    if not len(grouped.updates):
        return grouped
    coordinate, time = when.parts(grouped.updates.times())
    rows = grouped.updates.at(time, grouped.updates.diff).placed(coordinate)
    return Grouped(rows, grouped.starts, grouped.key_starts)


def _consolidate_vectors(
    updates: UpdateChunk, vectors: DiffVectors, key: Int64, first: Int64 | None
) -> Grouped:
    """As `consolidate`, of diffs that are vectors."""
    if not isinstance(updates.time, np.ndarray):
        code, sums = sum_vectors(key, vectors)
        rows = rows_of(updates, code, updates.time, sums, first).placed(updates.coordinate)
        return Grouped(rows, starts_of(code))
    pairs = PairCodes(key, updates.time)
    code, sums = sum_vectors(pairs.code, vectors)
    key, time = pairs.parts(code)
    rows = rows_of(updates, key, time, sums, first).placed(updates.coordinate)
    return Grouped(rows, starts_of(key))


def runs_of(updates: UpdateChunk) -> Grouped:
    """The starts of records and keys among rows that are consolidated and in order already."""
    if not len(updates):
        return Grouped(updates, np.empty(0, np.int64))
    if len(updates) == 1:
        starts = np.zeros(1, np.int64)
        return Grouped(updates, starts, None if updates.val64 is None else starts)
    return Runs(updates)


def _changes(key64: Int64, columns: tuple[pa.Array, ...] | None) -> np.ndarray:
    """Whether each row differs from the one before it."""
    differs = np.ones(key64.size, dtype=bool)
    np.not_equal(key64[1:], key64[:-1], out=differs[1:])
    if columns:
        rows = np.flatnonzero(~differs)
        differs[rows] = ~rows_equal(columns, rows - 1, rows)
    return differs


def codes_of(
    key64: Int64, columns: tuple[pa.Array, ...] | None, ordering: Ordering | None
) -> tuple[Int64, Int64 | None]:
    """A code for each row, equal for equal records; and for hashes a row of each code."""
    if columns is None:
        return key64, None
    if ordering is None:
        return group_records(key64, columns)
    distinct, group = ranked(ranking.codes(columns, ordering, key64.size))
    first = np.empty(distinct.size, np.int64)
    first[group[::-1]] = np.arange(group.size - 1, -1, -1)
    return group, first


def rows_of(
    updates: UpdateChunk, code: Int64, time: PerRow, diff: PerRow | DiffVectors, first: Int64 | None
) -> UpdateChunk:
    """Updates of the keys with some codes."""
    if first is None or updates.columns is None:
        return UpdateChunk(code, None, time, diff)
    rows = first[code]
    return UpdateChunk(updates.key64[rows], take_columns(updates.columns, rows), time, diff)


def span_of(code: Int64) -> tuple[Int64, int, int]:
    low = int(code.min())
    return code, low, int(code.max()) - low


class PairCodes:
    """Pairs of codes as one code that orders them by the first, then by the second."""

    def __init__(self, first: Int64, second: Int64):
        self._bases: list[Int64 | int] = []
        parts, spans = [], []
        for codes in (first, second):
            codes, low, span = span_of(codes)
            self._bases.append(low)
            parts.append(codes)
            spans.append(span)
        while sum(span.bit_length() for span in spans) > 62:
            # Ranks of both always fit: one kernel call has fewer than 2^31 rows.
            wide = max(range(2), key=lambda i: spans[i])
            self._bases[wide], parts[wide] = ranked(parts[wide])
            spans[wide] = parts[wide].size
        self._bits = spans[1].bit_length()
        left, right = (
            part if isinstance(base, np.ndarray) else part - base
            for part, base in zip(parts, self._bases)
        )
        self.code = (left << self._bits) | right
        self.span = (spans[0] << self._bits) | ((1 << self._bits) - 1)

    def parts(self, code: Int64) -> tuple[Int64, Int64]:
        """The two codes of each pair code."""
        left, right = (
            base[part] if isinstance(base, np.ndarray) else part + base
            for part, base in zip((code >> self._bits, code & ((1 << self._bits) - 1)), self._bases)
        )
        return left, right
