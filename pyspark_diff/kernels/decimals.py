"""Sums and products of decimals whose unscaled values fit into 64 bits, as amounts of money do.

For columns ``x`` and ``y`` of unscaled values ``a`` and ``b``::

    unscaled(x * y) = a * b          unscaled(x + y) = a * 10**i + b * 10**j

with 128 bits for the result: 3 to 6 ns a row. Operands of 128 bits take 100 ns, and operands of 256
bits three times as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff import thresholds
from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.jit import kernel


def computed(name: str, first: Any, second: Any, kind: pa.DataType) -> pa.Array | None:
    """A sum, difference or product, in a type that has room for it.

    Parameters
    ----------
    name : {"+", "-", "*"}
    first, second : pyarrow.Array, pyarrow.ChunkedArray or pyarrow.Scalar
        Of any type.
    kind : pyarrow.DataType
        Type of the result. Its scale is the sum of both scales for a product, else the larger one.

    Returns
    -------
    pyarrow.Array or None
        None for few rows, for other types, and for large values.

    Examples
    --------
    >>> price = pa.array(range(300), pa.decimal128(15, 2))
    >>> computed("*", price, pa.array([2] * 300, pa.decimal128(3, 1)), pa.decimal128(19, 3))[7]
    <pyarrow.Decimal128Scalar: Decimal('14.000')>
    """
    sides = [_array(first), _array(second)]
    rows = max(map(len, sides))
    if rows < thresholds.current.decimal_kernel_rows_min or not all(
        pa.types.is_decimal128(side.type) for side in sides
    ):
        return None
    # The slots of nulls are computed too, and no caller reads them.
    words = [buffers.decimal_words(side) for side in sides]
    totals = np.empty((rows, 2), np.int64)
    if name == "*":
        fits = _product(*words, totals)
    else:
        ups = [kind.scale - side.type.scale for side in sides]
        if max(ups) > 18:
            return None
        factors = [10**up for up in ups]
        fits = _sum(*words, *factors, -1 if name == "-" else 1, totals)
    if not fits:
        return None
    return pa.Array.from_buffers(kind, rows, [_valid(sides, rows), pa.py_buffer(totals)])


def _valid(sides: list[pa.Array], rows: int) -> pa.Buffer | None:
    """A validity bit for each row: no side is null there. None if no row is null."""
    if not any(side.null_count for side in sides):
        return None
    valid_rows = pa.repeat(True, rows)
    for side in sides:
        # The only value of a side is valid for all rows, or for none.
        valid = pc.is_valid(side)
        valid_rows = pc.and_(valid_rows, valid[0] if len(side) == 1 else valid)
    return valid_rows.buffers()[1]


def _array(value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type)
    if isinstance(value, pa.ChunkedArray):
        return value.chunk(0) if value.num_chunks == 1 else value.combine_chunks()
    return value


@kernel("int64[:,:]-, int64[:,:]-, int64[:,:]")
def _product(first, second, out):  # type: ignore[no-untyped-def]
    """The 128 bits of each product; returns whether all factors fit into 64 bits."""
    first_step, second_step = int(first.shape[0] > 1), int(second.shape[0] > 1)
    low = np.int64(0xFFFFFFFF)
    for i in range(out.shape[0]):
        a, b = first[i * first_step, 0], second[i * second_step, 0]
        if first[i * first_step, 1] != a >> 63 or second[i * second_step, 1] != b >> 63:
            return False
        a_low, b_low = a & low, b & low
        a_high, b_high = a >> 32, b >> 32
        # All sums here fit into 64 bits: `mulhs` of Warren, Hacker's Delight.
        part = a_high * b_low + np.int64(np.uint64(a_low * b_low) >> np.uint64(32))
        rest = a_low * b_high + (part & low)
        out[i, 0] = a * b
        out[i, 1] = a_high * b_high + (part >> 32) + (rest >> 32)
    return True


@kernel("int64[:,:]-, int64[:,:]-, int64, int64, int64, int64[:,:]")
def _sum(first, second, first_up, second_up, sign, out):  # type: ignore[no-untyped-def]
    """The 128 bits of each sum of scaled values; returns whether bounds prove that all fit into
    64."""
    first_step, second_step = int(first.shape[0] > 1), int(second.shape[0] > 1)
    first_most, second_most = (np.int64(1) << 62) // first_up, (np.int64(1) << 62) // second_up
    for i in range(out.shape[0]):
        a, b = first[i * first_step, 0], second[i * second_step, 0]
        if first[i * first_step, 1] != a >> 63 or second[i * second_step, 1] != b >> 63:
            return False
        if not (-first_most < a < first_most and -second_most < b < second_most):
            return False
        total = a * first_up + sign * (b * second_up)
        out[i, 0] = total
        out[i, 1] = total >> 63
    return True
