"""Sums of doubles as double-words: unevaluated sums of two doubles, in a pair of components.

Operations have a relative error of a few units of 2**-106 (AccurateDWPlusDW and DWDivFP3: Joldes,
Muller and Popescu, *Tight and rigorous error bounds for basic building blocks of double-word
arithmetic*, ACM TOMS 44(2), 2017; TwoSum of Knuth and Moller, Fast2Sum and the product of Dekker,
1971). A pair ``(a, b)`` of doubles has the value::

    a + b                if abs(a) >= abs(b)
    (a + b) * 2**128     if abs(a) <  abs(b): sums of 2**1000 and more, the low word first

A double-word's high word is the larger one, so the order of the words can encode the scale. So sums
may leave the range of doubles, by more than all possible rows and diffs, and come back.
"""

from __future__ import annotations

from pyspark_diff.kernels.jit import inlined

#: The factors between a sum and its scaled form: powers of two, so that scaling does not round any
#: digit that matters.
DOWN, UP = 2.0**-128, 2.0**128
#: From this value on a sum is scaled.
LARGE = 2.0**1000


@inlined
def two_sum(a, b):  # type: ignore[no-untyped-def]
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@inlined
def two_product(a, b):  # type: ignore[no-untyped-def]
    """Dekker's exact product, with Veltkamp's split; numba offers no fused multiply-add."""
    if abs(a) > 2.0**990:
        # The split would overflow. In every use, the second factor is moderate.
        product, error = product_of_moderate(a * 2.0**-64, b)
        return product * 2.0**64, error * 2.0**64
    return product_of_moderate(a, b)


@inlined
def product_of_moderate(a, b):  # type: ignore[no-untyped-def]
    product = a * b
    part = 134217729.0 * a
    a_high = part - (part - a)
    a_low = a - a_high
    part = 134217729.0 * b
    b_high = part - (part - b)
    b_low = b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


@inlined
def double_add(a_high, a_low, b_high, b_low):  # type: ignore[no-untyped-def]
    high, rest = two_sum(a_high, b_high)
    low, last = two_sum(a_low, b_low)
    rest += low
    total = high + rest
    last += rest - (total - high)
    high = total + last
    return high, last - (high - total)


@inlined
def double_divide(high, low, by):  # type: ignore[no-untyped-def]
    """A double-word divided by a double."""
    first = high / by
    product, error = two_product(first, by)
    second = (((high - product) - error) + low) / by
    total = first + second
    return total, second - (total - first)


@inlined
def pair_sum(a, b, first, second):  # type: ignore[no-untyped-def]
    """The pair of the sum of two pairs."""
    if abs(a) >= abs(b) and abs(first) >= abs(second):
        total, rest = double_add(a, b, first, second)
        if abs(total) < LARGE:
            return total, rest
    return _scaled_sum(a, b, first, second)


@inlined
def _scaled_sum(a, b, first, second):  # type: ignore[no-untyped-def]
    """As `pair_sum`, if one of the three pairs may be scaled."""
    # Scaling only cuts off digits far below the last bit of so large a sum.
    if abs(a) >= abs(b):
        a, b = b * DOWN, a * DOWN
    if abs(first) >= abs(second):
        first, second = second * DOWN, first * DOWN
    total, rest = double_add(b, a, second, first)
    if abs(total) < LARGE * DOWN:
        return total * UP, rest * UP
    return rest, total


@inlined
def add_product(a, b, high, low, d):  # type: ignore[no-untyped-def]
    """The pair of the sum of a pair and a double-word times an integer."""
    scaled = abs(high) > 2.0**900
    if scaled:
        high, low = high * DOWN, low * DOWN
    while d != 0:
        # A diff of more than 52 bits may be no double: it is multiplied in two pieces.
        piece = d if -(1 << 52) < d < (1 << 52) else d - (d >> 40 << 40)
        product, error = high, low
        if piece == -1:
            product, error = -high, -low
        elif piece != 1:
            product, error = product_of_moderate(high, float(piece))
            error += low * float(piece)
            product, error = two_sum(product, error)
        if scaled:
            product, error = error, product
        a, b = pair_sum(a, b, product, error)
        d -= piece
        if d != 0:
            high, low, d = high * 2.0**40, low * 2.0**40, d >> 40
    return a, b


@inlined
def quotient_of_pair(first, second, by):  # type: ignore[no-untyped-def]
    """A pair divided by a double: about the nearest double, and infinite beyond the range."""
    if abs(first) >= abs(second):
        high, low = double_divide(first, second, by)
        return high + low
    high, low = double_divide(second, first, by)
    return (high + low) * UP
