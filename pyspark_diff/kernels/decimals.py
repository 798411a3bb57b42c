"""Sums and products of decimals whose unscaled values fit into 64 bits, as those of money do.

For columns ``x`` and ``y`` of unscaled values ``a`` and ``b``::

    unscaled(x * y) = a * b          unscaled(x + y) = a * 10**i + b * 10**j

with 128 bits for the result: 3 to 6 ns a row, where 128 bits on either side take 100 ns, and 256
bits three times that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.jit import kernel

#: Of fewer rows the call is what costs.
_FEW = 256


def computed(name: str, first: Any, second: Any, kind: pa.DataType) -> pa.Array | None:
    """A sum, difference or product, of a type that has room for it.

    Parameters
    ----------
    name : {"+", "-", "*"}
    first, second : pyarrow.Array, pyarrow.ChunkedArray or pyarrow.Scalar
        Of any type.
    kind : pyarrow.DataType
        Of the result. For a product its scale is the sum of both scales, else the larger one.

    Returns
    -------
    pyarrow.Array or None
        None where this is not the way: for few rows, other types, and large values.

    Examples
    --------
    >>> price = pa.array(range(300), pa.decimal128(15, 2))
    >>> computed("*", price, pa.array([2] * 300, pa.decimal128(3, 1)), pa.decimal128(19, 3))[7]
    <pyarrow.Decimal128Scalar: Decimal('14.000')>
    """
    sides = [_array(first), _array(second)]
    rows = max(map(len, sides))
    if rows < _FEW or not all(pa.types.is_decimal128(side.type) for side in sides):
        return None
    # What stands in the places of nulls is computed too, and nobody looks at it.
    words = [buffers.decimal_words(side) for side in sides]
    found = np.empty((rows, 2), np.int64)
    if name == "*":
        fits = _product(*words, found)
    else:
        ups = [kind.scale - side.type.scale for side in sides]
        if max(ups) > 18:
            return None
        factors = [10**up for up in ups]
        fits = _sum(*words, *factors, -1 if name == "-" else 1, found)
    if not fits:
        return None
    return pa.Array.from_buffers(kind, rows, [_valid(sides, rows), pa.py_buffer(found)])


def _valid(sides: list[pa.Array], rows: int) -> pa.Buffer | None:
    """A bit for each row, whether no side is null there; None where none is anywhere."""
    if not any(side.null_count for side in sides):
        return None
    every = pa.repeat(True, rows)
    for side in sides:
        # Of one value, whether it is, stands for all.
        valid = pc.is_valid(side)
        every = pc.and_(every, valid[0] if len(side) == 1 else valid)
    return every.buffers()[1]


def _array(value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type)
    if isinstance(value, pa.ChunkedArray):
        return value.chunk(0) if value.num_chunks == 1 else value.combine_chunks()
    return value


@kernel("int64[:,:]-, int64[:,:]-, int64[:,:]")
def _product(first, second, found):  # type: ignore[no-untyped-def]
    """The 128 bits of each product; gives whether all factors have 64."""
    one, other = int(first.shape[0] > 1), int(second.shape[0] > 1)
    low = np.int64(0xFFFFFFFF)
    for i in range(found.shape[0]):
        a, b = first[i * one, 0], second[i * other, 0]
        if first[i * one, 1] != a >> 63 or second[i * other, 1] != b >> 63:
            return False
        a_low, b_low = a & low, b & low
        a_high, b_high = a >> 32, b >> 32
        # None of these sums leaves 64 bits: `mulhs` of Warren, Hacker's Delight.
        part = a_high * b_low + np.int64(np.uint64(a_low * b_low) >> np.uint64(32))
        rest = a_low * b_high + (part & low)
        found[i, 0] = a * b
        found[i, 1] = a_high * b_high + (part >> 32) + (rest >> 32)
    return True


@kernel("int64[:,:]-, int64[:,:]-, int64, int64, int64, int64[:,:]")
def _sum(first, second, one_up, other_up, sign, found):  # type: ignore[no-untyped-def]
    """The 128 bits of each sum of scaled values; gives whether it is clear that they have 64."""
    one, other = int(first.shape[0] > 1), int(second.shape[0] > 1)
    most, other_most = (np.int64(1) << 62) // one_up, (np.int64(1) << 62) // other_up
    for i in range(found.shape[0]):
        a, b = first[i * one, 0], second[i * other, 0]
        if first[i * one, 1] != a >> 63 or second[i * other, 1] != b >> 63:
            return False
        if not (-most < a < most and -other_most < b < other_most):
            return False
        total = a * one_up + sign * (b * other_up)
        found[i, 0] = total
        found[i, 1] = total >> 63
    return True
