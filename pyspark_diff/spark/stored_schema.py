"""Schemas in files: Spark's own JSON of a schema, read without trust.

Types that users define would name a Python class to be imported, so there are none.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from pyspark_diff.errors import DamagedStateError, UnsupportedTypeError


def schema_to_json(struct: T.StructType) -> dict[str, Any]:
    """A schema as JSON has it.

    Raises
    ------
    UnsupportedTypeError
        If a type in it is defined by a user.
    """
    told = struct.jsonValue()
    if _foreign(told):
        raise UnsupportedTypeError(
            f"{struct.simpleString()} has a type that a user defined, which no store can hold: "
            "turn the column into Spark's own types first"
        )
    return told


def schema_from_json(told: Any) -> T.StructType:
    """The schema that `schema_to_json` told.

    Raises
    ------
    DamagedStateError
        If it is none.

    Examples
    --------
    >>> schema_from_json(schema_to_json(T.StructType().add("n", "long"))).simpleString()
    'struct<n:bigint>'
    """
    if type(told) is not dict or _foreign(told):
        raise DamagedStateError("a schema in the store is none of Spark's own types")
    try:
        return T.StructType.fromJson(told)
    except Exception as error:
        raise DamagedStateError(f"a schema in the store cannot be read: {error}") from error


def _foreign(told: Any) -> bool:
    """Whether there is a type in it that is not one of Spark's own."""
    if isinstance(told, dict):
        if told.get("type") == "udt" or "pyClass" in told or "serializedClass" in told:
            return True
        return any(map(_foreign, told.values()))
    return isinstance(told, list) and any(map(_foreign, told))
