"""Ranges: keys that turn a join by comparison into a join by equality.

A value has a code of 24 bits. The order of codes is the order of values up to rounding::

    a > b  ⟹  code(a) >= code(b) - 1          code(a) >= code(b) + 2  ⟹  a > b

A block of size ``i`` is a set of codes that differ only in their lowest ``i`` digits. All codes
beyond a code are a union of disjoint blocks. A record of one side has the block of each size that
contains its value. A record of the other side has the blocks of all surely larger, or smaller,
codes, and the three codes near its own, whose values the join compares. So each pair that satisfies
the comparison meets once. A small change of the other value changes few blocks. Records whose side
is certain before and after are not read, unless the output has the value itself.

Source: dyadic intervals, as in Cormode, Muthukrishnan, "An Improved Data Stream Summary and its
Applications", LATIN 2004.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff import thresholds
from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.blocks import numbers
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.ranking import float_codes
from pyspark_diff.kernels.updates import Int64, joined
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.frames import map_tables
from pyspark_diff.spark.schema import DIFF, TIME, Schema

#: Digits of a code, and bits of a digit. More digits mean more rows of one side, more bits mean
#: more changed blocks, and fewer of both mean more comparisons of values. Measured.
DIGITS, BITS = 4, 6
_CODES = 1 << DIGITS * BITS
#: A bound of diffs such that the sum of a chunk's diffs fits 64 bits.
_LARGE = 2.0**47
#: Bits of a place between blocks of one size. There is one place more than codes.
_PLACE_BITS = DIGITS * BITS + 1


@dataclass(frozen=True)
class _Ranged(Stage, ABC):
    """Adds a column with a block of codes, and drops records without a value.

    Parameters
    ----------
    name : str
        Name of the new column.
    value : str
        Column of the encoded value.
    scale : int or None
        Digits after the point to which decimals are rounded, like in the comparison itself.
    """

    name: str
    value: str
    scale: int | None
    keeps_time_and_diff = False
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        fields = [field for field in frame.schema.fields if field.name not in self._dropped]
        fields.append(T.StructField(self.name, T.LongType(), False))
        return map_tables(frame, self.on_table, T.StructType(fields))

    def on_table(self, table: pa.Table) -> pa.Table:
        column = table[self.value]
        if column.null_count:
            table = table.filter(pc.is_valid(column))
        parts = [self._blocks(piece) for piece in self._pieces(table)]
        if not parts:
            table = table.drop_columns(self._dropped)
            return table.append_column(self.name, pa.array([], pa.int64()))
        return pa.concat_tables(parts)

    @property
    def _dropped(self) -> list[str]:
        """Columns of the input that the output does not have."""
        return []

    def _pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        rows = thresholds.current.chunk_rows
        return (table.slice(at, rows) for at in range(0, table.num_rows, rows))

    def _blocks(self, table: pa.Table) -> pa.Table:
        rows, blocks = self._assign(self._codes(table))
        return self._with(table.take(pa.array(rows)), blocks)

    def _with(self, table: pa.Table, blocks: Int64) -> pa.Table:
        return table.drop_columns(self._dropped).append_column(self.name, pa.array(blocks))

    def _codes(self, table: pa.Table) -> Int64:
        column = joined([table[self.value]])
        kind = column.type
        if self.scale is not None and pa.types.is_decimal(kind) and kind.scale > self.scale:
            column = _rounded(column, self.scale)
        return _code(column)

    @abstractmethod
    def _assign(self, code: Int64) -> tuple[Int64, Int64]:
        """Rows, and a block of each."""


@dataclass(frozen=True)
class Within(_Ranged):
    """The blocks that contain a value, one of each size."""

    def _assign(self, code: Int64) -> tuple[Int64, Int64]:
        blocks = [_block(size, code >> size * BITS) for size in range(DIGITS)]
        return np.repeat(np.arange(code.size), DIGITS), np.column_stack(blocks).reshape(-1)


@dataclass(frozen=True)
class Beyond(_Ranged):
    """The blocks of all codes that only larger values, or only smaller values, have.

    Parameters
    ----------
    unread : bool, optional
        Whether the value itself has no reader. The stage then drops it, and adds up diffs of equal
        records before it emits a row for each block. If a value changes a little, most of its rows
        cancel: after a change of an average, a few of thousands remain.
    """

    larger: bool
    unread: bool = field(default=False, compare=False)

    def giving(self, wanted: frozenset[str]) -> Beyond:
        return replace(self, unread=self.value not in wanted)

    @property
    def _dropped(self) -> list[str]:
        return [self.value] if self.unread else []

    def _adds_up(self, table: pa.Table) -> bool:
        """Whether records differ only in their times, which are numbers."""
        return self.unread and set(table.column_names) == {self.value, TIME, DIFF} and (
            pa.types.is_integer(table[TIME].type) or pa.types.is_temporal(table[TIME].type)
        )

    def _pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        if self._adds_up(table):
            # The order by time puts the records of one time into one piece.
            time = as_int64(joined([table[TIME]])).to_numpy()
            table = table.take(pa.array(np.argsort(time, kind="stable")))
        return super()._pieces(table)

    def _blocks(self, table: pa.Table) -> pa.Table:
        if self._adds_up(table):
            diff = joined([table[DIFF]]).to_numpy()
            # Sums of larger diffs might exceed 64 bits.
            if (np.abs(diff.astype(np.float64)) < _LARGE).all():
                return self._sums(table, diff)
        return super()._blocks(table)

    def _sums(self, table: pa.Table, diff: Int64) -> pa.Table:
        """The nonzero sum of the diffs of all values in a block, for each time and block.

        The blocks of one size that a value has are successive. So a running sum adds its diff at
        their begin and subtracts it at their end, and is constant between such places.
        """
        code, time = self._codes(table), as_int64(joined([table[TIME]])).to_numpy()
        moment = np.cumsum(np.diff(time, prepend=time[:1]) != 0)
        edge = np.clip(code + 1 if self.larger else code - 1, 0, _CODES - 1)
        parts = []
        for size in range(DIGITS):
            prefix = edge >> size * BITS
            parent = prefix >> BITS << BITS
            begin, end = (prefix + 1, parent + (1 << BITS)) if self.larger else (parent, prefix)
            rows = np.tile(np.arange(code.size), 2)
            place = (np.tile(moment, 2) << _PLACE_BITS) + np.concatenate([begin, end])
            order = np.argsort(place)
            rows, place = rows[order], place[order]
            total = np.cumsum(np.concatenate([diff, -diff])[order])
            last = np.flatnonzero((np.diff(place, append=-1) != 0) & (total != 0))
            length = place[last + 1] - place[last]
            first = (place[last] & ((1 << _PLACE_BITS) - 1)) - (np.cumsum(length) - length)
            blocks = np.repeat(first, length) + np.arange(length.sum())
            parts.append((np.repeat(rows[last], length), np.repeat(total[last], length),
                          _block(size, blocks)))
        rows, diffs, blocks = map(np.concatenate, zip(*parts))
        summed = table.take(pa.array(rows))
        number = summed.column_names.index(DIFF)
        summed = summed.set_column(number, summed.field(DIFF), pa.array(diffs))
        return self._with(summed, blocks)

    def _assign(self, code: Int64) -> tuple[Int64, Int64]:
        edge = np.clip(code + 1 if self.larger else code - 1, 0, _CODES - 1)
        rows, blocks = [], []
        digits = np.arange(1 << BITS)
        for size in range(DIGITS):
            digit = (edge >> size * BITS) & ((1 << BITS) - 1)
            above = (edge >> (size + 1) * BITS) << BITS
            beyond = digits > digit[:, None] if self.larger else digits < digit[:, None]
            row, next_digit = np.nonzero(beyond)
            rows.append(row)
            blocks.append(_block(size, above[row] + next_digit))
        order = np.argsort(np.concatenate(rows), kind="stable")
        return np.concatenate(rows)[order], np.concatenate(blocks)[order]


@dataclass(frozen=True)
class Near(_Ranged):
    """The codes near a code, as blocks: their values may be on both sides of the value."""

    def _assign(self, code: Int64) -> tuple[Int64, Int64]:
        return np.repeat(np.arange(code.size), 3), (code[:, None] + [-1, 0, 1]).reshape(-1)


def _block(size: int, prefix: Int64) -> Int64:
    return prefix + (size << DIGITS * BITS)


def _rounded(column: pa.Array, scale: int) -> pa.Array:
    # Arrow returns zero if a rounded value needs a further digit, so the type has one more.
    wide = pc.cast(column, pa.decimal256(column.type.precision + 1, column.type.scale))
    return pc.cast(pc.round(wide, scale, "half_towards_infinity"), pa.decimal128(38, scale))


def _code(column: pa.Array) -> Int64:
    """The codes of values without nulls: the upper bits of doubles, and the first bytes of text."""
    kind = column.type
    if buffers.is_bytes(kind):
        return (numbers(column, None) >> (64 - DIGITS * BITS)) + (_CODES >> 1)
    if pa.types.is_decimal(kind):
        low, high = buffers.decimal_words(column).T
        # The words of a small negative value are large and cancel inexactly; its absolute value
        # has small words.
        negative = high < 0
        high = np.where(negative, ~high + (low == 0), high)
        low = np.where(negative, -low, low)
        value = high * 2.0**64 + low.astype(np.uint64)
        value = np.where(negative, -value, value) / 10.0**kind.scale
    else:
        value = buffers.fixed(column).astype(np.float64)
    code: Int64 = (float_codes(pa.array(value)) >> (64 - DIGITS * BITS)) + (_CODES >> 1)
    return code


def with_blocks(source: Node, stage: Within | Beyond | Near) -> Linear:
    """The node of the records of ``source``, each with the blocks that a stage computes."""
    field = T.StructField(stage.name, T.LongType(), False)
    schema = Schema(T.StructType([*source.schema.struct.fields, field]))
    need: Callable[[frozenset[str]], frozenset[str]] = (
        lambda wanted: (wanted | {stage.value}) - {stage.name}
    )
    return Linear("ranges", source, schema, stage, need)
