"""Tables as users name them, for the sources that read one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.spark.frames import few, frame_of_table
from pyspark_diff.spark.schema import meant_by

#: What gives a table: its name, a frame that reads it anew each time, or what makes such a frame.
Table: TypeAlias = "str | DataFrame | Callable[[], DataFrame]"


def frame_of(table: Table, spark: SparkSession) -> DataFrame:
    """The table as it is now."""
    if isinstance(table, str):
        return spark.table(table)
    return table() if callable(table) else table


def told(table: Table) -> str:
    """What a table is called in a message."""
    return repr(table) if isinstance(table, str) else "the frame"


def named(
    fields: Sequence[T.StructField], names: Iterable[str], table: Table, spark: SparkSession
) -> list[str]:
    """Columns that a user names, as they are called in a table.

    Raises
    ------
    SchemaError
        If no column has one of the names.
    """
    there = [field.name for field in fields]
    found = []
    for name in names:
        meant = meant_by(name, there, spark)
        if not meant:
            raise SchemaError(
                f"{told(table)} has no column {name!r}; its columns are {', '.join(there)}. Name "
                "one of them"
            )
        found.append(meant[0])
    return found


def at_hand(frame: DataFrame) -> DataFrame:
    """The same rows; few of them are read now, and no second time."""
    table = few(frame)
    return frame if table is None else frame_of_table(frame.sparkSession, table, frame.schema)
