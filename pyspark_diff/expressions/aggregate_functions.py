"""The aggregate functions: the computation of each, in one of the forms of `aggregate_forms`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError, UnsupportedTypeError
from pyspark_diff.expressions.aggregate_forms import (
    AggregateFunction,
    Argument,
    CollectedFunction,
    LinearFunction,
    OrderedFunction,
)
from pyspark_diff.expressions.moment_functions import COMOMENTS, Comoment, Moment
from pyspark_diff.expressions.record_functions import AnyRecord, ListAgg
from pyspark_diff.kernels import moments, results
from pyspark_diff.kernels.accumulators import RowCount, Trues, Valid
from pyspark_diff.kernels.quantiles import Quantiles, has_codes
from pyspark_diff.spark.calls import Ordering
from pyspark_diff.spark.data_types import arrow_type

#: Types of whole numbers, whose squares are summed exactly.
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FLOATS = (T.FloatType, T.DoubleType)


@dataclass(frozen=True)
class Count(LinearFunction):
    """The number of records, or of records without a null argument."""

    name: str = "count"
    arity: ClassVar[int | None] = None
    empty = 0

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        if len(arguments) < 2 or distinct:
            return list(arguments)
        condition = F.lit(True)
        for argument in arguments:
            condition = condition & argument.isNotNull()
        return [F.when(condition, True)]

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result:
        # The input of a distinct count of several columns has no row with a null.
        argument = arguments[0]
        counter = Valid(argument.column) if argument.nullable else RowCount()
        return results.CountResult(kind, counter)


@dataclass(frozen=True)
class ApproxCountDistinct(Count):
    """The number of distinct values: exact, with any allowed deviation."""

    name: str = "approx_count_distinct"
    arity = 1
    constants = 1
    counts_once = True


@dataclass(frozen=True)
class PairCount(Count):
    """The number of records without a null in two arguments."""

    name: str = "regr_count"
    arity = 2


@dataclass(frozen=True)
class CountIf(LinearFunction):
    """The number of records for which a condition is true."""

    name: str = "count_if"
    empty = 0

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result:
        (argument,) = arguments
        return results.CountResult(kind, Trues(argument.column))


@dataclass(frozen=True)
class Truth(LinearFunction):
    """Whether a condition is true for any record, or for all records.

    Parameters
    ----------
    for_all : bool
        Whether the condition has to be true for all records.
    """

    for_all: bool = False
    can_be_distinct = False

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result:
        (argument,) = arguments
        return (results.AllTrue if self.for_all else results.AnyTrue)(kind, argument.column)


@dataclass(frozen=True)
class Sum(LinearFunction):
    """The sum of numbers. Sums of whole numbers and of decimals are exact."""

    name: str = "sum"
    #: Whether a sum beyond the range of its type is null instead of an error.
    lenient: ClassVar[bool] = False

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result | None:
        (argument,) = arguments
        if isinstance(argument.type, T.DecimalType):
            decimal_sum = results.TryDecimalSum if self.lenient else results.DecimalSum
            return decimal_sum(kind, argument.column)
        if isinstance(argument.type, _FLOATS):
            return (results.ExactSum if exact else results.FloatSum)(kind, argument.column)
        if isinstance(argument.type, (*_WHOLE, T.DayTimeIntervalType)):
            integer_sum = results.TryIntegerSum if self.lenient else results.IntegerSum
            return integer_sum(kind, argument.column)
        return None


@dataclass(frozen=True)
class TrySum(Sum):
    """The sum, or null beyond the range of its type.

    Spark adds row by row, so a sum that fits may be null there if a part of it does not.
    """

    name: str = "try_sum"
    lenient = True


@dataclass(frozen=True)
class Average(LinearFunction):
    """The average of numbers, rounded once if their sum is exact."""

    name: str = "avg"
    synonyms: tuple[str, ...] = ("mean",)
    #: Whether an average beyond the range of its type is null instead of an error.
    lenient: ClassVar[bool] = False

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result | None:
        (argument,) = arguments
        if isinstance(argument.type, T.DecimalType):
            decimal_average = results.TryDecimalAverage if self.lenient else results.DecimalAverage
            return decimal_average(kind, argument.column, argument.type.scale)
        if isinstance(argument.type, _FLOATS):
            return (results.ExactAverage if exact else results.FloatAverage)(kind, argument.column)
        if isinstance(argument.type, _WHOLE):
            return results.IntegerAverage(kind, argument.column)
        if isinstance(argument.type, T.DayTimeIntervalType):
            return results.DurationAverage(kind, argument.column)
        return None


@dataclass(frozen=True)
class TryAverage(Average):
    """The average, or null beyond the range of its type."""

    name: str = "try_avg"
    synonyms: tuple[str, ...] = ()
    lenient = True


@dataclass(frozen=True)
class PairAverage(Average):
    """The average of one of two arguments, over the records without a null in either.

    Parameters
    ----------
    place : int
        The number of the argument.
    """

    synonyms: tuple[str, ...] = ()
    place: int = 0
    arity = 2

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        return [F.when(arguments[1 - self.place].isNotNull(), arguments[self.place])]


@dataclass(frozen=True)
class BitAggregate(LinearFunction):
    """Whole numbers combined bit by bit.

    Parameters
    ----------
    how : {"and", "or", "xor"}
    """

    how: str = "and"

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result | None:
        (argument,) = arguments
        if not isinstance(argument.type, _WHOLE):
            return None
        return results.BitResult(kind, argument.column, self.how)


@dataclass(frozen=True)
class Variance(LinearFunction):
    """The variance of numbers, or its root, the standard deviation.

    Parameters
    ----------
    ddof : int
        The divisor of the sum of squares is the count minus this number: 1 for a sample.
    """

    ddof: int = 0
    root: bool = False

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        # Spark converts all numbers to doubles; here whole numbers stay exact.
        return [
            argument if isinstance(kind, (*_WHOLE, *_FLOATS)) else argument.cast("double")
            for argument, kind in zip(arguments, types)
        ]

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result:
        (argument,) = arguments
        variance = results.IntegerVariance
        if isinstance(argument.type, _FLOATS):
            variance = moments.ExactVariance if exact else results.FloatVariance
        return variance(kind, argument.column, self.ddof, self.root)


@dataclass(frozen=True)
class Extreme(OrderedFunction):
    """The least or the greatest value."""

    @property
    def order(self) -> tuple[tuple[int, bool], ...]:
        return ((0, False),)

    @property
    def from_back(self) -> bool:
        # So minimum and maximum read one arrangement.
        return self.greatest


@dataclass(frozen=True)
class ExtremeBy(OrderedFunction):
    """The value of the record whose other argument is the least or the greatest; the least such
    value."""

    arity = 2
    decisive = 1

    @property
    def order(self) -> tuple[tuple[int, bool], ...]:
        return ((1, self.greatest), (0, False))


@dataclass(frozen=True)
class CollectList(CollectedFunction):
    """All values, in order, each as often as it occurs."""

    name: str = "collect_list"
    synonyms: tuple[str, ...] = ("array_agg",)
    empty = ()

    def collect(self, values: Sequence[tuple[Any, int]]) -> list[Any]:
        return [value for value, count in values for _ in range(count)]


@dataclass(frozen=True)
class CollectSet(CollectedFunction):
    """All values, in order, each once."""

    name: str = "collect_set"
    can_be_distinct = False
    empty = ()

    def collect(self, values: Sequence[tuple[Any, int]]) -> list[Any]:
        return [value for value, _ in values]


@dataclass(frozen=True)
class Percentile(CollectedFunction):
    """The value at a relative position among all values, interpolated between two values.

    Parameters
    ----------
    parts : float or tuple of float
        One relative position or several, from 0 to 1.
    times : int
        The weight of each value.
    """

    name: str = "percentile"
    parts: float | tuple[float, ...] = 0.5
    times: int = 1
    constants = 2
    #: Whether a position between two values is interpolated.
    between: ClassVar[bool] = True

    def with_constants(self, *constants: Any) -> AggregateFunction:
        times = constants[1] if len(constants) > 1 else 1
        return replace(self, parts=_parts(self.name, constants[0]), times=_times(times))

    def ordered(
        self, order: Sequence[Ordering], types: Sequence[T.DataType]
    ) -> AggregateFunction:
        if not order[0].descending:
            return self
        if isinstance(self.parts, tuple):
            return replace(self, parts=tuple(1 - part for part in self.parts))
        return replace(self, parts=1 - self.parts)

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        self._refuse_intervals(types)
        # Text is cast to a number, as in Spark.
        return [
            argument if isinstance(kind, T.NumericType) else argument.cast("double")
            for argument, kind in zip(arguments, types)
        ]

    def _refuse_intervals(self, types: Sequence[T.DataType]) -> None:
        for kind in types:
            if isinstance(kind, (T.DayTimeIntervalType, T.YearMonthIntervalType)):
                raise UnsupportedTypeError(
                    f"{self.name} of a column of type {kind.simpleString()} is not supported. "
                    "Values between two intervals are computed for numbers only. Compute a number "
                    "from the interval first, with extract(... FROM ...)"
                )

    def quantiles(self, value: T.DataType, kind: T.DataType) -> Quantiles | None:
        """The quantiles of values that a search can find; None if the values have to be collected.

        Parameters
        ----------
        value, kind : DataType
            The types of the argument and of the result.
        """
        if not has_codes(arrow_type(value)):
            return None
        listed = isinstance(self.parts, tuple)
        parts = self.parts if isinstance(self.parts, tuple) else (self.parts,)
        return Quantiles(
            parts, listed, self.times, self.between, arrow_type(value), arrow_type(kind)
        )

    def collect(self, values: Sequence[tuple[Any, int]]) -> Any:
        if not values:
            return None
        if isinstance(self.parts, tuple):
            return [self._value_at(values, part) for part in self.parts]
        return self._value_at(values, self.parts)

    def _value_at(self, values: Sequence[tuple[Any, int]], part: float) -> Any:
        position = (sum(count for _, count in values) * self.times - 1) * part
        below, above = math.floor(position), math.ceil(position)
        low, high = _at(values, below // self.times), _at(values, above // self.times)
        if low == high or below == above or low != low and high != high:
            return float(low)
        return (above - position) * float(low) + (position - below) * float(high)


@dataclass(frozen=True)
class Median(Percentile):
    """The middle value, or the mean of the two middle values."""

    name: str = "median"
    constants = 0


@dataclass(frozen=True)
class PercentileApprox(Percentile):
    """The least value such that at least a part of all values is less or equal: exact, not
    interpolated.

    Spark's function of this name is approximate.
    """

    name: str = "percentile_approx"
    synonyms: tuple[str, ...] = ("approx_percentile",)
    between = False

    def with_constants(self, *constants: Any) -> AggregateFunction:
        return replace(self, parts=_parts(self.name, constants[0]))

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        # Dates and times keep their types. Text is cast to a number, as in Spark.
        return [
            argument.cast("double") if isinstance(kind, T.StringType) else argument
            for argument, kind in zip(arguments, types)
        ]

    def _value_at(self, values: Sequence[tuple[Any, int]], part: float) -> Any:
        place = math.ceil(part * sum(count for _, count in values))
        return _at(values, max(place, 1) - 1)


@dataclass(frozen=True)
class PercentileDisc(PercentileApprox):
    """The percentile without interpolation as a double, in SQL: ``percentile_disc(0.5) WITHIN GROUP
    (ORDER BY x)``."""

    name: str = "percentile_disc"
    synonyms: tuple[str, ...] = ()
    constants = 1

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        self._refuse_intervals(types)
        return [argument.cast("double") for argument in arguments]

    def ordered(
        self, order: Sequence[Ordering], types: Sequence[T.DataType]
    ) -> AggregateFunction:
        return DescendingDisc(parts=self.parts) if order[0].descending else self


@dataclass(frozen=True)
class DescendingDisc(PercentileDisc):
    """`percentile_disc` in descending order: positions count from the greatest value."""

    def quantiles(self, value: T.DataType, kind: T.DataType) -> Quantiles | None:
        return None

    def collect(self, values: Sequence[tuple[Any, int]]) -> Any:
        return super().collect(values[::-1])


@dataclass(frozen=True)
class Mode(CollectedFunction):
    """The most frequent value; the least of several."""

    name: str = "mode"
    can_be_distinct = False
    constants = 1

    def ordered(
        self, order: Sequence[Ordering], types: Sequence[T.DataType]
    ) -> AggregateFunction:
        return GreatestMode() if order[0].descending else self

    def collect(self, values: Sequence[tuple[Any, int]]) -> Any:
        # `max` returns the first of several maxima.
        return max(values, key=lambda value: value[1])[0] if values else None


@dataclass(frozen=True)
class GreatestMode(Mode):
    """The most frequent value; the greatest of several."""

    def collect(self, values: Sequence[tuple[Any, int]]) -> Any:
        return super().collect(values[::-1])


def _at(values: Sequence[tuple[Any, int]], place: int) -> Any:
    """The value at a place in the list of all values, each as often as it occurs."""
    for value, count in values:
        place -= count
        if place < 0:
            return value
    raise IndexError("there are fewer values")


def _parts(name: str, constant: Any) -> float | tuple[float, ...]:
    listed = constant if isinstance(constant, (list, tuple)) else [constant]
    if not listed or not all(part is not None and 0 <= part <= 1 for part in listed):
        raise SchemaError(f"{name} takes parts from 0 to 1, not {constant!r}")
    parts = tuple(map(float, listed))
    return parts if isinstance(constant, (list, tuple)) else parts[0]


def _times(constant: Any) -> int:
    if not isinstance(constant, int) or constant < 1:
        raise SchemaError(
            "the frequency of percentile is one positive number for all records, not "
            f"{constant!r}; for frequencies in a column, move it into the diff: weighted(...)"
        )
    return constant


#: All functions. To add one, write a class of one of the three forms and list it here.
_ALL: tuple[AggregateFunction, ...] = (
    Count(),
    ApproxCountDistinct(),
    CountIf(),
    Sum(),
    Average(),
    Variance("var_pop"),
    Variance("var_samp", ("variance",), ddof=1),
    Variance("stddev_pop", root=True),
    Variance("stddev_samp", ("std", "stddev"), ddof=1, root=True),
    TrySum(),
    TryAverage(),
    BitAggregate("bit_and", how="and"),
    BitAggregate("bit_or", how="or"),
    BitAggregate("bit_xor", how="xor"),
    *(Comoment(name) for name in COMOMENTS),
    PairAverage("regr_avgx", place=1),
    PairAverage("regr_avgy", place=0),
    PairCount("regr_count"),
    Moment("skewness", order=3),
    Moment("kurtosis", order=4),
    Truth("bool_and", ("every",), for_all=True),
    Truth("bool_or", ("any", "some")),
    Extreme("min"),
    Extreme("max", greatest=True),
    ExtremeBy("min_by"),
    ExtremeBy("max_by", greatest=True),
    CollectList(),
    CollectSet(),
    Percentile(),
    PercentileApprox(),
    PercentileDisc(),
    Median(),
    Mode(),
    ListAgg(),
    AnyRecord("first", ("first_value",)),
    AnyRecord("last", ("last_value",), greatest=True),
    AnyRecord("any_value"),
)

#: The functions by their names and synonyms.
FUNCTIONS: dict[str, AggregateFunction] = {
    name: function for function in _ALL for name in (function.name, *function.synonyms)
}
