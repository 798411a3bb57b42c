"""The compiled arithmetic of results: from the components of sums to numbers, each rounded once.

Exact sums stay exact here: integers are divided digit by digit, and double-words with all their
bits. `pyspark_diff.kernels.results` defines the components of each result.
"""

from __future__ import annotations

import math

import numpy as np

from pyspark_diff.kernels.double_word import (
    UP,
    double_add,
    double_divide,
    quotient_of_pair,
    two_product,
)
from pyspark_diff.kernels.jit import jit, kernel
from pyspark_diff.kernels.tallies import LIMIT, LOW

# Sums as digits: unsigned, of 32 bits each, the lowest first, in 64-bit words; the sign is
# separate.


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
    """Divide by an unsigned number of at most 2**63, in place; halves are rounded up."""
    unit, zero, started = np.uint64(1), np.uint64(0), False
    small = by >> np.uint64(32) == zero
    rest = zero
    for k in range(digits.size - 1, -1, -1):
        digit, quotient = digits[k], zero
        if small:
            if not started and digit == zero:
                continue
            started = True
            # The remainder is less than the divisor, so that it has room for one more digit.
            whole = (rest << np.uint64(32)) | digit
            digits[k] = whole // by
            rest = whole - digits[k] * by
            continue
        started = started or digit != zero
        if started:
            for bit in range(31, -1, -1):
                rest = (rest << unit) | ((digit >> np.uint64(bit)) & unit)
                quotient <<= unit
                if rest >= by:
                    rest -= by
                    quotient |= unit
        digits[k] = quotient
    k = 0
    if rest >= by - rest:
        digits[0] += unit
        while digits[k] >> np.uint64(32):
            digits[k] = zero
            digits[k + 1] += unit
            k += 1


@kernel(
    "int64[:,:]-, int64, int64, int64[:]!-, bool, int64, uint64, uint64, int64[:,:], bool[:]"
)
def rounded(  # type: ignore[no-untyped-def]
    values, at, limbs, n, divide, tens, low, high, out, fits
):
    """Quotients as 128-bit integers, and whether the size of each is below the limit."""
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
                fits[i] = False
        first = digits[0] | (digits[1] << half)
        second = digits[2] | (digits[3] << half)
        if second > high or (second == high and first >= low):
            fits[i] = False
        out[i, 0], out[i, 1] = np.int64(first), np.int64(second)
        if negative:
            out[i, 0] = -out[i, 0]
            out[i, 1] = ~out[i, 1] if out[i, 0] != 0 else -out[i, 1]


@jit
def _ratio(digits, by, unit):  # type: ignore[no-untyped-def]
    """The double nearest to digits * 2**unit / by, ties to even; ``by`` is at most 2**63."""
    bit, zero, full = np.uint64(1), np.uint64(0), np.uint64(1 << 62)
    top = digits.size
    while top > 0 and digits[top - 1] == zero:
        top -= 1
    if top <= 2 and unit == 0:
        small = digits[0] | (digits[1] << np.uint64(32))
        if small >> np.uint64(53) == zero and by >> np.uint64(53) == zero:
            return float(np.int64(small)) / float(np.int64(by))
    # Long division bit by bit, until the quotient has more bits than a double.
    quotient, rest, at = zero, zero, 32 * top
    while quotient < full and (at > 0 or rest != zero):
        at -= 1
        rest <<= bit
        quotient <<= bit
        if at >= 0:
            rest |= (digits[at >> 5] >> np.uint64(at & 31)) & bit
        if rest >= by:
            rest -= by
            quotient |= bit
    inexact = rest != zero
    if at > 0:
        for k in range(at >> 5):
            inexact = inexact or digits[k] != zero
        below = (bit << np.uint64(at & 31)) - bit
        inexact = inexact or (digits[at >> 5] & below) != zero
    length = 0
    while length < 63 and quotient >> np.uint64(length) != zero:
        length += 1
    exponent = at + unit
    # A double has no bit below 2**-1074.
    drop = max(length - 53, -1074 - exponent)
    if drop > 63:
        return 0.0
    if drop > 0:
        tie = bit << np.uint64(drop - 1)
        rest = quotient & (tie | (tie - bit))
        quotient >>= np.uint64(drop)
        exponent += drop
        if rest > tie or (rest == tie and (inexact or quotient & bit != zero)):
            quotient += bit
    return math.ldexp(float(np.int64(quotient)), exponent)


@kernel("int64[:,:]-, int64, int64, int64[:]!-, int64, float64[:]")
def quotients(values, at, limbs, n, unit, out):  # type: ignore[no-untyped-def]
    digits = np.empty(limbs + 2, np.uint64)
    for i in range(n.size):
        if n[i] != 0:
            negative = _magnitude(values, i, at, limbs, digits) ^ (n[i] < 0)
            ratio = _ratio(digits, np.uint64(abs(n[i])), unit)
            out[i] = -ratio if negative else ratio


@kernel("int64[:,:]-, int64, int64, int64[:]!-, int64, float64[:]")
def variances(values, at, square, n, ddof, out):  # type: ignore[no-untyped-def]
    """(n * sum of squares - square of sum) / (n * (n - ddof)), for counts of less than 32 bits."""
    total, squares = np.empty(4, np.uint64), np.empty(6, np.uint64)
    # The numerator, as limbs with room for several products of digits.
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
        out[i] = -ratio if negative else ratio


@kernel("float64[:,:]-, int64, int64[:]!-, float64[:]")
def float_quotients(reals, at, n, out):  # type: ignore[no-untyped-def]
    for i in range(n.size):
        if n[i] != 0:
            out[i] = quotient_of_pair(reals[i, at], reals[i, at + 1], float(n[i]))


@kernel("float64[:,:]-, int64, int64, int64[:]!-, int64, float64[:]")
def float_variances(reals, at, square, n, ddof, out):  # type: ignore[no-untyped-def]
    """(sum of squares - square of sum / n) / (n - ddof), arranged so that nothing overflows."""
    for i in range(n.size):
        if n[i] == 0 or n[i] == ddof:
            continue
        high, low, unit = reals[i, at], reals[i, at + 1], 1.0
        if abs(high) < abs(low):
            out[i] = np.nan  # then no square of a value was finite
            continue
        squares, squares_low = reals[i, square], reals[i, square + 1]
        if abs(squares) < abs(squares_low):
            squares, squares_low, unit = squares_low, squares, UP
            high, low = high * 2.0**-64, low * 2.0**-64
        mean, mean_low = double_divide(high, low, float(n[i]))
        product, error = two_product(high, mean)
        error += high * mean_low + low * mean
        left, left_low = double_add(squares, squares_low, -product, -error)
        # A variance below zero is a rounding error. So is a variance above zero that is within the
        # error of the operations, for example of equal values.
        if -abs(squares) * 2.0**-70 < left < abs(squares) * 2.0**-103:
            left, left_low = 0.0, 0.0
        out[i] = (left + left_low) / float(n[i] - ddof) * unit


@kernel(
    "float64[:,:]-, int64, int64, int64, int64[:]!-, float64[:]"
)
def float_covariances(  # type: ignore[no-untyped-def]
    reals, at, other, product, n, out
):
    """(sum of products - sum * other sum / n) / n, arranged so that sums do not overflow."""
    for i in range(n.size):
        if n[i] == 0:
            continue
        unit = 1.0
        high, low = reals[i, at], reals[i, at + 1]
        most, least = reals[i, other], reals[i, other + 1]
        products, rest = reals[i, product], reals[i, product + 1]
        # A scaled sum of values, or of products, is 2**128 times its words, and the low word is
        # first.
        if abs(high) < abs(low):
            high, low, unit = low, high, unit * UP
        if abs(most) < abs(least):
            most, least, unit = least, most, unit * UP
        if abs(products) < abs(rest):
            products, rest = rest / unit * UP, products / unit * UP
        else:
            products, rest = products / unit, rest / unit
        mean, mean_low = double_divide(high, low, float(n[i]))
        if abs(most) > abs(mean):
            total, error = two_product(most, mean)
        else:
            total, error = two_product(mean, most)
        error += most * mean_low + least * mean
        left, left_low = double_add(products, rest, -total, -error)
        out[i] = (left + left_low) / float(n[i]) * unit
