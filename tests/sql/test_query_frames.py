"""Plain DataFrames that `flow.query` keeps up to date equal plain Spark's, over Connect too.

    the kept answer of a frame  =  the rows of the same methods over tables of the rows so far
"""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime
from decimal import Decimal

import pytest
import random_frames
from hypothesis import given
from pyspark.errors import AnalysisException
from pyspark.sql import Window
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, SchemaError, UnsupportedQueryError

pytest.importorskip("sqlglot")

SCHEMAS = {"t": "a int, b int, s string", "u": "a int, b int, c double"}
#: Insertions and deletions of each step.
STEPS = [
    {"t": ([(1, 2, "x"), (1, 3, "y"), (2, None, None), (3, 1, "x"), (1, 2, "x")], []),
     "u": ([(1, 2, 0.5), (3, 4, None), (None, 1, 2.5), (2, 3, float("nan"))], [])},
    {"t": ([(4, 4, "z"), (2, 5, "y"), (None, 3, "z")], [(1, 3, "y"), (1, 2, "x")]),
     "u": ([(1, 5, 1.5), (4, 4, 0.25)], [(3, 4, None)])},
    {"t": ([(1, 1, "z")], [(2, None, None), (4, 4, "z")]),
     "u": ([(2, 1, 9.0)], [(1, 2, 0.5)])},
]


def _by():
    return Window.partitionBy("a").orderBy("b", "s")


FRAMES = {
    "project": lambda t, u: t.select("a", (F.col("b") + 1).alias("c"), F.upper("s"), t.b * 2),
    "filter": lambda t, u: t.filter((F.col("a") > 1) | F.col("s").isin("x", "y")).where("b < 5"),
    "text": lambda t, u: t.selectExpr("a + 1 AS k", "*", "upper(s)").where("k > 2 OR `b` = 2"),
    "case": lambda t, u: t.select(
        F.when(t.a > 2, "big").when(t.b.isNull(), F.lit(None)).otherwise(t.s).alias("k"),
        F.col("a").cast("string"), F.col("b").cast("double"), F.coalesce("b", F.lit(0)),
    ),
    "functions": lambda t, u: t.select(
        F.struct("a", F.col("b").alias("z"), t.a + 1).alias("r"), F.array("a", "b")[0],
        F.to_json(F.struct(t.a)), F.concat_ws("-", "s", "a"), F.lit(-3), F.lit(2.5),
        F.transform(F.array("a", "b"), lambda x: x + 1), -F.col("a"), ~(t.a == 1), t.a != t.b,
        F.lit("it's"),
    ),
    "fields": lambda t, u: t.select(F.struct("a", "s").alias("r")).select(
        "r.a", F.col("r").getField("s"), F.col("r")["a"] + 1),
    "columns": lambda t, u: t.withColumn("b", F.col("a") + 1).withColumns(
        {"c": F.col("b") * 2, "A": F.lit(1)}).withColumnRenamed("s", "name").drop("a"),
    "renamed": lambda t, u: t.toDF("x", "y", "z").withColumnsRenamed({"x": "y2", "y": "x"}),
    "regex": lambda t, u: t.select(t.colRegex("`a|s`")),
    "hidden": lambda t, u: t.select("a").filter(t.b > 1),
    "join": lambda t, u: t.join(u, t.a == u.a).select(t.a, u.b, "s", "c").where(u.b > 1),
    "join names": lambda t, u: t.join(u, "a", "left").where("s IS NOT NULL"),
    "join right": lambda t, u: t.join(u, ["a", "b"], "right"),
    "join full": lambda t, u: t.join(u, "a", "full").select("a", t.b, u.b, "c"),
    "join semi": lambda t, u: t.join(u, t.a == u.b, "semi"),
    "join anti": lambda t, u: t.join(u, "a", "anti"),
    "join self": lambda t, u: t.alias("x").join(
        t.alias("y"), (F.col("x.a") == F.col("y.b")) & (F.col("x.b") <= F.col("y.a")), "left"
    ).select("x.*", F.col("y.s").alias("other")),
    "cross": lambda t, u: t.crossJoin(u).where(t.a == u.a),
    "group": lambda t, u: t.groupBy("a").agg(
        F.sum("b"), F.count("*").alias("n"), F.countDistinct("s"), F.max(F.col("b") + 1) + 1,
        F.sum("b") + F.col("a"), F.first("a", ignorenulls=True),
    ).where("n > 1 OR `sum(b)` > 2"),
    "group of": lambda t, u: t.groupBy((t.a % 2).alias("odd"), "s").count().groupBy("odd").sum(
        "count"),
    "group text": lambda t, u: t.groupBy("a").agg(F.expr("sum(b) FILTER (WHERE s = 'x') AS f")),
    "whole": lambda t, u: t.agg(F.count("*"), F.sum("b"), F.max("s")),
    "select aggregate": lambda t, u: t.select(F.count("*"), F.max("a") + 1),
    "rollup": lambda t, u: t.rollup("a", "s").agg(F.sum("b"), F.grouping_id()),
    "cube": lambda t, u: t.cube("a", "s").count(),
    "sets": lambda t, u: t.groupingSets([["a"], ["s", "a"], []], "a", "s").agg(F.sum("b")),
    "pivot": lambda t, u: t.groupBy("a").pivot("s", ["x", "y"]).agg(
        F.sum("b").alias("m"), F.count("b").alias("n")),
    "unpivot": lambda t, u: t.unpivot("s", ["a", "b"], "name", "value"),
    "unpivot rest": lambda t, u: t.select("a", "b").unpivot("a", None, "name", "value"),
    "union": lambda t, u: t.select("a", "b").union(u.select("b", "c")),
    "union by name": lambda t, u: t.unionByName(u, allowMissingColumns=True),
    "union self": lambda t, u: t.union(t).groupBy("a").count(),
    "sets of rows": lambda t, u: t.select("a").exceptAll(u.select("a")).union(
        t.select("a").intersect(u.select("b"))).union(t.select("b").subtract(u.select("b"))),
    "distinct": lambda t, u: t.select("a", "b").distinct().union(
        t.select("a", "b")).dropDuplicates(["a", "b"]),
    "first": lambda t, u: t.orderBy(F.desc("b"), "s", "a").limit(3),
    "offset": lambda t, u: t.orderBy(F.col("b").asc_nulls_last(), "a", "s").offset(1).limit(3),
    "window": lambda t, u: t.select(
        "a", F.rank().over(_by()), F.sum("b").over(_by().rowsBetween(-1, 0)).alias("w"),
        F.lag("b", 1, 0).over(_by()), F.count("*").over(Window.partitionBy("s")),
    ).where("w > 1"),
    "window of groups": lambda t, u: t.groupBy("a").agg(F.sum("b").alias("m")).withColumn(
        "r", F.row_number().over(Window.orderBy(F.desc("m"), "a"))).where("r <= 2"),
    "interval": lambda t, u: t.where("a IS NOT NULL").groupBy(
        F.window(F.timestamp_seconds(F.col("a") * 3000), "2 hours")
    ).agg(F.sum("b").alias("m")).select("window.start", "m"),
    "explode": lambda t, u: t.select("s", F.explode(F.array("a", "b")).alias("x")).where("x > 1"),
    "posexplode": lambda t, u: t.select("s", F.posexplode(F.array("a", "b")), "a"),
    "fill": lambda t, u: u.fillna(0).union(u.fillna({"c": 7.5, "a": 1})).na.drop(),
    "drop nulls": lambda t, u: u.dropna(thresh=2, subset=["a", "c"]).union(u.dropna("all")),
    "replace": lambda t, u: t.replace(1, 9, ["a"]).replace({"x": "q", "y": None}),
    "constant": lambda t, u: t.join(t.sparkSession.createDataFrame([(1, "one")], "a int, n string"),
                                    "a", "left"),
    "range": lambda t, u: t.join(t.sparkSession.range(3), F.col("id") == t.a, "right"),
    "sql": lambda t, u: t.sparkSession.sql(
        "SELECT a, max(b) AS m FROM {x} WHERE s <> :s GROUP BY a", x=t, args={"s": "y"}
    ).where("m > 1"),
    "exists": lambda t, u: t.alias("t").where(
        u.alias("u").where(F.col("u.a") == F.col("t.a").outer()).select(F.lit(1)).exists()),
    "scalar": lambda t, u: t.alias("t").select("a", u.alias("u").where(
        F.col("u.a") == F.col("t.a").outer()).select(F.max("b")).scalar().alias("m")),
    "in": lambda t, u: t.where(t.a.isin(u.where("b IS NOT NULL").select("b"))),
    "lateral": lambda t, u: t.alias("t").lateralJoin(
        u.alias("u").where(F.col("u.a") == F.col("t.a").outer()).select(
            (F.col("u.b") + F.col("t.b").outer()).alias("z")), how="left"),
    "names again": lambda t, u: t.select((t.a + 1).alias("a"), "b").filter(t.a > 1).drop("b"),
    "order below": lambda t, u: t.select("a").orderBy(t.b.desc(), "s", "a").limit(2),
    "of a frame": lambda t, u: t.join(t.filter(t.a > 1).select(t.a.alias("z")), t.a == F.col("z")),
    "keys of both": lambda t, u: t.join(u, "a", "full").select("a", t.a.alias("x"), u.a.alias("y")),
    "dots": lambda t, u: t.toDF("a.b", "c d", "s").select(
        "`a.b`", F.col("`c d`") + 1).where("`a.b` > 1"),
    "two limits": lambda t, u: t.orderBy("a", "b", "s").limit(4).where("b > 1").orderBy(
        F.desc("b"), "a", "s").limit(2),
    "literals": lambda t, u: t.select(
        F.lit(-1) - F.lit(-2), t.a - -1, F.lit(None), F.lit(1.5).cast("float"), F.lit(True),
        F.lit(date(1969, 1, 2)), F.lit(datetime(2024, 1, 2, 3, 4, 5)), F.lit(Decimal("1.50")),
    ),
    "brackets": lambda t, u: t.where(F.expr("a = 1 OR b = 1") & F.expr("a = 3 OR b > 1")).select(
        F.expr("a + 1") * 2, -F.expr("a + b"), F.expr("a + b").cast("string"), F.struct("*")),
    "hint": lambda t, u: t.hint("broadcast").repartition(3).orderBy("a").join(u, "a"),
    "dates": lambda t, u: t.select(
        F.date_add(F.lit("2024-01-01").cast("date"), t.a),
        F.expr("timestampdiff(DAY, DATE '2024-01-01', date_add(DATE '2024-02-01', a)) AS d"),
    ),
}


def rows(frame) -> Counter:
    return Counter(str(tuple(row)) for row in frame.collect())


def compared(spark, build, schemas, steps) -> None:
    """Keep a frame, and compare it with plain Spark's after each step."""
    tables = {table: [] for table in schemas}
    with Dataflow(spark, buckets=2) as flow:
        inputs = {table: flow.input(table, schema)[1] for table, schema in schemas.items()}
        output = flow.query(build(*(flow.table(table) for table in schemas))).keep("kept")
        for time, step in enumerate(steps):
            for table, (inserted, removed) in step.items():
                inputs[table].insert(inserted)
                inputs[table].remove(removed)
                tables[table] += inserted
                for row in removed:
                    tables[table].remove(row)
            flow.advance_to(time + 1)
            plain = build(*(
                spark.createDataFrame(tables[table], schemas[table]) for table in schemas
            ))
            assert rows(output.at()) == rows(plain), time


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_equals_plain_spark(spark, name):
    compared(spark, FRAMES[name], SCHEMAS, STEPS)


APART = {
    "coalesce": lambda t, u: t.orderBy(F.desc("a"), "b", "s").coalesce(1).limit(3),
    "dropna": lambda t, u: t.orderBy(F.desc("a"), "b", "s").dropna().limit(3),
    "fillna": lambda t, u: t.orderBy(F.desc("a"), "b", "s").fillna({"b": 7}).limit(3),
    "replace": lambda t, u: t.orderBy(F.desc("a"), "b", "s").replace({2: 7}, subset=["b"]).limit(3),
    "column twice": lambda t, u: t.orderBy(F.desc("a"), "b", "s").select("b", "b").limit(3),
}


@pytest.mark.parametrize("name", APART)
def test_a_limit_apart_from_its_sort_keeps_its_rows_or_is_refused(spark, name):
    if hasattr(spark, "_jsparkSession"):
        compared(spark, APART[name], SCHEMAS, STEPS)
    else:
        with pytest.raises(UnsupportedQueryError, match="NODE: a limit apart from its sort"):
            compared(spark, APART[name], SCHEMAS, STEPS)


@pytest.mark.slow
@given(build=random_frames.frames())
def test_random_frames_equal_plain_spark(spark, build):
    schema = SCHEMAS["t"]
    steps = [{"t": step["t"], "u": tuple(
        [(b, a, None if c is None else "x" if c < 2 else "y") for a, b, c in side]
        for side in step["u"]
    )} for step in STEPS[:2]]
    compared(spark, build, {"t": schema, "u": schema}, steps)


def _mapped(parts):
    yield from parts


REFUSED = {
    "random": (lambda t: t.select(F.rand()), "NON_DETERMINISTIC: rand"),
    "random text": (lambda t: t.where("rand(3) > 0.5"), "NON_DETERMINISTIC: rand"),
    "clock": (lambda t: t.select(F.current_date()), "CURRENT_TIME"),
    "sample": (lambda t: t.sample(0.5).groupBy("a").count(), "SAMPLE"),
    "function": (lambda t: t.select(F.udf(lambda x: x, "int")("a")), "PYTHON_FUNCTION"),
    "map": (lambda t: t.mapInPandas(_mapped, t.schema).where("a > 1"), "NODE: "),
    "any row": (lambda t: t.dropDuplicates(["a"]), "NODE: dropDuplicates of some columns"),
    "session": (
        lambda t: t.select(F.session_window(F.timestamp_seconds("a"), "5 minutes")).distinct(),
        "NODE: DISTINCT or a set operation of session_window",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_frame_is_refused_by_name(spark, name):
    build, code = REFUSED[name]
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        with pytest.raises(UnsupportedQueryError, match=code):
            flow.query(build(flow.table("t")))


#: Methods that compute the rows of a frame while the user builds a query.
COMPUTING = {
    "pivot": lambda t: t.groupBy("a").pivot("b").agg(F.sum("b")),
    "pivot and where": lambda t: t.groupBy("a").pivot("b").sum("b").where("a > 1"),
    "pivot below": lambda t: t.where("a > 1").select("a", "s").groupBy("a").pivot("s").agg(
        F.collect_list("s")).select("a").distinct(),
    "pivot of a join": lambda t: t.join(t.alias("o"), "a").groupBy("a").pivot("o.s").count(),
    "crosstab": lambda t: t.crosstab("a", "b"),
    "quantiles": lambda t: t.approxQuantile("a", [0.5], 0.1),
    "correlation": lambda t: t.corr("a", "b"),
    "covariance": lambda t: t.select("a", "b").cov("a", "b"),
    "checkpoint": lambda t: t.localCheckpoint(),
    "collect": lambda t: t.collect(),
    "count": lambda t: t.distinct().count(),
    "first": lambda t: t.first(),
    "take": lambda t: t.orderBy("a").take(2),
    "tail": lambda t: t.tail(1),
    "empty": lambda t: t.isEmpty(),
    "show": lambda t: t.show(),
    "pandas": lambda t: t.toPandas(),
    "arrow": lambda t: t.toArrow(),
    "foreach": lambda t: t.foreach(print),
    "iterator": lambda t: list(t.toLocalIterator()),
    "cached": lambda t: t.cache().count(),
    "writer": lambda t: t.write.format("noop").mode("overwrite").save(),
    "null": lambda t: t.where("a IS NULL").count(),
    "comparison": lambda t: t.where("a <=> a").select("s").collect(),
}
#: Methods that make a frame of rows that Spark computes later.
LATER = {
    "checkpoint": lambda spark, t: t.localCheckpoint(eager=False),
    "checkpoint below": lambda spark, t: t.select("a").localCheckpoint(eager=False).where("a > 1"),
    "rdd": lambda spark, t: spark.createDataFrame(t.rdd, t.schema),
}


@pytest.mark.parametrize("name", COMPUTING)
def test_a_method_that_computes_rows_of_a_table_names_the_mistake(spark, name):
    """A table has no rows: the method would fix the query to an empty frame."""
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        table = flow.table("t")
        with pytest.raises(Exception, match=r"flow.table\('t'\) stands for a collection"):
            result = COMPUTING[name](table)
            # A client of Connect sends the frame of a pivot when it needs its columns.
            flow.query(result)


@pytest.mark.classic_only("Connect has no RDD, and its client names a checkpoint as a frame")
@pytest.mark.parametrize("name", LATER)
def test_rows_of_a_table_that_spark_computes_later_are_refused(spark, name):
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        with pytest.raises(UnsupportedQueryError, match="the rows of table.'t'."):
            flow.query(LATER[name](spark, flow.table("t")))


@pytest.mark.classic_only("Connect names checkpoints")
def test_computed_rows_without_the_columns_of_a_table_fail(spark):
    with Dataflow(spark, buckets=2) as flow:
        flow.input("t", SCHEMAS["t"])
        counts = flow.table("t").groupBy("a").agg(F.count("*").alias("n")).select("n")
        with pytest.raises(Exception, match="stands for a collection"):
            flow.query(counts.localCheckpoint(eager=False)).keep("kept")
            flow.advance_to(1)


def test_methods_that_compute_no_rows_of_a_table(spark):
    with Dataflow(spark, buckets=2) as flow:
        counts, counts_in = flow.input("t", "a int NOT NULL, s array<string>, v variant")
        table = flow.table("t").cache()
        table.explain()
        assert [item.name for item in table.schema.fields] == ["a", "s", "v"]
        output = flow.query(table.where("a > 1").select("a", "s")).keep("kept")
        counts_in.insert([(1, ["x"], None), (2, None, None)])
        flow.advance_to(1)
        assert rows(output.at()) == Counter(["(2, None)"])
        table.unpersist()


def test_all_refused_parts_of_a_frame_are_listed(spark):
    with Dataflow(spark) as flow:
        for table, schema in SCHEMAS.items():
            flow.input(table, schema)
        left = flow.table("t").sample(0.5).select("a", F.rand().alias("r"))
        right = flow.table("u").select("b", F.current_date().alias("d"))
        with pytest.raises(UnsupportedQueryError) as raised:
            flow.query(left.join(right, F.col("a") == F.col("b")))
    for code in ("SAMPLE", "NON_DETERMINISTIC", "CURRENT_TIME"):
        assert code in str(raised.value)


def test_a_frame_that_spark_refuses(spark):
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMAS["t"])
        with pytest.raises((SchemaError, AnalysisException)):
            flow.query(flow.table("t").select("nowhere"))


def test_a_frame_reads_the_tables_of_the_dataflow_alone(spark):
    """A text in a frame names tables of the session."""
    with Dataflow(spark, buckets=2) as flow:
        flow.input("t", SCHEMAS["t"])
        spark.createDataFrame([(1,)], "a int").createOrReplaceTempView("frames_t")
        flow.input("frames_t", "a int")
        if hasattr(spark, "_jsparkSession"):
            output = flow.query(spark.sql("SELECT a FROM frames_t")).keep("kept")
            flow.advance_to(1)
            assert rows(output.at()) == Counter(["(1,)"])
        else:
            with pytest.raises(UnsupportedQueryError, match="the plan of a view"):
                flow.query(spark.sql("SELECT a FROM frames_t"))
    spark.catalog.dropTempView("frames_t")


def test_notes_of_a_frame_in_an_order(spark):
    with Dataflow(spark, buckets=2) as flow:
        flow.input("t", SCHEMAS["t"])
        for frame, notes in [
            (flow.table("t").orderBy("a").select("a"), ["ORDER BY"]),
            (flow.table("t").limit(2), ["LIMIT without ORDER BY"]),
            (flow.table("t").orderBy("a").limit(2), []),
        ]:
            read = flow._read(frame)
            assert [note.partition(":")[0] for note in read.notes] == notes
            assert read.tables == {"t"}
