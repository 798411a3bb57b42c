"""Stars expand to the data columns in the same places as in PySpark, also after removals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, SchemaError

ROWS = (
    "SELECT * FROM VALUES (1, 2, named_struct('p', 1, 'q', 'x')), (1, 3, null),"
    " (2, 2, named_struct('p', 7, 'q', null)), (null, 2, named_struct('p', 1, 'q', 'x')),"
    " (1, 2, named_struct('p', 1, 'q', 'x')), (3, null, named_struct('p', null, 'q', 'z'))"
    " AS t(k, v, a)"
)
#: Programs over a collection or a plain frame.
PROGRAMS = {
    "columns": lambda d: d.select(F.col("*"), (F.col("v") + 1).alias("w")),
    "fields": lambda d: d.select("k", F.col("a.*")),
    "fields of fields": lambda d: d.select(F.struct("a").alias("w")).select("w.a.*"),
    "fields of an alias": lambda d: d.alias("l").select("l.a.*"),
    "struct": lambda d: d.select(F.struct("*").alias("s")),
    "where": lambda d: d.where(F.hash("*") % 2 == 0),
    "where text": lambda d: d.where("hash(a.*) % 2 = 0"),
    "frame's": lambda d: d.select(d["*"]),
    "struct of a frame's": lambda d: d.select(
        F.struct(d["*"]), F.to_json(F.struct(d["v"], d["K"])), "k"),
    "frame's of a join": lambda d: (lambda r: d.join(r, "k").select(
        F.struct(r["*"]).alias("s"), F.hash(d["*"]).alias("h"), d["v"]))(
            d.select("k", F.col("a").alias("b"))),
    "where of a frame's": lambda d: d.where(F.hash(d["*"]) % 2 == 0),
    "with a frame's": lambda d: d.withColumn("s", F.struct(d["*"])).withColumn(
        "z", F.arrays_zip(F.array(d["k"]).alias("n"), F.array("v").alias("m"))),
    "count over a window": lambda d: d.select(
        "k", F.count(d["*"]).over(Window.partitionBy("k")).alias("n")),
    "count": lambda d: d.groupBy("k").agg(F.count("*")),
    "count of a frame's": lambda d: d.groupBy("k").agg(F.count(d["*"])),
    "count of all of a frame's": lambda d: d.agg(F.count(d["*"]), F.count(d["v"])),
    "count of a frame's with more": lambda d: d.rollup(d["k"]).agg((F.count(d["*"]) + 1)),
    "distinct": lambda d: d.groupBy("k").agg(F.count_distinct("*")),
    "distinct in text": lambda d: d.groupBy("k").agg(F.expr("count(DISTINCT *)").alias("n")),
    "distinct of a frame's": lambda d: d.groupBy("k").agg(F.count_distinct(d["*"])),
    "sum of a column": lambda d: d.select("v").agg(F.sum(F.col("*")), F.max(F.col("*"))),
    "sum of a frame's": lambda d: d.groupBy("k").agg(
        F.sum(F.hash(d["*"])), F.max(F.struct(d["*"]))),
    "count of structs": lambda d: d.groupBy("k").agg(F.count(F.struct("*"))),
    "distinct structs": lambda d: d.groupBy("k").agg(F.count_distinct(F.struct("*")).alias("n")),
    "sum": lambda d: d.groupBy("k").agg(F.sum(F.hash("*"))),
    "sum of fields": lambda d: d.groupBy("k").agg(F.sum(F.hash("a.*")).alias("n")),
    "sum with more": lambda d: d.groupBy("k").agg((F.sum(F.hash("*")) + F.count("*")).alias("n")),
    "sum by an expression": lambda d: d.groupBy(F.col("v") + 1).agg(
        F.sum(F.hash("*")).alias("n")),
    "sum of all": lambda d: d.agg(F.sum(F.hash("*")).alias("n")),
    "sum of an alias": lambda d: d.alias("l").groupBy("k").agg(F.sum(F.hash("l.*")).alias("n")),
    "rollup": lambda d: d.rollup("k").agg(F.sum(F.hash("*")).alias("n")),
    "max": lambda d: d.groupBy("k").agg(F.max(F.struct("*")).alias("n")),
    "max_by": lambda d: d.groupBy("k").agg(
        F.max_by(F.to_json(F.struct("*")), F.hash("*")).alias("n")),
    "list": lambda d: d.groupBy("k").agg(F.sort_array(F.collect_list(F.struct("*"))).alias("n")),
    "filter": lambda d: d.groupBy("k").agg(
        F.expr("sum(v) FILTER (WHERE hash(*) % 2 = 0)").alias("n")),
}
QUERIES = [
    "SELECT struct(*) AS s FROM d",
    "SELECT struct(k, v + 1, v AS w) AS s FROM d",
    "SELECT to_json(struct(a.*, k)) AS s FROM d WHERE a IS NOT NULL",
    "SELECT k, max(struct(*)) AS m FROM d GROUP BY k",
    "SELECT k, a.* FROM d WHERE hash(*) % 2 = 0",
    "SELECT k, sum(hash(d.*)) AS h, count(*) AS n FROM d GROUP BY k",
    "SELECT * EXCEPT (a) FROM d",
    "SELECT transform(array(k, v), x -> struct(x, k)) AS s FROM d",
    "SELECT struct(1, 'a' AS b) AS s, k FROM d",
]


def shown(frame: DataFrame) -> tuple[str, Counter[str]]:
    """The schema without nullability, and the rows, with the names of fields."""
    rows = Counter(repr(row) for row in frame.collect())
    return frame.schema.simpleString(), rows


def test_stars_are_as_in_plain_spark(spark):
    all_rows = spark.sql(ROWS).coalesce(1)
    some = all_rows.where("v = 2 AND k = 1")
    all_rows.createOrReplaceTempView("rows_of_stars")
    plain: dict[str, Any] = {}
    with Dataflow(spark, runner="local", buckets=2) as flow:
        rows, session = flow.input("d", all_rows.schema)
        outputs = {name: make(rows).keep() for name, make in PROGRAMS.items()}
        outputs |= {query: flow.sql(query).keep() for query in QUERIES}
        session.insert(all_rows)
        flow.advance_to(1)
        for when, there in enumerate((all_rows, all_rows.where("NOT (v <=> 2 AND k <=> 1)")), 1):
            there.createOrReplaceTempView("rows_of_stars")
            plain = {name: make(there) for name, make in PROGRAMS.items()}
            plain |= {
                query: spark.sql(query.replace("FROM d", "FROM rows_of_stars AS d"))
                for query in QUERIES
            }
            for name, output in outputs.items():
                assert shown(output.at()) == shown(plain[name]), (name, when)
            if when == 1:
                session.remove(some)
                flow.advance_to(2)
    spark.catalog.dropTempView("rows_of_stars")


def test_a_star_that_stands_for_several_arguments_is_refused(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, _ = flow.input("d", "k int, v int, a struct<p: int, q: string>")
        for column in (
            F.count_distinct("a.*"), F.sum("*"), F.min("a.*"), F.count(F.col("a.*")),
        ):
            with pytest.raises(SchemaError, match="name the columns one by one"):
                rows.groupBy("k").agg(column)
        star = rows["*"]
        for wrong in (
            lambda: rows.groupBy(star).count(), lambda: rows.rollup(star).count(),
            lambda: rows.agg(star), lambda: rows.select(star.alias("x")),
            lambda: rows.select(F.row_number().over(Window.partitionBy(star).orderBy("k"))),
            lambda: rows.withColumn("x", star), lambda: rows.where(star),
            lambda: rows.join(rows.alias("r"), star),
        ):
            with pytest.raises(SchemaError, match="the star of d.* Name the columns here: k, v, a"):
                wrong()
