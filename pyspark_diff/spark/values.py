"""Python values as Arrow columns: exactly, or not at all.

Arrow by itself accepts 1.5 as an integer, a datetime as a date and a number as a timestamp, and
loses digits. Here::

    to_array(values, kind).to_pylist() == values

A naive datetime is local time, and a float is rounded to the width of its column. The inverse,
`to_rows`, returns the values of ``collect``: a Row for a struct, a dict for a map, local time for
an instant.
"""

from __future__ import annotations

import datetime
import decimal
from array import array
from typing import Any, Callable, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from pyspark_diff.errors import FunctionError
from pyspark_diff.kernels import buffers
from pyspark_diff.spark.data_types import contains

#: Types that Arrow represents as structs of non-null parts.
OPAQUE = tuple(
    getattr(T, name) for name in ("VariantType", "GeometryType", "GeographyType")
    if hasattr(T, name)
)

#: The end of the message about a naive value of a column of instants.
NO_ZONE = (
    "has no time zone, and the tasks of a function may run in several. Give it one, such as "
    "tzinfo=datetime.timezone.utc, or declare the column as timestamp_ntz"
)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)

#: The Python types of the values of each Arrow type. A bool is no integer here, and a datetime no
#: date.
_ACCEPTED: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (pa.types.is_boolean, (bool, np.bool_)),
    (pa.types.is_integer, (int, np.integer)),
    (pa.types.is_floating, (int, float, np.integer, np.floating)),
    (pa.types.is_decimal, (int, decimal.Decimal)),
    (pa.types.is_string, (str,)),
    (pa.types.is_binary, (bytes, bytearray, memoryview)),
    (pa.types.is_date, (datetime.date,)),
    (pa.types.is_timestamp, (datetime.datetime,)),
    (pa.types.is_time, (datetime.time,)),
    (pa.types.is_duration, (datetime.timedelta,)),
)


def to_array(values: Sequence[Any], kind: pa.DataType, *, zoned: bool = False) -> pa.Array:
    """A column of Python values, with None as null.

    Parameters
    ----------
    values : sequence
        For a struct dicts and Rows, matched by name, or tuples, matched by position; for a map
        dicts; for a list lists, tuples or arrays.
    kind : pyarrow.DataType
    zoned : bool
        Whether to refuse a naive datetime as an instant. A function may run on several machines,
        and their local times may differ.

    Raises
    ------
    TypeError
        If a value is not exactly of this type.

    Examples
    --------
    >>> to_array([1, None], pa.int64()).to_pylist()
    [1, None]
    >>> to_array([1.5], pa.int64())
    Traceback (most recent call last):
      ...
    TypeError: 1.5 is a float
    """
    plain: Sequence[Any]
    if pa.types.is_nested(kind):
        plain = [_plain(value, kind, zoned) for value in values]
    else:
        accepted = _accepted(kind)
        for python in set(map(type, values)):
            if not _is_accepted(python, accepted):
                _refuse(next(value for value in values if type(value) is python))
        plain = list(values)
        if pa.types.is_timestamp(kind):
            plain = [_moment(value, kind, zoned) for value in values]
    try:
        return pa.array(plain, type=kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise TypeError(str(error)) from error


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column for functions of users: Arrow's values, with a dict for a map.

    A map with nested keys, which no dict can have, is a list of pairs.

    Raises
    ------
    FunctionError
        If a date or moment is outside of the years 1 to 9999.

    Examples
    --------
    >>> python_values(pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())))
    [{'a': 1}, None]
    """
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as beyond:
        raise no_object(f"of type {column.type}", beyond) from beyond
    convert = _with_dicts(column.type)
    return values if convert is None else list(map(convert, values))


def no_object(value: str, error: Exception) -> FunctionError:
    """The error of a value that a function of a user cannot receive.

    Parameters
    ----------
    value : str
        The value in words, for the message.
    """
    return FunctionError(
        f"a value {value} has no Python object: {error}. Python has dates from 0001-01-01 to "
        "9999-12-31. Filter such rows, cast the column to string, or pass a function of Arrow "
        "(mapInArrow, form='arrow', by_table='arrow')"
    )


def _with_dicts(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that replaces the pairs in a value of Arrow by dicts; None for a type without
    maps."""
    if not pa.types.is_nested(kind):
        return None
    if pa.types.is_map(kind):
        make = list if pa.types.is_nested(kind.key_type) else dict
        key, item = (_with_dicts(part) or _same for part in (kind.key_type, kind.item_type))
        return lambda value: None if value is None else make(
            (key(k), item(v)) for k, v in value
        )
    parts = {kind.field(i).name: _with_dicts(kind.field(i).type) for i in _range(kind)}
    if not any(parts.values()):
        return None
    if pa.types.is_struct(kind):
        each = {name: convert or _same for name, convert in parts.items()}
        return lambda value: None if value is None else {
            name: each[name](part) for name, part in value.items()
        }
    (element,) = parts.values()
    return lambda value: None if value is None else list(map(element or _same, value))


def filled(table: pa.Table, struct: T.StructType) -> pa.Table:
    """A table for `createDataFrame`, in which the parts of a null variant are not null.

    Arrow represents a variant, and a geometry, as a struct with non-null parts. Spark makes these
    parts null for a null value, and PySpark refuses such a table.

    Parameters
    ----------
    table : pyarrow.Table
        Columns in the order of ``struct``.

    Examples
    --------
    >>> struct = T.StructType([T.StructField("v", T.VariantType())])
    >>> kind = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    >>> filled(pa.table({"v": pa.array([None], kind)}), struct)["v"].type.field(0).nullable
    False
    """
    for place, field in enumerate(struct.fields):
        if contains(field.dataType, OPAQUE):
            chunks = [_filled(chunk, field.dataType) for chunk in table.column(place).chunks]
            if chunks:
                table = table.set_column(place, field.name, pa.chunked_array(chunks))
    return table


def _filled(array: pa.Array, kind: T.DataType) -> pa.Array:
    if not contains(kind, OPAQUE):
        return array
    if isinstance(kind, OPAQUE):
        fields = list(to_arrow_type(kind))
        parts = [
            array.field(i).fill_null(0 if pa.types.is_integer(field.type) else b"")
            for i, field in enumerate(fields)
        ]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    if isinstance(kind, T.StructType):
        parts = [_filled(array.field(i), f.dataType) for i, f in enumerate(kind.fields)]
        fields = [pa.field(f.name, part.type) for f, part in zip(kind.fields, parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    elements, offsets = buffers.elements(array)
    if isinstance(kind, T.MapType):
        inside = (kind.keyType, kind.valueType)
        parts = [_filled(elements.field(i), part) for i, part in enumerate(inside)]
        names = [pa.field("key", parts[0].type, nullable=False), pa.field("value", parts[1].type)]
        elements = pa.StructArray.from_arrays(parts, fields=names)
        arrow = pa.map_(*names)
    else:
        assert isinstance(kind, T.ArrayType)
        elements = _filled(elements, kind.elementType)
        arrow = pa.list_(pa.field("element", elements.type))
    valid = buffers.validity(array)
    nulls = pa.py_buffer(np.packbits(valid, bitorder="little")) if valid.size else None
    layout = [nulls, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(arrow, len(array), layout, children=[elements])


def to_rows(table: pa.Table, struct: T.StructType) -> list[T.Row]:
    """The rows of a table, in the form of ``collect``.

    Parameters
    ----------
    table : pyarrow.Table
        Columns in the order of ``struct``, instants in UTC.
    struct : StructType
        Names and types of the rows.

    Raises
    ------
    FunctionError
        If a date or moment is outside of the years 1 to 9999.

    Examples
    --------
    >>> to_rows(pa.table({"n": [1, None]}), T.StructType([T.StructField("n", T.LongType())]))
    [Row(n=1), Row(n=None)]
    """
    try:
        columns = [
            column.to_pylist() if show is None else list(map(show, column.to_pylist()))
            for column, show in zip(table.columns, [_shown(f.dataType) for f in struct.fields])
        ]
    except (OverflowError, ValueError) as beyond:
        raise no_object(f"of {', '.join(struct.names)}", beyond) from beyond
    make = T.Row(*struct.names)
    return [make(*row) for row in zip(*columns)] if columns else [make()] * table.num_rows


def _shown(kind: T.DataType) -> Callable[[Any], Any] | None:
    """The conversion from Arrow's value of a type to Spark's; None if they are the same.

    PySpark's own conversion loses the distinction between two equal hours of local time.
    """
    convert = _conversion(kind)
    return convert and (lambda value: None if value is None else convert(value))


def _conversion(kind: T.DataType) -> Callable[[Any], Any] | None:
    """The conversion of values that are not null."""
    if isinstance(kind, T.TimestampType):
        return lambda value: kind.fromInternal((value - _EPOCH) // _MICROSECOND)
    if isinstance(kind, T.StructType):
        make, parts = T.Row(*kind.names), [_shown(f.dataType) or _same for f in kind.fields]
        return lambda value: make(*(part(value[name]) for part, name in zip(parts, kind.names)))
    if isinstance(kind, T.ArrayType):
        element = _shown(kind.elementType)
        return element and (lambda value: list(map(element, value)))
    if isinstance(kind, T.MapType):
        key, item = _shown(kind.keyType) or _same, _shown(kind.valueType) or _same
        return lambda value: {key(k): item(v) for k, v in value}
    if isinstance(kind, T.VariantType):
        return lambda value: T.VariantVal(value["value"], value["metadata"])
    if isinstance(kind, T.UserDefinedType):
        inner = _shown(kind.sqlType()) or _same
        return lambda value: kind.deserialize(inner(value))
    return None


def _same(value: Any) -> Any:
    return value


def _accepted(kind: pa.DataType) -> tuple[type, ...]:
    return next((accepted for is_kind, accepted in _ACCEPTED if is_kind(kind)), ())


def _is_accepted(python: type, accepted: tuple[type, ...]) -> bool:
    if python is type(None):
        return True
    for narrow, wide in ((bool, int), (datetime.datetime, datetime.date)):
        if issubclass(python, narrow) and narrow not in accepted and wide in accepted:
            return False
    return issubclass(python, accepted)


def _refuse(value: Any) -> None:
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _moment(value: Any, kind: pa.DataType, zoned: bool) -> Any:
    if value is None:
        return None
    if hasattr(value, "to_pydatetime"):  # a timestamp of pandas
        if value != value or value.nanosecond:
            _refuse(value)
        value = value.to_pydatetime()
    if kind.tz is not None:
        # A naive datetime is local time, as everywhere in PySpark; Arrow would read it as UTC.
        if zoned and value.tzinfo is None:
            raise TypeError(f"{value!r} {NO_ZONE}")
        return value.astimezone(datetime.timezone.utc)
    if value.tzinfo is not None:
        raise TypeError(f"{value!r} has a time zone, and the column has none")
    return value


def _plain(value: Any, kind: pa.DataType, zoned: bool) -> Any:
    """A value that Arrow converts without loss."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        kinds = [kind.field(i).type for i in _range(kind)]
        return tuple(_plain(p, k, zoned) for p, k in zip(_parts(value, kind), kinds))
    if pa.types.is_map(kind):
        return [
            (_plain(k, kind.key_type, zoned), _plain(v, kind.item_type, zoned))
            for k, v in _entries(value, kind)
        ]
    if pa.types.is_nested(kind):
        if not isinstance(value, (list, tuple, array, np.ndarray)):
            _refuse(value)
        return [_plain(part, kind.value_type, zoned) for part in value]
    if isinstance(value, (np.datetime64, np.timedelta64)):  # an element of an array of numpy
        value = _from_numpy(value, kind)
        if value is None:
            return None
    if not _is_accepted(type(value), _accepted(kind)):
        _refuse(value)
    return _moment(value, kind, zoned) if pa.types.is_timestamp(kind) else value


def _from_numpy(value: Any, kind: pa.DataType) -> Any:
    """The Python value of a moment or a duration of numpy, whose moments are UTC."""
    if np.isnat(value):
        return None
    unit = "datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]"
    plain = value.astype(unit)
    if plain != value:
        _refuse(value)
    moment = plain.item()
    if pa.types.is_timestamp(kind) and kind.tz and isinstance(moment, datetime.datetime):
        return moment.replace(tzinfo=datetime.timezone.utc)
    return moment


def _entries(value: Any, kind: pa.DataType) -> Sequence[tuple[Any, Any]]:
    """The entries of a map: the items of a dict, or pairs if its keys are nested."""
    if isinstance(value, dict):
        return list(value.items())
    pairs = pa.types.is_nested(kind.key_type) and isinstance(value, (list, tuple))
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        _refuse(value)
    return list(value)


def _parts(value: Any, kind: pa.DataType) -> Sequence[Any]:
    names = [kind.field(i).name for i in _range(kind)]
    named = value
    if isinstance(value, T.Row) and getattr(value, "__fields__", None):
        named = dict(zip(value.__fields__, value))
    if isinstance(named, dict):
        if set(named) != set(names):
            raise TypeError(f"{value!r} has not the fields {', '.join(names)}")
        return [named[name] for name in names]
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        raise TypeError(f"{value!r} has not the fields {', '.join(names)}")
    return value


def _range(kind: pa.DataType) -> range:
    return range(kind.num_fields)
