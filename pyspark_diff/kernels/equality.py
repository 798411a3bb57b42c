"""Equality of rows as Spark groups them, and the normal form of floats and maps.

    null = null      NaN = NaN      -0.0 = 0.0      arrays and structs: part by part, likewise
    maps: entry by entry, after their entries are in the order of their keys (`normalise`)
    rows_equal(columns, i, i)          is true of every row i
    rows_equal(columns, i, j)  ⟹  spark_hash(row i) == spark_hash(row j)
    rows_equal([c], i, j) == rows_equal([normalise(c)], i, j)

A kernel searches by hash and then calls `rows_equal`, so a collision of hashes never joins two
keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_diff.errors import SchemaError
from pyspark_diff.kernels import buffers, ranking
from pyspark_diff.kernels.buffers import Array, read_only
from pyspark_diff.kernels.jit import kernel


def rows_equal(
    columns: Sequence[pa.Array], left: npt.NDArray[Any], right: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Whether row `left[k]` equals row `right[k]` in every column, for each `k`.

    Exact for every type, nested types included. The cost follows the number of pairs and the sizes
    of their strings and lists, not the length of the columns. Rows outside of the pairs are not
    read, except for booleans and lists of fixed size, so the columns may be mapped files.

    Parameters
    ----------
    columns : sequence of pyarrow.Array
        Columns of one table. With no columns, all rows are equal.
    left, right : numpy.ndarray of integers
        Row numbers, of one length.

    Returns
    -------
    numpy.ndarray of bool

    Raises
    ------
    UnsupportedTypeError
        A `TypeError`: a column is, or contains, a type that Spark's Arrow conversion does not
        produce.

    Examples
    --------
    >>> column = pa.array([0.0, -0.0, float("nan"), None, None])
    >>> rows_equal([column], np.array([0, 0, 2, 3, 3]), np.array([1, 2, 2, 4, 0])).tolist()
    [True, False, True, True, False]
    """
    left, right = np.asarray(left), np.asarray(right)
    result = np.ones(len(left), np.bool_)
    for column in columns:
        buffers.check_type(column.type)
    for column in columns:
        result &= _equal(column, left, right)
    return result


def normalise(column: pa.Array) -> pa.Array:
    """The column with `0.0` for `-0.0`, one NaN for all NaN, and the entries of each map in the
    order of their keys, also inside structs, lists and maps.

    Values that group together then have the same bits, so they can be compared, sorted and merged
    as bytes. The sign of a zero, the bits of a NaN and the order of the entries of a map are lost.
    Grouping in Spark loses them too.

    Parameters
    ----------
    column : pyarrow.Array
        Of any type; only the types of `rows_equal` may have floats or maps inside.

    Returns
    -------
    pyarrow.Array
        The same object if there is no float and no map inside, else a column of the same type.

    Raises
    ------
    SchemaError
        If a map has a key twice.

    Examples
    --------
    >>> normalise(pa.array([-0.0, 1.5, None])).to_pylist()
    [0.0, 1.5, None]
    >>> kind = pa.map_(pa.string(), pa.float64())
    >>> normalise(pa.array([[("b", 1.0), ("a", -0.0)], None, []], kind)).to_pylist()
    [[('a', 0.0), ('b', 1.0)], None, []]
    >>> words = pa.array(["a"])
    >>> normalise(words) is words
    True
    """
    if not has_forms(column.type):
        return column
    buffers.check_type(column.type)
    return _normalised(column)


def normal_table(table: pa.Table) -> pa.Table:
    """A table with `normalise` applied to its columns with floats; maps without floats stay the
    same.

    Examples
    --------
    >>> normal_table(pa.table({"x": [-0.0], "n": [1]})).to_pydict()
    {'x': [0.0], 'n': [1]}
    """
    for place, field in enumerate(table.schema):
        if has_floats(field.type):
            chunks = [normalise(chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


def _equal(column: pa.Array, left: Array, right: Array) -> Array:
    """Whether the pairs are equal in one column of a checked type."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.ones(len(left), np.bool_)
    ours, theirs = buffers.validity_at(column, left), buffers.validity_at(column, right)
    if not ours.size:
        return _equal_values(column, left, right)
    # Two nulls are equal and a null equals nothing else, for any content of its slot.
    result = ~(ours | theirs)
    pairs = np.flatnonzero(ours & theirs)
    result[pairs] = _equal_values(column, left[pairs], right[pairs])
    return result


def _equal_values(column: pa.Array, left: Array, right: Array) -> Array:
    """Whether the pairs are equal, if none of their rows is null in this column."""
    kind = column.type
    if pa.types.is_struct(kind):
        return rows_equal(buffers.fields(column), left, right)
    if buffers.is_list(kind):
        return _equal_lists(column, left, right)
    if buffers.is_bytes(kind):
        bounds, result = read_only(buffers.offsets(column)), np.empty(len(left), np.bool_)
        data = read_only(buffers.data(column))
        _equal_bytes(data, bounds, read_only(left), read_only(right), result)
        return result
    if pa.types.is_decimal(kind):
        low, high = buffers.decimal_words(column).T
        return (low[left] == low[right]) & (high[left] == high[right])
    values = buffers.fixed(column)
    ours, theirs = values[left], values[right]
    if pa.types.is_floating(kind):
        # Only a NaN differs from itself.
        return (ours == theirs) | ((ours != ours) & (theirs != theirs))
    return ours == theirs


@kernel(
    "uint8[:]-, int32[:]-, int64[:]-, int64[:]-, bool[:]",
    "uint8[:]-, int64[:]-, int64[:]-, int64[:]-, bool[:]",
)
def _equal_bytes(data, offsets, left, right, result):  # type: ignore[no-untyped-def]
    for k in range(result.size):
        ours, theirs = np.int64(offsets[left[k]]), np.int64(offsets[right[k]])
        end = np.int64(offsets[left[k] + 1])
        same = end - ours == offsets[right[k] + 1] - theirs
        # Eight bytes at a time, with one branch for all eight.
        while same and end - ours >= 8:
            for i in range(8):
                same &= data[ours + i] == data[theirs + i]
            ours += 8
            theirs += 8
        while same and ours < end:
            same = data[ours] == data[theirs]
            ours += 1
            theirs += 1
        result[k] = same


def _equal_lists(column: pa.Array, left: Array, right: Array) -> Array:
    bounds = buffers.offsets(column)
    begins, others = bounds[left].astype(np.int64), bounds[right].astype(np.int64)
    sizes = bounds[left + 1] - begins
    result = sizes == bounds[right + 1] - others
    # The pairs of equal size become pairs of elements, all at once, and one unequal pair of
    # elements makes its pair of rows unequal.
    counts = np.where(result, sizes, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    position = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    same = _equal(column.values, begins[owner] + position, others[owner] + position)
    result[owner[~same]] = False
    return result


def has_floats(kind: pa.DataType) -> bool:
    """Whether there is a float inside a type.

    Examples
    --------
    >>> has_floats(pa.list_(pa.float32())), has_floats(pa.map_(pa.int32(), pa.string()))
    (True, False)
    """
    if pa.types.is_nested(kind):
        return any(has_floats(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def has_forms(kind: pa.DataType) -> bool:
    """Whether equal values of a type may differ in bits: there is a float or a map inside.

    Examples
    --------
    >>> has_forms(pa.list_(pa.float32())), has_forms(pa.struct([("n", pa.int32())]))
    (True, False)
    """
    if pa.types.is_nested(kind):
        return pa.types.is_map(kind) or any(
            has_forms(kind.field(i).type) for i in range(kind.num_fields)
        )
    return bool(pa.types.is_floating(kind))


def _normalised(column: pa.Array) -> pa.Array:
    kind, rows = column.type, len(column)
    if not has_forms(kind):
        return column
    valid = buffers.validity(column)
    nulls = pa.py_buffer(np.packbits(valid, bitorder="little")) if valid.size else None
    if pa.types.is_struct(kind):
        children = [_normalised(child) for child in buffers.fields(column)]
        return pa.Array.from_buffers(kind, rows, [nulls], children=children)
    if buffers.is_list(kind):
        elements, offsets = buffers.elements(column)
        layout = [nulls]
        if not pa.types.is_fixed_size_list(kind):
            width = np.int64 if pa.types.is_large_list(kind) else np.int32
            layout.append(pa.py_buffer(offsets.astype(width)))
        elements = _normalised(elements)
        if pa.types.is_map(kind):
            elements = _by_key(elements, offsets)
        return pa.Array.from_buffers(kind, rows, layout, children=[elements])
    values = buffers.fixed(column)
    values = values + values.dtype.type(0)  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    return pa.Array.from_buffers(kind, rows, [nulls, pa.py_buffer(values)])


def _by_key(entries: pa.Array, offsets: Array) -> pa.Array:
    """The entries of maps; the entries of each map are in the order of their keys."""
    code = ranking.codes([buffers.fields(entries)[0]], ((False, False),))
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    if ((owner[1:] > owner[:-1]) | (code[1:] > code[:-1])).all():
        return entries
    order = np.lexsort((code, owner))
    code, owner = code[order], owner[order]
    twice = np.flatnonzero((owner[1:] == owner[:-1]) & (code[1:] == code[:-1]))
    if twice.size:
        key = buffers.fields(entries)[0][int(order[twice[0]])].as_py()
        raise SchemaError(
            f"a map has the key {key!r} twice; a map of Spark has each key once. Leave one of the "
            "two entries out"
        )
    return entries.take(pa.array(order))
