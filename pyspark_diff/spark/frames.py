"""Spark frames of update rows: their columns by name, and their schema.

    a frame of update rows  ⟺  its columns are the data columns, then ``__time`` and ``__diff``
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import thresholds
from pyspark_diff.errors import SchemaError, errors_to_text
from pyspark_diff.spark.data_types import (
    arrow_type,
    contains,
    has_required_fields,
    without_nullability,
)
from pyspark_diff.spark.jobs import run_job
from pyspark_diff.spark.jvm import frame_of_no_rows, is_classic_frame
from pyspark_diff.spark.schema import DIFF, TIME, Schema, TimeType, quoted
from pyspark_diff.spark.values import OPAQUE, filled

#: The letters with a meaning in a pattern of paths.
_PATTERN = frozenset("{}[]*?\\")


def column(name: str) -> Column:
    """The column of exactly this name."""
    return F.col(quoted(name))


def sql_text(text: str) -> str:
    """A text as a literal of SQL.

    Examples
    --------
    >>> sql_text("it's")
    "'it\\\\'s'"
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def literal_path(path: str) -> str:
    """A path for Spark's readers, which take a path as a pattern.

    Examples
    --------
    >>> literal_path("/data/a[1]*")
    '/data/a\\\\[1\\\\]\\\\*'
    """
    return "".join(f"\\{letter}" if letter in _PATTERN else letter for letter in path)


def check_format(format: str, struct: T.StructType) -> None:
    """Refuse column names that a file format cannot have.

    Raises
    ------
    SchemaError
    """
    if format.lower() == "orc" and "`" in struct.simpleString():
        raise SchemaError(
            "ORC has no names with a backtick: Spark writes another name, and reads null. Rename "
            "the column or field with toDF or withColumnRenamed, or take another format. The "
            f"columns are {struct.simpleString()}"
        )


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


def frame_of_table(spark: SparkSession, table: pa.Table, struct: T.StructType) -> DataFrame:
    """PySpark's `createDataFrame` of a table, also without columns or with null variants.

    A client of Connect loses the rows of a table without columns.

    Examples
    --------
    >>> rows = pa.table({"x": [1, 2, 3]}).select([])
    >>> frame_of_table(spark, rows, T.StructType([])).count()
    3
    """
    if table.num_columns:
        if not table.num_rows:  # PySpark fails at a nested column without chunks
            table = table.schema.empty_table()
        # Arrow refuses nulls in the fields of a null struct if these are declared as never null.
        fields = [
            T.StructField(f.name, without_nullability(f.dataType), f.nullable)
            for f in struct.fields
        ]
        return spark.createDataFrame(filled(table, struct), T.StructType(fields))
    return spark.range(table.num_rows).select()


def arrow_table(frame: DataFrame) -> pa.Table:
    """PySpark's `toArrow`, also for null variants, geometries and structs, for which PySpark fails.

    The parts of a null variant are null, and so are the fields of a null struct, even if they are
    never null in other structs.

    Examples
    --------
    >>> arrow_table(spark.sql("SELECT CAST(NULL AS variant) AS v"))["v"].null_count
    1
    >>> rows = spark.sql("SELECT IF(id = 0, named_struct('a', 1), NULL) AS s FROM range(2)")
    >>> arrow_table(rows)["s"].to_pylist()
    [{'a': 1}, None]
    """
    types = [field.dataType for field in frame.schema.fields]
    if not any(contains(kind, OPAQUE) or has_required_fields(kind) for kind in types):
        return frame.toArrow()
    # `collect` would make Python objects, which have no dates outside the years 1 to 9999.
    # PySpark's only failure is the cast of the parts of a null to non-null parts.
    source: Any = frame
    if is_classic_frame(frame):
        batches = source._collect_as_arrow(empty_list_if_zero_records=False)
        table = pa.Table.from_batches(batches)
    else:
        table, _ = source._to_table()
    kinds = [(field.name, arrow_type(field.dataType)) for field in frame.schema.fields]
    return table.cast(pa.schema(kinds))


def map_tables(
    frame: DataFrame, function: Callable[[pa.Table], pa.Table], schema: T.StructType
) -> DataFrame:
    """A function of tables on each batch of a frame; the driver raises its errors with their
    class."""
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_to_text():
            for batch in batches:
                yield from function(pa.Table.from_batches([batch])).to_batches()

    return map_in_arrow(frame, run, schema)


def update_struct(schema: Schema, time_type: TimeType) -> T.StructType:
    """Spark schema of update rows: the data columns, then time and diff."""
    return T.StructType(
        list(schema.struct.fields)
        + [T.StructField(TIME, time_type.kind, False), T.StructField(DIFF, T.LongType(), False)]
    )


def template(spark: SparkSession, schema: Schema, time_type: TimeType) -> DataFrame:
    """An empty frame of update rows, for the analysis of an operator when it is defined."""
    return frame_of_no_rows(spark, update_struct(schema, time_type))


def frame_digest(frame: DataFrame) -> tuple[str, tuple[str, ...]]:
    """A digest of the rows of a frame, independent of their order; it takes one job.

    Returns
    -------
    tuple of (str, tuple of str)
        The number of rows with sums of their hashes, and columns that Spark cannot hash.

    Examples
    --------
    >>> df = spark.createDataFrame([(1, None), (2, "b")], "n int, s string")
    >>> frame_digest(df) == frame_digest(df.orderBy(F.desc("n")))
    True
    >>> frame_digest(df) == frame_digest(df.where("n = 1"))
    False
    """
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    left = tuple(name for name, kind in kinds.items() if "map<" in kind.simpleString())
    names = [name for name in kinds if name not in left]
    # A null does not change a hash, so the positions of nulls are hashed too.
    hashed = [*map(column, names), *(column(name).isNull() for name in kinds)]
    hashes = [F.xxhash64(F.lit(seed), *hashed).cast("decimal(20,0)") for seed in (0, 1)]
    (row,) = frame.select(*(value.alias(f"h{i}") for i, value in enumerate(hashes))).agg(
        F.count(F.lit(1)), F.sum("h0"), F.sum("h1")
    ).collect()
    return " ".join(map(str, row)), left


def few(frame: DataFrame) -> pa.Table | None:
    """The rows of a small frame; None for a frame with more than `collect_frame_rows_max` rows.

    Later work on the rows then needs no job.
    """
    most = thresholds.current.collect_frame_rows_max
    table = run_job(frame.sparkSession, lambda: arrow_table(frame.limit(most + 1)))
    return table if table.num_rows <= most else None
