"""The compiled loops that sum the values of rows, for `pyspark_diff.kernels.accumulators`.

For rows ``(x, g, d)`` of a value, a group and a diff, each loop adds ``f(x) * d`` to the components
of ``g``. The function ``f`` of a loop maps a value to a few components.
"""

from __future__ import annotations

import math

import numpy as np

from pyspark_diff.kernels.diff_vectors import COUNTER_OVERFLOW, MULTIPLICITY
from pyspark_diff.kernels.double_word import add_product, product_of_moderate, two_product
from pyspark_diff.kernels.jit import inlined, kernel

#: Digits of 32 bits from 2**-1074, the smallest double, up to 2**1024.
DIGITS = 66

# The arguments are the values and their validity (of length zero if no row is null), and the group
# and diff of each row (with step 0 one diff for all). Then the table, the same memory as float64,
# and the first component in it. The result is the status for `diff_vectors.check`.

#: Limbs are below 2**32 in size, so products with smaller diffs than this fit in 64 bits.
LIMIT = 1 << 31
LOW = 0xFFFFFFFF


@inlined
def _add(table, row, at, more):  # type: ignore[no-untyped-def]
    """Add to a counter; negative if it wrapped."""
    old = table[row, at]
    # Unsigned, since the compiler may remove a check of signed sums (see `kernels.overflow`).
    new = np.int64(np.uint64(old) + np.uint64(more))
    table[row, at] = new
    return (old ^ new) & (more ^ new)


@kernel("int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_rows(values, valid, group, diff, step, table, reals, at):  # type: ignore[no-untyped-def]
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            if values.size == 0 or values[i]:
                wrapped |= _add(table, group[i], at, diff[i * step])
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@kernel("int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_integer(  # type: ignore[no-untyped-def]
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


@kernel("int64[:,:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_decimal(  # type: ignore[no-untyped-def]
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


@kernel("int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_square(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped, half, mask = 0, np.uint64(32), np.uint64(LOW)
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, g = diff[i * step], group[i]
            if d >= LIMIT or d <= -LIMIT:
                return MULTIPLICITY
            # The absolute value of -2**63 is correct as an unsigned number.
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


@kernel("float64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_float(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, x, g = diff[i * step], values[i], group[i]
            if math.isfinite(x):
                reals[g, at], reals[g, at + 1] = add_product(
                    reals[g, at], reals[g, at + 1], x, 0.0, d
                )
            else:
                kind = 2 if x != x else (3 if x > 0 else 4)
                wrapped |= _add(table, g, at + kind, d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@kernel("float64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_float_square(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, x, g = diff[i * step], values[i], group[i]
            if math.isfinite(x * x):
                high, low = product_of_moderate(x, x)
                reals[g, at], reals[g, at + 1] = add_product(
                    reals[g, at], reals[g, at + 1], high, low, d
                )
            elif math.isfinite(x):
                wrapped |= _add(table, g, at + 2, d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@kernel("int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_exact(  # type: ignore[no-untyped-def]
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
            # Digits of the absolute value: so x and -x cancel too.
            d = -d if bits < 0 else d
            first, shift = at + (exponent >> 5), exponent & 31
            low = (fraction & LOW) << shift
            high = ((fraction >> 32) << shift) + (low >> 32)
            wrapped |= _add(table, g, first, (low & LOW) * d)
            wrapped |= _add(table, g, first + 1, (high & LOW) * d)
            if high >> 32:
                wrapped |= _add(table, g, first + 2, (high >> 32) * d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@kernel("int64[:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_bits(values, valid, group, diff, step, table, reals, at):  # type: ignore[no-untyped-def]
    wrapped, unit, zero = 0, np.uint64(1), np.uint64(0)
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, g, bits, k = diff[i * step], group[i], np.uint64(values[i]), at
            while bits != zero:
                if bits & unit:
                    wrapped |= _add(table, g, k, d)
                bits >>= unit
                k += 1
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@kernel("float64[:,:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_float_product(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    wrapped = 0
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, x, y, g = diff[i * step], values[i, 0], values[i, 1], group[i]
            if math.isfinite(x * y):
                high, low = two_product(x, y) if abs(x) > abs(y) else two_product(y, x)
                reals[g, at], reals[g, at + 1] = add_product(
                    reals[g, at], reals[g, at + 1], high, low, d
                )
            elif math.isfinite(x) and math.isfinite(y):
                wrapped |= _add(table, g, at + 2, d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0


@kernel("int64[:,:]-, bool[:]-, int64[:]-, int64[:]-, int64, int64[:,:], float64[:,:], int64")
def tally_exact_product(  # type: ignore[no-untyped-def]
    values, valid, group, diff, step, table, reals, at
):
    """Add the product of the finite doubles of each row, as digits."""
    wrapped, half, mask = 0, np.uint64(32), np.uint64(LOW)
    product = np.empty(2 * values.shape[1] + 1, np.uint64)
    for i in range(group.size):
        if valid.size == 0 or valid[i]:
            d, g, place, size = diff[i * step], group[i], 0, 1
            if d >= LIMIT or d <= -LIMIT:
                return MULTIPLICITY
            product[:] = 0
            product[0] = 1
            for k in range(values.shape[1]):
                bits = values[i, k]
                exponent, fraction = (bits >> 52) & 0x7FF, bits & ((1 << 52) - 1)
                if exponent == 0x7FF:
                    size = 0
                    break
                if exponent:
                    fraction |= 1 << 52
                    exponent -= 1
                place += exponent
                d = -d if bits < 0 else d
                low, high = np.uint64(fraction & LOW), np.uint64(fraction >> 32)
                size += 2
                carry, before = np.uint64(0), np.uint64(0)
                for j in range(size):
                    digit = product[j]
                    total = digit * low + carry
                    rest = before * high + (total & mask)
                    product[j] = rest & mask
                    carry = (total >> half) + (rest >> half)
                    before = digit
            shift, carry = np.uint64(place & 31), np.uint64(0)
            for j in range(size):
                digit = (product[j] << shift) | carry
                carry = digit >> half
                digit &= mask
                if digit:
                    wrapped |= _add(table, g, at + (place >> 5) + j, np.int64(digit) * d)
            if size and carry:
                wrapped |= _add(table, g, at + (place >> 5) + size, np.int64(carry) * d)
    return COUNTER_OVERFLOW if wrapped < 0 else 0
