"""Ranges: what makes the pairs of a comparison pairs of equal keys.

A value becomes a number of 24 bits, its code, in which a larger one is never much smaller::

    a > b  ⟹  code(a) >= code(b) - 1          code(a) >= code(b) + 2  ⟹  a > b

All codes beyond one are the union of some blocks, in each of which all but so many of the lowest
digits are the same, and no two of which have a code in common. A record on one side has the block
of each size that its value lies in. One on the other side has the blocks that make up the range of
what is surely larger, or smaller, and the three codes for which the values have to be compared. So
each pair that the comparison holds for meets once. Where the other value changes a little, so do
its blocks: what stays surely on its side of it is not looked at, unless the value itself is wanted.

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

from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.blocks import numbers
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.ranking import float_codes
from pyspark_diff.kernels.updates import Int64, joined
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.frames import map_tables
from pyspark_diff.spark.schema import DIFF, TIME, Schema

#: Digits of a code, and the bits of each. With more digits there are more rows of one side, with
#: more bits more blocks that change; with fewer of both more values have to be compared. Measured.
DIGITS, BITS = 4, 6
_CODES = 1 << DIGITS * BITS
#: So many rows are worked on at once.
_ROWS = 1 << 15
#: A diff below which that many add up to what 64 bits hold.
_LARGE = 2.0**47
#: Bits of the number of a block of one size, of which there is one more than of codes.
_PLACE_BITS = DIGITS * BITS + 1


@dataclass(frozen=True)
class _Ranged(Stage, ABC):
    """One more column: a block of codes. A record without a value is left out.

    Parameters
    ----------
    name : str
        Of the new column.
    value : str
        The column of which the code is taken.
    scale : int or None
        Digits behind the point to which decimals are rounded first, as where they are compared.
    """

    name: str
    value: str
    scale: int | None
    keeps_time_and_diff = False
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        fields = [one for one in frame.schema.fields if one.name not in self._left_out]
        fields.append(T.StructField(self.name, T.LongType(), False))
        return map_tables(frame, self.on_table, T.StructType(fields))

    def on_table(self, table: pa.Table) -> pa.Table:
        column = table[self.value]
        if column.null_count:
            table = table.filter(pc.is_valid(column))
        parts = [self._blocks(piece) for piece in self._pieces(table)]
        if not parts:
            table = table.drop_columns(self._left_out)
            return table.append_column(self.name, pa.array([], pa.int64()))
        return pa.concat_tables(parts)

    @property
    def _left_out(self) -> list[str]:
        """Columns of what is taken that are not in what is given."""
        return []

    def _pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        return (table.slice(at, _ROWS) for at in range(0, table.num_rows, _ROWS))

    def _blocks(self, table: pa.Table) -> pa.Table:
        rows, blocks = self._of(self._codes(table))
        return self._with(table.take(pa.array(rows)), blocks)

    def _with(self, table: pa.Table, blocks: Int64) -> pa.Table:
        return table.drop_columns(self._left_out).append_column(self.name, pa.array(blocks))

    def _codes(self, table: pa.Table) -> Int64:
        column = joined([table[self.value]])
        kind = column.type
        if self.scale is not None and pa.types.is_decimal(kind) and kind.scale > self.scale:
            column = _rounded(column, self.scale)
        return _code(column)

    @abstractmethod
    def _of(self, code: Int64) -> tuple[Int64, Int64]:
        """Rows, and a block of each."""


@dataclass(frozen=True)
class Within(_Ranged):
    """The blocks that a value lies in, one of each size."""

    def _of(self, code: Int64) -> tuple[Int64, Int64]:
        blocks = [_block(size, code >> size * BITS) for size in range(DIGITS)]
        return np.repeat(np.arange(code.size), DIGITS), np.column_stack(blocks).reshape(-1)


@dataclass(frozen=True)
class Beyond(_Ranged):
    """The blocks of all codes that only larger values, or only smaller ones, have.

    Parameters
    ----------
    larger : bool
    unread : bool, optional
        Whether nobody reads the value itself: it is left out then. What the values that a record
        without it has at one time add up to is found before there is a row for each block, as most
        of these cancel where a value changes a little: of an average of thousands, all but a few.
    """

    larger: bool
    unread: bool = field(default=False, compare=False)

    def giving(self, wanted: frozenset[str]) -> Beyond:
        return replace(self, unread=self.value not in wanted)

    @property
    def _left_out(self) -> list[str]:
        return [self.value] if self.unread else []

    def _adds_up(self, table: pa.Table) -> bool:
        """Whether all that is left of a record is its time, a number."""
        return self.unread and set(table.column_names) == {self.value, TIME, DIFF} and (
            pa.types.is_integer(table[TIME].type) or pa.types.is_temporal(table[TIME].type)
        )

    def _pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        if self._adds_up(table):
            # So that those of one time are in one piece.
            time = as_int64(joined([table[TIME]])).to_numpy()
            table = table.take(pa.array(np.argsort(time, kind="stable")))
        return super()._pieces(table)

    def _blocks(self, table: pa.Table) -> pa.Table:
        if self._adds_up(table):
            diff = joined([table[DIFF]]).to_numpy()
            # Sums of larger ones might not have room.
            if (np.abs(diff.astype(np.float64)) < _LARGE).all():
                return self._sums(table, diff)
        return super()._blocks(table)

    def _sums(self, table: pa.Table, diff: Int64) -> pa.Table:
        """For each time and block the sum of the diffs of values that have it, but zeros.

        The blocks of one size that a value has are successive. So where they begin its diff is
        added, where they end it is taken away, and between such places the sum stays what it is.
        """
        code, time = self._codes(table), as_int64(joined([table[TIME]])).to_numpy()
        moment = np.cumsum(np.diff(time, prepend=time[:1]) != 0)
        edge = np.clip(code + 1 if self.larger else code - 1, 0, _CODES - 1)
        found = []
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
            found.append((np.repeat(rows[last], length), np.repeat(total[last], length),
                          _block(size, blocks)))
        rows, diffs, blocks = map(np.concatenate, zip(*found))
        given = table.take(pa.array(rows))
        given = given.set_column(given.column_names.index(DIFF), given.field(DIFF), pa.array(diffs))
        return self._with(given, blocks)

    def _of(self, code: Int64) -> tuple[Int64, Int64]:
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
    """The codes that values on both sides of it may have, as blocks."""

    def _of(self, code: Int64) -> tuple[Int64, Int64]:
        return np.repeat(np.arange(code.size), 3), (code[:, None] + [-1, 0, 1]).reshape(-1)


def _block(size: int, prefix: Int64) -> Int64:
    return prefix + (size << DIGITS * BITS)


def _rounded(column: pa.Array, scale: int) -> pa.Array:
    # With a digit more, as Arrow makes zero of what has no room when it is rounded up.
    wide = pc.cast(column, pa.decimal256(column.type.precision + 1, column.type.scale))
    return pc.cast(pc.round(wide, scale, "half_towards_infinity"), pa.decimal128(38, scale))


def _code(column: pa.Array) -> Int64:
    """The codes of values, none of them null: the upper bits of what they are as doubles, and the
    first bytes of texts."""
    kind = column.type
    if buffers.is_bytes(kind):
        return (numbers(column, None) >> (64 - DIGITS * BITS)) + (_CODES >> 1)
    if pa.types.is_decimal(kind):
        low, high = buffers.decimal_words(column).T
        # Of the absolute value: of a small negative one both words are large, and cancel.
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
    """The node of the records of ``source``, each with the blocks that a stage gives it."""
    field = T.StructField(stage.name, T.LongType(), False)
    schema = Schema(T.StructType([*source.schema.struct.fields, field]))
    need: Callable[[frozenset[str]], frozenset[str]] = (
        lambda wanted: (wanted | {stage.value}) - {stage.name}
    )
    return Linear("ranges", source, schema, stage, need)
