"""Spark frames of update rows: their columns by name, and their schema.

    a frame of update rows  ⟺  its columns are the data columns, then ``__time`` and ``__diff``
"""

from __future__ import annotations

from typing import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.spark.jvm import frame_of_no_rows
from pyspark_diff.spark.schema import DIFF, TIME, Schema, TimeType, quoted


def column(name: str) -> Column:
    """The column of exactly this name."""
    return F.col(quoted(name))


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: T.StructType | str,
) -> DataFrame:
    """PySpark's `mapInArrow`, for columns of any name."""
    names = frame.columns
    if not any(mark in name for name in names for mark in ".`"):
        return frame.mapInArrow(function, schema)

    # PySpark looks the columns up by names that it does not quote.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*[f"_{i}" for i in range(len(names))]).mapInArrow(run, schema)


def update_struct(schema: Schema, time_type: TimeType) -> T.StructType:
    """Spark schema of update rows: the data columns, then time and diff."""
    return T.StructType(
        list(schema.struct.fields)
        + [T.StructField(TIME, time_type.kind, False), T.StructField(DIFF, T.LongType(), False)]
    )


def template(spark: SparkSession, schema: Schema, time_type: TimeType) -> DataFrame:
    """A frame of update rows without any row, to try an operator on when it is defined."""
    return frame_of_no_rows(spark, update_struct(schema, time_type))
