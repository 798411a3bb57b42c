"""The parts of a join condition, parsed without a job.

    c is true  ⟺  all pairs of c are equal and all of its residual is true
    c is true  ⟹  the value of c lies in the interval of c
    c is never true  ⟸  the only pair of c is two nulls
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Callable, Collection, Iterator, NamedTuple, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregates import identity
from pyspark_diff.expressions.analysis import unlogged
from pyspark_diff.expressions.check import check_own_values, sessions_refused
from pyspark_diff.kernels.blocks import spare_bits
from pyspark_diff.spark.calls import ColumnCall, call_of, with_calls_replaced
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.jvm import analysed_plan
from pyspark_diff.spark.mentions import mentions, names_there
from pyspark_diff.spark.settings import ANSI, is_on

#: Digits of the decimals into which Spark converts whole numbers of a type before it compares them
#: with decimals.
_DIGITS: dict[T.DataType, int] = {
    T.ByteType(): 3, T.ShortType(): 5, T.IntegerType(): 10, T.LongType(): 20,
}


@dataclass(frozen=True)
class Interval:
    """A value of one side, and an interval of the other side that has to contain it.

    Parameters
    ----------
    side : int
        The side of the value: 0 for the left one.
    value : Column
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


@dataclass(frozen=True)
class Condition:
    """The parts of a join condition.

    Parameters
    ----------
    left, right : tuple of Column
        Pairwise equal expressions of the same type, each over one frame only.
    null_safe : tuple of bool
        For each pair, whether two nulls are equal.
    residual : tuple of Column
        The other conditions, over both frames, which all have to be true.
    interval : Interval, optional
        An interval that follows from the residual.
    overlap : Overlap, optional
        An overlap that follows from the residual; None if the interval has both ends.
    """

    left: tuple[Column, ...]
    right: tuple[Column, ...]
    null_safe: tuple[bool, ...]
    residual: tuple[Column, ...]
    interval: Interval | None = None
    overlap: Overlap | None = None

    def unmixed(self) -> "Condition":
        """The condition with equalities of one kind: if kinds are mixed, null-safe ones compare
        structs.

        A struct is not null, and two structs are equal if their fields are equal, nulls included.
        """
        if all(self.null_safe) or not any(self.null_safe):
            return self
        left, right = (
            tuple(F.struct(key.alias("value")) if safe else key
                  for key, safe in zip(keys, self.null_safe))
            for keys in (self.left, self.right)
        )
        return replace(self, left=left, right=right, null_safe=(False,) * len(left))


def _refuse_time_windows(rows: DataFrame, conditions: Sequence[Column]) -> None:
    """Name a time window in a condition that Spark refused: its own error is an internal one.

    Parameters
    ----------
    rows : DataFrame
        All pairs of rows of both sides.
    conditions : sequence of Column
    """
    names = {name for condition in conditions for name in _windows_in(rows, condition)}
    if "session_window" in names:
        raise sessions_refused("a join condition")
    if "window" in names:
        raise SchemaError(
            "a join condition uses a time window, and Spark computes these only in a list of "
            "columns. Add the window as a column, by withColumn, and join by that column"
        )


def _windows_in(rows: DataFrame, condition: Column) -> set[str]:
    """The names of the functions of time windows in a condition."""
    names: set[str] = set()

    def note(call: ColumnCall, whole: Column) -> Column | None:
        if call.name in ("window", "session_window"):
            names.add(call.name)
            return whole
        return None

    with_calls_replaced(condition, note)
    if names:
        return names
    # A client of Connect does not parse SQL text, but Spark computes a window in a list of columns.
    # A row has no window if its time is null: Spark adds a filter, or copies of rows.
    try:
        with unlogged():
            before = analysed_plan(rows)
            selected = rows.select(condition.alias("condition"))
            plan = analysed_plan(selected)
    except AnalysisException:
        return names
    # A subquery brings a filter, too, and is refused by its own name.
    if plan.outside:
        check_own_values(selected)
    if plan.sessions and not before.sessions:
        names.add("session_window")
    if {"Filter", "Expand"} & (set(plan.nodes) - set(before.nodes)):
        names.add("window")
    return names


def parse_condition(
    left: DataFrame, right: DataFrame, on: Column | Sequence[Column]
) -> Condition:
    """Equal pairs and the rest of a join condition.

    Parameters
    ----------
    left, right : DataFrame
        Empty frames, made independently, with the aliases of the condition.
    on : Column or sequence of Column
        Conditions that all have to be true.

    Raises
    ------
    SchemaError
        If there is no condition, it is no column, or it has a time window.
    NonDeterministicError
        If the condition reads the clock.
    pyspark.errors.AnalysisException
        The errors of Spark's analysis, such as an ambiguous column.

    Examples
    --------
    >>> left = spark.createDataFrame([], "id int, price int").alias("l")
    >>> right = spark.createDataFrame([], "id long, limit int").alias("r")
    >>> on = (F.col("r.id") == F.col("l.id")) & (F.col("price") < F.col("limit"))
    >>> found = parse_condition(left, right, on)
    >>> found.left, found.right
    ((Column<'CAST(l.id AS BIGINT)'>,), (Column<'r.id'>,))
    >>> found.residual
    (Column<'<(price, limit)'>,)
    """
    conditions = [on] if isinstance(on, Column) else list(on)
    if not conditions or not all(isinstance(condition, Column) for condition in conditions):
        raise SchemaError(
            "a join condition is a column such as F.col('l.x') == F.col('r.x'), or a list of them; "
            f"it got {on!r}"
        )
    try:
        joined = left.join(right, reduce(and_, conditions))
        # Connect analyses the condition only for the schema.
        joined.schema
    except Exception:
        _refuse_time_windows(left.crossJoin(right), conditions)
        raise
    check_own_values(joined)
    pairs: list[_Compared] = []
    residual: list[Column] = []
    unequal: list[_Compared] = []
    for conjunct in (part for condition in conditions for part in conjuncts(condition)):
        pair = _pair(left, right, conjunct)
        if pair is not None and pair.name in ("==", "<=>"):
            pairs.append(pair)
            continue
        residual.append(conjunct)
        if pair is not None:
            unequal.append(pair)
    unequal += _bands(left, right, residual)
    interval = _interval(left, right, unequal)
    whole = interval is not None and interval.lower is not None and interval.upper is not None
    if not pairs and interval is None and any(_is_null(left, right, part) for part in residual):
        nothing = F.lit(None).cast("int")
        return Condition((nothing,), (nothing,), (False,), ())
    return Condition(
        tuple(pair.left for pair in pairs),
        tuple(pair.right for pair in pairs),
        tuple(pair.name == "<=>" for pair in pairs),
        tuple(residual),
        interval,
        None if whole else _overlap(unequal),
    )


def _is_null(left: DataFrame, right: DataFrame, conjunct: Column) -> bool:
    """Whether a condition compares with a constant that is null, and so is null."""
    call = call_of(conjunct)
    if call is None or call.name not in _COMPARISONS or call.name == "<=>":
        return False
    nothing, there = left.sparkSession.sql("SELECT 1 AS `none`"), names_there(left)
    there |= names_there(right)
    return any(
        _type_in(nothing, argument, there) is not None
        and nothing.select(argument.isNull()).collect()[0][0] for argument in call.arguments
    )


def conjuncts(condition: Column) -> list[Column]:
    """The conjuncts of a condition."""
    call = call_of(condition)
    if call is not None and call.name == "between" and len(call.arguments) == 3:
        value, lower, upper = call.arguments
        return [value >= lower, value <= upper]
    if call is None or call.name != "and":
        return [condition]
    return [part for argument in call.arguments for part in conjuncts(argument)]


#: Comparisons, and the comparisons with swapped arguments.
_COMPARISONS: dict[str, tuple[str, Callable[[Column, Column], Column]]] = {
    "==": ("==", Column.__eq__), "<=>": ("<=>", Column.eqNullSafe),
    "<": (">", Column.__lt__), "<=": (">=", Column.__le__),
    ">": ("<", Column.__gt__), ">=": ("<=", Column.__ge__),
}


class _Compared(NamedTuple):
    """A comparison of expressions of both sides: converted to one type, and in their original
    form."""

    name: str
    left: Column
    right: Column
    original: tuple[Column, Column]
    kind: T.DataType


def _pair(left: DataFrame, right: DataFrame, conjunct: Column) -> _Compared | None:
    call = call_of(conjunct)
    if call is None or call.name not in _COMPARISONS:
        return None
    a, b = call.arguments
    lefts, rights = names_there(left), names_there(right)
    a_left, b_left = (_type_in(left, operand, rights - lefts) for operand in (a, b))
    a_right, b_right = (_type_in(right, operand, lefts - rights) for operand in (a, b))
    turned, compare = _COMPARISONS[call.name]
    # An expression with a value in both frames, such as a literal, belongs to neither.
    if a_left and b_right and not a_right and not b_left:
        name, operands = call.name, (a, b)
        same = _of_one_type(left, right, (a, a_left), (b, b_right), compare)
    elif b_left and a_right and not a_left and not b_right:
        name, operands = turned, (b, a)
        same = _of_one_type(
            left, right, (b, b_left), (a, a_right), lambda x, y: compare(y, x)
        )
    else:
        return None
    return None if same is None else _Compared(name, *same[:2], operands, same[2])


def _type_in(
    frame: DataFrame, expr: Column, elsewhere: Collection[str] = ()
) -> T.DataType | None:
    """The type of an expression over a frame; None if the frame lacks its columns, or if it
    mentions a column from elsewhere."""
    if mentions(expr, elsewhere):
        return None
    try:
        with unlogged():
            (field,) = frame.select(expr).schema
    except (AnalysisException, ValueError):
        return None
    return without_nullability(field.dataType)


def _of_one_type(
    left: DataFrame,
    right: DataFrame,
    a: tuple[Column, T.DataType],
    b: tuple[Column, T.DataType],
    compare: Callable[[Column, Column], Column],
) -> tuple[Column, Column, T.DataType] | None:
    """Two expressions with Spark's casts for their comparison; None if unknown.

    Spark has special rules for each comparison, and they depend on settings. So the function tries
    each likely type. A type is right iff Spark plans the same join with and without the casts to
    it.
    """
    (x, x_type), (y, y_type) = a, b
    if x_type == y_type:
        return x, y, x_type
    plain = left.join(right, compare(x, y))

    def kinds() -> Iterator[T.DataType | None]:
        yield from (y_type, x_type)
        yield _type_in(left.join(right), F.coalesce(x, y))
        yield from (T.DoubleType(), T.LongType())

    for kind in kinds():
        if kind is None:
            continue
        u, v = _cast(x, x_type, kind), _cast(y, y_type, kind)
        if left.join(right, compare(u, v)).sameSemantics(plain):
            return u, v, kind
    return None


def _cast(expr: Column, kind: T.DataType, wanted: T.DataType) -> Column:
    if isinstance(wanted, T.DecimalType) and kind in _DIGITS:
        whole = T.DecimalType(_DIGITS[kind], 0)
        return _cast(expr.cast(whole), whole, wanted)
    return expr if kind == wanted else expr.cast(wanted)


def _interval(left: DataFrame, right: DataFrame, unequal: list[_Compared]) -> Interval | None:
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


def _overlap(unequal: list[_Compared]) -> Overlap | None:
    """Two comparisons by which each interval begins before the other one ends."""
    known = [pair for pair in unequal if _has_blocks(pair.kind)]
    for first in known:
        for second in known:
            if first.name in ("<", "<=") and second.name in (">", ">=") and (
                first.kind == second.kind
            ):
                return Overlap((first.left, second.left), (second.right, first.right))
    return None


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


def _bands(left: DataFrame, right: DataFrame, conjuncts: list[Column]) -> list[_Compared]:
    """The comparisons that follow from conditions on differences of both sides::

        l - r <= c  ⟹  l <= r + c        abs(l - r) <= c  ⟹  r - c <= l <= r + c
    """
    comparisons: list[_Compared] = []
    #: Doubles need both ends, as a NaN is larger than any number.
    ends: dict[tuple[str, str], list[tuple[bool, _Compared]]] = {}
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
    if _type_in(left, a, rights - lefts) is None:
        a, b, less = b, a, True
    types = _type_in(left, a, rights - lefts), _type_in(right, b, lefts - rights)
    constant = _type_in(right, a, lefts - rights) or _type_in(left, b, rights - lefts)
    kind = _type_in(left.join(right), value)
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
) -> _Compared | None:
    """The comparison by which the left value is at most, or at least, the right value plus or minus
    a limit."""
    lefts, rights = names_there(left), names_there(right)
    of_right = _type_in(right, limit, lefts - rights)
    kind = of_right or _type_in(left, limit, rights - lefts)
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
        return _Compared("<=" if above else ">=", *ends, original, T.LongType())
    if of_right is not None:
        b = b + limit if plus else b - limit
    else:
        a = a - limit if plus else a + limit
    kinds = _type_in(left, a), _type_in(right, b)
    rounded = any(isinstance(k, T.DecimalType) and k.precision == _MOST_DIGITS for k in kinds)
    if rounded or (
        isinstance(difference.kind, T.DayTimeIntervalType) and kinds[0] != kinds[1]
    ):
        return None
    return _pair(left, right, a <= b if above else a >= b)


def _within_64_bits(value: Column, limit: Column, adds: bool, known: int | None) -> Column:
    """The sum or difference of two numbers of 64 bits, saturated at the ends of the range.

    Parameters
    ----------
    value, limit : Column
    adds : bool
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
    kind = _type_in(nothing, limit, there)
    if not isinstance(kind, T.NumericType):
        return None
    value = nothing.select(limit.cast("double")).collect()[0][0]
    return value if value is not None and abs(value) < _HUGE else None


def _length(frame: DataFrame, low: Column, high: Column, kind: T.DataType) -> int | float | None:
    """The distance of two expressions that differ by constants; None for others."""
    (base, low_moves), (other, high_moves) = _moved(frame, low), _moved(frame, high)
    base_type = _type_in(frame, base)
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
    if _type_in(nothing, b, there) is not None:
        base, moves = _moved(frame, a)
        return base, [*moves, lambda column: move(column, b)]
    if either and _type_in(nothing, a, there) is not None:
        base, moves = _moved(frame, b)
        return base, [*moves, lambda column: move(a, column)]
    return end, []


#: Functions that add a constant, and whether it may be the first argument.
_MOVES: dict[str, tuple[Callable[[Column, Column], Column], bool]] = {
    "+": (Column.__add__, True), "-": (Column.__sub__, False),
    "date_add": (F.date_add, False), "date_sub": (F.date_sub, False),
}
