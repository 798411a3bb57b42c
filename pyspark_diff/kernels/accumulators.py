"""Linear aggregates: from columns to lanes, and from lanes to result columns.

Each kind of accumulator is a function ``f`` from a value to a vector, summed with the diffs::

    tally(U)[g] = sum(f(x) * d for (x, d) in U of group g)
    tally(U + V) = tally(U) + tally(V)          so whatever is retracted cancels

Integers are cut into limbs of 32 bits, which leaves room for 2**31 rows or diffs of that size
before a lane overflows. Floats are summed as double-words (see `pyspark_diff.kernels.lanes`), or
exactly as digits of a fixed-point number that covers every double (the small superaccumulator of
Neal, *Fast exact summation using small and large superaccumulators*, arXiv:1505.05571).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.buffers import Array, read_only
from pyspark_diff.kernels.jit import jit
from pyspark_diff.kernels.lanes import (
    COUNTER_OVERFLOW, FLOAT_OVERFLOW, MULTIPLICITY, Lanes, check,
)
from pyspark_diff.kernels.updates import Int64, PerRow

#: Rows that all accumulators see before the next ones, so that their groups are still in the cache.
SLICE = 1 << 15

#: Digits of 32 bits from 2**-1074, the smallest double, up to 2**1024.
_DIGITS = 66

_WIDTHS = {
    "rows": 1, "valid": 1, "true": 1, "integer": 2, "decimal": 4, "square": 4, "float": 5,
    "float square": 3, "exact": _DIGITS + 3,
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
        - "float": the finite values of a float or double column as a pair of lanes, then the number
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
        """Number of lanes."""
        return _WIDTHS[self.kind]

    @property
    def paired(self) -> bool:
        """Whether the first two lanes are a pair."""
        return self.kind in ("float", "float square")


def layout_of(
    accumulators: Sequence[Accumulator],
) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """First lane of each accumulator, the number of lanes of all, and the pairs among them.

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
) -> Lanes:
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
    Lanes, shape (groups, width)

    Raises
    ------
    DiffOverflowError
        If a sum leaves its lane, or a diff is too large to multiply a limb.

    Examples
    --------
    >>> held = [Accumulator("rows"), Accumulator("valid", 0), Accumulator("integer", 0)]
    >>> tally(held, [pa.array([5, None, 7])], np.array([0, 0, 1]), 2, 3).values.tolist()
    [[6, 3, 15, 0], [3, 3, 21, 0]]
    """
    offsets, width, pairs = layout_of(accumulators)
    lanes = Lanes(np.zeros((groups, width), np.int64), pairs)
    table, reals = lanes.values, lanes.reals
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
    return lanes


_NOTHING = np.empty(0, np.int64)
_ALL = np.empty(0, np.bool_)


def _integers(column: pa.Array) -> Array:
    return buffers.fixed(column).astype(np.int64, copy=False)


def _floats(column: pa.Array) -> Array:
    return buffers.fixed(column).astype(np.float64, copy=False)


def _none(column: pa.Array) -> Array:
    return _NOTHING


# Every kernel of a tally takes the values and their validity (of length zero where no row is
# null), group and diff of each row (with step 0 the one diff of all), the table, the same memory as
# float64 and its first lane there; and returns the status for `lanes.check`.

#: Limbs are below 2**32 in size, so products with smaller diffs than this fit in 64 bits.
_LIMIT = 1 << 31
_LOW = 0xFFFFFFFF


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
            if d >= _LIMIT or d <= -_LIMIT:
                return MULTIPLICITY
            wrapped |= _add(table, g, at, (x & _LOW) * d)
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
            if d >= _LIMIT or d <= -_LIMIT:
                return MULTIPLICITY
            wrapped |= _add(table, g, at, (values[i, 0] & _LOW) * d)
            wrapped |= _add(table, g, at + 1, ((values[i, 0] >> 32) & _LOW) * d)
            wrapped |= _add(table, g, at + 2, (values[i, 1] & _LOW) * d)
            wrapped |= _add(table, g, at + 3, (values[i, 1] >> 32) * d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@jit
def _tally_square(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped, half, mask = 0, np.uint64(32), np.uint64(_LOW)
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, g = diff[i * step], group[i]
            if d >= _LIMIT or d <= -_LIMIT:
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
def _two_sum(a, b):  # type: ignore[no-untyped-def]
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@jit
def _two_product(a, b):  # type: ignore[no-untyped-def]
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
def _double_add(a_high, a_low, b_high, b_low):  # type: ignore[no-untyped-def]
    """The addition of `pyspark_diff.kernels.lanes`; numba keeps its cache for each file apart."""
    high, rest = _two_sum(a_high, b_high)
    low, last = _two_sum(a_low, b_low)
    rest += low
    total = high + rest
    last += rest - (total - high)
    high = total + last
    return high, last - (high - total)


@jit
def _double_divide(high, low, by):  # type: ignore[no-untyped-def]
    """A double-word divided by a double (DWDivFP3 of Joldes, Muller and Popescu)."""
    first = high / by
    product, error = _two_product(first, by)
    second = (((high - product) - error) + low) / by
    total = first + second
    return total, second - (total - first)


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
            product, error = _two_product(high, float(piece))
            error += low * float(piece)
            product, error = _two_sum(product, error)
        product, error = _double_add(reals[row, at], reals[row, at + 1], product, error)
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
                wrapped |= _add(table, g, at + _DIGITS + kind, d)
                continue
            if d >= _LIMIT or d <= -_LIMIT:
                return MULTIPLICITY
            if exponent:
                fraction |= 1 << 52
                exponent -= 1
            # Digits of the absolute value: then x and -x cancel, too.
            d = -d if bits < 0 else d
            first, shift = at + (exponent >> 5), exponent & 31
            low = (fraction & _LOW) << shift
            high = ((fraction >> 32) << shift) + (low >> 32)
            wrapped |= _add(table, g, first, (low & _LOW) * d)
            wrapped |= _add(table, g, first + 1, (high & _LOW) * d)
            if high >> 32:
                wrapped |= _add(table, g, first + 2, (high >> 32) * d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


_KERNELS: dict[str, tuple[Callable[[pa.Array], Array], Any]] = {
    "rows": (_none, _tally_rows),
    "valid": (_none, _tally_rows),
    "true": (_integers, _tally_rows),
    "integer": (_integers, _tally_integer),
    "decimal": (buffers.decimal_lanes, _tally_decimal),
    "square": (_integers, _tally_square),
    "float": (_floats, _tally_float),
    "float square": (_floats, _tally_float_square),
    "exact": (lambda column: _floats(column).view(np.int64), _tally_exact),
}


def result(
    name: str,
    lanes: Lanes,
    at: Mapping[str, int],
    kind: pa.DataType,
    *,
    scale: int = 0,
    ddof: int = 0,
    root: bool = False,
) -> pa.Array:
    """The result column of one aggregate, a row for each row of lanes.

    Null where no value is valid, and where the formula divides by zero, as the sample variance of
    one value does. Multiplicities may be negative: then the formulas hold as they stand, and the
    root of a negative variance is NaN.

    Parameters
    ----------
    name : str
        What to compute, in brackets the accumulators it needs; all but "count" need "valid".

        - "count" ("valid", or "rows" if that is not given)
        - "sum", "avg" ("integer"): exact, and the nearest double
        - "sum decimal", "avg decimal" ("decimal"): exact, and the nearest decimal, ties away from 0
        - "sum float", "avg float" ("float"): from double-words
        - "sum exact", "avg exact" ("exact"): the nearest double, where finite
        - "variance" ("integer", "square"): the nearest double
        - "variance float" ("float", "float square"): from double-words, NaN where a value is not
          finite or a square overflows; of equal values it may be as much as rounding leaves
    lanes : Lanes
        The sums.
    at : mapping from str to int
        First lane of each accumulator, by its kind.
    kind : pyarrow.DataType
        Type of the result; of the avg of decimals its scale is at least ``scale``.
    scale : int
        Scale of the decimals that were summed.
    ddof : int
        Variance is divided by the count less this: 0 for the population, 1 for a sample.
    root : bool
        Whether to take the root of the variance, the standard deviation.

    Raises
    ------
    DiffOverflowError
        If a sum or an average does not fit the type of the result.

    Examples
    --------
    >>> held = [Accumulator("valid", 0), Accumulator("integer", 0), Accumulator("square", 0)]
    >>> lanes = tally(held, [pa.array([5, None, 8])], np.array([0, 0, 0]), 1, 1)
    >>> at = {"valid": 0, "integer": 1, "square": 3}
    >>> result("sum", lanes, at, pa.int64())[0].as_py()
    13
    >>> result("variance", lanes, at, pa.float64(), ddof=1)[0].as_py()
    4.5
    """
    values = read_only(lanes.values)
    if name == "count":
        return pa.array(values[:, at["valid" if "valid" in at else "rows"]]).cast(kind)
    n = read_only(values[:, at["valid"]])
    missing = n == 0
    if name == "sum":
        low, high = _rounded(values, at["integer"], 2, n, kind, False, 0).T
        if (high != low >> 63).any():
            raise _too_large(kind)
        return pa.array(np.ascontiguousarray(low), mask=missing).cast(kind)
    if name in ("sum decimal", "avg decimal"):
        tens = kind.scale - scale if name == "avg decimal" else 0
        whole = _rounded(values, at["decimal"], 4, n, kind, name == "avg decimal", tens)
        present = pa.py_buffer(np.packbits(~missing, bitorder="little"))
        return pa.Array.from_buffers(kind, len(lanes), [present, pa.py_buffer(whole)])
    found = np.zeros(len(lanes), np.float64)
    with np.errstate(all="ignore"):
        if name == "avg":
            _quotients(values, at["integer"], 2, n, 0, found)
        elif name in ("sum exact", "avg exact"):
            by = n if name == "avg exact" else read_only(np.ones_like(n))
            _quotients(values, at["exact"], _DIGITS, by, -1074, found)
            found = _with_infinities(found, values[:, at["exact"] + _DIGITS :], by)
        elif name in ("sum float", "avg float"):
            by = n if name == "avg float" else read_only(np.ones_like(n))
            _float_quotients(read_only(lanes.reals), at["float"], by, found)
            found = _with_infinities(found, values[:, at["float"] + 2 :], by)
        elif name in ("variance", "variance float"):
            if name == "variance":
                _variances(values, at["integer"], at["square"], n, ddof, found)
                _wide_variances(values, at["integer"], at["square"], n, ddof, found)
            else:
                reals = read_only(lanes.reals)
                _float_variances(reals, at["float"], at["float square"], n, ddof, found)
                found[(values[:, at["float"] + 2 : at["float"] + 5] != 0).any(axis=1)] = np.nan
                found[values[:, at["float square"] + 2] != 0] = np.nan
            found = np.sqrt(found) if root else found
            missing = missing | (n == ddof)
        else:
            raise ValueError(f"no aggregate is called {name!r}: the docstring lists them all")
    return pa.array(found, mask=missing).cast(kind)


def _too_large(kind: pa.DataType) -> DiffOverflowError:
    return DiffOverflowError(
        f"a sum or an average does not fit the result type {kind}: cast the column to a wider type"
    )


def _rounded(
    values: Int64, at: int, limbs: int, n: Int64, kind: pa.DataType, divide: bool, tens: int
) -> Int64:
    """Low and high 64 bits of the sums, or of their quotients, times a power of ten."""
    out = np.zeros((n.size, 2), np.int64)
    limit = 10**kind.precision if pa.types.is_decimal(kind) else 2**127
    low, high = np.uint64(limit & (2**64 - 1)), np.uint64(limit >> 64)
    if not _round(values, at, limbs, n, divide, tens, low, high, out):
        raise _too_large(kind)
    return out


def _with_infinities(found: np.ndarray, counts: Int64, by: Int64) -> np.ndarray:
    """Results corrected for the NaN, the infinities and the minus infinities that were counted."""
    nan, plus, minus = counts[:, 0] != 0, counts[:, 1] != 0, counts[:, 2] != 0
    found = np.where(plus, np.inf / by, np.where(minus, -np.inf / by, found))
    return np.where(nan | (plus & minus), np.nan, found)


def _wide_variances(
    values: Int64, at: int, square: int, n: Int64, ddof: int, found: np.ndarray
) -> None:
    """As `_variances`, for counts that are too large for it."""
    # One at a time: a group of two billion rows is rare and makes its one division cheap.
    for row in np.flatnonzero((n >= _LIMIT) | (n <= -_LIMIT)):
        total, squares = (
            sum(int(lane) << (32 * k) for k, lane in enumerate(values[row, first : first + limbs]))
            for first, limbs in ((at, 2), (square, 4))
        )
        count = int(n[row])
        found[row] = (count * squares - total * total) / (count * (count - ddof))


# Sums as digits: unsigned, of 32 bits each, the lowest first, in 64-bit words; the sign is apart.


@jit
def _magnitude(values, row, at, limbs, digits):  # type: ignore[no-untyped-def]
    """Digits of the absolute value of a sum of limbs; whether the sum is negative."""
    half, mask = np.uint64(32), np.uint64(_LOW)
    carry = 0
    digits[:] = 0
    for k in range(limbs):
        lane = values[row, at + k]
        rest = (lane & _LOW) + carry
        digits[k] = np.uint64(rest & _LOW)
        carry = (rest >> 32) + (lane >> 32)
    digits[limbs] = np.uint64(carry & _LOW)
    digits[limbs + 1] = np.uint64((carry >> 32) & _LOW)
    if carry >= 0:
        return False
    more = np.uint64(1)
    for k in range(limbs + 2):
        flipped = (digits[k] ^ mask) + more
        digits[k] = flipped & mask
        more = flipped >> half
    return True


@jit
def _times(digits, by):  # type: ignore[no-untyped-def]
    """Multiply by a number below 2**31, in place."""
    half, mask = np.uint64(32), np.uint64(_LOW)
    carry = np.uint64(0)
    for k in range(digits.size):
        product = digits[k] * by + carry
        digits[k] = product & mask
        carry = product >> half


@jit
def _divide(digits, by):  # type: ignore[no-untyped-def]
    """Divide by an unsigned number of at most 2**63, in place, halves rounded up."""
    one, zero, started = np.uint64(1), np.uint64(0), False
    rest = zero
    for k in range(digits.size - 1, -1, -1):
        digit, quotient = digits[k], zero
        started = started or digit != zero
        if started:
            for bit in range(31, -1, -1):
                rest = (rest << one) | ((digit >> np.uint64(bit)) & one)
                quotient <<= one
                if rest >= by:
                    rest -= by
                    quotient |= one
        digits[k] = quotient
    k = 0
    if rest >= by - rest:
        digits[0] += one
        while digits[k] >> np.uint64(32):
            digits[k] = zero
            digits[k + 1] += one
            k += 1


@jit
def _round(values, at, limbs, n, divide, tens, low, high, out):  # type: ignore[no-untyped-def]
    """Quotients as 128-bit integers; whether all are below the limit in size."""
    digits = np.empty(limbs + 8, np.uint64)
    half, zero = np.uint64(32), np.uint64(0)
    for i in range(n.size):
        if n[i] == 0:
            continue
        negative = _magnitude(values, i, at, limbs, digits)
        for _ in range(tens):
            _times(digits, np.uint64(10))
        if divide:
            _divide(digits, np.uint64(abs(n[i])))
            negative ^= n[i] < 0
        for k in range(4, digits.size):
            if digits[k] != zero:
                return False
        first = digits[0] | (digits[1] << half)
        second = digits[2] | (digits[3] << half)
        if second > high or (second == high and first >= low):
            return False
        out[i, 0], out[i, 1] = np.int64(first), np.int64(second)
        if negative:
            out[i, 0] = -out[i, 0]
            out[i, 1] = ~out[i, 1] if out[i, 0] != 0 else -out[i, 1]
    return True


@jit
def _ratio(digits, by, unit):  # type: ignore[no-untyped-def]
    """The double nearest to digits * 2**unit / by, ties to even; ``by`` is at most 2**63."""
    one, zero, full = np.uint64(1), np.uint64(0), np.uint64(1 << 62)
    top = digits.size
    while top > 0 and digits[top - 1] == zero:
        top -= 1
    if top <= 2 and unit == 0:
        small = digits[0] | (digits[1] << np.uint64(32))
        if small >> np.uint64(53) == zero and by >> np.uint64(53) == zero:
            return float(np.int64(small)) / float(np.int64(by))
    # Long division, one bit after the other, until the quotient has more bits than a double.
    quotient, rest, at = zero, zero, 32 * top
    while quotient < full and (at > 0 or rest != zero):
        at -= 1
        rest <<= one
        quotient <<= one
        if at >= 0:
            rest |= (digits[at >> 5] >> np.uint64(at & 31)) & one
        if rest >= by:
            rest -= by
            quotient |= one
    inexact = rest != zero
    if at > 0:
        for k in range(at >> 5):
            inexact = inexact or digits[k] != zero
        below = (one << np.uint64(at & 31)) - one
        inexact = inexact or (digits[at >> 5] & below) != zero
    length = 0
    while length < 63 and quotient >> np.uint64(length) != zero:
        length += 1
    exponent = at + unit
    # No bit of a double stands below 2**-1074.
    drop = max(length - 53, -1074 - exponent)
    if drop > 63:
        return 0.0
    if drop > 0:
        tie = one << np.uint64(drop - 1)
        rest = quotient & (tie | (tie - one))
        quotient >>= np.uint64(drop)
        exponent += drop
        if rest > tie or (rest == tie and (inexact or quotient & one != zero)):
            quotient += one
    return math.ldexp(float(np.int64(quotient)), exponent)


@jit
def _quotients(values, at, limbs, n, unit, found):  # type: ignore[no-untyped-def]
    digits = np.empty(limbs + 2, np.uint64)
    for i in range(n.size):
        if n[i] != 0:
            negative = _magnitude(values, i, at, limbs, digits) ^ (n[i] < 0)
            ratio = _ratio(digits, np.uint64(abs(n[i])), unit)
            found[i] = -ratio if negative else ratio


@jit
def _variances(values, at, square, n, ddof, found):  # type: ignore[no-untyped-def]
    """(n * sum of squares - square of sum) / (n * (n - ddof)), for counts of less than 32 bits."""
    total, squares = np.empty(4, np.uint64), np.empty(6, np.uint64)
    # The numerator, as limbs that several products of digits fit in.
    limbs = np.empty((1, 9), np.int64)
    digits = np.empty(11, np.uint64)
    half, mask = np.uint64(32), np.uint64(_LOW)
    for i in range(n.size):
        by = n[i] * (n[i] - ddof)
        if by == 0 or n[i] >= _LIMIT or n[i] <= -_LIMIT:
            continue
        _magnitude(values, i, at, 2, total)
        sign = -1 if _magnitude(values, i, square, 4, squares) ^ (n[i] < 0) else 1
        limbs[:] = 0
        count = np.uint64(abs(n[i]))
        for k in range(6):
            product = squares[k] * count
            limbs[0, k] += sign * np.int64(product & mask)
            limbs[0, k + 1] += sign * np.int64(product >> half)
        for j in range(4):
            for k in range(4):
                product = total[j] * total[k]
                limbs[0, j + k] -= np.int64(product & mask)
                limbs[0, j + k + 1] -= np.int64(product >> half)
        negative = _magnitude(limbs, 0, 0, 9, digits) ^ (by < 0)
        ratio = _ratio(digits, np.uint64(abs(by)), 0)
        found[i] = -ratio if negative else ratio


@jit
def _float_quotients(reals, at, n, found):  # type: ignore[no-untyped-def]
    for i in range(n.size):
        if n[i] != 0:
            high, low = _double_divide(reals[i, at], reals[i, at + 1], float(n[i]))
            found[i] = high + low


@jit
def _float_variances(reals, at, square, n, ddof, found):  # type: ignore[no-untyped-def]
    """(sum of squares - square of sum / n) / (n - ddof), so arranged that nothing overflows."""
    for i in range(n.size):
        if n[i] == 0 or n[i] == ddof:
            continue
        high, low = reals[i, at], reals[i, at + 1]
        squares = reals[i, square]
        mean, mean_low = _double_divide(high, low, float(n[i]))
        product, error = _two_product(high, mean)
        error += high * mean_low + low * mean
        left, left_low = _double_add(squares, reals[i, square + 1], -product, -error)
        # Of what is a variance, less than zero can only be what rounding has left.
        if left < 0.0 and left > -abs(squares) * 2.0**-70:
            left, left_low = 0.0, 0.0
        found[i] = (left + left_low) / float(n[i] - ddof)
