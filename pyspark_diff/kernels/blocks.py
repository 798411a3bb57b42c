"""Whole numbers in the order of values, and the blocks that these are cut into.

    a <= b  ⟹  number(a) <= number(b)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.ranking import float_codes
from pyspark_diff.kernels.updates import Int64

#: What a float is at most as a number of blocks.
_MOST = 2.0**62


def numbers(column: pa.Array, size: int | float | None) -> Int64:
    """The numbers of values, none of which is null: those of blocks of a size, if one is given.

    Parameters
    ----------
    column : pyarrow.Array
        Numbers, texts, bytes, dates, timestamps or booleans.
    size : int, float or None
        In the unit of the type: for dates days, for timestamps microseconds, for decimals the last
        digit that `spare_bits` leaves. None for numbers that only equal values share, as far as 64
        bits tell them apart.

    Examples
    --------
    >>> numbers(pa.array([-1, 0, 9, 10]), 10).tolist()
    [-1, 0, 0, 1]
    >>> found = numbers(pa.array(["", "a", "ab", "b"]), None)
    >>> (found[1:] > found[:-1]).tolist()
    [True, True, True]
    """
    kind = column.type
    if pa.types.is_floating(kind):
        if size is None:
            return float_codes(pc.cast(column, pa.float64()))
        with np.errstate(invalid="ignore", over="ignore"):
            found = np.floor(buffers.fixed(column).astype(np.float64) / size)
        # NaN is the largest.
        return np.where(np.isnan(found), _MOST, np.clip(found, -_MOST, _MOST)).astype(np.int64)
    if pa.types.is_decimal(kind):
        low, high = buffers.decimal_words(column).T
        number = low
        spare = spare_bits(kind.precision)
        if spare:
            # The upper 64 bits of those that it may have.
            number = high if spare == 64 else (
                (high << 64 - spare) | (low >> spare) & ((1 << 64 - spare) - 1)
            )
    elif buffers.is_bytes(kind):
        number = _first_bytes(column)
    else:
        number = buffers.fixed(column).astype(np.int64)
    return number if size is None else number // max(1, int(size))


def spare_bits(precision: int) -> int:
    """How many of the bits of decimals are the last ones, for which a number has no room."""
    return max(0, (10**precision).bit_length() - 63)


def _first_bytes(column: pa.Array) -> Int64:
    """The first eight bytes of texts as numbers in their order."""
    offsets, data = buffers.offsets(column).astype(np.int64), buffers.data(column)
    found = np.zeros(len(column), np.uint64)
    for place in range(8):
        at = offsets[:-1] + place
        there = at < offsets[1:]
        found[there] |= data[at[there]].astype(np.uint64) << np.uint64(56 - 8 * place)
    return (found ^ np.uint64(1 << 63)).view(np.int64)
