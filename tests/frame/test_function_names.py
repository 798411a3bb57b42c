"""Columns with the names of SQL functions and keywords are columns in each place.

    program(collection) at t  ==  program(plain frame of the rows at t)
"""

from __future__ import annotations

from collections import Counter

import pytest
from plain import local_frame
from pyspark.sql import Window
from pyspark.sql import functions as F

from pyspark_diff import Dataflow
from pyspark_diff.expressions.conditions import parse_condition
from pyspark_diff.spark.mentions import BARE_FUNCTIONS

#: Spark calls a function for these names if no column has them.
BARE = sorted(BARE_FUNCTIONS)
#: Names of functions with brackets, of types and of literals, and words of the grammar.
WORDS = (
    "count key value order group select time diff true false null date timestamp window from "
    "where join on case when end interval array map struct row rows over partition filter limit "
    "distinct all any not in like between is and or exists sum max rank rand now uuid "
    "session_window first last lambda default cast set table variable current_row"
).split()
#: Names of the library's own columns.
OWN = "salt block record bucket key64 lower upper side at number".split()
#: The library needs these two names for its own columns of a plain frame.
TAKEN = ("time", "diff")

ROWS = [(1, 10, 1), (2, 20, 1), (2, 21, 2), (None, 30, 2)]
MORE = [(2, 22, 1), (3, 30, 2)]
FRIENDS = [(1, 100), (2, 200), (4, 400)]


def programs(left, right, name):
    """A program for each place that takes a column, on collections or on plain frames."""
    column, text = F.col(name), f"`{name}`"
    window = Window.partitionBy(column).orderBy("v")
    yield "select name", left.select(name, "v")
    yield "select column", left.select((column + 1).alias("x"), column)
    yield "selectExpr", left.selectExpr(f"{text} + 1 AS x", text)
    yield "where", left.where(column > 1)
    yield "where text", left.where(f"{text} > 1 AND v < 25")
    yield "withColumn", left.withColumn("x", column * 2).withColumn(name, F.col("x") + column)
    yield "drop", left.drop(name)
    yield "rename", left.withColumnRenamed(name, "x").withColumnRenamed("v", name)
    yield "join names", left.join(right.withColumnRenamed("a", name), [name])
    yield "join condition", left.join(right, column == F.col("a"))
    yield "join text", left.alias("o").join(right.alias("t"), F.expr(f"o.{text} = t.a"))
    yield "join band", left.join(right, (column == F.col("a")) & (F.col("b") > column + F.col("v")))
    yield "join left", left.join(right, F.col("a") == column + 0, "left")
    yield "join semi", left.join(right, column == F.col("a"), "left_semi")
    yield "groupBy", left.groupBy(name).agg(F.sum("v").alias("s"), F.count("*").alias("n"))
    yield "groupBy column", left.groupBy((column % 2).alias("x")).agg(F.sum(column).alias("s"))
    yield "agg", left.groupBy("w").agg(F.max(column).alias(name), F.min(column + 1).alias("m"))
    yield "partition", left.withColumn("x", F.row_number().over(window))
    yield "order", left.withColumn("x", F.sum(column).over(Window.partitionBy("w").orderBy(
        column, "v")))
    yield "distinct", left.select(column).distinct()
    yield "dropDuplicates", left.select(name).dropDuplicates([name])


def check(spark, name, runner="driver"):
    schema, friends = f"`{name}` long, v long, w long", "a long, b long"
    with Dataflow(spark, buckets=2) as flow:
        left, left_in = flow.input("one", schema)
        right, right_in = flow.input("two", friends)
        outputs = {place: frame.keep(place) for place, frame in programs(left, right, name)}
        left_in.insert(ROWS)
        right_in.insert(FRIENDS)
        flow.advance_to(1)
        left_in.insert(MORE)
        left_in.remove([ROWS[1]])
        flow.advance_to(2)
        rows = [*ROWS[:1], *ROWS[2:], *MORE]
        plain = dict(programs(
            local_frame(spark, rows, schema), local_frame(spark, FRIENDS, friends), name
        ))
        for place, output in outputs.items():
            assert output.columns == plain[place].columns, (name, place)
            actual, expected = (
                Counter(map(tuple, f.collect())) for f in (output.at(), plain[place]))
            assert actual == expected, (name, place)


def test_a_column_called_user_is_a_column(spark):
    check(spark, "user")


@pytest.mark.parametrize("name", [*BARE, *(w for w in WORDS if w not in TAKEN), *OWN])
def test_a_column_called_as_a_function_is_a_column(spark, name):
    check(spark, name)


@pytest.mark.classic_only("asks the analyser in the JVM")
def test_each_name_that_spark_calls_without_brackets_is_listed(spark):
    listed = "SHOW FUNCTIONS", "SELECT keyword FROM sql_keywords()"
    names = {row[0].lower() for text in listed for row in spark.sql(text).collect()}
    names |= BARE_FUNCTIONS
    jvm = spark._jvm
    resolve = jvm.org.apache.spark.sql.catalyst.analysis.LiteralFunctionResolution.resolve
    called = {name for name in names if resolve(jvm.PythonUtils.toSeq([name])).isDefined()}
    # Versions of Spark differ in the names that they call.
    assert {"user", "current_date", "current_timestamp"} <= called <= BARE_FUNCTIONS


@pytest.mark.parametrize("name", BARE)
def test_a_bare_name_belongs_to_the_side_that_has_it(spark, name):
    left = spark.createDataFrame([], f"`{name}` long, c long")
    right = spark.createDataFrame([], "a long, b long")
    for frames in ((left, right), (right, left)):
        condition = parse_condition(*frames, F.col(name) == F.col("a"))
        assert len(condition.left) == 1 and not condition.residual
    condition = parse_condition(left, right, F.expr(f"b BETWEEN c - `{name}` AND c + `{name}`"))
    assert condition.interval is not None and condition.interval.length is None
