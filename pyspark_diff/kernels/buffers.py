"""Arrow columns as numpy arrays, without a copy where the layout allows one.

Every view starts at the first row of the column, at any offset into the Arrow buffers. The slots of
nulls have arbitrary content. The kernels know only the types that PySpark's conversion from Spark
yields; `check_type` refuses all other types by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_diff.errors import UnsupportedTypeError

Array = npt.NDArray[Any]

# The type of the values that `fixed` returns; for dates and times the value is a count of units.
FIXED: dict[pa.DataType, type[np.generic]] = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.date32(): np.int32,
    pa.time64("ns"): np.int64,
    pa.duration("us"): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}


def is_timestamp(kind: pa.DataType) -> bool:
    """Whether the type is a timestamp in the unit that Spark uses, with or without a zone."""
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "us"


def is_bytes(kind: pa.DataType) -> bool:
    """Whether the type is a string or binary type with offsets."""
    is_string = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(is_string or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is a list whose elements lie in one range of a child column.

    A map is a list of its entries. An entry is a struct of a key and a value.
    """
    is_variable = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
    return bool(is_variable or pa.types.is_fixed_size_list(kind))


def check_type(kind: pa.DataType) -> None:
    """Raise `UnsupportedTypeError`, a `TypeError`, unless the kernels know the type.

    Examples
    --------
    >>> check_type(pa.list_(pa.string()))
    >>> check_type(pa.dictionary(pa.int32(), pa.string()))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    pyspark_diff.errors.UnsupportedTypeError: no hash or equality for type dictionary<...
    """
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            check_type(kind.field(i).type)
    elif is_list(kind):
        check_type(kind.field(0).type)
    elif not (
        kind in FIXED
        or is_timestamp(kind)
        or is_bytes(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_null(kind)
    ):
        raise UnsupportedTypeError(
            f"no hash or equality for type {kind}; cast the column, or leave it out of the key"
        )


def read_only(values: Array) -> Array:
    """A contiguous, read-only view.

    Arrow's own buffers are read-only, and numba compiles a kernel anew for each kind of array. With
    one kind only there is no second compilation.
    """
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


def _read(column: pa.Array, number: int, dtype: type[np.generic], start: int, count: int) -> Array:
    # Columns without rows may have no buffer at all.
    if count == 0:
        return np.empty(0, dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[number], dtype, count, start * size)


def _bits(column: pa.Array, number: int) -> Array:
    offset, rows = column.offset, len(column)
    first = offset // 8
    packed = _read(column, number, np.uint8, first, (offset + rows + 7) // 8 - first)
    bits = np.unpackbits(packed, bitorder="little")
    return bits[offset % 8 : offset % 8 + rows].view(np.bool_)


def validity(column: pa.Array) -> Array:
    """One flag for each row, or an array of length zero if no row is null."""
    if column.null_count == 0:
        return np.empty(0, np.bool_)
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.bool_)
    return _bits(column, 0)


def validity_at(column: pa.Array, rows: Array) -> Array:
    """`validity(column)[rows]` at the cost of `rows` only, or length zero if no row is null."""
    if column.null_count == 0:
        return np.empty(0, np.bool_)
    if pa.types.is_null(column.type):
        return np.zeros(len(rows), np.bool_)
    at = rows + column.offset
    packed: Array = np.frombuffer(column.buffers()[0], np.uint8)
    return (packed[at >> 3] >> (at & 7).astype(np.uint8) & 1).view(np.bool_)


def fixed(column: pa.Array) -> Array:
    """Values of a boolean, integer, float, date, time, timestamp or duration column."""
    if pa.types.is_boolean(column.type):
        return _bits(column, 1)
    return _read(column, 1, FIXED.get(column.type, np.int64), column.offset, len(column))


def decimal_words(column: pa.Array) -> Array:
    """Unscaled values of a decimal128 column: a row of low and high 64 bits for each value."""
    vectors = _read(column, 1, np.int64, 2 * column.offset, 2 * len(column))
    return vectors.reshape(-1, 2)


def offsets(column: pa.Array) -> Array:
    """The start of each row of a string, binary or list column, and the end of the last row.

    Positions in `data` or `column.values`; row `i` is at `offsets[i] <= p < offsets[i + 1]`.
    """
    kind = column.type
    if len(column) == 0:
        return np.zeros(1, np.int64)
    if pa.types.is_fixed_size_list(kind):
        return np.arange(column.offset, column.offset + len(column) + 1) * kind.list_size
    large = pa.types.is_large_list(kind) or pa.types.is_large_string(kind)
    large = large or pa.types.is_large_binary(kind)
    return _read(column, 1, np.int64 if large else np.int32, column.offset, len(column) + 1)


def data(column: pa.Array) -> Array:
    """All bytes that the offsets of a string or binary column point into."""
    buffer = column.buffers()[2]
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def elements(column: pa.Array) -> tuple[pa.Array, Array]:
    """Elements of the rows of a list column, and the offsets of the rows into them.

    Unlike `column.values` and `offsets` it omits the elements of other slices of the same column,
    at the price of new offsets.
    """
    bounds = offsets(column).astype(np.int64, copy=False)
    first, last = int(bounds[0]), int(bounds[-1])
    return column.values.slice(first, last - first), bounds - first


def fields(column: pa.StructArray) -> list[pa.Array]:
    """Columns of the fields of a struct column; they do not mark the nulls of the struct."""
    return [column.field(i) for i in range(column.type.num_fields)]
