"""DiffFrame: a collection that changes over time, written as if it were a static table."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.dataflow.times import first_type, time_columns, time_kind
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.check import check_deterministic
from pyspark_diff.expressions.names import Resolver
from pyspark_diff.frame.as_pyspark import PySparkMethods
from pyspark_diff.frame.asof import AsofMethods
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.html import as_html
from pyspark_diff.frame.joins import JoinMethods
from pyspark_diff.frame.keyed import KeyedMethods
from pyspark_diff.frame.linear import LinearMethods
from pyspark_diff.frame.loops import LoopMethods
from pyspark_diff.frame.multiset import MultisetMethods
from pyspark_diff.frame.sliding import SlidingMethods
from pyspark_diff.frame.tables import TableMethods
from pyspark_diff.operators.loop import with_times
from pyspark_diff.operators.linear import with_normal_form
from pyspark_diff.operators.node import Input, Node
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import DIFF, TIME, Schema, TimeType, check_names, meant_by
from pyspark_diff.spark.version import check_session


class DiffFrame(
    LinearMethods, MultisetMethods, SlidingMethods, KeyedMethods, JoinMethods, AsofMethods,
    LoopMethods, TableMethods, PySparkMethods,
):
    """A multiset of records that changes over time, held as updates ``(record, time, diff)``.

    `DiffFrame(df)` wraps a Spark frame with a time and a diff column and computes over its whole
    history. A frame from `Dataflow.input` keeps an answer up to date, step by step. Both compute
    the same answer.

    Every method is lazy and returns a `DiffFrame`, except: `to_df` and `at` compute and return a
    Spark frame, `probe` returns a `Probe`, and the properties `columns` and `schema`.

    Parameters
    ----------
    frame : DataFrame
        Update rows: data columns, a time and a diff.
    time : str
        Name of the time column: an integer, date or timestamp, never null; or a struct of integers,
        whose fields after the first are never negative. Structs are compared field by field: one is
        less or equal to another iff no field of it is larger.
    diff : str
        Name of the diff column: an integer, never null.

    Raises
    ------
    SchemaError
        If the time or diff column is missing or has a type that cannot serve.
    NonDeterministicError
        If the frame has other rows at each evaluation.

    Examples
    --------
    >>> from pyspark_diff import DiffFrame
    >>> edges = spark.createDataFrame(
    ...     [(1, 2, 0, 1), (1, 3, 0, 1), (1, 2, 5, -1)], "src long, dst long, time long, diff long")
    >>> degrees = DiffFrame(edges).select("src").count()
    >>> degrees.to_df().orderBy("time", "diff").show()
    +---+-----+----+----+
    |src|count|time|diff|
    +---+-----+----+----+
    |  1|    2|   0|   1|
    |  1|    2|   5|  -1|
    |  1|    1|   5|   1|
    +---+-----+----+----+
    <BLANKLINE>
    >>> degrees.at(4).collect()
    [Row(src=1, count=2)]

    With structs as times, a collection at a time accumulates the updates at times that are no later
    in any field. Here these are the facts of one day, known on another day.

    >>> reports = spark.createDataFrame(
    ...     [("ann", (1, 1), 1), ("ann", (5, 2), -1), ("bob", (3, 2), 1)],
    ...     "name string, time struct<day:int, known:int>, diff int")
    >>> hired = DiffFrame(reports).count()
    >>> [sorted(row.name for row in hired.at(time).collect()) for time in [(4, 1), (4, 2), (5, 2)]]
    [['ann'], ['ann', 'bob'], ['bob']]
    """

    def __init__(self, frame: DataFrame, time: str = "time", diff: str = "diff"):
        if not isinstance(frame, DataFrame):
            raise SchemaError(
                f"DiffFrame wraps a Spark DataFrame, not a {type(frame).__name__}; make one with "
                "spark.createDataFrame(...)"
            )
        check_session(frame.sparkSession)
        check_names(frame.columns)
        check_names([time, diff])
        types = {field.name: field.dataType for field in frame.schema.fields}
        columns = []
        for name, what in ((time, "time"), (diff, "diff")):
            meant = meant_by(name, types, frame.sparkSession)
            if not meant:
                raise SchemaError(
                    f"there is no {what} column {name!r}; the columns are "
                    f"{', '.join(frame.columns)}. Name it: DiffFrame(df, {what}=...)"
                )
            columns.append(meant[0])
        time, diff = columns
        if not isinstance(types[diff], (T.ByteType, T.ShortType, T.IntegerType, T.LongType)):
            raise SchemaError(
                f"the diff column {diff!r} must be an integer, not {types[diff].simpleString()}; "
                "cast it"
            )
        check_deterministic(frame)
        fields = [f for f in frame.schema.fields if f.name not in (time, diff)]
        schema = Schema(T.StructType(fields))
        times, kind = types[time], TimeType(first_type(types[time]))
        moment, more = column(time), []
        if isinstance(times, T.StructType):
            moment, *rest = (column(time).getField(f.name) for f in times.fields)
            names = time_columns(times, [*schema.names, time, diff])
            more = [part.cast("long").alias(name) for part, name in zip(rest, names)]
            fields = [*fields, *(T.StructField(name, T.LongType()) for name in names)]
        updates = frame.select(
            *[column(f.name) for f in schema.struct.fields],
            *more,
            moment.alias(TIME),
            column(diff).cast("long").alias(DIFF),
        )
        node: Node = Input(
            Schema(T.StructType(fields)), kind, "frame", updates, local=frame.isLocal()
        )
        node = with_normal_form(node)
        resolver = Resolver.plain(schema.names).owned("frame", frame)
        if isinstance(times, T.StructType):
            node = with_times(node, times, names)
        super().__init__(Collection(node, None, frame.sparkSession, time, diff, resolver))

    def __repr__(self) -> str:
        columns, kind = self._node.schema.describe(), time_kind(self._node)
        return f"DiffFrame[{columns}; {self._collection.time_name} {kind.simpleString()}]"

    def _repr_html_(self) -> str:
        fields = [(field.name, field.dataType.simpleString()) for field in self.schema.fields]
        title = "DiffFrame: a collection that changes; .at(t).show() for its rows at a time"
        kind = time_kind(self._node).simpleString()
        time = (self._collection.time_name, f"time, {kind}")
        return as_html(title, ("column", "type"), [*fields, time])
