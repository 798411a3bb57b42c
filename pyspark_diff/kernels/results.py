"""Linear aggregates: from vectors to result columns.

For the vectors ``v`` that `pyspark_diff.kernels.accumulators.tally` sums for a group, a result is a
function of ``v`` alone, so it does not matter how the group came about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.accumulators import DIGITS, LIMIT, LOW, double_add, two_product
from pyspark_diff.kernels.buffers import read_only
from pyspark_diff.kernels.diff_vectors import DiffVectors
from pyspark_diff.kernels.jit import jit
from pyspark_diff.kernels.updates import Int64


def result(
    name: str,
    vectors: DiffVectors,
    at: Mapping[str, int],
    kind: pa.DataType,
    *,
    scale: int = 0,
    ddof: int = 0,
    root: bool = False,
) -> pa.Array:
    """The result column of one aggregate, a row for each row of vectors.

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
    vectors : DiffVectors
        The sums.
    at : mapping from str to int
        First component of each accumulator, by its kind.
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
    >>> from pyspark_diff.kernels.accumulators import Accumulator, tally
    >>> held = [Accumulator("valid", 0), Accumulator("integer", 0), Accumulator("square", 0)]
    >>> vectors = tally(held, [pa.array([5, None, 8])], np.array([0, 0, 0]), 1, 1)
    >>> at = {"valid": 0, "integer": 1, "square": 3}
    >>> result("sum", vectors, at, pa.int64())[0].as_py()
    13
    >>> result("variance", vectors, at, pa.float64(), ddof=1)[0].as_py()
    4.5
    """
    values = read_only(vectors.values)
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
        return pa.Array.from_buffers(kind, len(vectors), [present, pa.py_buffer(whole)])
    found = np.zeros(len(vectors), np.float64)
    with np.errstate(all="ignore"):
        if name == "avg":
            _quotients(values, at["integer"], 2, n, 0, found)
        elif name in ("sum exact", "avg exact"):
            by = n if name == "avg exact" else read_only(np.ones_like(n))
            _quotients(values, at["exact"], DIGITS, by, -1074, found)
            found = _with_infinities(found, values[:, at["exact"] + DIGITS :], by)
        elif name in ("sum float", "avg float"):
            by = n if name == "avg float" else read_only(np.ones_like(n))
            _float_quotients(read_only(vectors.reals), at["float"], by, found)
            found = _with_infinities(found, values[:, at["float"] + 2 :], by)
        elif name in ("variance", "variance float"):
            if name == "variance":
                _variances(values, at["integer"], at["square"], n, ddof, found)
                _wide_variances(values, at["integer"], at["square"], n, ddof, found)
            else:
                reals = read_only(vectors.reals)
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
    for row in np.flatnonzero((n >= LIMIT) | (n <= -LIMIT)):
        total, squares = (
            sum(int(limb) << (32 * k) for k, limb in enumerate(values[row, first : first + limbs]))
            for first, limbs in ((at, 2), (square, 4))
        )
        count = int(n[row])
        found[row] = (count * squares - total * total) / (count * (count - ddof))


# Sums as digits: unsigned, of 32 bits each, the lowest first, in 64-bit words; the sign is apart.


@jit
def _double_divide(high, low, by):  # type: ignore[no-untyped-def]
    """A double-word divided by a double (DWDivFP3 of Joldes, Muller and Popescu)."""
    first = high / by
    product, error = two_product(first, by)
    second = (((high - product) - error) + low) / by
    total = first + second
    return total, second - (total - first)


@jit
def _magnitude(values, row, at, limbs, digits):  # type: ignore[no-untyped-def]
    """Digits of the absolute value of a sum of limbs; whether the sum is negative."""
    half, mask = np.uint64(32), np.uint64(LOW)
    carry = 0
    digits[:] = 0
    for k in range(limbs):
        component = values[row, at + k]
        rest = (component & LOW) + carry
        digits[k] = np.uint64(rest & LOW)
        carry = (rest >> 32) + (component >> 32)
    digits[limbs] = np.uint64(carry & LOW)
    digits[limbs + 1] = np.uint64((carry >> 32) & LOW)
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
    half, mask = np.uint64(32), np.uint64(LOW)
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
    half, mask = np.uint64(32), np.uint64(LOW)
    for i in range(n.size):
        by = n[i] * (n[i] - ddof)
        if by == 0 or n[i] >= LIMIT or n[i] <= -LIMIT:
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
        product, error = two_product(high, mean)
        error += high * mean_low + low * mean
        left, left_low = double_add(squares, reals[i, square + 1], -product, -error)
        # Of what is a variance, less than zero can only be what rounding has left; and so is what
        # lies above by no more than these operations are wrong, as of values that are all equal.
        if -abs(squares) * 2.0**-70 < left < abs(squares) * 2.0**-103:
            left, left_low = 0.0, 0.0
        found[i] = (left + left_low) / float(n[i] - ddof)
