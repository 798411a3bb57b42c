"""Linear aggregates: from vectors to result columns.

For the vectors ``v`` that `accumulators.tally` sums for a group, a result is a function of ``v``
alone, so it does not matter how the group came about. Multiplicities may be negative: then the
formulas hold as they stand, and the root of a negative variance is NaN.
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


class Sums:
    """Vectors of sums, and where in them the components of each accumulator are.

    Parameters
    ----------
    vectors : DiffVectors
    starts : mapping from Accumulator to int
        The first component of each.
    """

    def __init__(self, vectors: DiffVectors, starts: Mapping[Accumulator, int]):
        self.values = read_only(vectors.values)
        self.reals = read_only(vectors.reals)
        self.starts = starts

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def of(self, accumulator: Accumulator) -> Int64:
        """The components of an accumulator; if it has but one, this without a dimension."""
        start = self.starts[accumulator]
        if accumulator.width == 1:
            return self.values[:, start]
        return self.values[:, start : start + accumulator.width]


@dataclass(frozen=True)
class Result(ABC):
    """A linear aggregate: what is kept of a column, and what is made of that in the end.

    Parameters
    ----------
    kind : pyarrow.DataType
        Type of the result.

    Examples
    --------
    >>> from pyspark_diff.kernels.accumulators import layout_of, tally
    >>> found = IntegerVariance(pa.float64(), 0, ddof=1)
    >>> vectors = tally(found.accumulators, [pa.array([5, None, 8])], np.array([0, 0, 0]), 1, 1)
    >>> starts = dict(zip(found.accumulators, layout_of(found.accumulators)[0]))
    >>> found.of(Sums(vectors, starts)).to_pylist()
    [4.5]
    """

    kind: pa.DataType

    @property
    @abstractmethod
    def accumulators(self) -> tuple[Accumulator, ...]:
        """What it is computed from."""

    @abstractmethod
    def of(self, sums: Sums) -> pa.Array:
        """The result for each vector; null also where it would be divided by zero.

        Raises
        ------
        DiffOverflowError
            If one does not fit the type of the result.
        """


@dataclass(frozen=True)
class Count(Result):
    """What one counter has counted; never null.

    Parameters
    ----------
    counter : Accumulator
    """

    counter: Accumulator

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (self.counter,)

    def of(self, sums: Sums) -> pa.Array:
        return pa.array(sums.of(self.counter)).cast(self.kind)


@dataclass(frozen=True)
class ColumnResult(Result):
    """A result over the values of one column; null where none is valid.

    Parameters
    ----------
    column : int
        Its index.
    """

    column: int


@dataclass(frozen=True)
class AnyTrue(ColumnResult):
    """Whether a boolean is ever true: the greatest value that stands more than no times."""

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Trues(self.column))

    def of(self, sums: Sums) -> pa.Array:
        true, false = self._there(sums)
        return pa.array(true, mask=~(true | false))

    def _there(self, sums: Sums) -> tuple[np.ndarray, np.ndarray]:
        """Whether true stands more than no times, and whether false does."""
        valid, true = (sums.of(held) for held in self.accumulators)
        return true > 0, valid > true


@dataclass(frozen=True)
class AllTrue(AnyTrue):
    """Whether a boolean is never false: the least such value."""

    def of(self, sums: Sums) -> pa.Array:
        true, false = self._there(sums)
        return pa.array(~false, mask=~(true | false))


@dataclass(frozen=True)
class IntegerSum(ColumnResult):
    """The sum of whole numbers, exact."""

    #: Whether a result that does not fit is null, and no error.
    lenient: ClassVar[bool] = False
    #: Whether the sum is divided by the number of values, ties away from zero.
    average: ClassVar[bool] = False

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Integers(self.column))

    def of(self, sums: Sums) -> pa.Array:
        n, start = sums.of(Valid(self.column)), sums.starts[Integers(self.column)]
        whole, fits = _rounded(sums, start, 2, n, self.kind, divide=self.average, tens=0)
        low, high = whole.T
        fits &= high == low >> 63
        if not (self.lenient or fits.all()):
            raise _too_large(self.kind)
        return pa.array(np.ascontiguousarray(low), mask=(n == 0) | ~fits).cast(self.kind)


@dataclass(frozen=True)
class TryIntegerSum(IntegerSum):
    """The same, and null if it does not fit.

    A subclass, as a field of `IntegerSum` would change the fingerprint of each stored sum.
    """

    lenient = True


@dataclass(frozen=True)
class DurationAverage(IntegerSum):
    """The average of durations, rounded to a whole unit."""

    average = True


@dataclass(frozen=True)
class BitAggregate(ColumnResult):
    """Whole numbers combined bit by bit, by the number of values in which each bit is set.

    Parameters
    ----------
    how : {"and", "or", "xor"}
        As for booleans, a bit counts as set, or as not set, if more than no values say so.
    """

    how: str

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Bits(self.column, self.kind.bit_width))

    def of(self, sums: Sums) -> pa.Array:
        n, count = (sums.of(held) for held in self.accumulators)
        if self.how == "and":
            bits = n[:, None] <= count
        else:
            bits = count > 0 if self.how == "or" else count & 1 != 0
        size = self.kind.bit_width
        whole = np.packbits(bits, axis=1, bitorder="little").view(f"<i{size // 8}").ravel()
        return pa.array(whole.astype(whole.dtype.newbyteorder("=")), mask=n == 0).cast(self.kind)


@dataclass(frozen=True)
class WeightSum(ColumnResult):
    """The sum of whole numbers where a null is a zero."""

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Integers(self.column),)

    def of(self, sums: Sums) -> pa.Array:
        low, high = sums.of(Integers(self.column)).T
        high = high + (low >> 32)
        if ((high >= 2**31) | (high < -(2**31))).any():
            raise DiffOverflowError(
                "the weights of a record add up to more than 9223372036854775807 in size: check "
                "the weights and diffs that go in"
            )
        return pa.array((high << 32) | (low & 0xFFFFFFFF)).cast(self.kind)


@dataclass(frozen=True)
class IntegerAverage(IntegerSum):
    """The average of whole numbers: the nearest double."""

    def of(self, sums: Sums) -> pa.Array:
        n, found = sums.of(Valid(self.column)), np.zeros(len(sums))
        quotients.quotients(sums.values, sums.starts[Integers(self.column)], 2, n, 0, found)
        return pa.array(found, mask=n == 0).cast(self.kind)


@dataclass(frozen=True)
class DecimalSum(ColumnResult):
    """The sum of decimals, exact."""

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Decimals(self.column))

    #: Whether a result that does not fit is null, and no error.
    lenient: ClassVar[bool] = False

    def of(self, sums: Sums) -> pa.Array:
        return self._decimals(sums, divide=False, tens=0)

    def _decimals(self, sums: Sums, *, divide: bool, tens: int) -> pa.Array:
        n, start = sums.of(Valid(self.column)), sums.starts[Decimals(self.column)]
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
    """The same, and null if it does not fit."""

    lenient = True


@dataclass(frozen=True)
class DecimalAverage(DecimalSum):
    """The average of decimals: the nearest of the result's scale, ties away from zero.

    Parameters
    ----------
    scale : int
        That of the decimals; at most that of the result.
    """

    scale: int

    def of(self, sums: Sums) -> pa.Array:
        return self._decimals(sums, divide=True, tens=self.kind.scale - self.scale)


@dataclass(frozen=True)
class TryDecimalAverage(DecimalAverage):
    """The same, and null if it or the sum does not fit."""

    lenient = True


@dataclass(frozen=True)
class FloatSum(ColumnResult):
    """The sum of doubles, from a double-word."""

    #: Whether the sum is divided by the number of values.
    average: ClassVar[bool] = False

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Floats(self.column))

    def of(self, sums: Sums) -> pa.Array:
        n, found = sums.of(Valid(self.column)), np.zeros(len(sums))
        by = n if self.average else read_only(np.ones_like(n))
        with np.errstate(all="ignore"):
            counts = self._divide(sums, by, found)
            found = with_infinities(found, counts, by)
        return pa.array(found, mask=n == 0).cast(self.kind)

    def _divide(self, sums: Sums, by: Int64, found: np.ndarray) -> Int64:
        """Fill in the quotients; the counts of NaN and infinities."""
        held = Floats(self.column)
        quotients.float_quotients(sums.reals, sums.starts[held], by, found)
        return sums.of(held)[:, 2:]


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

    def _divide(self, sums: Sums, by: Int64, found: np.ndarray) -> Int64:
        held = ExactFloats(self.column)
        quotients.quotients(sums.values, sums.starts[held], DIGITS, by, -1074, found)
        return sums.of(held)[:, DIGITS:]


@dataclass(frozen=True)
class ExactAverage(ExactSum):
    """The average of doubles: the nearest double."""

    average = True


@dataclass(frozen=True)
class IntegerVariance(ColumnResult):
    """The variance of whole numbers: the nearest double, or the root of that.

    Parameters
    ----------
    ddof : int
        What it is divided by is the count less this: 0 for the population, 1 for a sample.
    root : bool
        Whether the result is the root, the standard deviation.
    """

    ddof: int = 0
    root: bool = False

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Integers(self.column), Squares(self.column))

    def of(self, sums: Sums) -> pa.Array:
        n = sums.of(Valid(self.column))
        with np.errstate(all="ignore"):
            found = self.variances(sums, n)
            found = np.sqrt(found) if self.root else found
        return pa.array(found, mask=(n == 0) | (n == self.ddof)).cast(self.kind)

    def variances(self, sums: Sums, n: Int64) -> np.ndarray:
        start, square = (sums.starts[held] for held in self.accumulators[1:])
        found = np.zeros(len(sums))
        quotients.variances(sums.values, start, square, n, self.ddof, found)
        _wide_variances(sums.values, start, square, n, self.ddof, found)
        return found


@dataclass(frozen=True)
class FloatVariance(IntegerVariance):
    """The variance of doubles, from double-words.

    NaN where a value is not finite or a square overflows; of equal values it may be as much as
    rounding leaves.
    """

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return (Valid(self.column), Floats(self.column), FloatSquares(self.column))

    def variances(self, sums: Sums, n: Int64) -> np.ndarray:
        start, square = (sums.starts[held] for held in self.accumulators[1:])
        found = np.zeros(len(sums))
        quotients.float_variances(sums.reals, start, square, n, self.ddof, found)
        found[(sums.of(Floats(self.column))[:, 2:] != 0).any(axis=1)] = np.nan
        found[sums.of(FloatSquares(self.column))[:, 2] != 0] = np.nan
        return found


def _too_large(kind: pa.DataType) -> DiffOverflowError:
    return DiffOverflowError(
        f"a sum or an average does not fit the result type {kind}: cast the column to a wider type"
    )


def _rounded(
    sums: Sums, start: int, limbs: int, n: Int64, kind: pa.DataType, *, divide: bool, tens: int
) -> tuple[Int64, np.ndarray]:
    """Low and high 64 bits of the sums, or of their quotients, times a power of ten; and whether
    each fits."""
    out, fits = np.zeros((n.size, 2), np.int64), np.ones(n.size, np.bool_)
    limit = 10**kind.precision if pa.types.is_decimal(kind) else 2**127
    low, high = np.uint64(limit & (2**64 - 1)), np.uint64(limit >> 64)
    quotients.rounded(sums.values, start, limbs, n, divide, tens, low, high, out, fits)
    return out, fits


def with_infinities(found: np.ndarray, counts: Int64, by: Int64) -> np.ndarray:
    """Results corrected for the NaN, the infinities and the minus infinities that were counted."""
    nan, plus, minus = counts[:, 0] != 0, counts[:, 1] != 0, counts[:, 2] != 0
    found = np.where(plus, np.inf / by, np.where(minus, -np.inf / by, found))
    return np.where(nan | (plus & minus), np.nan, found)


def _wide_variances(
    values: Int64, at: int, square: int, n: Int64, ddof: int, found: np.ndarray
) -> None:
    """As `_variances`, for counts that are too large for it."""
    # One at a time: a group of two billion rows is rare and makes its one division cheap.
    for row in np.flatnonzero((n >= LIMIT) | (n <= -LIMIT)):
        total, squares = (
            sum(int(limb) << (32 * k) for k, limb in enumerate(values[row, first : first + limbs]))
            for first, limbs in ((at, 2), (square, 4))
        )
        count = int(n[row])
        found[row] = (count * squares - total * total) / (count * (count - ddof))
