"""Linear aggregates: from columns to vectors. `pyspark_diff.kernels.results` is the way back.

An accumulator is a function ``f`` from a value to a vector, summed with the diffs::

    tally(U)[g] = sum(f(x) * d for (x, d) in U of group g)
    tally(U + V) = tally(U) + tally(V)          so retractions cancel

Integers are cut into limbs of 32 bits, which leaves room for 2**31 rows or diffs of that size
before a component overflows. Floats are summed as double-words (see
`pyspark_diff.kernels.diff_vectors`), or exactly as digits of a fixed-point number that covers every
double (the small superaccumulator of Neal, *Fast exact summation using small and large
superaccumulators*, arXiv:1505.05571).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.kernels import buffers, tallies
from pyspark_diff.kernels.buffers import Array, read_only
from pyspark_diff.kernels.diff_vectors import DiffVectors, check
from pyspark_diff.kernels.updates import Int64, PerRow

_NOTHING = np.empty(0, np.int64)
_ALL = np.empty(0, np.bool_)


def _nothing(column: pa.Array) -> Array:
    return _NOTHING


def _integers(column: pa.Array) -> Array:
    return buffers.fixed(column).astype(np.int64, copy=False)


def _floats(column: pa.Array) -> Array:
    return buffers.fixed(column).astype(np.float64, copy=False)


def _bits(column: pa.Array) -> Array:
    return _floats(column).view(np.int64)


@dataclass(frozen=True)
class Accumulator:
    """Some components of a vector: sums over one column. Nulls add nothing.

    Vectors combine by addition, so an accumulator only defines the addend of a value and the number
    of components. Each component is a counter, except the first two components of a pair.

    Parameters
    ----------
    column : int
        Index of the column; -1 if the accumulator reads no column.

    Examples
    --------
    >>> Integers(0).width, Floats(0).paired
    (2, True)
    >>> Integers(0) == Integers(0), Integers(0) == Squares(0)
    (True, False)
    """

    column: int = -1
    #: Number of components.
    width: ClassVar[int] = 1
    #: Whether the first two components are a pair.
    paired: ClassVar[bool] = False
    #: The values of the column for the kernel, apart from its nulls.
    values: ClassVar[Callable[..., Array]] = staticmethod(_nothing)
    #: The function that adds the values of rows to a table.
    kernel: ClassVar[Callable[..., int]]

    def read(self, columns: Sequence[pa.Array], start: int, count: int) -> Array:
        """The values of some rows, for the kernel."""
        return self.values(columns[self.column].slice(start, count))


@dataclass(frozen=True)
class RowCount(Accumulator):
    """One for each row."""

    kernel = staticmethod(tallies.tally_rows)


@dataclass(frozen=True)
class Valid(RowCount):
    """One for each row whose column is not null."""


@dataclass(frozen=True)
class Trues(RowCount):
    """One for each row whose boolean column is true."""

    values = staticmethod(_integers)


@dataclass(frozen=True)
class Integers(Accumulator):
    """Values of an integral or boolean column, as limbs of 32 bits.

    The lowest limb is first, and only the highest limb of a value may be negative.
    """

    width = 2
    values = staticmethod(_integers)
    kernel = staticmethod(tallies.tally_integer)


@dataclass(frozen=True)
class Squares(Accumulator):
    """Squares of integral or boolean values, as limbs."""

    width = 4
    values = staticmethod(_integers)
    kernel = staticmethod(tallies.tally_square)


@dataclass(frozen=True)
class Decimals(Accumulator):
    """Unscaled values of a decimal128 column, as limbs."""

    width = 4
    values = staticmethod(buffers.decimal_words)
    kernel = staticmethod(tallies.tally_decimal)


@dataclass(frozen=True)
class Floats(Accumulator):
    """Finite values of a float or double column as a pair, and the numbers of NaN, of infinity and
    of minus infinity."""

    width = 5
    paired = True
    values = staticmethod(_floats)
    kernel = staticmethod(tallies.tally_float)


@dataclass(frozen=True)
class FloatSquares(Accumulator):
    """Squares of finite values as a pair, and the number of squares that overflow."""

    width = 3
    paired = True
    values = staticmethod(_floats)
    kernel = staticmethod(tallies.tally_float_square)


@dataclass(frozen=True)
class ExactFloats(Accumulator):
    """Finite values as digits of 32 bits, and counts as in `Floats`."""

    width = tallies.DIGITS + 3
    values = staticmethod(_bits)
    kernel = staticmethod(tallies.tally_exact)


@dataclass(frozen=True)
class Bits(Accumulator):
    """For each bit, the number of values of an integral column that have it set.

    Parameters
    ----------
    size : int
        The number of bits of a value.
    """

    size: int = 64
    kernel = staticmethod(tallies.tally_bits)

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.size

    def read(self, columns: Sequence[pa.Array], start: int, count: int) -> Array:
        values = _integers(columns[self.column].slice(start, count))
        # A negative number has its sign in all bits above its own bits.
        return values if self.size == 64 else values & ((1 << self.size) - 1)


@dataclass(frozen=True)
class FloatProducts(Accumulator):
    """The sum of products of two columns as a pair, and the number of products that overflow.

    The columns are null together. The sum skips products of values that are not finite.
    """

    other: int = -1
    width = 3
    paired = True
    kernel = staticmethod(tallies.tally_float_product)

    def read(self, columns: Sequence[pa.Array], start: int, count: int) -> Array:
        sides = (columns[place].slice(start, count) for place in (self.column, self.other))
        return np.stack([_floats(side) for side in sides], axis=1)


@dataclass(frozen=True)
class ExactPowers(Accumulator):
    """Powers of finite values as digits of 32 bits, starting at the power of the smallest double.
    """

    power: int = 2
    kernel = staticmethod(tallies.tally_exact_product)

    @property
    def width(self) -> int:  # type: ignore[override]
        return tallies.DIGITS * self.power

    def read(self, columns: Sequence[pa.Array], start: int, count: int) -> Array:
        values = _bits(columns[self.column].slice(start, count))
        return np.ascontiguousarray(np.broadcast_to(values[:, None], (count, self.power)))


@dataclass(frozen=True)
class ExactProducts(Accumulator):
    """Products of finite values of two columns, null together, in the form of `ExactPowers` by
    2."""

    other: int = -1
    width = 2 * tallies.DIGITS
    kernel = staticmethod(tallies.tally_exact_product)

    def read(self, columns: Sequence[pa.Array], start: int, count: int) -> Array:
        sides = (columns[place].slice(start, count) for place in (self.column, self.other))
        return np.stack([_bits(side) for side in sides], axis=1)


def layout_of(
    accumulators: Sequence[Accumulator],
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """First component of each accumulator, the total number of components, and the pairs among
    them.

    Examples
    --------
    >>> layout_of([RowCount(), Floats(0), Valid(1)])
    ((0, 1, 6), 7, (1,))
    """
    offsets, width = [], 0
    for accumulator in accumulators:
        offsets.append(width)
        width += accumulator.width
    pairs = tuple(at for at, accumulator in zip(offsets, accumulators) if accumulator.paired)
    return tuple(offsets), width, pairs


def tally(
    accumulators: Sequence[Accumulator],
    columns: Sequence[pa.Array],
    group: Int64,
    groups: int,
    diff: PerRow,
) -> DiffVectors:
    """Sum the rows of each group.

    Parameters
    ----------
    accumulators : sequence of Accumulator
        The sums to compute.
    columns : sequence of pyarrow.Array
        The columns that the accumulators name, n rows each.
    group : ndarray of int64, shape (n,)
        Group of each row, in ``[0, groups)``. This is not checked.
    groups : int
        Number of groups; groups without rows stay zero.
    diff : ndarray of int64, shape (n,), or int
        One diff for each row, or one diff for all rows.

    Returns
    -------
    DiffVectors, shape (groups, width)

    Raises
    ------
    DiffOverflowError
        If a sum leaves its component, or a diff is too large to multiply a limb.

    Examples
    --------
    >>> sums = [RowCount(), Valid(0), Integers(0)]
    >>> tally(sums, [pa.array([5, None, 7])], np.array([0, 0, 1]), 2, 3).values.tolist()
    [[6, 3, 15, 0], [3, 3, 21, 0]]
    """
    offsets, width, pairs = layout_of(accumulators)
    vectors = DiffVectors(np.zeros((groups, width), np.int64), pairs)
    table, reals = vectors.values, vectors.reals
    step = int(isinstance(diff, np.ndarray))
    group, diffs = read_only(group), read_only(np.atleast_1d(np.asarray(diff, np.int64)))
    most = thresholds.current.accumulate_slice_rows
    for start in range(0, group.size, most):
        rows = slice(start, min(start + most, group.size))
        count = rows.stop - start
        weights = diffs[rows] if step else diffs
        for accumulator, at in zip(accumulators, offsets):
            values, valid = _NOTHING, _ALL
            if accumulator.column >= 0:
                column = columns[accumulator.column].slice(start, count)
                if column.null_count == count:
                    continue
                valid = buffers.validity(column)
                values = read_only(accumulator.read(columns, start, count))
            check(accumulator.kernel(
                values, read_only(valid), group[rows], weights, step, table, reals, at
            ))
    return vectors
