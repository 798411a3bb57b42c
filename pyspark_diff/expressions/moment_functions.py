"""Aggregates of pairs of numbers, and moments of a high order: linear, over doubles as in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.expressions.aggregate_forms import (
    AggregateFunction,
    Argument,
    LinearFunction,
)
from pyspark_diff.kernels import moments, results

#: The functions of pairs that are computed from sums of products and squares.
COMOMENTS = (
    "corr", "covar_pop", "covar_samp", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx",
    "regr_sxy", "regr_syy",
)


@dataclass(frozen=True)
class Comoment(LinearFunction):
    """A function of the pairs of two columns in which neither is null.

    Parameters
    ----------
    ansi : bool
        Whether a correlation with a column of equal values is an error instead of null.
    """

    ansi: bool = True
    arity: ClassVar[int | None] = 2

    def in_session(self, ansi: bool) -> AggregateFunction:
        return replace(self, ansi=ansi)

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        first, second = (argument.cast("double") for argument in arguments)
        return [F.when(second.isNotNull(), first), F.when(first.isNotNull(), second)]

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result:
        first, second = arguments
        result = moments.ExactComomentResult if exact else moments.ComomentResult
        return result(kind, first.column, second.column, self.name, self.ansi)


@dataclass(frozen=True)
class Moment(LinearFunction):
    """The skewness or the kurtosis of numbers.

    Parameters
    ----------
    order : int
        3 or 4.
    """

    order: int = 3
    # A row of a window would have hundreds of sums.
    over_windows = False

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        return [argument.cast("double") for argument in arguments]

    def _over(
        self, arguments: Sequence[Argument], kind: pa.DataType, exact: bool
    ) -> results.Result:
        (argument,) = arguments
        return moments.ExactMoment(kind, argument.column, self.order)
