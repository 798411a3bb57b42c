"""Spark SQL's own hashes of Arrow columns, bit for bit.

    spark_hash([c1, c2, …])     == hash(c1, c2, …)               (Murmur3, seed 42)
    spark_xxhash64([c1, c2, …]) == xxhash64(c1, c2, …)           (XXH64, seed 42)
    bucket_of(spark_hash(k), P) == pmod(hash(k), P)              the bucket of the key `k`

So a kernel computes the same bucket or `key64` as Spark, and the hash column does not have to be
sent to Python.

The rules are those of Spark's `Murmur3Hash` and `XxHash64` expressions. A null of any type does not
change the running hash. A struct is hashed as its fields in order, and an array as its elements in
order; `-0.0` hashes like `0.0`, and all NaN hash alike. A decimal of up to 18 digits hashes as its
unscaled 64-bit value, and a longer one as its shortest big-endian bytes. Other types of fixed width
hash as an int if they have at most 32 bits, else as a long. A collation is not visible in Arrow:
strings hash by their bytes, as Spark hashes `UTF8_BINARY`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_diff.kernels import buffers, murmur3, xxhash64
from pyspark_diff.kernels.buffers import Array, read_only

# Spark's limit for decimals that are stored in a long, for any value.
_LONG_DIGITS = 18
_LONG, _ALL = pa.int64(), np.empty(0, np.bool_)
_NAN_BITS = {np.float32: 0x7FC00000, np.float64: 0x7FF8000000000000}


def spark_hash(
    columns: Sequence[pa.Array | pa.ChunkedArray], seed: int = 42
) -> npt.NDArray[np.int32]:
    """Spark SQL's `hash(c1, c2, …)` of each row.

    Parameters
    ----------
    columns : sequence of pyarrow.Array or pyarrow.ChunkedArray
        At least one, all of one length, of types that Spark converts to Arrow. Chunks of different
        columns need not line up.
    seed : int
        Spark's function always has 42.

    Returns
    -------
    numpy.ndarray of int32

    Raises
    ------
    UnsupportedTypeError
        A `TypeError`: a column is, or contains, a type that Spark's Arrow conversion does not
        produce.

    Examples
    --------
    >>> spark_hash([pa.array([1, None, 3])]).tolist()
    [-1712319331, 42, 519220707]
    >>> spark_hash([pa.array(["a", "b"]), pa.array([1, 2])]).tolist()
    [1838122449, -62626031]
    """
    running = np.full(_rows(columns), seed & 0xFFFFFFFF, np.uint32)
    _fold_columns(columns, running, murmur3)
    return running.view(np.int32)


def spark_xxhash64(
    columns: Sequence[pa.Array | pa.ChunkedArray], seed: int = 42
) -> npt.NDArray[np.int64]:
    """Spark SQL's `xxhash64(c1, c2, …)` of each row.

    Parameters
    ----------
    columns : sequence of pyarrow.Array or pyarrow.ChunkedArray
        As for `spark_hash`.
    seed : int
        Spark's function always has 42.

    Returns
    -------
    numpy.ndarray of int64

    Raises
    ------
    UnsupportedTypeError
        As for `spark_hash`.

    Examples
    --------
    >>> spark_xxhash64([pa.array([1, None])]).tolist()
    [-7001672635703045582, 42]
    """
    running = np.full(_rows(columns), seed & 0xFFFFFFFFFFFFFFFF, np.uint64)
    _fold_columns(columns, running, xxhash64)
    return running.view(np.int64)


def bucket_of(hash32: npt.NDArray[np.int32], buckets: int) -> npt.NDArray[np.int32]:
    """Spark SQL's `pmod(hash, buckets)`: the bucket of each hash, never negative.

    Examples
    --------
    >>> bucket_of(np.array([-1, 0, 9], np.int32), 8).tolist()
    [7, 0, 1]
    """
    result = np.empty(hash32.size, np.int32)
    murmur3.bucket_hash(read_only(hash32), _divisor(buckets), result)
    return result


def bucket_of_int64(
    keys: npt.NDArray[np.int64], buckets: int, *, narrow: bool
) -> npt.NDArray[np.int32]:
    """Spark SQL's `pmod(hash(key), buckets)` of one integral column without nulls, in one pass.

    The same as `bucket_of(spark_hash([column]), buckets)`, without the arrays in between.

    Parameters
    ----------
    keys : numpy.ndarray of int64
        The keys, widened if Spark's type is narrower.
    buckets : int
        Number of buckets.
    narrow : bool
        Whether Spark's type is a boolean, byte, short, int or date: Spark hashes these as 32 bits.
        The wrong value gives wrong buckets: `hash(1)` and `hash(1L)` differ.

    Returns
    -------
    numpy.ndarray of int32

    Examples
    --------
    >>> bucket_of_int64(np.array([1, 2, 3]), 8, narrow=False).tolist()
    [5, 0, 3]
    >>> bucket_of_int64(np.array([1, 2, 3]), 8, narrow=True).tolist()
    [3, 6, 3]
    """
    result = np.empty(keys.size, np.int32)
    fill = murmur3.bucket_int if narrow else murmur3.bucket_long
    fill(read_only(keys), _divisor(buckets), np.uint32(42), result)
    return result


def _divisor(buckets: int) -> int:
    if not 0 < buckets < 2**31:
        raise ValueError(f"the number of buckets must be from 1 to 2**31 - 1, not {buckets}")
    return int(buckets)


def _rows(columns: Sequence[pa.Array | pa.ChunkedArray]) -> int:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise ValueError(f"needs columns of one length, not {[len(column) for column in columns]}")
    return lengths.pop()


def _fold_columns(
    columns: Sequence[pa.Array | pa.ChunkedArray], running: Array, algorithm: ModuleType
) -> None:
    for column in columns:
        buffers.check_type(column.type)
    for column in columns:
        begin = 0
        if isinstance(column, pa.Array) and column.type == _LONG and not column.null_count:
            # As below, with a cheaper call: the call is most of the cost for few rows.
            rows = np.arange(len(column) + 1)
            algorithm.fold_long(read_only(column.to_numpy()), _ALL, rows[:-1], rows[1:], running)
            continue
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            bounds = np.arange(len(chunk) + 1)
            part = running[begin : begin + len(chunk)]
            _folder(chunk, algorithm)(bounds[:-1], bounds[1:], part)
            begin += len(chunk)


# A fold takes (starts, stops, running): the column's values at `starts[i] <= p < stops[i]` enter
# `running[i]`, in place and in order. It is created once and called for many ranges, since the
# views of a column can cost a pass over it.
Fold = Callable[[Array, Array, Array], None]


def _folder(column: pa.Array, algorithm: ModuleType) -> Fold:
    kind = column.type
    if pa.types.is_null(kind) or len(column) == 0:
        return lambda starts, stops, running: None
    valid = read_only(buffers.validity(column))
    if pa.types.is_struct(kind):
        return _struct_folder(column, valid, algorithm)
    if buffers.is_list(kind):
        return _list_folder(column, valid, algorithm)
    if buffers.is_bytes(kind) or (pa.types.is_decimal(kind) and kind.precision > _LONG_DIGITS):
        make = _strings if buffers.is_bytes(kind) else _decimal_bytes
        data, begins, ends = map(read_only, make(column))

        def fold_bytes(starts: Array, stops: Array, running: Array) -> None:
            starts, stops = read_only(starts), read_only(stops)
            algorithm.fold_bytes(data, begins, ends, valid, starts, stops, running)

        return fold_bytes

    words = read_only(_words(column))
    fold_words = algorithm.fold_int if words.dtype == np.int32 else algorithm.fold_long

    def fold_fixed(starts: Array, stops: Array, running: Array) -> None:
        fold_words(words, valid, read_only(starts), read_only(stops), running)

    return fold_fixed


def _struct_folder(column: pa.Array, valid: Array, algorithm: ModuleType) -> Fold:
    children = [_folder(child, algorithm) for child in buffers.fields(column)]

    def fold(at: Array, running: Array) -> None:
        # A null parent is an empty range of its fields, which may have any content there.
        until = at + valid[at] if valid.size else at + 1
        for child in children:
            child(at, until, running)

    return _by_position(fold)


def _list_folder(column: pa.Array, valid: Array, algorithm: ModuleType) -> Fold:
    elements, offsets = buffers.elements(column)
    child = _folder(elements, algorithm)

    def fold(at: Array, running: Array) -> None:
        # The slot of a null may have a length, and its elements must not be read.
        until = np.where(valid[at], offsets[at + 1], offsets[at]) if valid.size else offsets[at + 1]
        child(offsets[at], until, running)

    return _by_position(fold)


def _by_position(fold_one: Callable[[Array, Array], None]) -> Fold:
    """A fold of ranges of nested values, from a function that folds one value of each row.

    All parts of a value come before the next value, so the fold takes values by their position. It
    folds the first value of every row, then the second value of every row that has one, and so on.
    """

    def fold(starts: Array, stops: Array, running: Array) -> None:
        rows = np.flatnonzero(stops > starts)
        position = 0
        while rows.size:
            part = running[rows]
            fold_one(starts[rows] + position, part)
            running[rows] = part
            position += 1
            rows = rows[stops[rows] > starts[rows] + position]

    return fold


def _words(column: pa.Array) -> Array:
    """The int32 or int64 that Spark hashes in place of each value of fixed width."""
    if pa.types.is_decimal(column.type):
        return buffers.decimal_words(column)[:, 0]
    values = buffers.fixed(column)
    if np.issubdtype(values.dtype, np.floating):
        integer = np.int32 if values.dtype == np.float32 else np.int64
        # Adding zero turns -0.0 into 0.0 and changes nothing else.
        bits = (values + values.dtype.type(0)).view(integer)
        return np.where(np.isnan(values), integer(_NAN_BITS[values.dtype.type]), bits)
    return values if values.dtype == np.int64 else values.astype(np.int32, copy=False)


def _strings(column: pa.Array) -> tuple[Array, Array, Array]:
    """Data, begins and ends of the bytes of each string."""
    offsets = buffers.offsets(column).astype(np.int64, copy=False)
    return buffers.data(column), offsets[:-1], offsets[1:]


def _decimal_bytes(column: pa.Array) -> tuple[Array, Array, Array]:
    """Data, begins and ends of the fewest big-endian two's complement bytes of each decimal."""
    words = buffers.decimal_words(column)
    data = np.ascontiguousarray(words.view(np.uint8)[:, ::-1])
    sign = (words[:, 1] >> 63).astype(np.uint8)
    magnitude = data ^ sign[:, np.newaxis]
    # Zero and minus one have no significant byte, and keep their last one.
    magnitude[:, -1] |= 1
    first = np.argmax(magnitude != 0, axis=1)
    # The top bit of the first stored byte must be the sign.
    first -= magnitude[np.arange(len(first)), first] >= 0x80
    ends = np.arange(1, len(first) + 1) * 16
    return data.reshape(-1), ends - 16 + first, ends
