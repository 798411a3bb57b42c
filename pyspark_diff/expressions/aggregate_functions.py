"""The aggregate functions: each says in one place what it is computed from, and how.

For a group ``G``, a multiset of records with multiplicities of either sign, a function has one of
three forms::

    linear       finish(sum of m * f(x) over the records x of G, m being their multiplicity)
    ordered      the first of the records in an order of their own
    collected    a function of the values and how often each is there, in ascending order

Linear functions of one group share a vector of sums. The other two look at the values that stand
with a *positive* multiplicity, and so do `Truth`, which is the extreme of booleans, and whatever is
distinct: a value that was removed more often than inserted is absent to them, as it is to the
operators `distinct` and `top_k`, and a group of none but these is to them an empty one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError, UnsupportedTypeError
from pyspark_diff.kernels import results
from pyspark_diff.kernels.accumulators import Rows, Trues, Valid
from pyspark_diff.kernels.quantiles import Quantiles, has_codes
from pyspark_diff.spark.schema import arrow_type

#: Types of whole numbers, whose squares are summed exactly.
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FLOATS = (T.FloatType, T.DoubleType)


@dataclass(frozen=True)
class Argument:
    """What an aggregate is computed from: a column of the collection that is grouped.

    Parameters
    ----------
    column : int
        Its number among the columns that are summed.
    type : DataType
    nullable : bool
        Whether nulls may be among its values.
    """

    column: int
    type: T.DataType
    nullable: bool = True


#: What ``count(*)`` is computed from.
RECORD = Argument(-1, T.NullType(), nullable=False)


@dataclass(frozen=True)
class AggregateFunction(ABC):
    """What `agg` can be asked for; one of the three forms below.

    Parameters
    ----------
    name : str
        As Spark calls it.
    synonyms : tuple of str
    """

    name: str
    synonyms: tuple[str, ...] = ()
    #: How many arguments it takes; None for any number.
    arity: ClassVar[int | None] = 1
    #: Whether the result may be another one if equal arguments count once.
    can_be_distinct: ClassVar[bool] = True
    #: Whether they always do.
    counts_once: ClassVar[bool] = False
    #: How many constants there may be after these.
    constants: ClassVar[int] = 0
    #: The result over no values.
    empty: ClassVar[Any] = None
    #: The argument by which records do not count: where it is null.
    decisive: ClassVar[int] = 0

    def given(self, *constants: Any) -> AggregateFunction:
        """The function with its constants."""
        return self

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        """The expressions that it is computed from, given its arguments and their types."""
        return list(arguments)


@dataclass(frozen=True)
class LinearFunction(AggregateFunction):
    """A function of sums, to which every record adds something of its own."""

    def result(self, argument: Argument, kind: T.DataType, *, exact: bool) -> results.Result:
        """What is summed, and what becomes of that.

        Parameters
        ----------
        argument : Argument
        kind : DataType
            Type of the result.
        exact : bool
            Whether to sum floats exactly, and round once.

        Raises
        ------
        UnsupportedTypeError
            If values of the argument's type cannot be summed.
        """
        found = self._over(argument, arrow_type(kind), exact)
        if found is None:
            raise UnsupportedTypeError(
                f"{self.name} of a column of type {argument.type.simpleString()} is not supported; "
                "cast it to a number"
            )
        return found

    @abstractmethod
    def _over(self, argument: Argument, kind: pa.DataType, exact: bool) -> results.Result | None:
        """The same for Arrow's type; None if values of the argument's type cannot be summed."""


@dataclass(frozen=True)
class OrderedFunction(AggregateFunction):
    """The first argument of the record that is the first in an order.

    Parameters
    ----------
    greatest : bool
        Whether the last in order counts as the first.
    """

    greatest: bool = False
    can_be_distinct = False

    @property
    @abstractmethod
    def order(self) -> tuple[tuple[int, bool], ...]:
        """Numbers of the arguments that make the order, and whether each is descending.

        Records in which the first of them is null do not count.
        """

    @property
    def from_back(self) -> bool:
        """Whether the last in this order is the first."""
        return False


@dataclass(frozen=True)
class CollectedFunction(AggregateFunction):
    """A function of all values that are not null, which are kept for each group."""

    @abstractmethod
    def collect(self, values: Sequence[tuple[Any, int]]) -> Any:
        """The result over some values and how often each is there, in ascending order."""

    def __call__(self, key: Any, values: list[tuple[tuple[Any, ...], int]]) -> list[tuple[Any]]:
        """The same as a function that `reduce` can call."""
        return [(self.collect([(v, count) for (v,), count in values if count > 0]),)]


@dataclass(frozen=True)
class Count(LinearFunction):
    """The number of records, or of those in which none of the arguments is null."""

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

    def _over(self, argument: Argument, kind: pa.DataType, exact: bool) -> results.Result:
        return results.Count(kind, Valid(argument.column) if argument.nullable else Rows())


@dataclass(frozen=True)
class ApproxCountDistinct(Count):
    """The number of distinct values: exact, whatever deviation is allowed."""

    name: str = "approx_count_distinct"
    arity = 1
    constants = 1
    counts_once = True


@dataclass(frozen=True)
class CountIf(LinearFunction):
    """The number of records for which a condition is true."""

    name: str = "count_if"
    empty = 0

    def _over(self, argument: Argument, kind: pa.DataType, exact: bool) -> results.Result:
        return results.Count(kind, Trues(argument.column))


@dataclass(frozen=True)
class Truth(LinearFunction):
    """Whether a condition is true for any record, or for all of them.

    Parameters
    ----------
    every : bool
        Whether it has to be true for all of them.
    """

    every: bool = False
    can_be_distinct = False

    def _over(self, argument: Argument, kind: pa.DataType, exact: bool) -> results.Result:
        return (results.AllTrue if self.every else results.AnyTrue)(kind, argument.column)


@dataclass(frozen=True)
class Sum(LinearFunction):
    """The sum of numbers, of which that of whole numbers and of decimals is exact."""

    name: str = "sum"

    def _over(self, argument: Argument, kind: pa.DataType, exact: bool) -> results.Result | None:
        if isinstance(argument.type, T.DecimalType):
            return results.DecimalSum(kind, argument.column)
        if isinstance(argument.type, _FLOATS):
            return (results.ExactSum if exact else results.FloatSum)(kind, argument.column)
        if isinstance(argument.type, _WHOLE):
            return results.IntegerSum(kind, argument.column)
        return None


@dataclass(frozen=True)
class Average(LinearFunction):
    """The average of numbers, rounded once where their sum is exact."""

    name: str = "avg"
    synonyms: tuple[str, ...] = ("mean",)

    def _over(self, argument: Argument, kind: pa.DataType, exact: bool) -> results.Result | None:
        if isinstance(argument.type, T.DecimalType):
            return results.DecimalAverage(kind, argument.column, argument.type.scale)
        if isinstance(argument.type, _FLOATS):
            return (results.ExactAverage if exact else results.FloatAverage)(kind, argument.column)
        if isinstance(argument.type, _WHOLE):
            return results.IntegerAverage(kind, argument.column)
        return None


@dataclass(frozen=True)
class Variance(LinearFunction):
    """The variance of numbers, or its root, the standard deviation.

    Parameters
    ----------
    ddof : int
        What the sum of squares is divided by is the count less this: 1 for that of a sample.
    root : bool
    """

    ddof: int = 0
    root: bool = False

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        # In doubles of everything but whole numbers, as Spark does of all.
        return [
            argument if isinstance(kind, (*_WHOLE, *_FLOATS)) else argument.cast("double")
            for argument, kind in zip(arguments, types)
        ]

    def _over(self, argument: Argument, kind: pa.DataType, exact: bool) -> results.Result:
        floats = isinstance(argument.type, _FLOATS)
        made = results.FloatVariance if floats else results.IntegerVariance
        return made(kind, argument.column, self.ddof, self.root)


@dataclass(frozen=True)
class Extreme(OrderedFunction):
    """The least or the greatest value."""

    @property
    def order(self) -> tuple[tuple[int, bool], ...]:
        return ((0, False),)

    @property
    def from_back(self) -> bool:
        # So that both read one arrangement.
        return self.greatest


@dataclass(frozen=True)
class ExtremeBy(OrderedFunction):
    """The value where another is the least or the greatest; of several, the least value."""

    arity = 2
    decisive = 1

    @property
    def order(self) -> tuple[tuple[int, bool], ...]:
        return ((1, self.greatest), (0, False))


@dataclass(frozen=True)
class CollectList(CollectedFunction):
    """All values, in order, each as often as it is there."""

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
    """A value below which a part of all values lies, with what is between two taken in proportion.

    Parameters
    ----------
    parts : float or tuple of float
        One part or several, from 0 to 1.
    times : int
        How often each value counts.
    """

    name: str = "percentile"
    parts: float | tuple[float, ...] = 0.5
    times: int = 1
    constants = 2
    #: Whether what lies between two values is taken in proportion.
    between: ClassVar[bool] = True

    def given(self, *constants: Any) -> AggregateFunction:
        times = constants[1] if len(constants) > 1 else 1
        return replace(self, parts=_parts(self.name, constants[0]), times=_times(times))

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        # Text is taken for a number, as Spark does.
        return [
            argument if isinstance(kind, T.NumericType) else argument.cast("double")
            for argument, kind in zip(arguments, types)
        ]

    def quantiles(self, value: T.DataType, kind: T.DataType) -> Quantiles | None:
        """The same of values that are found by search; None where they have to be collected.

        Parameters
        ----------
        value, kind : DataType
            Of the argument, and of the result.
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
            return [self._one(values, part) for part in self.parts]
        return self._one(values, self.parts)

    def _one(self, values: Sequence[tuple[Any, int]], part: float) -> Any:
        position = (sum(count for _, count in values) * self.times - 1) * part
        below, above = math.floor(position), math.ceil(position)
        low, high = _at(values, below // self.times), _at(values, above // self.times)
        if low == high or below == above or low != low and high != high:
            return float(low)
        return (above - position) * float(low) + (position - below) * float(high)


@dataclass(frozen=True)
class Median(Percentile):
    """The value in the middle, or the mean of both."""

    name: str = "median"
    constants = 0


@dataclass(frozen=True)
class PercentileApprox(Percentile):
    """The first value of which at least a part of all are not greater: exact, and never between.

    Spark's function of this name may be off by some places.
    """

    name: str = "percentile_approx"
    synonyms: tuple[str, ...] = ("approx_percentile",)
    between = False

    def given(self, *constants: Any) -> AggregateFunction:
        return replace(self, parts=_parts(self.name, constants[0]))

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        return list(arguments)

    def _one(self, values: Sequence[tuple[Any, int]], part: float) -> Any:
        place = math.ceil(part * sum(count for _, count in values))
        return _at(values, max(place, 1) - 1)


@dataclass(frozen=True)
class PercentileDisc(PercentileApprox):
    """The same as a double, in SQL: ``percentile_disc(0.5) WITHIN GROUP (ORDER BY x)``."""

    name: str = "percentile_disc"
    synonyms: tuple[str, ...] = ()
    constants = 1

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        return [argument.cast("double") for argument in arguments]


@dataclass(frozen=True)
class Mode(CollectedFunction):
    """The value that is there most often; of several, the least."""

    name: str = "mode"
    can_be_distinct = False
    constants = 1

    def collect(self, values: Sequence[tuple[Any, int]]) -> Any:
        # The first of the greatest ones.
        return max(values, key=lambda value: value[1])[0] if values else None


def _at(values: Sequence[tuple[Any, int]], place: int) -> Any:
    """The value at a place, all being in a row, each as often as it is there."""
    for value, count in values:
        place -= count
        if place < 0:
            return value
    raise IndexError("there are fewer values")


def _parts(name: str, given: Any) -> float | tuple[float, ...]:
    listed = given if isinstance(given, (list, tuple)) else [given]
    if not listed or not all(part is not None and 0 <= part <= 1 for part in listed):
        raise SchemaError(f"{name} takes parts from 0 to 1, not {given!r}")
    parts = tuple(map(float, listed))
    return parts if isinstance(given, (list, tuple)) else parts[0]


def _times(given: Any) -> int:
    if not isinstance(given, int) or given < 1:
        raise SchemaError(
            f"the frequency of percentile is one positive number for all records, not {given!r}; "
            "for that of a column, move it into the diff: weighted(...)"
        )
    return given


#: All of them. To add one, write a class of one of the three forms, and put it here.
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
    Truth("bool_and", ("every",), every=True),
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
)

#: By their names and synonyms.
FUNCTIONS: dict[str, AggregateFunction] = {
    name: function for function in _ALL for name in (function.name, *function.synonyms)
}
