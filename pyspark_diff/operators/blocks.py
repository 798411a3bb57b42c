"""Blocks: keys that turn a join of values with their intervals into a join by equality.

The numbers of an order are cut into blocks of one size. A value has the block that contains it, and
an interval has all blocks that it touches::

    lower <= value <= upper  ⟹  they have one block in common, and no other

If all intervals have one length, so have the blocks, and an interval touches two blocks. If the
lengths differ, blocks have several sizes, each 32 times the previous size. A value then has one
block of each size. An interval has up to 33 blocks of the largest size that is no longer than
itself. So the blocks of an interval contain few values outside of it if values are spread evenly.

The join tests each pair again for a value within the interval.
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

from pyspark_diff import thresholds
from pyspark_diff.kernels.blocks import numbers
from pyspark_diff.kernels.updates import Int64, joined
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear, Node
from pyspark_diff.spark.frames import map_tables
from pyspark_diff.spark.schema import Schema

#: Bits between two sizes, and the number of sizes. The smallest blocks have 5 bits, so that a block
#: and its size fit one number.
_BITS, _SIZES = 5, 12


@dataclass(frozen=True)
class _Blocked(Stage, ABC):
    """Adds a column with a block, and drops records without a value or without an interval.

    Parameters
    ----------
    name : str
        Name of the new column.
    size : int, float or None
        Size of all blocks; see `pyspark_diff.kernels.blocks`. None for blocks of several sizes.
    """

    name: str
    size: int | float | None
    keeps_time_and_diff = False
    may_fail = False

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns from which the blocks are computed."""

    def on_frame(self, frame: DataFrame) -> DataFrame:
        field = T.StructField(self.name, T.LongType(), False)
        return map_tables(frame, self.on_table, T.StructType([*frame.schema.fields, field]))

    def on_table(self, table: pa.Table) -> pa.Table:
        for name in self.columns:
            if table[name].null_count:
                table = table.filter(pc.is_valid(table[name]))
        rows = thresholds.current.chunk_rows
        parts = [self._part(table.slice(at, rows)) for at in range(0, table.num_rows, rows)]
        if not parts:
            return table.append_column(self.name, pa.array([], pa.int64()))
        return pa.concat_tables(parts)

    def _part(self, table: pa.Table) -> pa.Table:
        positions = [numbers(joined([table[name]]), self.size) for name in self.columns]
        rows, blocks = self._assign(*positions)
        return table.take(pa.array(rows)).append_column(self.name, pa.array(blocks))

    @abstractmethod
    def _assign(self, *positions: Int64) -> tuple[Int64, Int64]:
        """Rows, and a block of each."""


@dataclass(frozen=True)
class OfValue(_Blocked):
    """The blocks that contain a value, one of each size."""

    value: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.value,)

    def _assign(self, *positions: Int64) -> tuple[Int64, Int64]:
        (number,) = positions
        rows = np.arange(number.size)
        if self.size is not None:
            return rows, number
        sizes = np.arange(1, _SIZES + 1)
        blocks = _tagged(number[:, None] >> sizes * _BITS, sizes)
        return np.repeat(rows, _SIZES), blocks.reshape(-1)


@dataclass(frozen=True)
class OfInterval(_Blocked):
    """The blocks of one size that an interval touches.

    Parameters
    ----------
    lower, upper : str
        Columns of its ends. An interval that ends before it begins has no blocks.
    """

    lower: str
    upper: str

    @property
    def columns(self) -> tuple[str, ...]:
        return self.lower, self.upper

    def _assign(self, *positions: Int64) -> tuple[Int64, Int64]:
        first, last = positions
        size = np.zeros(first.size, np.int64)
        if self.size is None:
            # Unsigned, since the difference of two numbers may need all bits.
            length = (last - first).view(np.uint64)
            for larger in range(1, _SIZES + 1):
                size[length >> np.uint64(larger * _BITS) > 0] = larger
            size = np.maximum(size, 1)
        counts = np.where(first <= last, (last >> size * _BITS) - (first >> size * _BITS) + 1, 0)
        rows = np.repeat(np.arange(first.size), counts)
        offset = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = (first >> size * _BITS)[rows] + offset
        return rows, blocks if self.size is not None else _tagged(blocks, size[rows])


def _tagged(block: Int64, size: Int64) -> Int64:
    """Blocks of several sizes as distinct numbers: the smallest blocks have numbers of 59 bits."""
    tagged: Int64 = (block << 4) | size
    return tagged


def with_block(source: Node, stage: OfValue | OfInterval) -> Linear:
    """The node of the records of ``source``, each with the blocks that a stage computes."""
    field = T.StructField(stage.name, T.LongType(), False)
    schema = Schema(T.StructType([*source.schema.struct.fields, field]))
    need: Callable[[frozenset[str]], frozenset[str]] = (
        lambda wanted: (wanted | frozenset(stage.columns)) - {stage.name}
    )
    return Linear("blocks", source, schema, stage, need)
