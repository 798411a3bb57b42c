"""The normal form of values: equal values have one form.

Spark groups `-0.0` with `0.0`, and two maps with the same entries in any order. In normal form
zeros have no sign, and maps have their entries in the order of their keys. So an expression that
distinguishes the forms, such as ``CAST(x AS STRING)`` or ``map_keys(m)[0]``, has one value::

    x == y   =>   normal_form(x) and normal_form(y) are alike
"""

from __future__ import annotations

from typing import AbstractSet

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.spark.data_types import contains, has_maps
from pyspark_diff.spark.frames import column


def has_floats(kind: T.DataType) -> bool:
    """Whether there is a float or a double in a type.

    Examples
    --------
    >>> has_floats(T.ArrayType(T.DoubleType())), has_floats(T.DecimalType(3, 1))
    (True, False)
    """
    return contains(kind, (T.FloatType, T.DoubleType))


def normal_form(value: Column, kind: T.DataType) -> Column:
    """A value of a type in normal form.

    Examples
    --------
    >>> frame = spark.sql("SELECT map('b', 1, 'a', 2) AS m, -0D AS x")
    >>> keys = F.map_keys(normal_form(F.col("m"), frame.schema["m"].dataType))
    >>> frame.select(keys.alias("keys"), normal_form(F.col("x"), T.DoubleType()).alias("x")).first()
    Row(keys=['a', 'b'], x=0.0)
    """
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return value + F.lit(0).cast(kind)  # -0.0 + 0.0 is 0.0
    if not (has_maps(kind) or has_floats(kind)):
        return value
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(value, lambda part: normal_form(part, element))
    if isinstance(kind, T.StructType):
        fields = [
            normal_form(value.getField(field.name), field.dataType).alias(field.name)
            for field in kind.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if not isinstance(kind, T.MapType):
        return value
    inner = kind.valueType
    if has_maps(inner) or has_floats(inner):
        value = F.transform_values(value, lambda _, part: normal_form(part, inner))
    text = isinstance(kind.keyType, T.StringType)

    def by_key(first: Column, second: Column) -> Column:
        keys = [entry["key"] for entry in (first, second)]
        if text:  # by its bytes, under any collation
            keys = [key.cast("binary") for key in keys]
        # No two keys are equal.
        return F.when(keys[0] < keys[1], F.lit(-1)).otherwise(F.lit(1))

    return F.map_from_entries(F.array_sort(F.map_entries(value), by_key))


def without_signed_zeros(frame: DataFrame, names: AbstractSet[str] | None = None) -> DataFrame:
    """A frame whose columns with floats are in normal form: those of some names, or all."""
    changed = {
        field.name: normal_form(column(field.name), field.dataType)
        for field in frame.schema.fields
        if has_floats(field.dataType) and (names is None or field.name in names)
    }
    return frame.withColumns(changed) if changed else frame
