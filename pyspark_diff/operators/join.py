"""Join: pairs of records with equal keys, of two arrangements.

At every time ``t``::

    accumulate(A join B, t)[(k, a, b)] = accumulate(A, t)[(k, a)] * accumulate(B, t)[(k, b)]

    A semijoin B = the records of A whose key is in B,    A antijoin B = A - (A semijoin B)

A key is in B iff the sum of its diffs in B is positive. A key with a null equals no other key,
unless the join is null-safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.coordinates import pack
from pyspark_diff.kernels.join import Piece
from pyspark_diff.kernels.join import join as join_core
from pyspark_diff.kernels.merge_join import KEY, LEFT, RIGHT
from pyspark_diff.kernels.updates import PerRow, UpdateChunk, concat, spread
from pyspark_diff.operators.contract import BilinearKernel, Changes, Part, Parts, Side, Stage
from pyspark_diff.operators.node import Arranged, Linear, Node, Reader
from pyspark_diff.reasons import FAN_OUT, Reason
from pyspark_diff.spark.data_types import arrow_type
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.times import Coordinate


@dataclass(frozen=True)
class JoinKernel(BilinearKernel):
    """The join core on two arrangements.

    Parameters
    ----------
    columns : tuple of (int, str)
        For each output column its side, and its name in the side.
    null_safe : bool
        Whether null equals null.
    """

    columns: tuple[tuple[int, str], ...]
    null_safe: bool = False

    @property
    def reason(self) -> Reason:
        return FAN_OUT

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return [name for side, name in (self.columns[i] for i in wanted) if side == number]

    def __call__(
        self, sides: Sequence[Side], at: Coordinate, wanted: Sequence[int], most: int
    ) -> Parts:
        left, right = sides
        looked_at = tuple({
            (LEFT, RIGHT)[side] if sides[side].is_value(name) else KEY
            for side, name in (self.columns[i] for i in wanted)
        })
        pairs = join_core(
            left, right, at, left.lower, most, null_safe=self.null_safe, wanted=looked_at
        )
        parts = (partial(self._changes, sides, wanted, piece) for piece in pairs.pieces)
        return Parts(parts, pairs.rows, pairs.read, pairs.coordinates)

    def _changes(
        self, sides: Sequence[Side], wanted: Sequence[int], piece: Piece
    ) -> Iterator[tuple[Changes, PerRow]]:
        for pairs in piece():
            columns = []
            for side, name in (self.columns[i] for i in wanted):
                rows, records = pairs.left_rows, pairs.left
                if side:
                    rows, records = pairs.right_rows, pairs.right
                number = sides[side].names.index(name)
                columns.append(sides[side].layout.column(records, number, rows))
            yield (columns, pairs.time, spread(pairs.diff, len(pairs))), pairs.coordinate


@dataclass(frozen=True)
class SemijoinKernel(BilinearKernel):
    """The records of one arrangement whose keys are, or are not, in an arrangement of keys.

    Parameters
    ----------
    names : tuple of str
        Columns of the records.
    anti : bool
        Whether the output has the records whose keys are not in the second arrangement.
    null_safe : bool
        Whether null equals null.
    """

    names: tuple[str, ...]
    anti: bool
    null_safe: bool = False

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return [] if number else [self.names[i] for i in wanted]

    def __call__(
        self, sides: Sequence[Side], at: Coordinate, wanted: Sequence[int], most: int
    ) -> Parts:
        left, right = sides
        pairs = join_core(
            left, right, at, left.lower, most, null_safe=self.null_safe, wanted=(KEY, LEFT)
        )

        sign = -1 if self.anti else 1
        positions = [left.names.index(self.names[i]) for i in wanted]
        unmatched = [left.new.updates.placed(pack(at))] if self.anti else []

        def matched(piece: Piece) -> Iterator[UpdateChunk]:
            for p in piece():
                yield p.left_updates().at(p.time, sign * p.diff).placed(p.coordinate)

        def changes(updates: UpdateChunk) -> tuple[Changes, PerRow]:
            rows = np.arange(len(updates))
            columns = [left.layout.column(updates, position, rows) for position in positions]
            return (columns, updates.times(), updates.diffs()), updates.coordinate

        def whole() -> Iterator[tuple[Changes, PerRow]]:
            pieces = [updates for piece in pairs.pieces for updates in matched(piece)]
            yield changes(consolidate(concat([*pieces, *unmatched])).updates)

        def part_of(piece: Piece) -> Iterator[tuple[Changes, PerRow]]:
            return map(changes, matched(piece))

        def coordinates() -> list[int]:
            return sorted({*pairs.coordinates(), pack(at)})

        rows = pairs.rows + len(left.new.updates)
        # One part lets insertions and retractions of keys cancel. Keys that change at very many
        # times have too many pairs for one part.
        parts: Iterator[Part] = iter([whole])
        if pairs.rows > 4 * most:
            parts = chain(
                [lambda: map(changes, unmatched)], (partial(part_of, p) for p in pairs.pieces)
            )
        return Parts(parts, rows, pairs.read, coordinates)


@dataclass(frozen=True)
class Pad(Stage):
    """Columns selected by name, with nulls for missing columns: linear, needs no Spark.

    Parameters
    ----------
    names : tuple of (str or None, str)
        Pairs of (column of the input or None, name in the output).
    kinds : tuple of DataType
        Types in the output.
    """

    names: tuple[tuple[str | None, str], ...]
    kinds: tuple[T.DataType, ...]
    keeps_time_and_diff = True
    may_fail = False

    def on_frame(self, frame: DataFrame) -> DataFrame:
        known = frame.columns
        return frame.select(
            *[
                (F.lit(None).cast(kind) if old is None else column(old)).alias(new)
                for (old, new), kind in zip(self.names, self.kinds)
                if old is None or old in known
            ],
            TIME,
            DIFF,
        )

    def on_table(self, table: pa.Table) -> pa.Table:
        known = table.column_names
        columns = {
            new: pa.nulls(table.num_rows, arrow_type(kind)) if old is None else table[old]
            for (old, new), kind in zip(self.names, self.kinds) if old is None or old in known
        }
        return pa.table({**columns, TIME: table[TIME], DIFF: table[DIFF]})

    def needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Columns of the input from which the wanted columns are computed."""
        return frozenset(old for old, new in self.names if old is not None and new in wanted)


def join(
    left: Arranged,
    right: Arranged,
    columns: Sequence[tuple[int, str, str]],
    *,
    null_safe: bool = False,
) -> Reader:
    """The node that joins two arrangements by their keys.

    Parameters
    ----------
    left, right : Arranged
        With keys of the same types, in the same order.
    columns : sequence of (int, str, str)
        For each output column its side (0 or 1), its name in the side, and its name in the output.
    null_safe : bool
        Whether null equals null.

    Notes
    -----
    Source: differential-dataflow ``operators/join.rs``.
    """
    fields = []
    for side, name, new in columns:
        field = (right if side else left).schema.field(name)
        fields.append(T.StructField(new, field.dataType, field.nullable))
    kernel = JoinKernel(tuple((side, name) for side, name, _ in columns), null_safe)
    return Reader("join", (left, right), Schema(T.StructType(fields)), kernel)


def semijoin(
    left: Arranged, keys: Arranged, *, anti: bool = False, null_safe: bool = False
) -> Reader:
    """The node with the records of ``left`` whose keys are, or are not, among ``keys``.

    Parameters
    ----------
    keys : Arranged
        Distinct keys of the same types, without values.
    anti : bool
        Whether the output has the records whose keys are not among ``keys``.
    null_safe : bool
        Whether null equals null.
    """
    kernel = SemijoinKernel(left.schema.names, anti, null_safe)
    return Reader("antijoin" if anti else "semijoin", (left, keys), left.schema, kernel)


def pad(source: Node, names: Sequence[tuple[str | None, T.StructField]]) -> Linear:
    """The node with columns of ``source`` by name, and nulls for each column without a name."""
    stage = Pad(
        tuple((old, field.name) for old, field in names), tuple(f.dataType for _, f in names)
    )
    schema = Schema(T.StructType([field for _, field in names]))
    return Linear("pad", source, schema, stage, stage.needs)
