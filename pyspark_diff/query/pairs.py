"""Joins of frames by conditions in SQL: by keys if there are any, else by all pairs.

    joined(left, right, on, kind)  =  the join of the kind whose pairs meet each condition
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query.text_columns import condition_of


def same(pairs: Iterable[tuple[str, str]]) -> str:
    return " AND ".join(f"{item} <=> {other}" for item, other in pairs)


def joined(left: DiffFrame, right: DiffFrame, on: Sequence[str], how: str) -> DiffFrame:
    """A join by conditions in SQL; by all pairs, if no condition finds pairs."""
    condition = " AND ".join(f"({item})" if len(on) > 1 else item for item in on)
    if condition:
        try:
            return left.join(right, condition_of(condition), how)
        except SchemaError as error:
            if "to find matches by" not in str(error) and "equality" not in str(error):
                raise
    pairs = left.crossJoin(right.hint("broadcast"))
    pairs = pairs.where(condition) if condition else pairs
    return completed(left, right, pairs, how)


def completed(left: DiffFrame, right: DiffFrame, pairs: DiffFrame, how: str) -> DiffFrame:
    """The join of a kind, from its inner pairs."""
    if how == "inner":
        return pairs

    def met(side: DiffFrame, kind: str) -> DiffFrame:
        twice = [(name, f"{name}m_") for name in side.columns]
        matches = pairs.select(*side.columns).withColumnsRenamed(dict(twice))
        return side.join(matches, condition_of(same(twice)), kind)

    if how in ("left_semi", "left_anti"):
        return met(left, how)
    frame = pairs
    if how in ("left", "full"):
        frame = frame.concat(
            met(left, "left_anti").selectExpr(*left.columns, *_nulls(right.schema))
        )
    if how in ("right", "full"):
        frame = frame.concat(
            met(right, "left_anti").selectExpr(*_nulls(left.schema), *right.columns)
        )
    return frame


def _nulls(schema: T.StructType) -> list[str]:
    return [
        f"CAST(NULL AS {item.dataType.simpleString()}) AS {item.name}" for item in schema.fields
    ]
