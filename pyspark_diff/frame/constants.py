"""Constants: plain tables as collections that never change.

At every time ``t``, from the inputs' first time on::

    accumulate(constant(D), t) = D

The first step evaluates the table, once. A table with a time and a diff column is a history and no
constant; it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.coercion import ArrowStream, Data, arrow_table, coerce
from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.check import check_deterministic
from pyspark_diff.expressions.handles import PLAIN
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.frame.collection import Collection
from pyspark_diff.operators.loop import Enter, time_scope
from pyspark_diff.operators.linear import with_normal_form
from pyspark_diff.operators.node import Constant
from pyspark_diff.spark.data_types import from_arrow
from pyspark_diff.spark.jvm import analysed_plan
from pyspark_diff.spark.schema import TimeType, parse_schema

#: Tables that know the names and types of their columns; pandas and Arrow tables export the stream.
#: (The annotation does not name the classes: without stubs a type checker would accept any value.)
Plain: TypeAlias = DataFrame | ArrowStream


@dataclass(frozen=True)
class Setting:
    """The dataflow, session and column names of a constant.

    Parameters
    ----------
    flow : BaseDataflow or None
        None if it combines with collections that have their whole history.
    time, diff : str
        The user's names of these columns.
    """

    flow: BaseDataflow | None
    spark: SparkSession
    time_type: TimeType
    time: str
    diff: str


def constant(data: Data, setting: Setting, schema: str | T.StructType | None = None) -> Collection:
    """The collection that has some rows at all times.

    Parameters
    ----------
    data : DataFrame, pyarrow.Table, pandas.DataFrame, or iterable of rows
    schema : str or StructType, optional
        Columns. Tables have their own.
    """
    small, alias = False, None
    origin = data if isinstance(data, (DataFrame, pa.Table)) else None
    if isinstance(data, DataFrame):
        plan = analysed_plan(data)
        check_deterministic(data)
        small, alias = plan.hinted, plan.alias
        struct = data.schema
    else:
        if isinstance(data, pd.DataFrame):
            data = _from_pandas(data)
        elif (table := arrow_table(data)) is not None:
            data = table
        if isinstance(data, pa.Table):
            small = True
            if schema is None:
                struct = from_arrow(data.schema)
        elif schema is None:
            raise SchemaError(
                "rows without names and types need a schema, such as flow.constant(rows, "
                f"'src long, dst long'); this is a {type(data).__name__}"
            )
    parsed = parse_schema(struct if schema is None else schema)
    _check_names(parsed.names, setting)
    rows = coerce(data, parsed.struct, "constant", setting.spark)
    node = Constant(parsed, setting.time_type, rows=rows, origin=origin)
    resolver = Resolver.plain(parsed.names)
    if isinstance(data, DataFrame) and schema is None:
        resolver = resolver.owned(PLAIN, data)
    if alias is not None:
        resolver = resolver.named(alias)
    return Collection(
        with_normal_form(node), setting.flow, setting.spark, setting.time, setting.diff, resolver,
        small=small,
    )


def lifted(collection: Collection, data: object) -> Collection:
    """The constant of a plain table that combines with a collection.

    Raises
    ------
    SchemaError
        If it is no table, or a table of updates.
    """
    table = isinstance(data, (DataFrame, pd.DataFrame, pa.Table, pa.RecordBatch))
    if isinstance(data, pd.Series) or not table and not hasattr(data, "__arrow_c_stream__"):
        raise SchemaError(
            f"expected a DiffFrame or a plain table, not a {type(data).__name__}. Make a table of "
            "rows with spark.createDataFrame(...) or flow.constant(rows, schema). Wrap a Spark "
            "frame that has time and diff columns with DiffFrame(df)"
        )
    collection.check_open()
    result = constant(data, Setting(
        collection.flow, collection.spark, collection.node.time_type, collection.time_name,
        collection.diff_name,
    ))
    scope = time_scope(collection.node)
    # If times are structs, the constant starts at the first value of every field.
    return result if scope is None else replace(result, node=Enter(scope, result.node))


def _check_names(names: tuple[str, ...], setting: Setting) -> None:
    clash = [n for n in names if n.lower() in (setting.time.lower(), setting.diff.lower())]
    if clash:
        history = "DiffFrame(df) wraps them"
        if setting.flow is not None:
            history = "an input takes them: flow.input(...), and session.update(df)"
        raise SchemaError(
            f"a plain table has its rows at all times, and its column {', '.join(clash)} has the "
            f"name of the time or diff column. If its rows are updates, {history}; if not, rename "
            "the column"
        )


def _from_pandas(data: pd.DataFrame) -> pa.Table:
    try:
        return pa.Table.from_pandas(data.copy(), preserve_index=False)
    except pa.ArrowException as error:
        raise SchemaError(f"the rows of a constant have no common type: {error}") from error
