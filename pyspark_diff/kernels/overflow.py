"""Whether arithmetic on 64-bit numbers leaves 64 bits, in compiled code.

The compiler assumes that signed numbers never wrap, and may remove a check of a result: half of the
checks of products were gone. Unsigned numbers may wrap.
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import inlined


@inlined
def sum_leaves(a, b):  # type: ignore[no-untyped-def]
    """Whether the sum of two numbers leaves 64 bits."""
    total = np.int64(np.uint64(a) + np.uint64(b))
    return ((a ^ total) & (b ^ total)) < 0


@inlined
def product_leaves(a, b):  # type: ignore[no-untyped-def]
    """Whether the product of two numbers leaves 64 bits."""
    size = abs(float(a) * float(b))
    if size < 9.2e18 or size > 9.3e18:
        return size > 9.3e18
    # Close to 2 ** 63, an overflow changes the sign.
    product = np.int64(np.uint64(a) * np.uint64(b))
    return (product < 0) != ((a < 0) != (b < 0))


@inlined
def lie_near(low, high, most):  # type: ignore[no-untyped-def]
    """Whether ``high - low`` is less than ``most``, for ``high`` not less than ``low``."""
    return np.uint64(high) - np.uint64(low) < np.uint64(most)
