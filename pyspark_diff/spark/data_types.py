"""Spark's data types: their forms in Arrow, their components, and the comparison of their values.

For all values a and b of a type without a reason in `incomparable`::

    a = b in Spark  iff  a = b in kernels
"""

from __future__ import annotations

from inspect import signature
from typing import Any, overload

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type

from pyspark_diff.errors import UnsupportedTypeError


def from_arrow(schema: pa.Schema) -> T.StructType:
    """Spark schema of an Arrow table: timestamps without a zone are ``timestamp_ntz``.

    Raises
    ------
    UnsupportedTypeError
        If Spark has no such type.

    Examples
    --------
    >>> from_arrow(pa.schema([("n", pa.int32()), ("s", pa.large_string())])).simpleString()
    'struct<n:int,s:string>'
    """
    fields = []
    for column in schema:
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_string_view(kind):
            kind = pa.string()
        if pa.types.is_binary_view(kind):
            kind = pa.binary()
        try:
            fields.append(T.StructField(column.name, from_arrow_type(kind, True)))
        except PySparkTypeError as error:
            raise UnsupportedTypeError(
                f"column {column.name!r} is {kind}, which Spark has no type for; cast it, or give "
                "a schema: flow.constant(table, schema)"
            ) from error
    return T.StructType(fields)


#: Groups of types: two types of different groups have no common type.
_APART: tuple[tuple[type[T.DataType], ...], ...] = (
    (T.NumericType,), (T.BooleanType,), (T.DateType, T.TimestampType, T.TimestampNTZType),
    (T.ArrayType,), (T.MapType,), (T.StructType,),
)


def lack_common_type(one: T.DataType, other: T.DataType) -> bool:
    """Whether two types certainly have no common type in Spark, as for a union.

    The caller then avoids an analysis, as a server logs a stack trace for each failed one.

    Examples
    --------
    >>> long, text = T.LongType(), T.StringType()
    >>> lack_common_type(long, T.DateType()), lack_common_type(long, text)
    (True, False)
    """
    places = [
        next((n for n, kinds in enumerate(_APART) if isinstance(kind, kinds)), None)
        for kind in (one, other)
    ]
    if None not in places:
        return places[0] != places[1]
    # A text and a number convert to each other, but neither converts to a nested type.
    rest = {type(kind) for kind, place in zip((one, other), places) if place is None}
    made_of_others = any(place is not None and place >= 3 for place in places)
    return made_of_others and rest == {T.StringType}


def arrow_type(kind: T.DataType) -> pa.DataType:
    """The Arrow type of a Spark type, as Spark passes columns to Python, with timestamps in UTC.

    All parts of it are nullable, so that values of two columns have one type.

    Raises
    ------
    UnsupportedTypeError
        If Spark cannot pass such columns to Python.
    """
    # Nested types are composed here: the parameters of Spark's function for the time zone of nested
    # timestamps differ between its versions.
    if isinstance(kind, T.TimestampType):
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType)))
    if isinstance(kind, T.MapType):
        value = pa.field("value", arrow_type(kind.valueType))
        return pa.map_(pa.field("key", arrow_type(kind.keyType), nullable=False), value)
    if isinstance(kind, T.StructType):
        return pa.struct([(f.name, arrow_type(f.dataType)) for f in kind])
    try:
        converted = to_arrow_type(kind)
        if pa.types.is_struct(converted):  # such as a variant; the parts of a null are null
            fields = [converted.field(i) for i in range(converted.num_fields)]
            return pa.struct([field.with_nullable(True) for field in fields])
        return converted
    except PySparkTypeError as error:
        raise UnsupportedTypeError(
            f"columns of type {kind.simpleString()} cannot be passed from Spark to Python. Cast "
            "them to another type (an interval to a number, char and varchar to string), or drop "
            "them"
        ) from error


def arrow_schema(struct: T.StructType) -> pa.Schema:
    """The Arrow schema that Spark requires of incoming rows, including nullability."""
    # Spark 4.1 has no such parameter, and its timestamps are in UTC.
    zoned = "timezone" in signature(to_arrow_schema).parameters
    in_utc: dict[str, Any] = {"timezone": "UTC"} if zoned else {}
    return to_arrow_schema(struct, **in_utc)


@overload
def without_nullability(kind: T.StructType) -> T.StructType: ...


@overload
def without_nullability(kind: T.DataType) -> T.DataType: ...


def without_nullability(kind: T.DataType) -> T.DataType:
    """The type with all parts nullable, so that types compare by their kinds of values."""
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(without_nullability(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(without_nullability(kind.keyType), without_nullability(kind.valueType))
    if isinstance(kind, T.StructType):
        return T.StructType(
            [T.StructField(f.name, without_nullability(f.dataType)) for f in kind.fields]
        )
    return kind


#: Types whose values are equal in Spark if, and only if, they are equal in kernels.
_COMPARABLE = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType,
    T.DecimalType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType,
    T.DayTimeIntervalType, T.TimeType, T.NullType,
)


def incomparable(kind: T.DataType, *, ordered: bool) -> str | None:
    """The reason why values of a type cannot be compared; None if they can.

    Examples
    --------
    >>> incomparable(T.VariantType(), ordered=False)
    'variants have no equality, as in Spark'
    """
    if isinstance(kind, T.MapType) and ordered:
        return "Spark groups by maps, and neither sorts by them nor joins by them"
    parts = components(kind)
    if parts:
        return next(filter(None, (incomparable(part, ordered=ordered) for part in parts)), None)
    if isinstance(kind, T.StringType):
        collation = getattr(kind, "collation", "UTF8_BINARY")
        if collation != "UTF8_BINARY":
            return f"strings with collation {collation} are not equal byte by byte"
        return None
    if isinstance(kind, T.VariantType):
        return "variants have no equality, as in Spark"
    whole = isinstance(kind, (*_COMPARABLE, T.StructType))
    return None if whole else "the type has no order in this library"


def components(kind: T.DataType) -> list[T.DataType]:
    """The component types of a nested type; empty for other types."""
    if isinstance(kind, T.ArrayType):
        return [kind.elementType]
    if isinstance(kind, T.MapType):
        return [kind.keyType, kind.valueType]
    return [field.dataType for field in kind.fields] if isinstance(kind, T.StructType) else []


def contains(
    kind: T.DataType, wanted: type[T.DataType] | tuple[type[T.DataType], ...]
) -> bool:
    """Whether a type, or any component of it, is of a class.

    Examples
    --------
    >>> contains(T.ArrayType(T.VariantType()), T.VariantType)
    True
    """
    return isinstance(kind, wanted) or any(contains(part, wanted) for part in components(kind))


def has_required_fields(kind: T.DataType) -> bool:
    """Whether a struct in a type has a field that is never null.

    Examples
    --------
    >>> field = T.StructField("a", T.IntegerType(), nullable=False)
    >>> has_required_fields(T.ArrayType(T.StructType([field]))), has_required_fields(T.LongType())
    (True, False)
    """
    if isinstance(kind, T.StructType) and not all(field.nullable for field in kind.fields):
        return True
    return any(map(has_required_fields, components(kind)))


def has_maps(kind: T.DataType) -> bool:
    """Whether there is a map in a type.

    Examples
    --------
    >>> has_maps(T.ArrayType(T.MapType(T.LongType(), T.LongType()))), has_maps(T.LongType())
    (True, False)
    """
    return contains(kind, T.MapType)
