"""The conversion of records with some column types into `UpdateChunk`, and back.

A layout is exact if the record is one integral column: then ``key64`` is the value itself and no
column is stored. Otherwise ``key64`` is Spark's ``xxhash64`` of the columns, which are stored too::

    decode(encode(columns)) == columns      (up to -0.0 = 0.0 and the bits of NaN)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff.kernels import hashing
from pyspark_diff.kernels.equality import normalise
from pyspark_diff.kernels.grouping import group_records
from pyspark_diff.kernels.ranking import float_codes, from_float_codes
from pyspark_diff.kernels.updates import Int64, Ordering, PerRow, UpdateChunk, joined, take_columns

_NARROW = (pa.types.is_boolean, pa.types.is_int8, pa.types.is_int16, pa.types.is_int32,
           pa.types.is_date32)
_WIDE = (pa.types.is_int64, pa.types.is_timestamp, pa.types.is_duration)


@dataclass(frozen=True)
class Layout:
    """The column types of a record.

    Parameters
    ----------
    types : tuple of pyarrow.DataType
        One type for each column.
    hash_mask : int
        The bits of the hash that are used. Only tests narrow it, to force collisions.
    value : Layout or None
        If records are pairs of a key and a value: the layout of the value. Its columns come
        after those of the key.
    ordering : Ordering or None
        For a value whose order matters: the order of each column.

    Examples
    --------
    >>> layout = Layout((pa.int32(),))
    >>> u = layout.encode([pa.array([3, 1], pa.int32())], time=0, diff=1)
    >>> u.key64.tolist(), layout.decode(u)[0].to_pylist()
    ([3, 1], [3, 1])
    """

    types: tuple[pa.DataType, ...]
    hash_mask: int = -1
    value: "Layout | None" = None
    ordering: Ordering | None = None

    @cached_property
    def all_types(self) -> tuple[pa.DataType, ...]:
        """Types of all columns: those of the key, then of the value."""
        return self.types if self.value is None else self.types + self.value.types

    @cached_property
    def exact(self) -> bool:
        """Whether ``key64`` is the record."""
        if len(self.types) != 1:
            return False
        if self.ordering is not None:
            # Their numbers must have the order of the values.
            kinds = (*_NARROW, *_WIDE, pa.types.is_floating)
            return self.ordering == ((False, False),) and any(is_(self.types[0]) for is_ in kinds)
        return any(is_(self.types[0]) for is_ in _NARROW + _WIDE)

    @cached_property
    def narrow(self) -> bool:
        """Whether Spark hashes the one integral column as a 32-bit integer."""
        return any(is_(self.types[0]) for is_ in _NARROW)

    def encode(
        self, columns: Sequence[pa.Array | pa.ChunkedArray], time: PerRow, diff: PerRow
    ) -> UpdateChunk:
        """Updates of records."""
        # Without any column of key and value, only the times have the number of rows.
        rows = len(columns[0]) if columns else np.size(time)
        if self.value is not None:
            width = len(self.types)
            key = self._encode(columns[:width], time, diff, rows)
            value = self.value._encode(columns[width:], time, diff, rows)
            return UpdateChunk(
                key.key64, key.columns, time, diff, value.key64, value.columns,
                self.value.ordering,
            )
        return self._encode(columns, time, diff, rows)

    def _encode(
        self, columns: Sequence[pa.Array | pa.ChunkedArray], time: PerRow, diff: PerRow, rows: int
    ) -> UpdateChunk:
        arrays = [joined([column]) for column in columns]
        if self.exact:
            whole = as_int64(arrays[0])
            if not whole.null_count:
                return UpdateChunk(whole.to_numpy(zero_copy_only=False), None, time, diff)
            key64 = whole.fill_null(0).to_numpy(zero_copy_only=False)
            return UpdateChunk(key64, (whole,), time, diff)
        form = tuple(normalise(array.cast(t) if array.type != t else array)
                     for array, t in zip(arrays, self.types))
        # The order of ordered values distinguishes them; a hash would be of no use.
        hashed = form and self.ordering is None
        key64 = hashing.spark_xxhash64(form) if hashed else np.zeros(rows, np.int64)
        if self.hash_mask != -1:
            key64 = key64 & np.int64(self.hash_mask)
        return UpdateChunk(key64, form, time, diff)

    def decode(self, updates: UpdateChunk) -> list[pa.Array]:
        """The records' columns, in the layout's types: those of the key, then of the value."""
        columns = self.decode_key(updates)
        if self.value is not None:
            columns += self.decode_value(updates)
        return columns

    def column(self, updates: UpdateChunk, position: int, rows: Int64 | None) -> pa.Array:
        """One of the columns of `decode`, for some rows or all: no other column is copied."""
        width = len(self.types)
        if position >= width:
            if self.value is None or position >= width + len(self.value.types):
                raise IndexError(f"records have no column {position}")
            if updates.val64 is None:
                return pa.array([], self.value.types[position - width])
            value = UpdateChunk(updates.val64, updates.values, 0, 1)
            return self.value.column(value, position - width, rows)
        if self.exact and updates.columns is None:
            key64 = updates.key64 if rows is None else updates.key64[rows]
            return from_int64(pa.array(key64), self.types[0])
        if updates.columns is None:  # no rows: `empty()` has no types
            return pa.array([], self.types[position])
        values = updates.columns[position]
        if rows is not None:
            (values,) = take_columns((values,), rows) or ()
        return from_int64(values, self.types[0]) if self.exact else values

    def decode_value(self, updates: UpdateChunk) -> list[pa.Array]:
        """The values' columns."""
        if self.value is None:
            return []
        if updates.val64 is None:  # no rows: `empty()` has no values
            return [pa.array([], type=t) for t in self.value.types]
        return self.value.decode_key(UpdateChunk(updates.val64, updates.values, 0, 1))

    def decode_key(self, updates: UpdateChunk) -> list[pa.Array]:
        """The keys' columns."""
        columns = updates.with_columns()
        if self.exact:
            return [from_int64(columns[0], self.types[0])]
        if updates.columns is None:  # no rows: `empty()` has no types
            return [pa.array([], type=t) for t in self.types]
        return list(columns)

    def groups(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> tuple[Int64, Int64]:
        """Number the distinct records: the group of each row, and a row of each group.

        Examples
        --------
        >>> layout = Layout((pa.string(),))
        >>> [numbers.tolist() for numbers in layout.groups([pa.array(["b", "b"])])]
        [[0, 0], [0]]
        """
        records = self.encode(columns, 0, 1)
        return group_records(records.key64, records.columns or ())

    def buckets(self, updates: UpdateChunk, buckets: int) -> Int64:
        """Bucket of each record: Spark's ``pmod(hash(record), buckets)``."""
        if buckets == 1 or not len(updates):
            return np.zeros(len(updates), dtype=np.int32)
        if updates.columns is None:
            return hashing.bucket_of_int64(
                np.ascontiguousarray(updates.key64), buckets, narrow=self.narrow
            )
        columns = self.decode_key(updates) if self.exact else updates.columns
        if not columns:
            return np.zeros(len(updates), dtype=np.int32)
        return hashing.bucket_of(hashing.spark_hash(columns), buckets)


def as_int64(column: pa.Array) -> pa.Array:
    """A column of at most 64 bits as int64, in the order of its values; nulls stay null."""
    kind = column.type
    if pa.types.is_int64(kind):
        return column
    if pa.types.is_floating(kind):
        codes = pa.array(float_codes(column))
        return pc.if_else(column.is_valid(), codes, None) if column.null_count else codes
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return column.view(pa.int64())
    if pa.types.is_date32(kind):
        return pc.cast(column.view(pa.int32()), pa.int64())
    return pc.cast(column, pa.int64())


def from_int64(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Undo `as_int64`."""
    if pa.types.is_int64(kind):
        return column
    if pa.types.is_floating(kind):
        values = from_float_codes(column.fill_null(0).to_numpy(), kind)
        return pc.if_else(column.is_valid(), values, None) if column.null_count else values
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return column.view(kind)
    if pa.types.is_date32(kind):
        return pc.cast(column, pa.int32()).view(kind)
    return pc.cast(column, kind)
