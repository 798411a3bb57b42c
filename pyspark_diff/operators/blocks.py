"""Blocks: what makes the pairs of a value and an interval that it lies in pairs of equal keys.

The numbers of an order are cut into blocks of one size. A value has the block that it lies in, and
an interval all those that it touches::

    lower <= value <= upper  ⟹  they have one block in common, and no other

Where all intervals are of one length, so are the blocks, and an interval touches two of them. Where
their lengths differ there are blocks of several sizes, each 32 times the one before; a value has
one of each size, and an interval up to 33 of the largest that is no longer than itself. So no
interval has much more in its blocks than lies in it, where values lie evenly.

Whether a value lies in the interval is asked again of each pair.
Source: range joins by bins, as in Databricks, "Range join optimization".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.kernels.blocks import numbers
from pyspark_diff.kernels.updates import Int64, joined
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.frames import map_tables
from pyspark_diff.spark.schema import Schema

#: Of one size to the next, where there are several; the least has so many bits, so that a block and
#: its size are one number.
_BITS, _SIZES = 5, 12
#: So many rows are worked on at once.
_ROWS = 1 << 15


@dataclass(frozen=True)
class _Blocked(Stage, ABC):
    """One more column: a block. A record without a value, or without an interval, is left out.

    Parameters
    ----------
    name : str
        Of the new column.
    size : int, float or None
        Of all blocks; see `pyspark_diff.kernels.blocks`. None for blocks of several sizes.
    """

    name: str
    size: int | float | None
    keeps_time_and_diff = False
    may_fail = False

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that the blocks are of."""

    def on_frame(self, frame: DataFrame) -> DataFrame:
        field = T.StructField(self.name, T.LongType(), False)
        return map_tables(frame, self.on_table, T.StructType([*frame.schema.fields, field]))

    def on_table(self, table: pa.Table) -> pa.Table:
        for name in self.columns:
            if table[name].null_count:
                table = table.filter(pc.is_valid(table[name]))
        parts = [self._part(table.slice(at, _ROWS)) for at in range(0, table.num_rows, _ROWS)]
        if not parts:
            return table.append_column(self.name, pa.array([], pa.int64()))
        return pa.concat_tables(parts)

    def _part(self, table: pa.Table) -> pa.Table:
        found = [numbers(joined([table[name]]), self.size) for name in self.columns]
        rows, blocks = self._of(*found)
        return table.take(pa.array(rows)).append_column(self.name, pa.array(blocks))

    @abstractmethod
    def _of(self, *found: Int64) -> tuple[Int64, Int64]:
        """Rows, and a block of each."""


@dataclass(frozen=True)
class OfValue(_Blocked):
    """The blocks that a value lies in, one of each size.

    Parameters
    ----------
    value : str
    """

    value: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.value,)

    def _of(self, *found: Int64) -> tuple[Int64, Int64]:
        (number,) = found
        every = np.arange(number.size)
        if self.size is not None:
            return every, number
        sizes = np.arange(1, _SIZES + 1)
        blocks = _tagged(number[:, None] >> sizes * _BITS, sizes)
        return np.repeat(every, _SIZES), blocks.reshape(-1)


@dataclass(frozen=True)
class OfInterval(_Blocked):
    """The blocks that an interval touches, of the one size that it has them of.

    Parameters
    ----------
    lower, upper : str
        Columns of its ends. One that ends before it begins has no blocks.
    """

    lower: str
    upper: str

    @property
    def columns(self) -> tuple[str, ...]:
        return self.lower, self.upper

    def _of(self, *found: Int64) -> tuple[Int64, Int64]:
        first, last = found
        size = np.zeros(first.size, np.int64)
        if self.size is None:
            # Without a sign, as the difference of two numbers may need all bits.
            length = (last - first).view(np.uint64)
            for larger in range(1, _SIZES + 1):
                size[length >> np.uint64(larger * _BITS) > 0] = larger
            size = np.maximum(size, 1)
        counts = np.where(first <= last, (last >> size * _BITS) - (first >> size * _BITS) + 1, 0)
        rows = np.repeat(np.arange(first.size), counts)
        within = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = (first >> size * _BITS)[rows] + within
        return rows, blocks if self.size is not None else _tagged(blocks, size[rows])


def _tagged(block: Int64, size: Int64) -> Int64:
    """Blocks of several sizes as numbers, no two of which are the same: the least have 59 bits."""
    found: Int64 = (block << 4) | size
    return found


def with_block(source: Node, stage: OfValue | OfInterval) -> Linear:
    """The node of the records of ``source``, each with the blocks that a stage gives it."""
    field = T.StructField(stage.name, T.LongType(), False)
    schema = Schema(T.StructType([*source.schema.struct.fields, field]))
    need: Callable[[frozenset[str]], frozenset[str]] = (
        lambda wanted: (wanted | frozenset(stage.columns)) - {stage.name}
    )
    return Linear("blocks", source, schema, stage, need)
