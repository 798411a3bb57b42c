"""Linear aggregates: from columns to vectors. `pyspark_diff.kernels.results` leads back.

An accumulator is a function ``f`` from a value to a vector, summed with the diffs::

    tally(U)[g] = sum(f(x) * d for (x, d) in U of group g)
    tally(U + V) = tally(U) + tally(V)          so whatever is retracted cancels

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

from pyspark_diff.kernels import buffers, tallies
from pyspark_diff.kernels.buffers import Array, read_only
from pyspark_diff.kernels.diff_vectors import DiffVectors, check
from pyspark_diff.kernels.updates import Int64, PerRow

#: Rows that all accumulators see before the next ones, so that their groups are still in the cache.
SLICE = 1 << 15

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
    """Some components of a vector: sums over one column, to which nulls add nothing.

    Vectors combine by addition, so all that an accumulator says is what a value adds and how many
    components that takes. Each of them is a counter, but the first two of a pair.

    Parameters
    ----------
    column : int
        Index of the column; -1 where none is read.

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
    #: What is read of the column, besides which rows are null.
    values: ClassVar[Callable[..., Array]] = staticmethod(_nothing)
    #: What adds the values of rows to a table.
    kernel: ClassVar[Callable[..., int]]

    def read(self, columns: Sequence[pa.Array], start: int, count: int) -> Array:
        """The values of some rows, for the kernel."""
        return self.values(columns[self.column].slice(start, count))


@dataclass(frozen=True)
class Rows(Accumulator):
    """One for each row."""

    kernel = staticmethod(tallies.tally_rows)


@dataclass(frozen=True)
class Valid(Rows):
    """One for each row whose column is not null."""


@dataclass(frozen=True)
class Trues(Rows):
    """One for each row whose boolean column is true."""

    values = staticmethod(_integers)


@dataclass(frozen=True)
class Integers(Accumulator):
    """Values of an integral or boolean column, as limbs of 32 bits.

    The lowest stands first, and all but the highest are not negative in one value.
    """

    width = 2
    values = staticmethod(_integers)
    kernel = staticmethod(tallies.tally_integer)


@dataclass(frozen=True)
class Squares(Accumulator):
    """Squares of such values, as limbs."""

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
    """Finite values of a float or double column as a pair, then the number of NaN, of infinity and
    of minus infinity."""

    width = 5
    paired = True
    values = staticmethod(_floats)
    kernel = staticmethod(tallies.tally_float)


@dataclass(frozen=True)
class FloatSquares(Accumulator):
    """Squares of finite values as a pair, then the number of those that overflow."""

    width = 3
    paired = True
    values = staticmethod(_floats)
    kernel = staticmethod(tallies.tally_float_square)


@dataclass(frozen=True)
class ExactFloats(Accumulator):
    """Finite values as digits of 32 bits, then counts as of `Floats`."""

    width = tallies.DIGITS + 3
    values = staticmethod(_bits)
    kernel = staticmethod(tallies.tally_exact)


@dataclass(frozen=True)
class Bits(Accumulator):
    """The number of values of a column of whole numbers in which each bit is set.

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
        # A negative number has its sign in all bits above its own ones.
        return values if self.size == 64 else values & ((1 << self.size) - 1)


@dataclass(frozen=True)
class FloatProducts(Accumulator):
    """The sum of products of two columns as a pair, and the number of products that overflow.

    The columns are null together. Products of values that are not finite are left out.
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
    """Powers of finite values as digits of 32 bits, from the power of the smallest double on.

    Parameters
    ----------
    power : int
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
    """Products of finite values of two columns, null together, as those of `ExactPowers` by 2."""

    other: int = -1
    width = 2 * tallies.DIGITS
    kernel = staticmethod(tallies.tally_exact_product)

    def read(self, columns: Sequence[pa.Array], start: int, count: int) -> Array:
        sides = (columns[place].slice(start, count) for place in (self.column, self.other))
        return np.stack([_bits(side) for side in sides], axis=1)


def layout_of(
    accumulators: Sequence[Accumulator],
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """First component of each accumulator, the number of vectors of all, and the pairs among them.

    Examples
    --------
    >>> layout_of([Rows(), Floats(0), Valid(1)])
    ((0, 1, 6), 7, (1,))
    """
    offsets, width = [], 0
    for accumulator in accumulators:
        offsets.append(width)
        width += accumulator.width
    pairs = tuple(at for at, held in zip(offsets, accumulators) if held.paired)
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
        What to sum.
    columns : sequence of pyarrow.Array
        The columns that the accumulators name, n rows each.
    group : ndarray of int64, shape (n,)
        Group of each row, in ``[0, groups)``. This is not checked.
    groups : int
        Number of groups; those without rows stay zero.
    diff : ndarray of int64, shape (n,), or int
        One diff for each row, or the diff of all of them.

    Returns
    -------
    DiffVectors, shape (groups, width)

    Raises
    ------
    DiffOverflowError
        If a sum leaves its component, or a diff is too large to multiply a limb.

    Examples
    --------
    >>> held = [Rows(), Valid(0), Integers(0)]
    >>> tally(held, [pa.array([5, None, 7])], np.array([0, 0, 1]), 2, 3).values.tolist()
    [[6, 3, 15, 0], [3, 3, 21, 0]]
    """
    offsets, width, pairs = layout_of(accumulators)
    vectors = DiffVectors(np.zeros((groups, width), np.int64), pairs)
    table, reals = vectors.values, vectors.reals
    step = int(isinstance(diff, np.ndarray))
    group, diffs = read_only(group), read_only(np.atleast_1d(np.asarray(diff, np.int64)))
    for start in range(0, group.size, SLICE):
        rows = slice(start, min(start + SLICE, group.size))
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
