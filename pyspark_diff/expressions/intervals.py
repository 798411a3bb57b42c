"""Intervals that follow from the comparisons of a join condition.

    c is true  ⟹  the value of c lies in the interval of c
    c is true  ⟹  the two intervals of c overlap
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.expressions.aggregates import identity
from pyspark_diff.expressions.comparisons import Comparison, type_over
from pyspark_diff.kernels.blocks import spare_bits
from pyspark_diff.spark.calls import call_of
from pyspark_diff.spark.mentions import names_there


@dataclass(frozen=True)
class Interval:
    """A value of one side, and an interval of the other side that has to contain it.

    Parameters
    ----------
    side : int
        The side of the value: 0 for the left one.
    lower, upper : Column or None
        The ends, over the other side, of the value's type; None for an absent end.
    length : int, float or None
        The distance of the ends, in the unit of the type (see `pyspark_diff.kernels.blocks`); None
        if it may depend on the record. It is approximate for ends that differ by months.
    """

    side: int
    value: Column
    lower: Column | None
    upper: Column | None
    length: int | float | None


@dataclass(frozen=True)
class Overlap:
    """An interval of each side. The two have to overlap, and all ends have one type.

    Parameters
    ----------
    left, right : tuple of (Column, Column)
        The begin and the end of each interval.
    """

    left: tuple[Column, Column]
    right: tuple[Column, Column]


def containing_interval(
    left: DataFrame, right: DataFrame, unequal: list[Comparison]
) -> Interval | None:
    """The best interval of some comparisons: with a constant length, then with both ends."""
    # Lower and upper ends by the value and the type of its comparison: as compared, and in their
    # original form.
    ends: dict[tuple[int, str, str], tuple[list[tuple[Column, Column]], ...]] = {}
    values: dict[tuple[int, str, str], tuple[Column, T.DataType]] = {}
    for pair in unequal:
        if not _has_blocks(pair.kind):
            continue
        for side, (value, end) in enumerate(((pair.left, pair.right), (pair.right, pair.left))):
            like = side, identity(value), pair.kind.simpleString()
            values.setdefault(like, (value, pair.kind))
            # The value is above the end as the left operand of ``>`` or the right operand of ``<``.
            above = (pair.name in (">", ">=")) == (side == 0)
            same_end = ends.setdefault(like, ([], []))[0 if above else 1]
            same_end.append((end, pair.original[1 - side]))
    frames = left, right
    both = [like for like, (lower, upper) in ends.items() if lower and upper]
    lengths: dict[tuple[int, str, str], int | float] = {}
    for like in both:
        for low, given_low in ends[like][0]:
            for high, given_high in ends[like][1]:
                kind = values[like][1]
                length = _length(frames[1 - like[0]], given_low, given_high, kind)
                if length is not None and length < lengths.get(like, math.inf):
                    lengths[like] = length
                    ends[like] = [(low, given_low)], [(high, given_high)]
    for like in sorted(ends, key=lambda like: (like not in lengths, like not in both)):
        lower, upper = ends[like]
        return Interval(
            like[0], values[like][0], lower[0][0] if lower else None,
            upper[0][0] if upper else None, lengths.get(like),
        )
    return None


def overlap_of(unequal: list[Comparison]) -> Overlap | None:
    """Two comparisons by which each interval begins before the other one ends."""
    known = [pair for pair in unequal if _has_blocks(pair.kind)]
    for first in known:
        for second in known:
            if first.name in ("<", "<=") and second.name in (">", ">=") and (
                first.kind == second.kind
            ):
                return Overlap((first.left, second.left), (second.right, first.right))
    return None


def _length(frame: DataFrame, low: Column, high: Column, kind: T.DataType) -> int | float | None:
    """The distance of two expressions that differ by constants; None for others."""
    (base, low_moves), (other, high_moves) = _moved(frame, low), _moved(frame, high)
    base_type = type_over(frame, base)
    if base_type is None or identity(base) != identity(other):
        return None
    if isinstance(base_type, (T.DateType, T.TimestampType, T.TimestampNTZType)):
        some = F.lit("2000-01-15").cast(base_type)
    elif isinstance(base_type, T.NumericType):
        some = F.lit(0).cast(base_type)
    else:
        return None
    one_row = frame.sparkSession.sql("SELECT * FROM VALUES (0) AS t(`none`)")
    ends = []
    for moves in (low_moves, high_moves):
        end = some
        for move in moves:
            end = move(end)
        ends.append(end.cast(kind))
    a, b = one_row.select(*(end.alias(name) for end, name in zip(ends, "ab"))).collect()[0]
    if a is None or b is None:
        return None
    length = b - a
    if isinstance(length, datetime.timedelta):
        days = kind == T.DateType()
        length = length.days if days else length // datetime.timedelta(microseconds=1)
    elif isinstance(kind, T.DecimalType):
        length = int(length.scaleb(kind.scale)) >> spare_bits(kind.precision)
    elif isinstance(kind, (T.FloatType, T.DoubleType)):
        return length if 0 < length < math.inf else None
    return max(int(length), 0)


def _has_blocks(kind: T.DataType) -> bool:
    """Whether a type has the order of numbers, or of bytes; a collation has another order."""
    return kind == T.StringType() or isinstance(kind, (
        T.NumericType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType,
        T.BinaryType, T.DayTimeIntervalType,
    ))


def _moved(frame: DataFrame, end: Column) -> tuple[Column, list[Callable[[Column], Column]]]:
    """An expression as a base and the functions that add constants to it, in order."""
    call = call_of(end)
    if call is None or call.name not in _MOVES or len(call.arguments) != 2:
        return end, []
    a, b = call.arguments
    move, either = _MOVES[call.name]
    nothing, there = frame.sparkSession.sql("SELECT 1 AS `none`"), names_there(frame)
    if type_over(nothing, b, there) is not None:
        base, moves = _moved(frame, a)
        return base, [*moves, lambda column: move(column, b)]
    if either and type_over(nothing, a, there) is not None:
        base, moves = _moved(frame, b)
        return base, [*moves, lambda column: move(a, column)]
    return end, []


#: Functions that add a constant, and whether it may be the first argument.
_MOVES: dict[str, tuple[Callable[[Column, Column], Column], bool]] = {
    "+": (Column.__add__, True), "-": (Column.__sub__, False),
    "date_add": (F.date_add, False), "date_sub": (F.date_sub, False),
}
