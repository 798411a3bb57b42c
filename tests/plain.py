"""Tables of plain Spark, to compare with, that cost little to read.

    local_frame(spark, rows, schema)  has the rows of  spark.createDataFrame(rows, schema)

``createDataFrame`` makes an RDD of Python's. Each query over it starts tasks and a Python worker,
and shuffles the few rows for each join and each grouping. Over local rows in one
partition a query is one task and no shuffle: measured, a third of the processor time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.conversion import LocalDataToArrowConversion


def local_frame(spark: SparkSession, rows: Sequence[Any], schema: str | T.StructType) -> DataFrame:
    """A frame of a few rows that are part of its plan; for a program under test an RDD is meant."""
    struct = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if rows:
        table = LocalDataToArrowConversion.convert(rows, struct, False)
        return spark.createDataFrame(table, struct).coalesce(1)
    return spark.createDataFrame([], struct).coalesce(1)
