"""Expressions that read a session variable or a subquery are refused in each place."""

from __future__ import annotations

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, SchemaError

#: Each place that takes an expression: of two collections and the SQL text of a number.
PLACES = {
    "select": lambda left, right, text: left.select(F.expr(text).alias("x")),
    "selectExpr": lambda left, right, text: left.selectExpr(f"{text} AS x"),
    "where": lambda left, right, text: left.where(f"k >= {text}"),
    "where column": lambda left, right, text: left.where(F.col("k") >= F.expr(text)),
    "withColumn": lambda left, right, text: left.withColumn("x", F.expr(text)),
    "join": lambda left, right, text: left.join(right, F.expr(f"k = a AND b > {text}")),
    "left join": lambda left, right, text: left.join(right, F.expr(f"k + {text} = a"), "left"),
    "groupBy": lambda left, right, text: left.groupBy(F.expr(f"k + {text}")).count(),
    "agg": lambda left, right, text: left.groupBy("k").agg(F.sum(F.expr(f"v + {text}"))),
    "window": lambda left, right, text: left.withColumn(
        "x", F.sum(F.expr(f"v + {text}")).over(Window.partitionBy("k").orderBy("v"))),
    "partition": lambda left, right, text: left.withColumn(
        "x", F.row_number().over(Window.partitionBy(F.expr(f"k + {text}")).orderBy("v"))),
    "order": lambda left, right, text: left.withColumn(
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
        left, _ = flow.input("one", "k int, v int")
        right, _ = flow.input("two", "a int, b int")
        for place, write in PLACES.items():
            with pytest.raises(SchemaError) as refused:
                write(left, right, outside[kind]).keep(f"{kind} {place}")
                pytest.fail(f"{place} takes a {kind}")
            named = "session variable `?least" if kind == "variable" else "subquery"
            refused.match(named)


def test_a_view_in_a_list_is_refused_and_a_column_of_the_name_is_not(spark, outside):
    with Dataflow(spark, buckets=2) as flow:
        left, rows = flow.input("one", "k int, least int")
        with pytest.raises(SchemaError, match="subquery over the view `vip`"):
            left.where("k IN (SELECT customer FROM vip)")
        matches = left.where("k >= least").keep("kept")
        rows.insert([(1, 2), (3, 2)])
        flow.advance_to(1)
        assert [tuple(row) for row in matches.at().collect()] == [(3, 2)]
