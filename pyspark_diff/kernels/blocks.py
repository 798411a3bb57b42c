"""Whole numbers in the order of values, and the blocks that divide these numbers.

    a <= b  ⟹  number(a) <= number(b)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.ranking import float_codes
from pyspark_diff.kernels.updates import Int64

#: The largest block number of a float.
_MOST = 2.0**62


def numbers(column: pa.Array, size: int | float | None) -> Int64:
    """The numbers of values without nulls: the numbers of their blocks if there is a block size.

    Parameters
    ----------
    column : pyarrow.Array
        Numbers, texts, bytes, dates, timestamps or booleans.
    size : int, float or None
        In the unit of the type: days for dates, microseconds for timestamps, and for decimals the
        last digit that `spare_bits` leaves. With None, only equal values share a number, as far as
        64 bits distinguish them.

    Examples
    --------
    >>> numbers(pa.array([-1, 0, 9, 10]), 10).tolist()
    [-1, 0, 0, 1]
    >>> codes = numbers(pa.array(["", "a", "ab", "b"]), None)
    >>> (codes[1:] > codes[:-1]).tolist()
    [True, True, True]
    """
    kind = column.type
    if pa.types.is_floating(kind):
        if size is None:
            return float_codes(pc.cast(column, pa.float64()))
        with np.errstate(invalid="ignore", over="ignore"):
            block = np.floor(buffers.fixed(column).astype(np.float64) / size)
        # NaN is the largest.
        return np.where(np.isnan(block), _MOST, np.clip(block, -_MOST, _MOST)).astype(np.int64)
    if pa.types.is_decimal(kind):
        low, high = buffers.decimal_words(column).T
        number = low
        spare = spare_bits(kind.precision)
        if spare:
            # The upper 64 bits of the possible bits.
            number = high if spare == 64 else (
                (high << 64 - spare) | (low >> spare) & ((1 << 64 - spare) - 1)
            )
    elif buffers.is_bytes(kind):
        number = _first_bytes(column)
    else:
        number = buffers.fixed(column).astype(np.int64)
    return number if size is None else number // max(1, int(size))


def spare_bits(precision: int) -> int:
    """The number of last bits of decimals that do not fit into a number."""
    return max(0, (10**precision).bit_length() - 63)


def _first_bytes(column: pa.Array) -> Int64:
    """The first eight bytes of texts as numbers in their order."""
    offsets, data = buffers.offsets(column).astype(np.int64), buffers.data(column)
    prefix = np.zeros(len(column), np.uint64)
    for place in range(8):
        at = offsets[:-1] + place
        there = at < offsets[1:]
        prefix[there] |= data[at[there]].astype(np.uint64) << np.uint64(56 - 8 * place)
    return (prefix ^ np.uint64(1 << 63)).view(np.int64)
