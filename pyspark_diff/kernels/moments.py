"""Moments of two columns and of a high order, from vectors of sums.

For values ``x`` and ``y`` of a group, with means ``X`` and ``Y`` and ``n`` pairs::

    M_k = sum of (x - X)**k          C = sum of (x - X) * (y - Y) = sum of x * y - n * X * Y

Sums of squares and products of doubles are double-words, as for a variance. Third and fourth powers
would lose their digits there: a mean of 1e7 deviations takes all of them. So these sums are exact,
and one rounding converts the quotient of whole numbers to a double. With ``exact=True`` sums of
squares and products are exact too::

    V = n * sum of x**2 - (sum of x)**2          W = n * sum of x * y - sum of x * sum of y
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels import quotients
from pyspark_diff.kernels.accumulators import (
    Accumulator,
    ExactFloats,
    ExactPowers,
    ExactProducts,
    FloatProducts,
    Floats,
    FloatSquares,
    Valid,
)
from pyspark_diff.kernels.results import (
    ColumnResult,
    FloatVariance,
    IntegerVariance,
    GroupSums,
    with_infinities,
)
from pyspark_diff.kernels.tallies import DIGITS, LOW
from pyspark_diff.kernels.updates import Int64

Array = np.ndarray
#: The exponent of the unit of exact sums: that of the smallest double.
_UNIT = -1074


@dataclass(frozen=True)
class PairSums:
    """The sums over the pairs of each group, for the formulas.

    Parameters
    ----------
    first, second : int
        The columns, null together.
    """

    first: int
    second: int
    sums: GroupSums
    n: Int64

    def variance(self, column: int) -> Array:
        """The variance of the population."""
        return FloatVariance(pa.float64(), column).variances(self.sums, self.n)

    def average(self, column: int) -> Array:
        result, accumulator = np.zeros(len(self.sums)), Floats(column)
        quotients.float_quotients(self.sums.reals, self.sums.starts[accumulator], self.n, result)
        return with_infinities(result, self.sums.components(accumulator)[:, 2:], self.n)

    def covariance(self) -> Array:
        """The covariance of the population."""
        result, sums = np.zeros(len(self.sums)), self.sums
        sides, product = (Floats(self.first), Floats(self.second)), self.product
        starts = [sums.starts[accumulator] for accumulator in (*sides, product)]
        quotients.float_covariances(sums.reals, *starts, self.n, result)
        for side in sides:
            result[(sums.components(side)[:, 2:] != 0).any(axis=1)] = np.nan
        result[sums.components(product)[:, 2] != 0] = np.nan
        return result

    @property
    def product(self) -> FloatProducts:
        return FloatProducts(self.first, self.second)


def _correlation(pairs: PairSums) -> Array:
    divisor = np.sqrt(pairs.variance(pairs.first)) * np.sqrt(pairs.variance(pairs.second))
    return np.where(divisor == 0, np.inf, pairs.covariance() / divisor)


def _slope(pairs: PairSums) -> Array:
    return pairs.covariance() / pairs.variance(pairs.second)


def _intercept(pairs: PairSums) -> Array:
    return pairs.average(pairs.first) - _slope(pairs) * pairs.average(pairs.second)


def _determination(pairs: PairSums) -> Array:
    first = pairs.variance(pairs.first)
    covariance = pairs.covariance()
    square = covariance * covariance / (first * pairs.variance(pairs.second))
    return np.where(first == 0, 1.0, square)


#: The formula of each function of two columns.
_FORMULAS: dict[str, Callable[[PairSums], Array]] = {
    "covar_pop": lambda pairs: pairs.covariance(),
    "covar_samp": lambda pairs: pairs.covariance() * pairs.n / (pairs.n - 1),
    "corr": _correlation,
    "regr_sxy": lambda pairs: pairs.covariance() * pairs.n,
    "regr_sxx": lambda pairs: pairs.variance(pairs.second) * pairs.n,
    "regr_syy": lambda pairs: pairs.variance(pairs.first) * pairs.n,
    "regr_slope": _slope,
    "regr_intercept": _intercept,
    "regr_r2": _determination,
}
#: Whether a function sums the squares of the first column, and of the second one.
_SQUARES = {
    "corr": (True, True), "regr_r2": (True, True), "regr_sxx": (False, True),
    "regr_syy": (True, False), "regr_slope": (False, True), "regr_intercept": (False, True),
}
_NO_PRODUCTS = ("regr_sxx", "regr_syy")
#: Functions that are null for one pair.
_OF_TWO = ("covar_samp", "corr")
#: Functions that are null if all values of the second column are equal.
_VARYING = ("regr_slope", "regr_intercept", "regr_r2")


@dataclass(frozen=True)
class ComomentResult(ColumnResult):
    """A function of pairs: a covariance, a correlation, or a part of a regression line.

    Parameters
    ----------
    other : int
        The index of the second column, the independent one of a regression.
    name : str
        Spark's name of the function.
    ansi : bool
        Whether a division by zero is an error instead of null.
    """

    other: int
    name: str
    ansi: bool = True

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        columns = (self.column, self.other)
        squares = _SQUARES.get(self.name, (False, False))
        result: list[Accumulator] = [Valid(self.column), *map(Floats, columns)]
        result += [FloatSquares(column) for column, used in zip(columns, squares) if used]
        if self.name not in _NO_PRODUCTS:
            result.append(FloatProducts(*columns))
        return tuple(dict.fromkeys(result))

    def evaluate(self, sums: GroupSums) -> pa.Array:
        n = sums.components(Valid(self.column))
        pairs = PairSums(self.column, self.other, sums, n)
        nothing = n == 0
        if self.name in _OF_TWO:
            nothing = nothing | (n == 1)
        with np.errstate(all="ignore"):
            if self.name in _VARYING:
                nothing = nothing | (pairs.variance(self.other) == 0)
            result = _FORMULAS[self.name](pairs)
        if self.name == "corr":
            # No correlation is infinite: an infinite one was divided by zero.
            zero = np.isinf(result) & ~nothing
            self._check(zero)
            nothing = nothing | zero
        return pa.array(result, mask=nothing).cast(self.kind)

    def _check(self, zero: Array) -> None:
        """Raise an error for correlations that divide by zero, in ANSI mode."""
        if self.ansi and zero.any():
            raise DiffOverflowError(
                "corr divides by zero, which is an error in ANSI mode. All values of a column "
                "are equal in a group of two records or more. Use regr_r2, which is defined "
                "there, or set spark.sql.ansi.enabled to false for a null"
            )


@dataclass(frozen=True)
class ExactVariance(IntegerVariance):
    """The variance of doubles: the nearest double, or the root of the nearest double.

    NaN if a value is not finite, infinite beyond the range of doubles.
    """

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), ExactFloats(self.column), ExactPowers(self.column, 2))

    def variances(self, sums: GroupSums, n: Int64) -> Array:
        result = np.full(len(sums), np.nan)
        totals, finite = _totals(sums, self.column)
        rows = np.flatnonzero((n != 0) & (n != self.ddof) & finite)
        squares = _integers(sums.components(ExactPowers(self.column, 2))[rows])
        for row, count, first, second in zip(
            rows.tolist(), n[rows].tolist(), _integers(totals[rows]), squares
        ):
            result[row] = _nearest(
                count * second - first * first, count * (count - self.ddof), 2 * _UNIT
            )
        return result


@dataclass(frozen=True)
class ExactComomentResult(ComomentResult):
    """A function of pairs from exact sums: about the nearest double."""

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        columns = (self.column, self.other)
        squares = _SQUARES.get(self.name, (False, False))
        result: list[Accumulator] = [Valid(self.column), *map(ExactFloats, columns)]
        result += [ExactPowers(column, 2) for column, used in zip(columns, squares) if used]
        if self.name not in _NO_PRODUCTS:
            result.append(ExactProducts(*columns))
        return tuple(dict.fromkeys(result))

    def evaluate(self, sums: GroupSums) -> pa.Array:
        n = sums.components(Valid(self.column))
        nothing = n == 0
        if self.name in _OF_TWO:
            nothing = nothing | (n == 1)
        result, zero = np.full(len(sums), np.nan), np.zeros(len(sums), np.bool_)
        sides = [_totals(sums, column) for column in (self.column, self.other)]
        used = _SQUARES.get(self.name, (False, False))
        # Infinities of a column have no effect if its sums are not used.
        needed = used if self.name in _NO_PRODUCTS else (True, True)
        finite = [ok | (not need) for (_, ok), need in zip(sides, needed)]
        if self.name in _VARYING:
            zero = ~nothing & sides[1][1] & ~sides[0][1] & _is_constant(sums, self.other, n)
        if self.name == "regr_r2":
            result[sides[0][1] & ~sides[1][1] & _is_constant(sums, self.column, n)] = 1.0
        rows = np.flatnonzero(~nothing & finite[0] & finite[1])
        unused = [0] * rows.size
        totals = [
            _integers(side[rows]) if need else unused for (side, _), need in zip(sides, needed)
        ]
        squares = [
            _integers(sums.components(ExactPowers(column, 2))[rows]) if square else unused
            for column, square in zip((self.column, self.other), used)
        ]
        products = unused if self.name in _NO_PRODUCTS else _integers(
            sums.components(ExactProducts(self.column, self.other))[rows]
        )
        for row, *values in zip(rows.tolist(), n[rows].tolist(), *totals, *squares, products):
            value = _of_pairs(self.name, *values)
            if value is None:
                zero[row] = True
            else:
                result[row] = value
        if self.name == "corr":
            self._check(zero)
        return pa.array(result, mask=nothing | zero).cast(self.kind)


def _is_constant(sums: GroupSums, column: int, n: Int64) -> Array:
    """Whether all values of a column are equal in a group, if they are finite."""
    totals = _integers(_totals(sums, column)[0])
    squares = _integers(sums.components(ExactPowers(column, 2)))
    return np.array([
        count * square == total * total for count, total, square in zip(n.tolist(), totals, squares)
    ], np.bool_)


def _totals(sums: GroupSums, column: int) -> tuple[Int64, Array]:
    """The digits of the sums of a column, and whether all values of the group are finite."""
    values = sums.components(ExactFloats(column))
    return values[:, :DIGITS], ~(values[:, DIGITS:] != 0).any(axis=1)


def _nearest(numerator: int, denominator: int, unit: int) -> float:
    """The quotient of whole numbers times a power of two, rounded once."""
    try:
        return numerator / (denominator << -unit)
    except OverflowError:
        return math.inf if (numerator < 0) == (denominator < 0) else -math.inf


def _of_pairs(
    name: str, n: int, first: int, second: int, first_square: int, second_square: int, product: int
) -> float | None:
    """A function of pairs from the sums of a group; None if it divides by zero."""
    v, w = n * first_square - first * first, n * second_square - second * second
    c = n * product - first * second
    if name == "covar_pop":
        return _nearest(c, n * n, 2 * _UNIT)
    if name == "covar_samp":
        return _nearest(c, n * (n - 1), 2 * _UNIT)
    if name == "regr_sxy":
        return _nearest(c, n, 2 * _UNIT)
    if name == "regr_syy":
        return _nearest(v, n, 2 * _UNIT)
    if name == "regr_sxx":
        return _nearest(w, n, 2 * _UNIT)
    if w == 0:
        return None
    if name == "regr_slope":
        return _nearest(c, w, 0)
    if name == "regr_intercept":
        return _nearest(first * w - c * second, n * w, _UNIT)
    if name == "regr_r2":
        return 1.0 if v == 0 else c * c / (v * w)
    if v == 0:
        return None
    if v * w < 0:
        return math.nan
    size = math.sqrt(c * c / (v * w))
    return -size if c < 0 else size


@dataclass(frozen=True)
class ExactMoment(ColumnResult):
    """The skewness or the kurtosis of doubles: about the nearest double.

    Parameters
    ----------
    order : int
        3 for the skewness, 4 for the kurtosis.
    """

    order: int

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        powers = (ExactPowers(self.column, power) for power in range(2, self.order + 1))
        return (Valid(self.column), ExactFloats(self.column), *powers)

    def evaluate(self, sums: GroupSums) -> pa.Array:
        n, *powers = (sums.components(accumulator) for accumulator in self.accumulators)
        finite = ~(powers[0][:, DIGITS:] != 0).any(axis=1)
        powers[0] = powers[0][:, :DIGITS]
        result, rows = np.full(len(sums), np.nan), np.flatnonzero((n != 0) & finite)
        nothing = n == 0
        whole = [_integers(power[rows]) for power in powers]
        for place, count, *by_power in zip(rows.tolist(), n[rows].tolist(), *whole):
            value = _standardised(count, by_power)
            if value is None:
                nothing[place] = True
            else:
                result[place] = value
        return pa.array(result, mask=nothing).cast(self.kind)


def _integers(digits: Int64) -> list[int]:
    """Sums of digits of 32 bits as whole numbers, the lowest digit first."""
    low = np.ascontiguousarray((digits & LOW).astype("<u4"))
    high = np.ascontiguousarray(((digits >> 32) + 2**31).astype("<u4"))
    bias = 2**31 * ((2 ** (32 * digits.shape[1]) - 1) // (2**32 - 1))
    return [
        int.from_bytes(lower.tobytes(), "little")
        + ((int.from_bytes(upper.tobytes(), "little") - bias) << 32)
        for lower, upper in zip(low, high)
    ]


def _standardised(n: int, sums: list[int]) -> float | None:
    """M3 / n over the variance to 3/2, or M4 / n over its square less 3; None of equal values.

    With the sums ``s_k`` of the k-th powers, and ``A_k = n**(k-1) * M_k``::

        A_2 = n s_2 - s_1**2            A_3 = n**2 s_3 - 3 n s_1 s_2 + 2 s_1**3
        A_4 = n**3 s_4 - 4 n**2 s_1 s_3 + 6 n s_1**2 s_2 - 3 s_1**4
        skewness = A_3 / A_2**(3/2)     kurtosis = A_4 / A_2**2 - 3
    """
    # A common power of two, which cancels, makes the numbers short. Python divides whole numbers
    # of any size with one rounding.
    zeros = min(
        ((s & -s).bit_length() - 1) // power for power, s in enumerate(sums, 1) if s
    ) if any(sums) else 0
    first, second, third, *rest = (s >> zeros * power for power, s in enumerate(sums, 1))
    square = n * second - first**2
    if square == 0:
        return None
    if rest:
        fourth = (
            n**3 * rest[0] - 4 * n**2 * first * third + 6 * n * first**2 * second - 3 * first**4
        )
        return (fourth - 3 * square**2) / square**2
    if square < 0:
        return math.nan
    cube = n**2 * third - 3 * n * first * second + 2 * first**3
    size = math.sqrt(cube**2 / square**3)
    return -size if cube < 0 else size
