"""Linear aggregates: from columns to vectors. `pyspark_diff.kernels.results` leads back.

Each kind of accumulator is a function ``f`` from a value to a vector, summed with the diffs::

    tally(U)[g] = sum(f(x) * d for (x, d) in U of group g)
    tally(U + V) = tally(U) + tally(V)          so whatever is retracted cancels

Integers are cut into limbs of 32 bits, which leaves room for 2**31 rows or diffs of that size
before a component overflows. Floats are summed as double-words (see
`pyspark_diff.kernels.diff_vectors`), or
exactly as digits of a fixed-point number that covers every double (the small superaccumulator of
Neal, *Fast exact summation using small and large superaccumulators*, arXiv:1505.05571).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.buffers import Array, read_only
from pyspark_diff.kernels.diff_vectors import (
    COUNTER_OVERFLOW,
    FLOAT_OVERFLOW,
    MULTIPLICITY,
    DiffVectors,
    check,
)
from pyspark_diff.kernels.jit import jit
from pyspark_diff.kernels.updates import Int64, PerRow

#: Rows that all accumulators see before the next ones, so that their groups are still in the cache.
SLICE = 1 << 15

#: Digits of 32 bits from 2**-1074, the smallest double, up to 2**1024.
DIGITS = 66

_WIDTHS = {
    "rows": 1, "valid": 1, "true": 1, "integer": 2, "decimal": 4, "square": 4, "float": 5,
    "float square": 3, "exact": DIGITS + 3,
}


@dataclass(frozen=True)
class Accumulator:
    """A vector of sums over one column.

    Parameters
    ----------
    kind : str
        What is summed with the diffs; nulls add nothing, but to "rows".

        - "rows", "valid", "true": one for each row, for each row whose column is not null, and for
          each row whose boolean column is true
        - "integer", "square": the values of an integral or boolean column and their squares, as 2
          and 4 limbs of 32 bits, the lowest first and all but the highest not negative
        - "decimal": the unscaled values of a decimal128 column, as 4 such limbs
        - "float": the finite values of a float or double column as a pair of components, then the
          number
          of NaN, of infinity and of minus infinity
        - "float square": squares of finite values as a pair, then the number of those that overflow
        - "exact": the finite values as 66 digits of 32 bits, then counts as for "float"
    column : int
        Index of the column; -1 for "rows".

    Examples
    --------
    >>> Accumulator("integer", 0).width, Accumulator("float", 0).paired
    (2, True)
    """

    kind: str
    column: int = -1

    @property
    def width(self) -> int:
        """Number of vectors."""
        return _WIDTHS[self.kind]

    @property
    def paired(self) -> bool:
        """Whether the first two vectors are a pair."""
        return self.kind in ("float", "float square")


def layout_of(
    accumulators: Sequence[Accumulator],
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """First component of each accumulator, the number of vectors of all, and the pairs among them.

    Examples
    --------
    >>> layout_of([Accumulator("rows"), Accumulator("float", 0), Accumulator("valid", 1)])
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
    >>> held = [Accumulator("rows"), Accumulator("valid", 0), Accumulator("integer", 0)]
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
            read, kernel = _KERNELS[accumulator.kind]
            values, valid = _NOTHING, _ALL
            if accumulator.kind != "rows":
                column = columns[accumulator.column].slice(start, count)
                if column.null_count == count:
                    continue
                valid = buffers.validity(column)
                values = read_only(read(column))
            check(kernel(
                values, read_only(valid), group[rows], weights, step, table, reals, at
            ))
    return vectors


_NOTHING = np.empty(0, np.int64)
_ALL = np.empty(0, np.bool_)


def _integers(column: pa.Array) -> Array:
    return buffers.fixed(column).astype(np.int64, copy=False)


def _floats(column: pa.Array) -> Array:
    return buffers.fixed(column).astype(np.float64, copy=False)


# Every kernel of a tally takes the values and their validity (of length zero where no row is
# null), group and diff of each row (with step 0 the one diff of all), the table, the same memory as
# float64 and its first component there; and returns the status for `vectors.check`.

#: Limbs are below 2**32 in size, so products with smaller diffs than this fit in 64 bits.
LIMIT = 1 << 31
LOW = 0xFFFFFFFF


@jit
def _add(table, row, at, more):  # type: ignore[no-untyped-def]
    """Add to a counter; negative if it wrapped."""
    old = table[row, at]
    new = old + more
    table[row, at] = new
    return (old ^ new) & (more ^ new)


@jit
def _tally_rows(values, valid, group, diff, step, table, reals, at):  # type: ignore[no-untyped-def]
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            if values.size == 0 or values[i]:
                wrapped |= _add(table, group[i], at, diff[i * step])
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@jit
def _tally_integer(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, x, g = diff[i * step], values[i], group[i]
            if d >= LIMIT or d <= -LIMIT:
                return MULTIPLICITY
            wrapped |= _add(table, g, at, (x & LOW) * d)
            wrapped |= _add(table, g, at + 1, (x >> 32) * d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@jit
def _tally_decimal(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, g = diff[i * step], group[i]
            if d >= LIMIT or d <= -LIMIT:
                return MULTIPLICITY
            wrapped |= _add(table, g, at, (values[i, 0] & LOW) * d)
            wrapped |= _add(table, g, at + 1, ((values[i, 0] >> 32) & LOW) * d)
            wrapped |= _add(table, g, at + 2, (values[i, 1] & LOW) * d)
            wrapped |= _add(table, g, at + 3, (values[i, 1] >> 32) * d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@jit
def _tally_square(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped, half, mask = 0, np.uint64(32), np.uint64(LOW)
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, g = diff[i * step], group[i]
            if d >= LIMIT or d <= -LIMIT:
                return MULTIPLICITY
            # Also -2**63 has its absolute value as an unsigned number.
            x = np.uint64(abs(values[i]))
            low, high = x & mask, x >> half
            first, cross = low * low, np.uint64(2) * high * low
            wrapped |= _add(table, g, at, np.int64(first & mask) * d)
            rest = (first >> half) + (cross & mask)
            wrapped |= _add(table, g, at + 1, np.int64(rest & mask) * d)
            if high:
                rest = (rest >> half) + (cross >> half)
                last = high * high
                rest += last & mask
                wrapped |= _add(table, g, at + 2, np.int64(rest & mask) * d)
                wrapped |= _add(table, g, at + 3, np.int64((rest >> half) + (last >> half)) * d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@jit
def two_sum(a, b):  # type: ignore[no-untyped-def]
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@jit
def two_product(a, b):  # type: ignore[no-untyped-def]
    """Dekker's exact product, with Veltkamp's split; numba offers no fused multiply-add."""
    if abs(a) > 2.0**990:
        # The split would overflow. The other factor is far from that wherever this is used.
        product, error = _two_product_of_moderate(a * 2.0**-64, b)
        return product * 2.0**64, error * 2.0**64
    return _two_product_of_moderate(a, b)


@jit
def _two_product_of_moderate(a, b):  # type: ignore[no-untyped-def]
    product = a * b
    part = 134217729.0 * a
    a_high = part - (part - a)
    a_low = a - a_high
    part = 134217729.0 * b
    b_high = part - (part - b)
    b_low = b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


@jit
def double_add(a_high, a_low, b_high, b_low):  # type: ignore[no-untyped-def]
    """The addition of `pyspark_diff.kernels.diff_vectors`; numba has a cache for each file."""
    high, rest = two_sum(a_high, b_high)
    low, last = two_sum(a_low, b_low)
    rest += low
    total = high + rest
    last += rest - (total - high)
    high = total + last
    return high, last - (high - total)


@jit
def _add_product(reals, row, at, high, low, d):  # type: ignore[no-untyped-def]
    """Add a double-word times an integer to a pair; whether that stays finite."""
    while d != 0:
        # A diff of more than 52 bits may be no double: it goes in two pieces.
        piece = d if -(1 << 52) < d < (1 << 52) else d - (d >> 40 << 40)
        product, error = high, low
        if piece == -1:
            product, error = -high, -low
        elif piece != 1:
            product, error = two_product(high, float(piece))
            error += low * float(piece)
            product, error = two_sum(product, error)
        product, error = double_add(reals[row, at], reals[row, at + 1], product, error)
        reals[row, at], reals[row, at + 1] = product, error
        if not math.isfinite(product):
            return False
        d -= piece
        if d != 0:
            high, low, d = high * 2.0**40, low * 2.0**40, d >> 40
    return True


@jit
def _tally_float(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, x, g = diff[i * step], values[i], group[i]
            if math.isfinite(x):
                if not _add_product(reals, g, at, x, 0.0, d):
                    return FLOAT_OVERFLOW
            else:
                kind = 2 if x != x else (3 if x > 0 else 4)
                wrapped |= _add(table, g, at + kind, d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@jit
def _tally_float_square(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, x, g = diff[i * step], values[i], group[i]
            if math.isfinite(x * x):
                high, low = _two_product_of_moderate(x, x)
                if not _add_product(reals, g, at, high, low, d):
                    return FLOAT_OVERFLOW
            elif math.isfinite(x):
                wrapped |= _add(table, g, at + 2, d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@jit
def _tally_exact(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, bits, g = diff[i * step], values[i], group[i]
            exponent, fraction = (bits >> 52) & 0x7FF, bits & ((1 << 52) - 1)
            if exponent == 0x7FF:
                kind = 0 if fraction else (1 if bits > 0 else 2)
                wrapped |= _add(table, g, at + DIGITS + kind, d)
                continue
            if d >= LIMIT or d <= -LIMIT:
                return MULTIPLICITY
            if exponent:
                fraction |= 1 << 52
                exponent -= 1
            # Digits of the absolute value: then x and -x cancel, too.
            d = -d if bits < 0 else d
            first, shift = at + (exponent >> 5), exponent & 31
            low = (fraction & LOW) << shift
            high = ((fraction >> 32) << shift) + (low >> 32)
            wrapped |= _add(table, g, first, (low & LOW) * d)
            wrapped |= _add(table, g, first + 1, (high & LOW) * d)
            if high >> 32:
                wrapped |= _add(table, g, first + 2, (high >> 32) * d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


_KERNELS: dict[str, tuple[Callable[[pa.Array], Array], Any]] = {
    "rows": (lambda column: _NOTHING, _tally_rows),
    "valid": (lambda column: _NOTHING, _tally_rows),
    "true": (_integers, _tally_rows),
    "integer": (_integers, _tally_integer),
    "decimal": (buffers.decimal_words, _tally_decimal),
    "square": (_integers, _tally_square),
    "float": (_floats, _tally_float),
    "float square": (_floats, _tally_float_square),
    "exact": (lambda column: _floats(column).view(np.int64), _tally_exact),
}
