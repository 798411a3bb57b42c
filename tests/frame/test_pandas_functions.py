"""Functions of pandas compute the value of a row without regard to the rest of its batch.

    f(A + B) = f(A) + f(B)

Arrow and PySpark convert a column of whole numbers in one way if it has a null, and in another way
if it has none. An insertion and its removal are rarely in one batch.
"""

from __future__ import annotations

import datetime
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, FunctionError, SchemaError
from pyspark_diff.spark.pandas_calls import EXACT, LEGACY
from pyspark_diff.spark.pandas_frames import from_series, to_frame

UTC = datetime.timezone.utc
#: A number that no double has.
LARGE = 2**53 + 1
NAIVE = datetime.datetime(2026, 1, 1)
#: A value of each type, and a value with a null.
VALUES: dict[str, tuple[Any, Any]] = {
    "long": (LARGE, None),
    "int": (7, None),
    "boolean": (True, None),
    "string": ("a", None),
    "date": (datetime.date(1, 1, 1), None),
    "decimal(20,2)": (Decimal("1.10"), None),
    "array<long>": ([LARGE], [None, 1]),
    "array<boolean>": ([True], [None]),
    "array<array<long>>": ([[LARGE]], [[None]]),
    "struct<a:long,b:boolean>": ((LARGE, True), (None, None)),
    "map<string,long>": ({"a": LARGE}, {"a": None}),
    "array<struct<a:long>>": ([(LARGE,)], [(None,)]),
    "array<timestamp>": ([datetime.datetime(2026, 1, 1, tzinfo=UTC)], [None]),
    "array<timestamp_ntz>": ([datetime.datetime(2026, 1, 1)], [None]),
    "array<interval day to second>": ([datetime.timedelta(1)], [None]),
}
COLUMNS = ", ".join(f"c{i} {kind}" for i, kind in enumerate(VALUES))
WITHOUT, WITH = (tuple(pair[i] for pair in VALUES.values()) for i in range(2))


def same(frames):
    return frames


def texts(frames):
    return (
        frame[["time", "diff"]].assign(t=frame.drop(columns=["time", "diff"]).astype(object).map(
            str).agg(" ".join, axis=1)) for frame in frames
    )


def summed(key, frame):
    return frame.rename(columns={"n": "m"})[["m"]]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "bool"])
def test_a_frame_has_the_values_of_its_parts(kind):
    values = [1, None, 0] if kind != "bool" else [True, None, False]
    column = pa.array(values, kind)
    nested = pa.array([[v] for v in values], pa.list_(column.type))
    table = pa.table({"a": column, "b": nested, "c": ["x", None, "y"]})
    whole = to_frame(table).astype(str).to_numpy().tolist()
    parts = [to_frame(table.slice(i, 1)).astype(str).to_numpy().tolist()[0] for i in range(3)]
    assert whole == parts


def test_a_null_changes_no_result_of_another_row():
    """Pandas has other quotients by zero for its nullable numbers than for those of numpy."""
    rows = pa.table({"a": pa.array([0, 7, LARGE, None]), "b": pa.array([0, 0, 2, None]),
                     "c": pa.array([True, False, True, None])})
    functions = {
        "quotient": lambda f: f.a // f.b, "rest": lambda f: f.a % f.b, "ratio": lambda f: f.a / f.b,
        "root": lambda f: np.sqrt(-f.a), "where": lambda f: f.a.where(f.c), "not": lambda f: ~f.c,
        "product": lambda f: f.a * f.c, "text": lambda f: f.a.astype(str),
    }
    for name, function in functions.items():
        few, all_rows = (function(to_frame(table)) for table in (rows.slice(0, 3), rows))
        assert few.dtype == all_rows.dtype, name
        values = [str(pa.Array.from_pandas(column).to_pylist()[:3]) for column in (few, all_rows)]
        assert values[0] == values[1], name


@contextmanager
def texts_of_pandas_3():
    """The type of texts that pandas 3 has; the option lets pandas 2 have it too."""
    if not pd.__version__.startswith("2."):
        yield
        return
    with pd.option_context("future.infer_string", True):
        yield


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_are_objects_in_all_versions_of_pandas(kind):
    table = pa.table({"s": pa.array(["a", None], kind), "n": [1, None]})
    with texts_of_pandas_3():
        for rows in table, table.to_batches()[0], table.slice(1, 1), table.slice(0, 0):
            frame = to_frame(rows)
            assert frame["s"].dtype == object
            assert frame["s"].tolist() == rows.column("s").to_pylist()
            assert str(frame["n"].dtype) == "Int64"


#: Series whose values Arrow converts silently, and the types that they do not have.
OTHER_TYPES: dict[str, tuple[Any, Any]] = {
    "numbers": (["1", None], pa.int64()), "decimals": (["1"], pa.decimal128(10, 2)),
    "truth": (["true"], pa.bool_()), "dates": (["2026-01-01"], pa.date32()),
    "moments": (["2026-01-01"], pa.timestamp("us")), "bytes": (["a"], pa.binary()),
    # Arrow would count units, and the unit depends on the version of pandas.
    "units": ([pd.Timestamp("2026-01-01")], pa.int64()),
    "units of a zone": ([pd.Timestamp("2026-01-01", tz="UTC")], pa.int64()),
    "units as bytes": ([pd.Timestamp("2026-01-01")], pa.binary()),
    "duration": ([pd.Timedelta("1s")], pa.int64()),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_a_series_of_another_type_is_refused(name):
    values, kind = OTHER_TYPES[name]
    with texts_of_pandas_3(), pytest.raises(TypeError, match=" is "):
        from_series(pd.Series(values), kind)


#: Values, the unit that pandas may have for them, and their type.
UNITS = [
    (NAIVE, "datetime64[{}]", pa.timestamp("us")),
    (datetime.timedelta(1), "timedelta64[{}]", pa.duration("us")),
    (NAIVE.replace(tzinfo=UTC), "datetime64[{}, UTC]", pa.timestamp("us", "UTC")),
]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_every_unit_of_pandas_is_a_moment(unit):
    for value, form, kind in UNITS:
        series = pd.Series([value, None]).astype(form.format(unit))
        assert from_series(series, kind).to_pylist() == [value, None]


def test_texts_of_pandas_3_are_rows(spark):
    """As an input, as a constant, in a function, and as its result."""
    with texts_of_pandas_3(), Dataflow(spark, runner="local", buckets=1) as flow:
        frame = pd.DataFrame({"k": [1, 2], "s": ["a", None]})
        assert isinstance(frame["s"].dtype, pd.StringDtype)
        rows, feed = flow.input("rows", "k int, s string")
        feed.insert(frame.astype({"k": "int32"}))
        rows.join(flow.constant(frame), "s").keep("joined")
        rows.reduce(
            lambda key, group: group.assign(t=group["s"].map(
                lambda s: "null" if s is None else s)).astype({"t": "str"}),
            "t string", key="k", form="pandas").keep("texts")
        flow.advance_to(1)
        assert sorted(map(tuple, flow["texts"].at().collect())) == [(1, "a"), (2, "null")]
        assert [row["s"] for row in flow["joined"].at().collect()] == ["a"]


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_removal_without_the_other_rows_of_the_batch(spark, runner):
    with Dataflow(spark, runner=runner, buckets=1) as flow:
        rows, feed = flow.input("rows", COLUMNS)
        outputs = {
            "same": rows.mapInPandas(same, COLUMNS), "texts": rows.mapInPandas(texts, "t string")
        }
        for name, output in outputs.items():
            output.keep(name)
        # Several rows, as Spark spreads a few of them over its cores.
        feed.insert([WITHOUT, WITH] * 4)
        flow.advance_to(1)
        assert {name: len(set(map(str, flow[name].at().collect()))) for name in outputs} == {
            "same": 2, "texts": 2}
        feed.remove([WITHOUT] * 4)
        flow.advance_to(2)
        assert {name: flow[name].at().count() for name in outputs} == {"same": 4, "texts": 4}


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_group_in_pandas_keeps_all_digits(spark, runner):
    with Dataflow(spark, runner=runner, buckets=1) as flow:
        rows, feed = flow.input("rows", "k int, n long")
        shown: list[Any] = []
        rows.inspect(shown.append, by_table="pandas")
        rows.reduce(summed, "m long", key="k", form="pandas").keep("groups")
        feed.insert([(1, LARGE), (1, None)])
        flow.advance_to(1)
        assert sorted(flow["groups"].at().collect(), key=str) == [(1, LARGE), (1, None)]
        assert LARGE in shown[0]["n"].tolist()


@F.pandas_udf(T.StringType())
def text(numbers):
    return numbers.astype(str)


@F.pandas_udf(T.LongType())
def unchanged(numbers):
    return numbers


#: Uses of a function of pandas over a column that may be null.
REFUSED = {
    "select": lambda rows: rows.select(text("n")),
    "where": lambda rows: rows.where(text("n") == "1"),
    "withColumn": lambda rows: rows.withColumn("t", text(F.col("n") + 1)),
    "a key": lambda rows: rows.groupBy(text("n").alias("t")).count(),
    "an aggregate": lambda rows: rows.groupBy("n").agg(F.max(text("n"))),
    "a condition": lambda rows: rows.alias("a").join(
        rows.alias("b"), (F.col("a.n") == F.col("b.n")) & (text("a.n") < text("b.n"))),
    "an array": lambda rows: rows.select(text(F.array("n", F.lit(1)))),
    "a truth value": lambda rows: rows.select(text(F.col("n") > 1)),
    "transform": lambda rows: rows.transform(lambda df: df.mapInPandas(same, df.schema)),
}
ACCEPTED = {
    "a text": lambda rows: rows.select("n", text("s").alias("t")),
    "coalesce": lambda rows: rows.select("n", unchanged(F.coalesce("n", F.lit(0))).alias("t")),
    "transform": lambda rows: rows.select("s").transform(
        lambda df: df.mapInPandas(same, df.schema)),
    "a function made in transform": lambda rows: rows.transform(
        lambda df: df.withColumn("t", F.udf(lambda s: s, T.StringType())("s"))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_whole_numbers_with_nulls_are_refused(spark, name):
    with Dataflow(spark, runner="local") as flow:
        rows, _ = flow.input("rows", "n long, s string")
        with pytest.raises(SchemaError, match="pandas function takes a column that may be null"):
            REFUSED[name](rows)


@pytest.mark.classic_only("the client does not know the setting's effect on a function")
def test_functions_that_receive_arguments_by_way_of_pandas_are_refused(spark):
    shown = F.udf(str, T.StringType(), useArrow=True)
    with Dataflow(spark, runner="local") as flow:
        rows, _ = flow.input("rows", "n long, s string")
        rows.select(shown("n"))
        if not spark.conf.isModifiable(LEGACY):
            return
        spark.conf.set(LEGACY, "true")
        try:
            rows.select(shown("s"))
            with pytest.raises(SchemaError, match="pandas function takes a column"):
                rows.select(shown("n"))
        finally:
            spark.conf.unset(LEGACY)


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_other_arguments_and_exact_numbers(spark, runner):
    if spark.conf.isModifiable(EXACT):
        spark.conf.set(EXACT, "true")
    try:
        with Dataflow(spark, runner=runner, buckets=1) as flow:
            rows, feed = flow.input("rows", "n long, s string")
            programs = dict(ACCEPTED)
            if spark.conf.isModifiable(EXACT):
                programs["exact"] = lambda rows: rows.select(unchanged("n"), text("n").alias("t"))
            for name, program in programs.items():
                program(rows).keep(name)
            feed.insert([(LARGE, "a"), (None, None)] * 4)
            flow.advance_to(1)
            feed.remove([(LARGE, "a")] * 4)
            flow.advance_to(2)
            for name in programs:
                assert flow[name].at().count() == 4, name
    finally:
        spark.conf.unset(EXACT)


#: Moments without a time zone, by the form of the function that returns them.
MOMENTS: dict[str, Any] = {
    "flat_map": lambda rows: rows.flat_map(lambda row: [(NAIVE,)], "t timestamp"),
    "flat_map, nested": lambda rows: rows.flat_map(
        lambda row: [([NAIVE],)], "t array<timestamp>"),
    "reduce": lambda rows: rows.reduce(lambda key, values: [(NAIVE,)], "t timestamp", key="k"),
    "reduce, pandas": lambda rows: rows.reduce(
        lambda key, frame: frame.assign(t=pd.Timestamp(NAIVE)), "t timestamp", key="k",
        form="pandas"),
    "reduce, arrow": lambda rows: rows.reduce(
        lambda key, table: pa.table({"t": pa.array([NAIVE])}), "t timestamp", key="k",
        form="arrow"),
    "mapInPandas": lambda rows: rows.mapInPandas(
        lambda frames: (frame.assign(t=NAIVE) for frame in frames), "t timestamp"),
    "mapInArrow": lambda rows: rows.mapInArrow(
        lambda batches: (batch.append_column("t", pa.array([NAIVE] * batch.num_rows))
                         for batch in batches), "t timestamp"),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_a_moment_without_a_zone_is_refused(spark, name):
    """Local time differs between a driver and executors, which run one function."""
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, feed = flow.input("rows", "k int, v int")
        MOMENTS[name](rows).keep()
        feed.insert([(1, 2)])
        with pytest.raises(SchemaError, match="has no time zone"):
            flow.advance_to(1)


#: Functions of Python values, over a date that Python does not have.
FAR = {
    "flat_map": lambda rows: rows.flat_map(lambda row: [(1,)], "n int"),
    "reduce": lambda rows: rows.reduce(lambda key, values: [(1,)], "n int", key="k"),
    "mapInPandas": lambda rows: rows.mapInPandas(same, "k int, d date"),
    "inspect": lambda rows: rows.inspect(lambda *update: None),
}


def test_a_function_of_arrow_takes_a_date_that_python_lacks(spark):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, feed = flow.input("rows", "k int, d date")
        same_days = rows.reduce(
            lambda key, table: table.rename_columns(["e", "diff"]), "e date", key="k", form="arrow")
        same_days.keep("days")
        feed.insert(spark.sql("SELECT 1 AS k, date_add(DATE'9999-12-31', 40) AS d"))
        flow.advance_to(1)
        shown = flow["days"].at().selectExpr("CAST(e AS STRING)").collect()
        assert shown == [("+10000-02-09",)]


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_date_that_python_lacks_is_named(spark, runner):
    rows_of_day = spark.sql("SELECT 1 AS k, date_add(DATE'9999-12-31', 40) AS d")
    for program in FAR.values():
        with Dataflow(spark, runner=runner, buckets=1) as flow:
            rows, feed = flow.input("rows", "k int, d date")
            program(rows).keep()
            feed.insert(rows_of_day)
            with pytest.raises(FunctionError, match="has no Python object.*Filter such rows"):
                flow.advance_to(1)
