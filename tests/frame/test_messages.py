"""The messages for unknown columns, and the completion of names."""

from __future__ import annotations

import connect_server
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from pyspark_diff import DiffFrame


@pytest.fixture(scope="module")
def a(spark) -> DiffFrame:
    return DiffFrame(spark.createDataFrame(
        [(1, 2, 0, 1)], "src int, dst long, time int, diff int"
    ))


#: Expressions with an unknown column, and the suggestions.
WRONG = {
    "select": (lambda a, b: a.select("sr"), "src dst"),
    "select with a handle": (lambda a, b: a.select(F.col("sr") + a.dst), "src dst"),
    "where": (lambda a, b: a.where("sr > 1"), "src dst"),
    "withColumn": (lambda a, b: a.withColumn("m", F.col("sr")), "src dst"),
    "selectExpr": (lambda a, b: a.selectExpr("sr + 1"), "src dst"),
    "the time": (lambda a, b: a.select("time"), "dst src"),
    "groupBy": (lambda a, b: a.groupBy("sr").count(), "src dst"),
    "agg": (lambda a, b: a.groupBy(a.dst).agg(F.sum("sr") / 2), "src dst"),
    "order": (lambda a, b: a.top_k(1, F.col("sr")), "src dst"),
    "unpivot": (lambda a, b: a.unpivot(a.dst, ["sr"], "x", "y"), "src dst"),
    "join": (lambda a, b: a.join(b, a.src == F.col("kk")), "k v dst src"),
    "after a join": (lambda a, b: a.join(b, a.src == b.k).select(a.src, "sr"), "k src v dst"),
    "under an alias": (
        lambda a, b: a.alias("l").join(b.alias("r"), F.col("l.src") == F.col("r.k")).select("sr"),
        "k src v",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_only_columns_of_the_user_are_suggested(a, wrong):
    done, suggested = WRONG[wrong]
    with pytest.raises(AnalysisException, match="cannot be resolved") as error:
        done(a, a.toDF("k", "v"))
    shown = ", ".join(f"`{name}`" for name in suggested.split())
    assert f"Did you mean one of the following? [{shown}]" in str(error.value)
    assert "__" not in str(error.value)
    assert error.value.getCondition() == "UNRESOLVED_COLUMN.WITH_SUGGESTION"


def test_columns_are_offered_to_complete_a_name(a, spark):
    frame = a.toDF("src", "a b")
    assert {"src", "where", "columns"} <= set(dir(frame)) and "a b" not in dir(frame)
    plain = spark.createDataFrame([], "src int, `a b` int")
    # PySpark's client offers all of them.
    assert connect_server.WANTED == ("a b" in dir(plain))
    assert dir(frame) == sorted(set(dir(frame)))
