"""Bands of a join condition: limits of the difference between a value of each side::

    l - r <= c  ⟹  l <= r + c        abs(l - r) <= c  ⟹  r - c <= l <= r + c
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.expressions.aggregates import identity
from pyspark_diff.expressions.comparisons import Comparison, comparison_of, type_over
from pyspark_diff.spark.calls import call_of
from pyspark_diff.spark.mentions import names_there
from pyspark_diff.spark.settings import ANSI, is_on


class _Difference(NamedTuple):
    """The difference of a value of the left side and a value of the right side.

    ``less`` is true for right minus left. Whole numbers have 64 bits, and ``large`` is true if they
    may need all bits.
    """

    left: Column
    right: Column
    less: bool
    kind: T.DataType
    large: bool


def band_comparisons(
    left: DataFrame, right: DataFrame, conjuncts: list[Column]
) -> list[Comparison]:
    """The comparisons that follow from conditions on differences of both sides."""
    comparisons: list[Comparison] = []
    #: Doubles need both ends, as a NaN is larger than any number.
    ends: dict[tuple[str, str], list[tuple[bool, Comparison]]] = {}
    for conjunct in conjuncts:
        call = call_of(conjunct)
        if call is None or call.name not in ("<", "<=", ">", ">="):
            continue
        a, b = call.arguments
        for value, limit, upper in ((a, b, "<" in call.name), (b, a, ">" in call.name)):
            inner = call_of(value)
            absolute = inner is not None and inner.name == "abs" and upper
            if inner is not None and absolute:
                (value,) = inner.arguments
            difference = _difference(left, right, value)
            if difference is None:
                continue
            # Whether the limit is an upper bound of l, and whether that bound is r + limit.
            ways = [(upper != difference.less, not difference.less)]
            for above, plus in [(True, True), (False, False)] if absolute else ways:
                compared = _bounded(left, right, difference, limit, above, plus)
                if compared is not None and isinstance(difference.kind, _FLOATS):
                    like = identity(difference.left), identity(difference.right)
                    ends.setdefault(like, []).append((above, compared))
                elif compared is not None:
                    comparisons.append(compared)
    for several in ends.values():
        if len({above for above, _ in several}) == 2:
            comparisons += [compared for _, compared in several]
    return comparisons


#: The largest number of digits of a decimal. Spark may round results with this precision.
_MOST_DIGITS = 38
_FLOATS = (T.FloatType, T.DoubleType)
#: The relative margin of a limit of doubles, which is more than the errors of rounding.
_ROUNDED = 1e-6
#: Bounds of a limit of doubles, so that sums stay finite, and of a limit of whole numbers.
_HUGE, _SMALL = 1e300, 2.0**62


def _difference(left: DataFrame, right: DataFrame, value: Column) -> _Difference | None:
    """An expression as a difference of both sides; None for other expressions, or if it may wrap
    around."""
    call = call_of(value)
    if call is None or call.name not in ("-", "datediff", "date_diff") or len(call.arguments) != 2:
        return None
    lefts, rights = names_there(left), names_there(right)
    (a, b), less = call.arguments, False
    if type_over(left, a, rights - lefts) is None:
        a, b, less = b, a, True
    types = type_over(left, a, rights - lefts), type_over(right, b, lefts - rights)
    constant = type_over(right, a, lefts - rights) or type_over(left, b, rights - lefts)
    kind = type_over(left.join(right), value)
    if None in types or constant is not None or kind is None:
        return None
    wide: str | None = None
    if call.name != "-":
        day = F.lit("1970-01-01").cast("date")
        a, b, wide = F.datediff(a, day), F.datediff(b, day), "bigint"
    elif isinstance(kind, T.IntegralType):
        # Otherwise an overflow would change the value.
        whole = all(isinstance(side, T.IntegralType) for side in types)
        if not is_on(left.sparkSession, ANSI) or not whole:
            return None
        wide = "bigint"
    elif isinstance(kind, T.DecimalType):
        if kind.precision == _MOST_DIGITS:
            return None
    elif isinstance(kind, T.DayTimeIntervalType) and types[0] == types[1]:
        # The difference of timestamps is that of their local times.
        wide = "timestamp_ntz" if types[0] == T.TimestampType() else None
    elif isinstance(kind, _FLOATS):
        wide = "double"
    else:
        return None
    if wide is not None:
        a, b = a.cast(wide), b.cast(wide)
    return _Difference(a, b, less, kind, call.name == "-" and T.LongType() in types)


def _bounded(
    left: DataFrame, right: DataFrame, difference: _Difference, limit: Column, above: bool,
    plus: bool,
) -> Comparison | None:
    """The comparison by which the left value is at most, or at least, the right value plus or minus
    a limit."""
    lefts, rights = names_there(left), names_there(right)
    of_right = type_over(right, limit, lefts - rights)
    kind = of_right or type_over(left, limit, rights - lefts)
    a, b = difference.left, difference.right
    if isinstance(difference.kind, T.DayTimeIntervalType):
        if not isinstance(kind, T.DayTimeIntervalType):
            return None
    elif isinstance(difference.kind, T.DecimalType):
        if not isinstance(kind, (T.IntegralType, T.DecimalType)):
            return None
    elif isinstance(difference.kind, _FLOATS):
        number = _number(left.sparkSession, limit, lefts | rights)
        if number is None:
            return None
        more = _ROUNDED * abs(number)
        limit = F.lit(number + (more if above == plus else -more))
    else:
        known: int | None = None
        large = difference.large or kind != T.IntegerType()
        if large:
            number = _number(left.sparkSession, limit, lefts | rights)
            if number is None and not isinstance(kind, T.IntegralType):
                return None
            if number is not None and abs(number) >= _SMALL:
                return None
            if number is not None:
                # The margin covers the rounding of a whole number to a double, and a fraction.
                more = 0 if number == int(number) else 1
                known = int(number) + (1 if above == plus else -1) * (
                    more + (abs(int(number)) >> 50)
                )
                limit = F.lit(known)
        limit = limit.cast("bigint")
        value, adds = (a, not plus) if of_right is None else (b, plus)
        moved = value + limit if adds else value - limit
        end = _within_64_bits(value, limit, adds, known) if large else moved
        ends, original = ((end, b), (moved, b)) if of_right is None else ((a, end), (a, moved))
        return Comparison("<=" if above else ">=", *ends, original, T.LongType())
    if of_right is not None:
        b = b + limit if plus else b - limit
    else:
        a = a - limit if plus else a + limit
    kinds = type_over(left, a), type_over(right, b)
    rounded = any(isinstance(k, T.DecimalType) and k.precision == _MOST_DIGITS for k in kinds)
    if rounded or (
        isinstance(difference.kind, T.DayTimeIntervalType) and kinds[0] != kinds[1]
    ):
        return None
    return comparison_of(left, right, a <= b if above else a >= b)


def _within_64_bits(value: Column, limit: Column, adds: bool, known: int | None) -> Column:
    """The sum or difference of two numbers of 64 bits, saturated at the ends of the range.

    Parameters
    ----------
    known : int or None
        The limit, if it is a constant. An expression must not overflow even if its value is unused.
    """
    least, most = -2**63, 2**63 - 1
    moved = value + limit if adds else value - limit
    if known is not None:
        by = known if adds else -known
        beyond = value > F.lit(most - by) if by > 0 else value < F.lit(least - by)
        return F.when(beyond, F.lit(most if by > 0 else least)).otherwise(moved) if by else value
    up, down = (limit > 0, limit < 0) if adds else (limit < 0, limit > 0)
    room, depth = (
        F.lit(end) - limit if adds else F.lit(end) + limit for end in (most, least)
    )
    return F.when(up & (value > room), F.lit(most)).when(
        down & (value < depth), F.lit(least)
    ).otherwise(moved)


def _number(spark: SparkSession, limit: Column, there: set[str]) -> float | None:
    """The value of a numeric constant that mentions no column; None for another expression, or for
    a number too large to add."""
    nothing = spark.sql("SELECT 1 AS `none`")
    kind = type_over(nothing, limit, there)
    if not isinstance(kind, T.NumericType):
        return None
    value = nothing.select(limit.cast("double")).collect()[0][0]
    return value if value is not None and abs(value) < _HUGE else None
