"""Programs of users: each is right, or the library refuses it with an error of its own."""

from __future__ import annotations

import datetime
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from plain import local_frame
from pyspark.sql import Row
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffError, DiffFrame

ZONE = datetime.timezone(datetime.timedelta(hours=2))
NOON = datetime.datetime(2024, 1, 1, 12)
PAIR = "k int, v int"

#: Rows for an input: its columns, the rows, and the records or a part of the refusal.
ROWS: dict[str, tuple[str, Any, Any]] = {
    "tuples": (PAIR, [(1, 2)], [(1, 2)]),
    "lists": (PAIR, [[1, 2]], [(1, 2)]),
    "Rows in another order": (PAIR, [Row(v=2, k=1)], [(1, 2)]),
    "Rows of other names": (PAIR, [Row(a=1, b=2)], "missing k, v; unknown a, b"),
    "dicts in another case": (PAIR, [{"K": 1, "v": 2}], [(1, 2)]),
    "dicts with more": (PAIR, [{"k": 1, "v": 2, "z": 3}], "unknown z"),
    "None as a row": (PAIR, [None], "None is not a row"),
    "None as rows": (PAIR, None, "takes a DataFrame, a pyarrow or pandas table"),
    "nulls": (PAIR, [(None, None)], [(None, None)]),
    "a generator": (PAIR, ((i, i) for i in range(2)), [(0, 0), (1, 1)]),
    "no rows": (PAIR, [], []),
    "one tuple": (PAIR, (1, 2), "a single row goes into a list"),
    "scalars": ("k int", [1, 2], "1 is not a row"),
    "a text": ("k string", "ab", "not str"),
    "texts as rows": ("k string, v string", ["ab"], "'ab' is not a row"),
    "fewer values": (PAIR, [(1,)], "(1,) is not a row"),
    "more values": (PAIR, [(1, 2, 3)], "(1, 2, 3) is not a row"),
    "numpy numbers": (PAIR, [(np.int64(1), np.int8(2))], [(1, 2)]),
    "a numpy array": (PAIR, np.array([[1, 2]]), "is not a row"),
    "a float for an int": ("k int", [(1.0,)], "is not a int: 1.0 is a float"),
    "a bool for an int": ("k int", [(True,)], "True is a bool"),
    "a text for an int": ("k int", [("1",)], "'1' is a str"),
    "an int for a text": ("k string", [(1,)], "1 is a int"),
    "an int that is too large": ("k int", [(2**40,)], "too large"),
    "a long that is too large": ("k long", [(2**70,)], "too large"),
    "a decimal with more digits": ("k decimal(5,2)", [(Decimal("1.234"),)], "data loss"),
    "a decimal from an int": ("k decimal(5,2)", [(1,)], [(Decimal("1.00"),)]),
    "a time with a zone": (
        "k timestamp", [(NOON.replace(tzinfo=ZONE),)],
        [(NOON.replace(tzinfo=ZONE).astimezone().replace(tzinfo=None),)],
    ),
    "a zone for none": ("k timestamp_ntz", [(NOON.replace(tzinfo=ZONE),)], "has a time zone"),
    "a date for a time": ("k timestamp", [(NOON.date(),)], "is a date"),
    "a time for a date": ("k date", [(NOON,)], "is a datetime"),
    "a time of pandas": ("k timestamp_ntz", [(pd.Timestamp(NOON),)], [(NOON,)]),
    "a local time of pandas": ("k timestamp", [(pd.Timestamp(NOON),)], [(NOON,)]),
    "nanoseconds": ("k timestamp", [(pd.Timestamp("2024-01-01T00:00:00.000000001"),)], "Timestamp"),
    "NaT": ("k timestamp", [(pd.NaT,)], "NaT is a NaTType"),
    "NA": ("k int", [(pd.NA,)], "<NA> is a NAType"),
    "half of a character": ("k string", [("\ud800",)], "surrogates not allowed"),
    "a pandas frame": (PAIR, pd.DataFrame({"v": [2], "k": [1]}), [(1, 2)]),
    "a pandas frame with gaps": (PAIR, pd.DataFrame({"v": [2, None], "k": [1, 2]}), "it is double"),
    "a pandas frame with an index": (
        PAIR, pd.DataFrame({"v": [2]}, index=pd.Index([1], name="k")), "missing k"
    ),
    "a pandas series": ("k int", pd.Series([1]), "1 is not a row"),
    "an Arrow table": (PAIR, pa.table({"v": [2], "k": [1]}), [(1, 2)]),
    "a set": ("k int", {(1,)}, [(1,)]),
    "lists in a dict": (PAIR, {"k": [1], "v": [2]}, "not dict"),
    "keywords": ("`select` int, `from` int", [(1, 2)], [(1, 2)]),
    "dots": ("`a.b` int", [(1,)], [(1,)]),
    "a column TIME": ("TIME int", [(1,)], "the name of the time or diff column"),
    "a column diff": ("diff int", [(1,)], "the name of the time or diff column"),
    "one name in two cases": ("k int, K int", [(1, 2)], "more than once"),
    "a name of the library": ("__k int", [(1,)], "reserved"),
    "a map": ("k map<string,int>", [({"a": 1},)], [({"a": 1},)]),
    "structs": ("k struct<a:int,b:string>", [((1, "x"),)], [(Row(a=1, b="x"),)]),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_taken_or_refused(spark, name):
    check_rows(spark, name)


def test_rows_that_failed_late(spark):
    for name in ("NaT", "half of a character", "a local time of pandas", "nanoseconds"):
        check_rows(spark, name)


def check_rows(spark, name):
    schema, rows, expected = ROWS[name]
    with Dataflow(spark, runner="local") as flow:
        if isinstance(expected, str):
            with pytest.raises(DiffError) as caught:
                frame, session = flow.input("rows", schema)
                frame.keep()
                session.insert(rows)
            assert expected in str(caught.value)
            return
        frame, session = flow.input("rows", schema)
        frame.keep()
        session.insert(rows)
        flow.advance_to(1)
        assert sorted(map(tuple, frame.at().collect())) == expected


@pytest.fixture(scope="module")
def n(spark):
    frame = local_frame(spark, [(1, 10), (2, 20)], PAIR)
    return DiffFrame(frame.withColumns({"time": F.lit(0), "diff": F.lit(1)}))


#: Calls that are refused, and a part of the refusal.
REFUSED: dict[str, tuple[Any, str]] = {
    "a column of another frame": (lambda n, df: n.select(df["w"]), "comes from a plain Spark"),
    "a condition on another frame": (lambda n, df: n.where(df.w == 1), "comes from a plain Spark"),
    "a column from before a change": (
        lambda n, df: n.withColumn("k", F.col("k") + 1).select(n["k"]), "changed, renamed or"
    ),
    "a Spark frame first": (lambda n, df: df.join(n, "k"), "Begin with the collection"),
    "a frame of a frame": (lambda n, df: DiffFrame(n), "wraps a Spark DataFrame"),
    "a table of a frame": (lambda n, df: df.sparkSession.createDataFrame(n), "changes over time"),
    "a function to select": (lambda n, df: n.select(len), "not a builtin_function"),
    "a number to select": (lambda n, df: n.select(1), "not a int"),
    "and for &": (lambda n, df: n.where(n.k == 1 and n.v == 1), "use '&' for 'and'"),
    "a self join without alias": (lambda n, df: n.join(n, n.k == n.v), "edges.alias(\"a\")"),
    "a join of everything": (lambda n, df: n.join(n.alias("b"), F.lit(True)), "crossJoin"),
    "text as a condition": (lambda n, df: n.join(df, "k = w"), "no column 'k = w'"),
    "None to drop": (lambda n, df: n.drop(None), "not a NoneType"),
    "a list to drop": (lambda n, df: n.drop(["k"]), "drop(*names)"),
    "a number to drop": (lambda n, df: n.drop(1), "not a int"),
    "no new name": (lambda n, df: n.withColumnRenamed("k", None), "column names are texts"),
    "an unknown function": (lambda n, df: n.groupBy("k").agg({"v": "nosuch"}), "not supported"),
    "a number for a function": (lambda n, df: n.groupBy("k").agg({"v": 1}), "names of functions"),
    "a text as a time": (lambda n, df: n.at("0"), "is not a time"),
    "a frame in isin": (lambda n, df: n.where(n.k.isin(n)), "changes over time"),
    "no session": (lambda n, df: Dataflow("x"), "a Spark session is needed"),
    "no schema": (lambda n, df: Dataflow(df.sparkSession).input("x", None), "a schema is a text"),
    "no name": (lambda n, df: Dataflow(df.sparkSession).input(None, "k int"), "name of an input"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_odd_calls_are_refused(spark, n, name):
    call, part = REFUSED[name]
    with pytest.raises(Exception) as caught:
        call(n, local_frame(spark, [(1, 7)], "k int, w int"))
    assert part in str(caught.value)


def test_functions_of_arrays_see_columns(n):
    output = n.select(
        F.transform(F.array(n["k"], n["v"]), lambda x: x + n["k"]).alias("sums"),
        F.filter(F.array("k", "v"), lambda x: x > 5).alias("large"),
    )
    assert sorted(output.at(0).collect()) == [([2, 11], [10]), ([4, 22], [20])]


def test_a_cell_that_runs_twice(spark):
    for _ in range(2):
        flow = Dataflow(spark, runner="local")
        rows, session = flow.input("rows", "k int")
        rows.count().keep("counts")
        session.insert([(1,)])
        flow.advance_to(1)
        assert flow["counts"].at().collect() == [(1, 1)]
    with pytest.raises(DiffError, match="has an input 'rows' already"):
        flow.input("rows", "k int")
    with pytest.raises(DiffError, match="keeps a collection 'counts' already"):
        rows.keep("counts")
    flow.close()
    flow.close()
    for late in (rows.distinct, lambda: rows.at(), lambda: session.insert([(1,)]), flow.step):
        with pytest.raises(DiffError, match="was closed"):
            late()


def test_threads_and_dataflows_in_dataflows(spark):
    with Dataflow(spark, runner="local") as outer, Dataflow(spark, runner="local") as inner:
        rows, session = outer.input("rows", PAIR)
        rows.keep()
        threads = [
            threading.Thread(target=lambda i=i: [session.insert([(i, j)]) for j in range(5)])
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outer.advance_to(1)
        more, feed = inner.input("rows", PAIR)
        feed.insert(rows.at())
        more.keep()
        inner.advance_to(1)
        assert more.at().count() == rows.at().count() == 20
        with pytest.raises(DiffError, match="belong to different dataflows"):
            rows.join(more, "k")


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_dates_after_the_last_one_of_python(spark, runner):
    """A sum of days from 9999-12-31, the usual end of a row of a history, has no Python object."""
    texts = ["date_add(d, 40)", "d + INTERVAL '1' MONTH", "t + INTERVAL '2' DAY"]
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, feed = flow.input("rows", "d date, t timestamp_ntz")
        later = rows.select(*(F.expr(text).alias(f"_{i}") for i, text in enumerate(texts)))
        later.keep("later")
        feed.insert(spark.sql("SELECT DATE'9999-12-31', TIMESTAMP_NTZ'9999-12-31 00:00:00' "
                              "UNION ALL SELECT DATE'2024-01-31', NULL").toDF("d", "t"))
        flow.advance_to(1)
        output = flow["later"].at().selectExpr(*(f"CAST(_{i} AS STRING)" for i in range(3)))
        assert sorted(map(tuple, output.collect())) == [
            ("+10000-02-09", "+10000-01-31", "+10000-01-02 00:00:00"),
            ("2024-03-11", "2024-02-29", None),
        ]


@pytest.mark.parametrize("distance", ["1 month", "1 year"])
def test_a_range_of_months_is_refused_by_name(spark, distance):
    text = f"count(*) OVER (ORDER BY d RANGE BETWEEN INTERVAL {distance} PRECEDING AND CURRENT ROW)"
    with Dataflow(spark, buckets=2) as flow:
        rows, _ = flow.input("rows", "d date")
        with pytest.raises(DiffError, match="range of interval .* is not maintained, as months"):
            rows.select("d", F.expr(text).alias("n"))
        with pytest.raises(DiffError, match="range of interval .* is not maintained, as months"):
            flow.sql(f"SELECT d, {text} AS n FROM rows")
