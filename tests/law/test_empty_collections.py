"""A collection without rows or without columns is like any other.

    f(no rows)  ==  no rows, in the type that f gives
    n rows without columns  ==  n rows
"""

from __future__ import annotations

from typing import Callable

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type
from test_types import VALUES

from pyspark_diff import Dataflow, DiffFrame
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.node import Linear
from pyspark_diff.runners.local import LocalRunner
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.spark.frames import frame_of_table
from pyspark_diff.spark.schema import DIFF, TIME, TimeType

RUNNERS = ("local", "spark")

#: A column of each type.
COLUMNS = {f"c{i}": kind for i, kind in enumerate([*VALUES, "map<string,array<int>>", "variant"])}
SCHEMA = "x int, " + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

#: Linear operators, some by a formula of our own and some by Spark.
STAGES: dict[str, Callable[[DiffFrame], DiffFrame]] = {
    "formula": lambda f: f.withColumn("y", F.col("x") + 1),
    "spark": lambda f: f.withColumn("y", F.hash("x")),
    "spark, every column": lambda f: f.select(*(F.array(c).alias(c) for c in f.columns)),
    "where": lambda f: f.where("x > 3"),
    "where by spark": lambda f: f.where("hash(x) > 3"),
    "explode": lambda f: f.select("*", F.explode(F.array("x", "x")).alias("y")),
    "transform": lambda f: f.transform(lambda frame: frame.where("x > 3")),
    "flat_map": lambda f: f.flat_map(lambda row: [row], SCHEMA),
    "map_in_pandas": lambda f: f.map_in_pandas(lambda frames: frames, SCHEMA),
    "dropna": lambda f: f.where("x is not null"),
    "negate": lambda f: f.negate(),
    "weighted": lambda f: f.weighted("x"),
    "toDF": lambda f: f.toDF(*(f"d{i}" for i in range(len(f.columns)))),
}


def stages(frame: DiffFrame) -> list[Stage]:
    """The linear operators that make a frame of an input."""
    chain: list[Stage] = []
    node = frame._node
    while isinstance(node, Linear):
        chain.insert(0, node.stage)
        (node,) = node.inputs
    return chain


def tables_of_no_rows(schema: pa.Schema) -> list[pa.Table]:
    """A table of no rows may have an empty chunk of each column, or none."""
    empty = schema.empty_table()
    return [empty, empty.filter(pa.array([], pa.bool_())), pa.Table.from_batches([], schema)]


@pytest.mark.parametrize("name", STAGES)
def test_of_no_rows_a_stage_makes_none_of_its_type(spark: SparkSession, name: str) -> None:
    frame, _ = Dataflow(spark).input("in", SCHEMA)
    output = STAGES[name](frame)
    runner = LocalRunner(SparkRunner(spark, TimeType(T.LongType())).evaluate)
    system = [pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64())]
    after = stages(output.withColumn("z", F.hash(output.columns[1])))
    for table in tables_of_no_rows(pa.schema([*frame._node.schema.arrow(), *system])):
        result = runner._staged(table, stages(output))
        assert result.num_rows == 0
        columns = {field.name: field.type for field in result.schema}
        assert columns == {f.name: f.type for f in [*output._node.schema.arrow(), *system]}
        assert runner._staged(table, after).num_rows == 0


@pytest.mark.parametrize("runner", RUNNERS)
def test_nothing_left_by_a_filter_goes_through_everything(
    spark: SparkSession, runner: str
) -> None:
    struct = T.StructType([
        field for field in T.StructType.fromDDL(SCHEMA)
        if not isinstance(field.dataType, (T.MapType, T.VariantType))
    ])
    with Dataflow(spark, runner=runner) as flow:
        source, session = flow.input("in", struct)
        none = source.where("x > 3")
        computed = none.withColumn("y", F.hash("x"))
        frames = [
            computed.arrange_by_self(),
            computed.union(none.withColumn("y", F.lit(1))).distinct(),
            source.join(computed.select("x", F.col("c14").alias("other")), "x", "left"),
            computed.crossJoin(none.select("x").toDF("z").hint("broadcast")),
            computed.groupBy("c14", "c15").count(),
        ]
        for frame in frames:
            frame.keep()
        session.insert([(1, *[None] * (len(struct) - 1))])
        session.advance_to(1)
        session.flush()
        flow.step()
        assert [frame.at(0).count() for frame in frames] == [0, 0, 1, 0, 0]


NO_COLUMNS = T.StructType([])


@pytest.mark.parametrize("runner", RUNNERS)
def test_rows_without_columns_are_counted_however_they_come(
    spark: SparkSession, runner: str
) -> None:
    batches = [
        [()] * 3,
        [Row()] * 2,
        pa.table({"gone": [1] * 5}).select([]),
        pd.DataFrame(index=range(4)),
        spark.range(7).select(),
        spark.createDataFrame([()] * 6, NO_COLUMNS),
    ]
    with Dataflow(spark, runner=runner) as flow:
        rows, session = flow.input("rows", NO_COLUMNS)
        frames = [
            rows.arrange_by_self(), rows.groupBy().count(), rows.count(), rows.distinct(),
            rows.select(F.hash(F.lit(1)).alias("h")),
        ]
        for frame in frames:
            frame.keep()
        for data in batches:
            session.insert(data)
        session.remove([()] * 2)
        session.advance_to(1)
        session.flush()
        flow.step()
        assert [frame.at(0).count() for frame in frames] == [25, 1, 1, 1, 25]
        assert frames[1].at(0).collect() == frames[2].at(0).collect() == [Row(count=25)]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("bare", [
    lambda f: f.select(), lambda f: f.drop("x"), lambda f: f.where("hash(x) <> 0").drop("x"),
    lambda f: f.negate().select().negate(),
], ids=["select", "drop", "where", "negate"])
def test_dropping_every_column_leaves_the_rows(
    spark: SparkSession, runner: str, bare: Callable[[DiffFrame], DiffFrame]
) -> None:
    with Dataflow(spark, runner=runner) as flow:
        xs, session = flow.input("xs", "x int")
        rows = bare(xs)
        frames = [
            rows.arrange_by_self(), rows.union(rows), rows.withColumn("y", F.lit(1)),
            rows.flat_map(lambda row: [(1,)], "y int"),
            rows.map_in_pandas(lambda frames: (f.assign(y=1) for f in frames), "y int"),
        ]
        count = rows.groupBy().count().keep()
        for frame in frames:
            frame.keep()
        session.insert([(i,) for i in range(10)])
        session.insert(spark.range(5).selectExpr("cast(id as int) AS x"))
        session.advance_to(1)
        session.flush()
        flow.step()
        assert [frame.at(0).count() for frame in frames] == [15, 30, 15, 15, 15]
        assert count.at(0).collect() == [Row(count=15)]


@pytest.mark.parametrize("kind", ["array<int>", "struct<a: array<date>>", "map<int, string>"])
def test_a_nested_column_without_chunks(spark, kind):
    struct = T.StructType.fromDDL(f"x {kind}")
    column = pa.chunked_array([], to_arrow_type(struct["x"].dataType))
    frame = frame_of_table(spark, pa.table({"x": column}), struct)
    assert frame.collect() == [] and frame.schema == struct


def test_no_row_is_left_of_what_several_operators_read(spark):
    """Spark evaluates the shared rows once; the first and the last step have none."""
    with Dataflow(spark, runner="spark", buckets=2) as flow:
        rows, session = flow.input("rows", "k long, v long")
        few = rows.where("sqrt(v) < 2")
        counts, distinct = few.groupBy("k").count().keep(), few.distinct().keep()
        both = few.union(rows.where("sqrt(v) > 9")).join(counts, "k").keep()
        for time, value in enumerate((5, 1, 6)):
            session.insert([(time, value)])
            flow.advance_to(time + 1)
            actual = [list(map(tuple, frame.at().collect())) for frame in (counts, distinct, both)]
            assert actual == ([[(1, 1)], [(1, 1)], [(1, 1, 1)]] if time else [[], [], []])
