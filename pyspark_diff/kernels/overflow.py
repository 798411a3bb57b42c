"""Whether arithmetic on 64-bit numbers leaves 64 bits, in compiled code.

Of signed numbers the compiler takes for granted that they never wrap, and may remove a check that
looks at what they have become: of products half the checks were gone. Unsigned ones may wrap.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import inlined


@inlined
def sum_leaves(a, b):  # type: ignore[no-untyped-def]
    """Whether the sum of two numbers leaves 64 bits."""
    found = np.int64(np.uint64(a) + np.uint64(b))
    return ((a ^ found) & (b ^ found)) < 0


@inlined
def product_leaves(a, b):  # type: ignore[no-untyped-def]
    """Whether the product of two numbers leaves 64 bits."""
    size = abs(float(a) * float(b))
    if size < 9.2e18 or size > 9.3e18:
        return size > 9.3e18
    # About 2 ** 63 it has the wrong sign then.
    product = np.int64(np.uint64(a) * np.uint64(b))
    return (product < 0) != ((a < 0) != (b < 0))


@inlined
def lie_near(low, high, most):  # type: ignore[no-untyped-def]
    """Whether a number lies less than so many above another one, which is not greater."""
    return np.uint64(high) - np.uint64(low) < np.uint64(most)
