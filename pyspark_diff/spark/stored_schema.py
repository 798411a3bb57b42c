"""Schemas in files: Spark's JSON of a schema, read as untrusted input.

A user-defined type names a Python class to import, so such types are refused.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from pyspark_diff.errors import DamagedStateError, UnsupportedTypeError


def schema_to_json(struct: T.StructType) -> dict[str, Any]:
    """A schema as a JSON value.

    Raises
    ------
    UnsupportedTypeError
        If it has a user-defined type.
    """
    value = struct.jsonValue()
    if _foreign(value):
        raise UnsupportedTypeError(
            f"{struct.simpleString()} has a user-defined type, which no store can keep: convert "
            "the column to Spark's own types first"
        )
    return value


def schema_from_json(value: Any) -> T.StructType:
    """The schema of a value of `schema_to_json`.

    Raises
    ------
    DamagedStateError
        If the value is no schema.

    Examples
    --------
    >>> schema_from_json(schema_to_json(T.StructType().add("n", "long"))).simpleString()
    'struct<n:bigint>'
    """
    if type(value) is not dict or _foreign(value):
        raise DamagedStateError("a schema in the store is none of Spark's own types")
    try:
        return T.StructType.fromJson(value)
    except Exception as error:
        raise DamagedStateError(f"a schema in the store cannot be read: {error}") from error


def _foreign(value: Any) -> bool:
    """Whether the value has a type that is not one of Spark's own."""
    if isinstance(value, dict):
        if value.get("type") == "udt" or "pyClass" in value or "serializedClass" in value:
            return True
        return any(map(_foreign, value.values()))
    return isinstance(value, list) and any(map(_foreign, value))
