"""Frames that stand for tables of a dataflow in a query that Spark analyses.

    rows of a marked frame      =  none
    rows of a failing frame     =  an error, as a method of the query asked Spark for them too early

A method of PySpark that computes rows while the user builds a frame, such as a pivot without
values, would fix the query to the rows of a placeholder. The metadata of the columns names the
table.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.spark.jvm import (
    frame_of_no_rows,
    frame_over,
    is_classic_frame,
    items_of,
    kind_of,
    rdd_name,
)

#: The key in the metadata of a column that names the table of the dataflow.
_TABLE = "pyspark_diff.table"
#: The name of the rows of a placeholder on a classic session; those of a checkpoint have another.
_ROWS = "pyspark_diff placeholder"


def marked(spark: SparkSession, name: str, table: DiffFrame) -> DataFrame:
    """A frame without rows for a query that no method of PySpark computes, such as a text."""
    return frame_of_no_rows(spark, _struct(name, table))


def failing(spark: SparkSession, name: str, table: DiffFrame) -> DataFrame:
    """A frame whose rows are an error that names the mistake."""
    message = (
        f"flow.table({name!r}) stands for a collection, which has rows in flow.query(...) alone. A "
        "method such as collect, checkpoint, or pivot without values asked Spark for its rows. "
        "List the values of a pivot, and read rows with keep(...).at()"
    )
    error = F.raise_error(F.lit(message))
    rows = spark.range(1).where(error.cast("boolean"))
    struct = _struct(name, table)
    if is_classic_frame(rows):
        return frame_over(rows, struct, _ROWS)
    # Spark evaluates constants and local rows when it plans, as cache() does.
    return rows.select(*[
        error.cast(field.dataType).alias(field.name, metadata=field.metadata)
        for field in struct.fields
    ])


def _struct(name: str, table: DiffFrame) -> T.StructType:
    return T.StructType([
        T.StructField(field.name, field.dataType, field.nullable, {_TABLE: name})
        for field in table.schema.fields
    ])


def marked_table(leaf: Any) -> str | None:
    """The table that the first column of a leaf of an analysed plan is of, also below checkpoints.

    Parameters
    ----------
    leaf : py4j object
    """
    for attribute in items_of(leaf.output()):
        if attribute.metadata().contains(_TABLE):
            return str(attribute.metadata().getString(_TABLE))
        return None
    return None


def is_placeholder(leaf: Any) -> bool:
    """Whether a leaf with the columns of a table is the table, and not rows computed from it."""
    return kind_of(leaf) == "LocalRelation" or rdd_name(leaf) == _ROWS


def projected_table(message: Any) -> tuple[str, list[str]] | None:
    """The table that a projection of Spark Connect's protocol stands for, and its columns."""
    if message.input.WhichOneof("rel_type") != "filter" or not message.expressions:
        return None
    alias = message.expressions[0].alias
    table = json.loads(alias.metadata or "{}").get(_TABLE)
    below = message.input.filter.input.WhichOneof("rel_type")
    if table is None or below != "range":
        return None
    return str(table), [item.alias.name[0] for item in message.expressions]
