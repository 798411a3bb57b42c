"""Linear aggregates: from vectors to result columns.

For the vectors ``v`` that `accumulators.tally` sums for a group, a result is a function of ``v``
only, so the history of the group does not matter. Multiplicities may be negative: then the same
formulas apply, and the root of a negative variance is NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels import quotients
from pyspark_diff.kernels.accumulators import (
    Accumulator,
    Bits,
    Decimals,
    ExactFloats,
    Floats,
    FloatSquares,
    Integers,
    Squares,
    Trues,
    Valid,
)
from pyspark_diff.kernels.buffers import read_only
from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.tallies import DIGITS, LIMIT
from pyspark_diff.kernels.updates import Int64


class GroupSums:
    """Vectors of sums, and the places of each accumulator's components in them.

    Parameters
    ----------
    starts : mapping from Accumulator to int
        The first component of each accumulator.
    """

    def __init__(self, vectors: DiffVectors, starts: Mapping[Accumulator, int]):
        self.values = read_only(vectors.values)
        self.reals = read_only(vectors.reals)
        self.starts = starts

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def components(self, accumulator: Accumulator) -> Int64:
        """The components of an accumulator; a single component has no dimension of its own."""
        start = self.starts[accumulator]
        if accumulator.width == 1:
            return self.values[:, start]
        return self.values[:, start : start + accumulator.width]


@dataclass(frozen=True)
class Result(ABC):
    """A linear aggregate: the sums of a column that it needs, and the final function of them.

    Parameters
    ----------
    kind : pyarrow.DataType
        Type of the result.

    Examples
    --------
    >>> from pyspark_diff.kernels.accumulators import layout_of, tally
    >>> variance = IntegerVariance(pa.float64(), 0, ddof=1)
    >>> tallied = variance.accumulators
    >>> vectors = tally(tallied, [pa.array([5, None, 8])], np.array([0, 0, 0]), 1, 1)
    >>> starts = dict(zip(tallied, layout_of(tallied)[0]))
    >>> variance.evaluate(GroupSums(vectors, starts)).to_pylist()
    [4.5]
    """

    kind: pa.DataType

    @property
    @abstractmethod
    def accumulators(self) -> tuple[Accumulator, ...]:
        """The accumulators of its input."""

    @abstractmethod
    def evaluate(self, sums: GroupSums) -> pa.Array:
        """The result for each vector; null also for a division by zero.

        Raises
        ------
        DiffOverflowError
            If a result does not fit the type of the result.
        """


@dataclass(frozen=True)
class CountResult(Result):
    """The value of one counter; never null."""

    counter: Accumulator

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (self.counter,)

    def evaluate(self, sums: GroupSums) -> pa.Array:
        return pa.array(sums.components(self.counter)).cast(self.kind)


@dataclass(frozen=True)
class ColumnResult(Result):
    """A result over the values of one column; null if no value is valid.

    Parameters
    ----------
    column : int
        Index of the column.
    """

    column: int


@dataclass(frozen=True)
class AnyTrue(ColumnResult):
    """Whether a boolean is ever true: the greatest value with a positive count."""

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Trues(self.column))

    def evaluate(self, sums: GroupSums) -> pa.Array:
        true, false = self._there(sums)
        return pa.array(true, mask=~(true | false))

    def _there(self, sums: GroupSums) -> tuple[np.ndarray, np.ndarray]:
        """Whether the count of true is positive, and whether the count of false is."""
        valid, true = (sums.components(accumulator) for accumulator in self.accumulators)
        return true > 0, valid > true


@dataclass(frozen=True)
class AllTrue(AnyTrue):
    """Whether a boolean is never false: the least value with a positive count."""

    def evaluate(self, sums: GroupSums) -> pa.Array:
        true, false = self._there(sums)
        return pa.array(~false, mask=~(true | false))


@dataclass(frozen=True)
class IntegerSum(ColumnResult):
    """The sum of whole numbers, exact."""

    #: Whether a result that does not fit is null instead of an error.
    lenient: ClassVar[bool] = False
    #: Whether the sum is divided by the number of values, ties away from zero.
    average: ClassVar[bool] = False

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Integers(self.column))

    def evaluate(self, sums: GroupSums) -> pa.Array:
        n, start = sums.components(Valid(self.column)), sums.starts[Integers(self.column)]
        whole, fits = _rounded(sums, start, 2, n, self.kind, divide=self.average, tens=0)
        low, high = whole.T
        fits &= high == low >> 63
        if not (self.lenient or fits.all()):
            raise _too_large(self.kind)
        return pa.array(np.ascontiguousarray(low), mask=(n == 0) | ~fits).cast(self.kind)


@dataclass(frozen=True)
class TryIntegerSum(IntegerSum):
    """The sum of whole numbers, or null if it does not fit.

    It is a subclass, since a field of `IntegerSum` would change the fingerprint of each stored sum.
    """

    lenient = True


@dataclass(frozen=True)
class DurationAverage(IntegerSum):
    """The average of durations, rounded to a whole unit."""

    average = True


@dataclass(frozen=True)
class BitResult(ColumnResult):
    """Whole numbers combined bit by bit, by the number of values in which each bit is set.

    Parameters
    ----------
    how : {"and", "or", "xor"}
        A bit counts as set if a positive number of values has it set, and as not set if a positive
        number has it not set, as for booleans.
    """

    how: str

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Bits(self.column, self.kind.bit_width))

    def evaluate(self, sums: GroupSums) -> pa.Array:
        n, count = (sums.components(accumulator) for accumulator in self.accumulators)
        if self.how == "and":
            bits = n[:, None] <= count
        else:
            bits = count > 0 if self.how == "or" else count & 1 != 0
        size = self.kind.bit_width
        whole = np.packbits(bits, axis=1, bitorder="little").view(f"<i{size // 8}").ravel()
        return pa.array(whole.astype(whole.dtype.newbyteorder("=")), mask=n == 0).cast(self.kind)


@dataclass(frozen=True)
class WeightSum(ColumnResult):
    """The sum of whole numbers; a null counts as zero."""

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Integers(self.column),)

    def evaluate(self, sums: GroupSums) -> pa.Array:
        low, high = sums.components(Integers(self.column)).T
        high = high + (low >> 32)
        if ((high >= 2**31) | (high < -(2**31))).any():
            raise DiffOverflowError(
                "the weights of a record add up to more than 9223372036854775807 in size: check "
                "the weights and diffs of the input"
            )
        return pa.array((high << 32) | (low & 0xFFFFFFFF)).cast(self.kind)


@dataclass(frozen=True)
class IntegerAverage(IntegerSum):
    """The average of whole numbers: the nearest double."""

    def evaluate(self, sums: GroupSums) -> pa.Array:
        n, result = sums.components(Valid(self.column)), np.zeros(len(sums))
        quotients.quotients(sums.values, sums.starts[Integers(self.column)], 2, n, 0, result)
        return pa.array(result, mask=n == 0).cast(self.kind)


@dataclass(frozen=True)
class DecimalSum(ColumnResult):
    """The sum of decimals, exact."""

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Decimals(self.column))

    #: Whether a result that does not fit is null instead of an error.
    lenient: ClassVar[bool] = False

    def evaluate(self, sums: GroupSums) -> pa.Array:
        return self._decimals(sums, divide=False, tens=0)

    def _decimals(self, sums: GroupSums, *, divide: bool, tens: int) -> pa.Array:
        n, start = sums.components(Valid(self.column)), sums.starts[Decimals(self.column)]
        whole, fits = _rounded(sums, start, 4, n, self.kind, divide=divide, tens=tens)
        if self.lenient and divide:
            # The sum that Spark divides has to fit too.
            limit = pa.decimal128(38, self.kind.scale)
            fits &= _rounded(sums, start, 4, n, limit, divide=False, tens=0)[1]
        if not (self.lenient or fits.all()):
            raise _too_large(self.kind)
        present = pa.py_buffer(np.packbits((n != 0) & fits, bitorder="little"))
        return pa.Array.from_buffers(self.kind, len(sums), [present, pa.py_buffer(whole)])


@dataclass(frozen=True)
class TryDecimalSum(DecimalSum):
    """The sum of decimals, or null if it does not fit."""

    lenient = True


@dataclass(frozen=True)
class DecimalAverage(DecimalSum):
    """The average of decimals: the nearest number of the result's scale, ties away from zero.

    Parameters
    ----------
    scale : int
        The scale of the decimals; at most the scale of the result.
    """

    scale: int

    def evaluate(self, sums: GroupSums) -> pa.Array:
        return self._decimals(sums, divide=True, tens=self.kind.scale - self.scale)


@dataclass(frozen=True)
class TryDecimalAverage(DecimalAverage):
    """The average of decimals, or null if it or the sum does not fit."""

    lenient = True


@dataclass(frozen=True)
class FloatSum(ColumnResult):
    """The sum of doubles, from a double-word."""

    #: Whether the sum is divided by the number of values.
    average: ClassVar[bool] = False

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Floats(self.column))

    def evaluate(self, sums: GroupSums) -> pa.Array:
        n, result = sums.components(Valid(self.column)), np.zeros(len(sums))
        by = n if self.average else read_only(np.ones_like(n))
        with np.errstate(all="ignore"):
            counts = self._divide(sums, by, result)
            result = with_infinities(result, counts, by)
        return pa.array(result, mask=n == 0).cast(self.kind)

    def _divide(self, sums: GroupSums, by: Int64, result: np.ndarray) -> Int64:
        """Write the quotients; returns the counts of NaN and infinities."""
        accumulator = Floats(self.column)
        quotients.float_quotients(sums.reals, sums.starts[accumulator], by, result)
        return sums.components(accumulator)[:, 2:]


@dataclass(frozen=True)
class FloatAverage(FloatSum):
    """The average of doubles, from a double-word."""

    average = True


@dataclass(frozen=True)
class ExactSum(FloatSum):
    """The sum of doubles: the nearest double."""

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), ExactFloats(self.column))

    def _divide(self, sums: GroupSums, by: Int64, result: np.ndarray) -> Int64:
        accumulator = ExactFloats(self.column)
        quotients.quotients(sums.values, sums.starts[accumulator], DIGITS, by, -1074, result)
        return sums.components(accumulator)[:, DIGITS:]


@dataclass(frozen=True)
class ExactAverage(ExactSum):
    """The average of doubles: the nearest double."""

    average = True


@dataclass(frozen=True)
class IntegerVariance(ColumnResult):
    """The variance of whole numbers: the nearest double, or the root of the nearest double.

    Parameters
    ----------
    ddof : int
        The divisor is the count minus this: 0 for the population, 1 for a sample.
    root : bool
        Whether the result is the root, the standard deviation.
    """

    ddof: int = 0
    root: bool = False

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Integers(self.column), Squares(self.column))

    def evaluate(self, sums: GroupSums) -> pa.Array:
        n = sums.components(Valid(self.column))
        with np.errstate(all="ignore"):
            result = self.variances(sums, n)
            result = np.sqrt(result) if self.root else result
        return pa.array(result, mask=(n == 0) | (n == self.ddof)).cast(self.kind)

    def variances(self, sums: GroupSums, n: Int64) -> np.ndarray:
        start, square = (sums.starts[accumulator] for accumulator in self.accumulators[1:])
        result = np.zeros(len(sums))
        quotients.variances(sums.values, start, square, n, self.ddof, result)
        _wide_variances(sums.values, start, square, n, self.ddof, result)
        return result


@dataclass(frozen=True)
class FloatVariance(IntegerVariance):
    """The variance of doubles, from double-words.

    NaN if a value is not finite or a square overflows. For equal values it may be a rounding error.
    """

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Floats(self.column), FloatSquares(self.column))

    def variances(self, sums: GroupSums, n: Int64) -> np.ndarray:
        start, square = (sums.starts[accumulator] for accumulator in self.accumulators[1:])
        result = np.zeros(len(sums))
        quotients.float_variances(sums.reals, start, square, n, self.ddof, result)
        result[(sums.components(Floats(self.column))[:, 2:] != 0).any(axis=1)] = np.nan
        result[sums.components(FloatSquares(self.column))[:, 2] != 0] = np.nan
        return result


def _too_large(kind: pa.DataType) -> DiffOverflowError:
    return DiffOverflowError(
        f"a sum or an average does not fit the result type {kind}: cast the column to a wider type"
    )


def _rounded(
    sums: GroupSums, start: int, limbs: int, n: Int64, kind: pa.DataType, *, divide: bool, tens: int
) -> tuple[Int64, np.ndarray]:
    """Low and high 64 bits of the sums, or of their quotients, times a power of ten; and whether
    each fits."""
    out, fits = np.zeros((n.size, 2), np.int64), np.ones(n.size, np.bool_)
    limit = 10**kind.precision if pa.types.is_decimal(kind) else 2**127
    low, high = np.uint64(limit & (2**64 - 1)), np.uint64(limit >> 64)
    quotients.rounded(sums.values, start, limbs, n, divide, tens, low, high, out, fits)
    return out, fits


def with_infinities(results: np.ndarray, counts: Int64, by: Int64) -> np.ndarray:
    """Results corrected by the counts of NaN, infinities and minus infinities."""
    nan, plus, minus = counts[:, 0] != 0, counts[:, 1] != 0, counts[:, 2] != 0
    results = np.where(plus, np.inf / by, np.where(minus, -np.inf / by, results))
    return np.where(nan | (plus & minus), np.nan, results)


def _wide_variances(
    values: Int64, at: int, square: int, n: Int64, ddof: int, result: np.ndarray
) -> None:
    """As `quotients.variances`, for counts that are too large for it."""
    # Row by row: a group of two billion rows is rare, and its cost makes the division negligible.
    for row in np.flatnonzero((n >= LIMIT) | (n <= -LIMIT)):
        total, squares = (
            sum(int(limb) << (32 * k) for k, limb in enumerate(values[row, first : first + limbs]))
            for first, limbs in ((at, 2), (square, 4))
        )
        count = int(n[row])
        result[row] = (count * squares - total * total) / (count * (count - ddof))
