"""Columns of a plain Spark frame have the same meaning as in PySpark.

    f(frame, plain) at t  ==  f(table at t, plain)
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from itertools import islice

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, SchemaError

ROWS = [(1, 2), (2, 3), (None, 2)]
PLAIN = [(2, 5, (1, 2), [(1, 2)]), (3, 6, (2, 3), []), (None, 1, None, None)]
SCHEMA = "y long, Z long, s struct<f:int,g:int>, r array<struct<f:int,g:int>>"


@pytest.fixture(scope="module")
def df(spark) -> DataFrame:
    return spark.createDataFrame(PLAIN, SCHEMA)


@pytest.fixture(scope="module")
def table(spark) -> DataFrame:
    return spark.createDataFrame(ROWS, "x int, y long")


@pytest.fixture(scope="module")
def frame(table) -> DiffFrame:
    return DiffFrame(table.withColumns({"time": F.lit(0), "diff": F.lit(1)}))


#: Operations on a frame of this library or of PySpark, a plain frame, and a frame derived from it.
DONE = {
    "attribute": lambda a, d, e: a.join(d, a.x == d.y),
    "item, in another case": lambda a, d, e: a.join(d, a.x == d["Y"]),
    "the same name on both sides": lambda a, d, e: a.join(d, a.y == d.y),
    "turned round": lambda a, d, e: a.join(d, d.y == a.y),
    "list": lambda a, d, e: a.join(d, [a.y == d.y, a.x < d.Z], "right"),
    "and": lambda a, d, e: a.join(d, (a.y == d.y) & (d.s.f > 0) & (a.x > 1), "left"),
    "field": lambda a, d, e: a.join(d, a.x == d["s.f"], "full"),
    "eqNullSafe": lambda a, d, e: a.join(d, d.y.eqNullSafe(a.x), "left"),
    "expressions": lambda a, d, e: a.join(d, (d.y + 1) == (a.x + F.lit(1)), "left_anti"),
    "case": lambda a, d, e: a.join(d, F.when(d.y > 2, d.Z).otherwise(d.y) == a.y, "left_semi"),
    "of an earlier frame": lambda a, d, e: a.join(e, d.y == a.x).select(e["d.y"], d.Z, a.y),
    "of a column that is called in another way": lambda a, d, e: a.join(e, e["d.y"] == a.x),
    "select": lambda a, d, e: a.join(d, a.y == d.y).select(
        d.Z, a.y, d.y + 1, d["s.f"], d.s.g, d["r.f"], -d.Z, d.y.cast("string")
    ),
    "where and drop": lambda a, d, e: a.join(d, a.y == d.y).where(d.Z > 5).drop(d.y, d.s),
    "star": lambda a, d, e: a.join(d, a.y == d.y).select(d["*"], a.x),
    "group": lambda a, d, e: a.join(d, a.y == d.y).groupBy(d.y).agg(
        F.sum(d.Z), F.max(d.Z + a.x), F.sum(d.Z) / F.count(a.y)
    ),
    "withColumn": lambda a, d, e: a.join(d, a.y == d.y).withColumn("q", d.y * 2).withColumns(
        {"r": d.Z, "x": d.y}
    ).drop("y"),
    "by name": lambda a, d, e: a.join(d, "y").select(d.y, a.x, d.Z, F.coalesce(d.y, a.y)),
    "cross": lambda a, d, e: a.crossJoin(F.broadcast(d)).where((a.y == d.y) | (d.Z == 6)),
    "unpivot": lambda a, d, e: a.join(d, a.x == d.Z, "left").select(a.x, d.y, d.Z).unpivot(
        [a.x], [d.y, d.Z], "name", "value"
    ),
    "two frames": lambda a, d, e: a.join(d, a.x == d.y).join(
        o := d.select((F.col("y") + 1).alias("more"), F.col("Z").alias("last")), d.Z + 1 == o.last,
        "left",
    ).select(d.Z, o.more, a.x),
}


@pytest.mark.parametrize("share", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_what_is_done_is_what_pyspark_does(table, frame, df, share):
    other = df.where("Z > 1").alias("d")
    actual, expected = [], []
    for name, done in islice(DONE.items(), 0, None, share):
        theirs, ours = done(table, df, other), done(frame, df, other)
        assert ours.columns == theirs.columns, name
        assert [kind for _, kind in ours.dtypes] == [kind for _, kind in theirs.dtypes], name
        for frames, output in ((actual, ours.at(0)), (expected, theirs)):
            output = output.toDF(*[f"c{i}" for i in range(len(output.columns))])
            row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
            frames.append(output.select(F.lit(name), row))
    counted = [Counter(reduce(DataFrame.union, rows).collect()) for rows in (actual, expected)]
    assert counted[0] == counted[1]


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_kept_up_to_date(spark, df, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        a, a_in = flow.input("a", "x int, y long")
        joined = a.join(df, a.x == df.y, "left").select(a.y, df.Z).keep()
        lifted = flow.constant(df)
        same = a.join(lifted, (a.x == df.y) & (lifted.Z > 5)).keep()
        a_in.insert([(2, 1), (7, 1)])
        flow.advance_to(1)
        assert Counter(joined.at().collect()) == Counter([(1, 5), (1, None)])
        assert same.at().collect() == []
        a_in.remove([(2, 1)])
        a_in.insert([(3, 9)])
        flow.advance_to(2)
        assert Counter(joined.at().collect()) == Counter([(9, 6), (1, None)])
        assert [row.Z for row in same.at().collect()] == [6]


def test_columns_of_frames_that_are_not_there(table, frame, df):
    a, t = frame, table
    joined = a.join(df, a.y == df.y)
    for wrong in (
        lambda: a.where(a.x == df.y), lambda: a[df.y > 1], lambda: a.select(df.y + 1),
        lambda: a.groupBy(df.y).count(), lambda: a.agg(F.sum(df.y)), lambda: a.drop(df.y),
        lambda: a.withColumn("q", df.y), lambda: a.withColumns({"q": df.y}),
        lambda: a.top_k(1, df.y.desc()), lambda: a.join(t, a.x == df.y),
        lambda: a.join(a.alias("b"), df.y == F.col("b.y")),
        lambda: a.unpivot("x", [df.y], "a", "b"),
        lambda: a.select(F.when(F.lit(True), F.struct(a.x, df.y))),
    ):
        with pytest.raises(SchemaError, match=r"'y' comes from a plain.*\[x, y\].*a.join\(df, a"):
            wrong()
    with pytest.raises(SchemaError, match="star comes from a plain Spark frame"):
        a.select(df["*"])
    for wrong in (lambda: joined.drop(df.Z).select(df.Z), lambda: a.join(df, "y").drop("Z")[df.Z]):
        with pytest.raises(SchemaError, match=r"'Z' of DataFrame\[y, Z, s, r\] is none of drop\["):
            wrong()
    for wrong in (
        lambda: joined.join(df, a.x == df.y),
        lambda: joined.join(df.withColumnRenamed("Z", "W"), F.col("W") == a.x).select(df.y),
    ):
        with pytest.raises(SchemaError, match=r"'y' of DataFrame.* more than once.*alias\('d'\)"):
            wrong()
    with pytest.raises(AnalysisException, match="nosuch"):
        a.join(df, F.col("nosuch") == df.y)
