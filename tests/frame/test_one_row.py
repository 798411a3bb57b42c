"""Each place refuses an expression by name unless a list has it as a function of one row.

The tests remove `abs` from the list of classes and from the list of names for Connect. Spark says
that `abs` is deterministic, as any expression of an extension, so only the lists can refuse it.
"""

from __future__ import annotations

import function_registry as registry
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, SchemaError
from pyspark_diff.errors import UnsupportedQueryError
from pyspark_diff.spark import one_row


def x():
    return F.abs("v")


PLACES = {
    "select": lambda r: r.select(x().alias("x")),
    "a text": lambda r: r.selectExpr("abs(v) AS x"),
    "in another call": lambda r: r.select((x() + 1).cast("string")),
    "in a lambda": lambda r: r.select(F.transform(F.array("v"), lambda y: F.abs(y)).alias("x")),
    "in an explode": lambda r: r.select(F.explode(F.array(x())).alias("x")),
    "where": lambda r: r.where(x() > 1),
    "withColumn": lambda r: r.withColumn("x", x()),
    "groupBy": lambda r: r.groupBy(x().alias("x")).agg(F.count("*")),
    "agg": lambda r: r.groupBy("k").agg(F.sum(x())),
    "over an aggregate": lambda r: r.groupBy("k").agg(F.abs(F.sum("v")).alias("x")),
    "join": lambda r: r.alias("a").join(r.alias("b"), F.abs("a.v") == F.col("b.v")),
    "residual": lambda r: r.alias("a").join(
        r.alias("b"), (F.col("a.k") == F.col("b.k")) & (F.abs("a.v") > F.col("b.v"))),
    "window": lambda r: r.select(
        "k", F.sum(x()).over(Window.partitionBy("k").orderBy("v")).alias("x")),
    "partition": lambda r: r.select(
        "k", F.row_number().over(Window.partitionBy(x()).orderBy("k")).alias("x")),
    "transform": lambda r: r.transform(lambda rows: rows.withColumn("x", x())),
    "loop": lambda r: r.iterate(lambda y: y.where(x() > 1)),
}


@pytest.fixture
def stranger(monkeypatch):
    name = "org.apache.spark.sql.catalyst.expressions.Abs"
    assert name in one_row.ONE_ROW
    monkeypatch.setattr(one_row, "ONE_ROW", one_row.ONE_ROW - {name})
    monkeypatch.setattr(one_row, "FUNCTIONS", one_row.FUNCTIONS - {"abs"})


@pytest.mark.parametrize("place", PLACES)
def test_an_unlisted_expression_is_refused_in_each_place(spark, stranger, place):
    flow = Dataflow(spark, runner="local")
    rows, _ = flow.input("rows", "k int, v int")
    with pytest.raises(SchemaError, match=r"uses abs\. This library does not know"):
        PLACES[place](rows)
    flow.close()


@pytest.mark.classic_only("queries are not read over Connect")
def test_an_unlisted_expression_is_refused_in_a_query(spark, stranger):
    flow = Dataflow(spark, runner="local")
    rows, _ = flow.input("rows", "k int, v int")
    for text in ("SELECT abs(v) AS x FROM rows", "SELECT k FROM rows WHERE abs(v) > 1"):
        with pytest.raises(UnsupportedQueryError, match="uses abs"):
            flow.sql(text, rows=rows)
    flow.close()


def test_an_input_may_be_computed_with_an_unlisted_expression(spark, stranger):
    flow = Dataflow(spark, runner="local")
    rows, session = flow.input("rows", "x int")
    output = rows.keep("rows")
    session.insert(spark.range(1).select(F.abs(F.lit(-2)).alias("x")))
    flow.advance_to(1)
    assert [tuple(row) for row in output.at().collect()] == [(2,)]
    flow.close()


def test_functions_by_name_are_those_that_do_not_depend_on_the_session():
    others = registry.classified().keys() - one_row.FUNCTIONS
    assert not one_row.FUNCTIONS - registry.classified().keys()
    for name, (letters, _) in registry.classified().items():
        assert not (name in others and {registry.RIGHT, registry.FAILS} & set(letters)), name
        clock = name.startswith(("curr", "now", "local", "unix_nanos"))
        assert not (name in one_row.FUNCTIONS and clock), name
    assert {"version", "localtime", "counter_diff", "user"} <= others


def test_functions_that_read_a_file_are_refused(spark):
    """Spark reads the descriptor of Protobuf and a schema of Avro by their paths in each query."""
    for name in "FromProtobuf", "ToProtobuf":
        assert not one_row.is_one_row(f"org.apache.spark.sql.catalyst.expressions.{name}")
    assert {"from_protobuf", "to_protobuf"}.isdisjoint(one_row.FUNCTIONS)
    assert {"from_avro", "to_avro", "schema_of_avro"} <= one_row.FUNCTIONS

    def from_avro(value, option, path):  # in place of the function, whose jar Spark lacks
        return value

    read = F.udf(from_avro)
    with Dataflow(spark, runner="local") as flow:
        rows, _ = flow.input("rows", "v string")
        rows.select(read("v", F.lit("mode"), F.lit("FAILFAST")).alias("x"))
        with pytest.raises(SchemaError, match="file in the option avroSchemaUrl of from_avro"):
            rows.select(read("v", F.lit("avroSchemaURL"), F.lit("/f")).alias("x"))


def test_functions_of_users_and_of_types_are_listed(spark):
    frame = spark.createDataFrame([], "k int, v int, s string, d struct<a int, b int>, t timestamp")
    plain = F.udf(lambda x: x, "int")
    spark.udf.register("one_row_own", plain)
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION one_row_sql(x INT) RETURNS INT RETURN x + 1")
    try:
        assert one_row.not_one_row(frame.select(
            plain("v"), F.expr("one_row_own(v)"), F.expr("one_row_sql(v)"), "d.a", "d.*",
            F.col("d").withField("c", F.lit(1)), F.col("d").dropFields("a"),
            F.collate("s", "UNICODE_CI"), F.window("t", "1 day"), F.col("v").isin(1, 2),
            F.when(F.col("v") > 1, 2), F.col("s").cast("timestamp"), F.col("v").between(1, 2),
            F.expr("nullif(v, 1) IS UNKNOWN"), F.from_json("s", "a int"), F.lit(None),
            F.expr("CAST(v AS DECIMAL(9, 2)) IN (1, 2) AND NOT (s LIKE ('version(%'))"),
        )) == ()
    finally:
        spark.sql("DROP TEMPORARY FUNCTION one_row_own")
        spark.sql("DROP TEMPORARY FUNCTION one_row_sql")
    assert isinstance(frame.schema["k"].dataType, T.IntegerType)


def test_a_function_of_spark_that_no_list_has_is_refused(spark):
    for frame in spark.range(1).select(F.version()), spark.range(1).selectExpr("version()"):
        assert one_row.not_one_row(frame) == ("version",)
