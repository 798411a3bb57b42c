"""Maps with their entries in the order of their keys, as Spark groups maps.

Two maps are equal if they have the same entries, in whichever order. Sorted, equal maps have one
form, so that an expression of the entries, such as ``map_keys(m)[0]``, has one value::

    m == n   =>   sorted_maps(m) and sorted_maps(n) have the same entries in the same order
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.spark.schema import has_maps


def sorted_maps(value: Column, kind: T.DataType) -> Column:
    """A value of a type, in which each map has its entries in the order of their keys.

    Examples
    --------
    >>> frame = spark.sql("SELECT map('b', 1, 'a', 2) AS m")
    >>> found = sorted_maps(F.col("m"), frame.schema["m"].dataType)
    >>> frame.select(F.map_keys(found).alias("keys")).collect()
    [Row(keys=['a', 'b'])]
    """
    if not has_maps(kind):
        return value
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(value, lambda one: sorted_maps(one, element))
    if isinstance(kind, T.StructType):
        fields = [
            sorted_maps(value.getField(field.name), field.dataType).alias(field.name)
            for field in kind.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    assert isinstance(kind, T.MapType)
    inner = kind.valueType
    if has_maps(inner):
        value = F.transform_values(value, lambda _, one: sorted_maps(one, inner))
    text = isinstance(kind.keyType, T.StringType)

    def by_key(one: Column, other: Column) -> Column:
        keys = [entry["key"] for entry in (one, other)]
        if text:  # by its bytes, under any collation
            keys = [key.cast("binary") for key in keys]
        # No two keys are equal.
        return F.when(keys[0] < keys[1], F.lit(-1)).otherwise(F.lit(1))

    return F.map_from_entries(F.array_sort(F.map_entries(value), by_key))
