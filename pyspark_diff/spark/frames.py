"""Column expressions on update rows: what may stand between two arrangements.

An operator ``f`` is linear iff ``f(A + B) = f(A) + f(B)``; then it may be applied to updates as
they are, keeping their time and diff. Spark expressions that look at one row at a time are linear.
"""

from __future__ import annotations

from typing import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.spark import jvm
from pyspark_diff.errors import NonDeterministicError, SchemaError
from pyspark_diff.spark.schema import DIFF, TIME, Schema, TimeType

#: Logical operators that treat each row by itself.
_ROW_WISE = frozenset(
    "Project Filter Generate SubqueryAlias LocalRelation LogicalRDD MapInPandas MapInArrow "
    "Union Repartition RepartitionByExpression RepartitionById RebalancePartitions "
    "ResolvedHint UnresolvedHint View Range OneRowRelation BatchEvalPython ArrowEvalPython "
    "DeserializeToObject SerializeFromObject TypedFilter LocalTableScan Sort".split()
)


def quoted(name: str) -> str:
    """A column name that Spark takes literally, whatever characters it has.

    Examples
    --------
    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


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
    return spark.createDataFrame([], update_struct(schema, time_type))


def check_deterministic(frame: DataFrame) -> None:
    """Refuse expressions whose value may differ between an insertion and its retraction.

    Raises
    ------
    NonDeterministicError
    """
    unstable = jvm.analysed_plan(frame).unstable
    if unstable:
        raise NonDeterministicError(
            f"{', '.join(unstable)} may give another value when a row is retracted than it gave "
            "when the row was inserted, so the two would not cancel; compute the value before the "
            "rows enter the collection"
        )


def check_row_wise(frame: DataFrame, what: str) -> None:
    """Refuse a plan that looks at more than one row at a time.

    Raises
    ------
    NonDeterministicError
        See `check_deterministic`.
    SchemaError
        If the plan has an aggregate, a join, a window, a limit or the like.
    """
    check_deterministic(frame)
    others = [node for node in jvm.analysed_plan(frame).nodes if node not in _ROW_WISE]
    if others:
        raise SchemaError(
            f"{what} may only look at one row at a time, but its plan has "
            f"{', '.join(dict.fromkeys(others))}; use the operators of DiffFrame for that (count, "
            "distinct, threshold, ...)"
        )


def data_schema(frame: DataFrame, time_type: TimeType, what: str) -> Schema:
    """Schema of the data columns of a frame of update rows, time and diff being there.

    Raises
    ------
    SchemaError
        If the time or diff column is gone or has another type.
    """
    struct = frame.schema
    for name, kind in ((TIME, time_type.kind), (DIFF, T.LongType())):
        found = [field.dataType for field in struct.fields if field.name == name]
        if found != [kind]:
            shown = ", ".join(f.simpleString() for f in found) or "nothing"
            raise SchemaError(
                f"{what} must keep the {name.strip('_')} column of type {kind.simpleString()}; "
                f"its result has {shown} there, and the columns {', '.join(struct.names)}"
            )
    return Schema(T.StructType([f for f in struct.fields if f.name not in (TIME, DIFF)]))
