"""Expressions that read a session variable or a subquery are refused in each place."""

from __future__ import annotations

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, SchemaError

#: Each place that takes an expression, of a collection, another one and SQL text of a number.
PLACES = {
    "select": lambda one, two, text: one.select(F.expr(text).alias("x")),
    "selectExpr": lambda one, two, text: one.selectExpr(f"{text} AS x"),
    "where": lambda one, two, text: one.where(f"k >= {text}"),
    "where column": lambda one, two, text: one.where(F.col("k") >= F.expr(text)),
    "withColumn": lambda one, two, text: one.withColumn("x", F.expr(text)),
    "join": lambda one, two, text: one.join(two, F.expr(f"k = a AND b > {text}")),
    "left join": lambda one, two, text: one.join(two, F.expr(f"k + {text} = a"), "left"),
    "groupBy": lambda one, two, text: one.groupBy(F.expr(f"k + {text}")).count(),
    "agg": lambda one, two, text: one.groupBy("k").agg(F.sum(F.expr(f"v + {text}"))),
    "window": lambda one, two, text: one.withColumn(
        "x", F.sum(F.expr(f"v + {text}")).over(Window.partitionBy("k").orderBy("v"))),
    "partition": lambda one, two, text: one.withColumn(
        "x", F.row_number().over(Window.partitionBy(F.expr(f"k + {text}")).orderBy("v"))),
    "order": lambda one, two, text: one.withColumn(
        "x", F.row_number().over(Window.partitionBy("k").orderBy(F.expr(f"v + {text}")))),
}


@pytest.fixture(scope="module")
def outside(spark):
    spark.sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 2")
    spark.sql("CREATE OR REPLACE TEMP VIEW vip AS SELECT * FROM VALUES (1) AS t(customer)")
    yield {"variable": "least", "view": "(SELECT max(customer) FROM vip)"}
    spark.sql("DROP TEMPORARY VARIABLE least")
    spark.catalog.dropTempView("vip")


@pytest.mark.parametrize("kind", ["variable", "view"])
def test_an_expression_over_values_from_outside_is_refused(spark, outside, kind):
    with Dataflow(spark, buckets=2) as flow:
        one, _ = flow.input("one", "k int, v int")
        two, _ = flow.input("two", "a int, b int")
        for place, write in PLACES.items():
            with pytest.raises(SchemaError) as refused:
                write(one, two, outside[kind]).keep(f"{kind} {place}")
                pytest.fail(f"{place} takes a {kind}")
            named = "session variable `?least" if kind == "variable" else "subquery"
            refused.match(named)


def test_a_view_in_a_list_is_refused_and_a_column_of_the_name_is_not(spark, outside):
    with Dataflow(spark, buckets=2) as flow:
        one, rows = flow.input("one", "k int, least int")
        with pytest.raises(SchemaError, match="subquery over the view `vip`"):
            one.where("k IN (SELECT customer FROM vip)")
        kept = one.where("k >= least").keep("kept")
        rows.insert([(1, 2), (3, 2)])
        flow.advance_to(1)
        assert [tuple(row) for row in kept.at().collect()] == [(3, 2)]
