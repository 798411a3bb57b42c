"""Arrow tables as pandas frames for functions of users.

    to_frame(A + B) = to_frame(A) + to_frame(B)

The value of a row depends on that row alone. By default whole numbers are floats in pandas, and
truth values objects, if any row of the column has a null. Then a function would compute one value
for an inserted row and another value for its removal, and digits beyond 2**53 would be lost. So
both have pandas' nullable types, also in a column without nulls: ``7 // 0`` is 0 with these types
and infinite without.

Pandas 3 has a type of its own for texts, in which a null is NaN. Here texts are objects and None in
all versions, so a function returns the same before and after an upgrade.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

from pyspark_diff.spark.values import NO_ZONE, no_object, to_array

#: Types whose usual conversion depends on nulls, and the types of pandas that have a null.
_NULLABLE = {
    pa.int8(): pd.Int8Dtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(),
}

#: Kinds of pandas' moments and durations, with the types of Arrow that have their values.
_MOMENTS = {
    "M": (pa.types.is_timestamp, pa.types.is_date), "m": (pa.types.is_duration,),
}


def to_frame(table: pa.Table | pa.RecordBatch) -> pd.DataFrame:
    """The pandas frame of a table.

    Returns
    -------
    pandas.DataFrame
        Whole numbers and truth values have the types ``Int64``, ``boolean`` and so on. Texts are
        objects, and their nulls are None. Lists are arrays of numpy, and structs and maps are
        dicts. A list with a null has objects. A map with nested keys, which no dict can have, is a
        list of pairs. Instants are in UTC.

    Raises
    ------
    FunctionError
        If a date is outside of the years 1 to 9999.

    Examples
    --------
    >>> to_frame(pa.table({"n": [2**53 + 1, None]}))["n"].tolist()
    [9007199254740993, <NA>]
    """
    try:
        frame: pd.DataFrame = table.to_pandas(types_mapper=_NULLABLE.get)
        columns = {
            name: _nested(column)
            for name, column in zip(table.schema.names, table.columns)
            if pa.types.is_nested(column.type) and (_has_nulls(column) or _maps(column.type))
        }
        columns.update(
            (name, pd.Series(column.to_numpy(zero_copy_only=False), dtype=object))
            for name, column in zip(table.schema.names, table.columns)
            if isinstance(frame.dtypes[name], pd.StringDtype)
        )
    except (OverflowError, ValueError) as beyond:
        raise no_object(f"of {', '.join(table.schema.names)}", beyond) from beyond
    for name, series in columns.items():
        frame[name] = series
    return frame


def _nested(column: pa.Array | pa.ChunkedArray) -> pd.Series:
    maps = _maps(column.type)
    options: dict[str, Any] = {"integer_object_nulls": True}
    if maps and not any(pa.types.is_nested(kind.key_type) for kind in maps):
        options["maps_as_pydicts"] = "strict"
    if not _has_nulls(column):
        return column.to_pandas(**options)
    # Arrow converts the elements of all rows as one array, so each row is converted by itself.
    values = [column.slice(row, 1).to_pandas(**options).iloc[0] for row in range(len(column))]
    return pd.Series(values, dtype=object)


def _maps(kind: pa.DataType) -> list[pa.DataType]:
    """The types of maps in a type."""
    inside = [part for i in range(kind.num_fields) for part in _maps(kind.field(i).type)]
    return [kind, *inside] if pa.types.is_map(kind) else inside


def _has_nulls(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a column, or a part of its values, has a type of `_NULLABLE` and a null."""
    if isinstance(column, pa.ChunkedArray):
        return any(map(_has_nulls, column.chunks))
    kind = column.type
    if kind in _NULLABLE:
        return bool(column.null_count)
    if pa.types.is_struct(kind):
        return any(_has_nulls(column.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _has_nulls(column.keys) or _has_nulls(column.items)
    return pa.types.is_list(kind) and _has_nulls(column.values)


def from_series(column: pd.Series, kind: pa.DataType) -> pa.Array:
    """The Arrow column of a series that a function of a user returned.

    Raises
    ------
    TypeError, pyarrow.ArrowException
        If a value is not exactly of this type, or an instant has no time zone.
    """
    if isinstance(column.dtype, pd.StringDtype):
        column = column.astype(object)  # Arrow would parse texts as numbers, dates and so on
    if column.dtype != object or pa.types.is_string(kind):
        if column.dtype.kind in _MOMENTS and column.notna().any():
            if not any(is_kind(kind) for is_kind in _MOMENTS[column.dtype.kind]):
                # Arrow would count units, which are nanoseconds or others by pandas' version.
                raise TypeError(f"a {column.dtype} is not a {kind}")
            check_zones(pa.timestamp("us", getattr(column.dtype, "tz", None) and "UTC"), kind)
        return pa.Array.from_pandas(column, type=kind)
    # Arrow checks the range of arrays of numbers, but truncates Python numbers silently.
    missing = [v is None or v is pd.NA or v is pd.NaT or (isinstance(v, float) and v != v)
               for v in column]
    values = [None if gone else v for v, gone in zip(column, missing)]
    return to_array(values, kind, zoned=True)


def check_zones(kind: pa.DataType, wanted: pa.DataType) -> None:
    """Refuse a type of moments with a time zone for one without, and the reverse.

    Raises
    ------
    TypeError
    """
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(wanted):
        if wanted.tz is not None and kind.tz is None:
            raise TypeError(f"a {kind} {NO_ZONE}")
        if wanted.tz is None and kind.tz is not None:
            raise TypeError(f"a {kind} has a time zone, and the column has none")
    elif kind.num_fields == wanted.num_fields:
        for i in range(kind.num_fields):
            check_zones(kind.field(i).type, wanted.field(i).type)
