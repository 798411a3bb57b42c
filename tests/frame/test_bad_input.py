"""The interface refuses bad input at once, and takes nothing of it.

    each mistake  ⟹  one class of error, and a message with cause, finding and remedy
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

import connect_server
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from connect_server import in_sql_text
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import (
    ClosedError,
    Dataflow,
    DiffFrame,
    DiffOverflowError,
    InputSession,
    InvalidDiffError,
    InvalidTimeError,
    KeyedSession,
    NegativeMultiplicityError,
    NonDeterministicError,
    NotReadableError,
    ReservedNameError,
    SchemaError,
    SourceError,
    StalledError,
    TimeRegressionError,
    UnsupportedTypeError,
)
from pyspark_diff.sinks import foreach
from pyspark_diff.sources import files, snapshots

RUNNERS = ("local", "spark")
COLUMNS = "n long, time long, diff long"


@contextmanager
def refused(error: type[Exception], *parts: str) -> Iterator[None]:
    """Asserts that the block raises exactly this class with these parts in the message."""
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    for part in parts:
        assert part in str(caught.value)


@pytest.fixture
def flow(spark):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        yield flow


def far(frame: DataFrame) -> DataFrame:
    """The same rows, not on the driver: a read needs a job of Spark."""
    frame = frame.repartition(1)
    assert not frame.isLocal()
    return frame


def near(spark, rows, schema: str) -> DataFrame:
    """A frame with its rows on the driver."""
    struct = T.StructType.fromDDL(schema)
    columns = [list(values) for values in zip(*rows)]
    frame = spark.createDataFrame(pa.table(columns, names=struct.names), struct)
    assert frame.isLocal()
    return frame


def ran(flow: Dataflow, session: InputSession, to: object = 1) -> None:
    session.advance_to(to)
    session.flush()
    flow.step()


# A collection from a frame.


def test_what_is_no_frame_is_refused():
    with refused(SchemaError, "not a list", "spark.createDataFrame"):
        DiffFrame([(1, 0, 1)])


@pytest.mark.parametrize("missing", ["time", "diff"])
def test_missing_column_is_named(spark, missing):
    there = [name for name in ("n", "time", "diff") if name != missing]
    frame = spark.createDataFrame([(1, 2)], " long, ".join(there) + " long")
    named = f"no {missing} column '{missing}'"
    with refused(SchemaError, named, ", ".join(there), f"{missing}=..."):
        DiffFrame(frame)
    with refused(SchemaError, "no time column 'when'"):
        DiffFrame(spark.createDataFrame([(1, 2, 3)], COLUMNS), time="when")


@pytest.mark.parametrize("kind", ["string", "double", "struct<a:int>", "boolean", "decimal(3,0)"])
def test_time_of_a_wrong_type_is_refused(spark, kind):
    frame = spark.createDataFrame([], f"n long, time {kind}, diff long")
    wanted = "two or more fields" if "struct" in kind else "integer, date or timestamp"
    with refused(SchemaError, wanted, kind, "ast "):
        DiffFrame(frame)
    with refused(SchemaError, wanted, kind, "ast "):
        Dataflow(spark, time_type=kind)


@pytest.mark.parametrize("kind", ["string", "double", "decimal(10,0)", "boolean", "date"])
def test_diff_of_a_wrong_type_is_refused(spark, kind):
    frame = spark.createDataFrame([], f"n long, time long, diff {kind}")
    with refused(SchemaError, "diff column 'diff' must be an integer", kind, "cast it"):
        DiffFrame(frame)


def test_one_column_is_not_both_time_and_diff(spark):
    with refused(SchemaError, "more than once", "time"):
        DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS), time="time", diff="time")


PROGRAMS = {
    "as it is": lambda c: c,
    "count": lambda c: c.count(),
    "where": lambda c: c.where("n > 0"),
    "negate": lambda c: c.negate(),
    "flat_map": lambda c: c.flat_map(lambda row: [(row.n,)], "n long"),
    "flat_map, where": lambda c: c.flat_map(lambda r: [(r.n,)], "n long").where("n > 0"),
    "map_in_pandas": lambda c: c.map_in_pandas(lambda frames: frames, "n long"),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("row", "error", "what"),
    [((1, None, 1), InvalidTimeError, "time"), ((1, 0, None), InvalidDiffError, "diff")],
    ids=["time", "diff"],
)
def test_null_time_or_diff_is_refused(spark, program, row, error, what):
    collection = PROGRAMS[program](DiffFrame(near(spark, [(1, 0, 1), row], COLUMNS)))
    with refused(error, "null", what):
        collection.to_df()


@pytest.mark.parametrize("program", ["as it is", "negate", "flat_map, where", "map_in_pandas"])
def test_null_time_or_diff_that_a_task_finds_is_no_error_of_spark(spark, program):
    wrong = near(spark, [(1, 0, 1), (1, None, 1), (1, 1, None)], COLUMNS)
    for frame, error, what in (
        (wrong.where("diff is not null"), InvalidTimeError, "time"),
        (wrong.where("time is not null"), InvalidDiffError, "diff"),
    ):
        with refused(error, "1 rows" if program != "map_in_pandas" else "null", "null", what):
            PROGRAMS[program](DiffFrame(far(frame))).to_df()


# Updates.

ONE = "n long"


class Streamed:
    """A table of another library, such as Polars or DuckDB. It has only an Arrow stream."""

    def __init__(self, table: pa.Table | pa.ChunkedArray):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def forms(spark, rows, columns: str) -> dict[str, object]:
    """The same rows in each form that an input accepts."""
    names = T.StructType.fromDDL(columns).names
    table = pa.table([list(values) for values in zip(*rows)], names=names)
    return {
        "rows": rows,
        "dicts": [dict(zip(names, row)) for row in rows],
        "arrow": table,
        "batch": table.combine_chunks().to_batches()[0],
        "batches": table.to_reader(),
        "stream": Streamed(table),
        "pandas": pd.DataFrame(
            {name: pd.array(list(v), dtype="Int64") for name, v in zip(names, zip(*rows))}
        ),
        "frame": far(spark.createDataFrame(rows, columns)),
        "near frame": near(spark, rows, columns),
    }


FORMS = [
    "rows", "dicts", "arrow", "batch", "batches", "stream", "pandas", "frame", "near frame",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("bad", "error", "parts"),
    [
        ((9, None, 1), InvalidTimeError, ("1 rows", "'rows'", "null time", "nothing was taken")),
        ((9, 5, None), InvalidDiffError, ("1 rows", "'rows'", "null diff", "nothing was taken")),
        ((9, 2, 1), TimeRegressionError, ("time 2", "'rows'", "at 3", "nothing was taken")),
    ],
    ids=["null time", "null diff", "behind"],
)
def test_nothing_of_a_bad_update_is_taken(spark, flow, form, bad, error, parts):
    collection, session = flow.input("rows", ONE)
    collection.keep()
    session.insert([(1,)])
    ran(flow, session, 3)
    session.update([(2, 4, 1)])
    with refused(error, *parts):
        session.update(forms(spark, [(7, 5, 1), bad], COLUMNS)[form])
    session.update([(3, 3, 1)])
    ran(flow, session, 6)
    assert sorted(row.n for row in collection.at(5).collect()) == [1, 2, 3]


@pytest.mark.parametrize("form", FORMS)
def test_an_update_at_the_frontier_is_taken(spark, flow, form):
    collection, session = flow.input("rows", ONE)
    collection.keep()
    session.advance_to(3)
    session.update(forms(spark, [(7, 3, 2), (8, 9, 0)], COLUMNS)[form])
    ran(flow, session, 4)
    assert [row.n for row in collection.at(3).collect()] == [7, 7]


@pytest.mark.parametrize(
    ("row", "column"),
    [((1, "0", 1), "time"), ((1, 0.0, 1), "time"), ((1, 0, 1.0), "diff"), ((1, 0, "1"), "diff")],
)
def test_time_and_diff_of_updates_have_their_types(spark, flow, row, column):
    _, session = flow.input("rows", ONE)
    with refused(SchemaError, f"'{column}'", "'rows'", "bigint"):
        session.update([row])
    with refused(SchemaError, f"'{column}'", "'rows'", "bigint"):
        session.update(pd.DataFrame([row], columns=["n", "time", "diff"]))
    with refused(SchemaError, column, "'rows'", "bigint"):
        session.update(spark.createDataFrame([row], ["n", "time", "diff"]))


def test_a_narrow_diff_is_widened_and_a_narrow_time_is_not(spark, flow):
    collection, session = flow.input("rows", ONE)
    collection.keep()
    session.update(far(spark.createDataFrame([(1, 0, 2)], "n long, time long, diff tinyint")))
    with refused(SchemaError, "time is int, expected bigint", "cast"):
        session.update(spark.createDataFrame([(1, 0, 2)], "n long, time int, diff long"))
    ran(flow, session)
    assert collection.at(0).count() == 2


def test_time_only_goes_forward(flow):
    _, session = flow.input("rows", ONE, start=3)
    session.advance_to(3)
    session.advance_to(7)
    with refused(TimeRegressionError, "'rows'", "at time 7", "back to 6"):
        session.advance_to(6)
    assert session.time() == 7


@pytest.mark.parametrize("wrong", ["1", 1.0, None, True, datetime.date(2026, 1, 1), 2**63])
def test_a_time_of_another_type_is_refused(flow, wrong):
    collection, session = flow.input("rows", ONE)
    counts, probe = collection.count().keep(), collection.probe()
    uses = [session.advance_to, probe.less_than, probe.less_equal]
    if wrong is not None:
        uses += [lambda time: flow.input("other", ONE, start=time), counts.at]
    for use in uses:
        with refused(InvalidTimeError, repr(wrong), "bigint"):
            use(wrong)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("tinyint", 128),
        ("int", -(2**31) - 1),
        ("date", 3),
        ("date", datetime.datetime(2026, 1, 1)),
        ("timestamp", datetime.date(2026, 1, 1)),
        ("timestamp_ntz", datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)),
    ],
)
def test_a_time_outside_of_its_type_is_refused(spark, kind, wrong):
    with Dataflow(spark, time_type=kind) as flow:
        _, session = flow.input("rows", ONE)
        with refused(InvalidTimeError, repr(wrong)):
            session.advance_to(wrong)


# Records.

TWO = "a long, b string"


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ([(1,)], ("(1,)", "(a, b)")),
        ([(1, "x", 2)], ("(1, 'x', 2)", "(a, b)")),
        ((1, "x"), ("1 is not a row", "(a, b)", "a single row goes into a list")),
        (["ab"], ("'ab' is not a row", "(a, b)")),
        ("ab", ("iterable of rows", "not take str")),
        ({"a": 1, "b": "x"}, ("iterable of rows", "take dict", "a single row goes into a list")),
        (None, ("iterable of rows", "not take NoneType")),
        (7, ("iterable of rows", "not take int")),
        ([{"a": 1, "c": 2}], ("missing b", "unknown c", "given (a, c)", "expected (a, b)")),
        ([{"a": 1, "b": "x", "c": 2}], ("unknown c", "(a, b, c)", "expected (a, b)")),
        ([Row(a=1, c="x")], ("missing b", "unknown c")),
        ([(True, "x")], ("'a'", "bigint", "True is a bool")),
        ([(np.True_, "x")], ("'a'", "bigint", "bool")),
        ([(1, "x"), (1.5, "x")], ("'a'", "bigint", "1.5 is a float")),
        ([(1.0, "x")], ("'a'", "bigint", "1.0 is a float")),
        ([(2**63, "x")], ("'a'", "bigint", "too large")),
        ([(-(2**63) - 1, "x")], ("'a'", "bigint", "too large")),
        ([("1", "x")], ("'a'", "bigint", "'1' is a str")),
        ([(1, 2)], ("'b'", "string", "2 is a int")),
        ([(1, b"x")], ("'b'", "string", "b'x' is a bytes")),
        (pd.DataFrame({"a": [1]}), ("missing b", "given (a)")),
        (pd.DataFrame({"a": ["1"], "b": ["x"]}), ("'a'", "bigint", "string")),
        (pd.DataFrame({"a": [1.0], "b": ["x"]}), ("'a'", "bigint", "double")),
        (pd.DataFrame({"a": [1], "b": [2]}), ("'b'", "string", "int64")),
        (pd.DataFrame({"a": [1, "x"], "b": ["x", "y"]}), ("'rows'", "a")),
        (pd.DataFrame([[1, 2, "x"]], columns=["a", "a", "b"]), ("more than once a",)),
        (pa.table({"a": [1], "b": ["x"], "c": [1]}), ("unknown c", "expected (a, b)")),
        (pa.table({"a": [1.0], "b": ["x"]}), ("'a'", "bigint", "double")),
        (pa.table({"a": [True], "b": ["x"]}), ("'a'", "bigint", "bool")),
        (pa.table({"a": pa.array([2**63], pa.uint64()), "b": ["x"]}), ("'a'", "bigint")),
        (pa.table([[1], [2], ["x"]], names=["a", "a", "b"]), ("more than once a",)),
    ],
    ids=str,
)
def test_records_that_do_not_fit_are_refused(flow, data, parts):
    collection, session = flow.input("rows", TWO)
    collection.keep()
    for change in (session.insert, session.remove):
        with refused(SchemaError, *parts):
            change(data)
    ran(flow, session)
    assert collection.at(0).collect() == []


def test_frames_that_do_not_fit_are_refused(spark, flow):
    _, session = flow.input("rows", TWO)
    frame = spark.range(1)
    a, b = F.col("id").alias("a"), F.lit("x").alias("b")
    with refused(SchemaError, "missing b", "unknown c", "given (a, c)", "expected (a, b)"):
        session.insert(frame.select(a, b.alias("c")))
    with refused(SchemaError, "a is int, expected bigint", "b is date, expected string", "cast"):
        session.insert(frame.select(F.lit(1).alias("a"), F.lit("x").cast("date").alias("b")))
    with refused(SchemaError, "more than once a"):
        session.insert(frame.select(a, a, b))


def test_columns_of_tables_are_matched_by_name(spark, flow):
    collection, session = flow.input("rows", "a long, b long")
    collection.keep()
    session.insert(pa.table({"b": [2], "a": [1]}))
    session.insert(pd.DataFrame({"b": [2], "a": [1]}))
    session.insert([{"b": 2, "a": 1}, Row(b=2, a=1)])
    session.insert(Streamed(pa.table({"b": [2], "a": [1]})))
    session.insert(pa.table({"b": [2], "a": [1]}).to_reader())
    session.insert(far(spark.createDataFrame([(2, 1)], "b long, a long")))
    session.insert(near(spark, [(2, 1)], "b long, a long"))
    ran(flow, session)
    assert [tuple(row) for row in collection.at(0).collect()] == [(1, 2)] * 8


class StreamedSeries(pd.Series):
    """A series with an Arrow stream of its values, which pandas has from version 3 on."""

    def __arrow_c_stream__(self, requested_schema=None):
        return pa.chunked_array([self.to_numpy()]).__arrow_c_stream__(requested_schema)


#: Errors for a value that is no table, by the call: insert, constant, join.
NO_TABLE = (
    "1 is not a row for input 'rows'", "rows without names and types need a schema",
    "expected a DiffFrame or a plain table",
)


@pytest.mark.parametrize(("values", "parts"), [
    (pd.Series([1]), NO_TABLE),
    (StreamedSeries([1]), NO_TABLE),
    (pa.chunked_array([[1]]), ["ChunkedArray is no table: ", "named columns"]),
    (Streamed(pa.chunked_array([[1]])), ["Streamed is no table: ", "int64", "pa.table("]),
    (Streamed(pa.chunked_array([pa.array([{"k": 1}, None])])), ["is no table: ", "null count"]),
], ids=["series", "series with a stream", "chunked array", "stream", "missing row"])
def test_values_without_columns_are_refused(flow, values, parts):
    rows, session = flow.input("rows", "k long")
    rows.keep()
    calls = (session.insert, flow.constant, lambda data: rows.join(data, "k"))
    for number, call in enumerate(calls):
        with refused(SchemaError, *(parts[number:number + 1] if parts is NO_TABLE else parts)):
            call(values)
    ran(flow, session)
    assert rows.at(0).collect() == []


def test_what_other_libraries_call_a_text(flow):
    """Views and dictionaries. A column that a dict lacks is null."""
    collection, session = flow.input("rows", "a string, b binary, c long")
    table = pa.table({
        "c": [1], "b": pa.array([b"x"], pa.binary_view()), "a": pa.array(["x"], pa.string_view()),
    })
    session.insert(Streamed(table))
    session.insert(pa.table({"a": pa.array(["x"]).dictionary_encode(), "b": [b"x"], "c": [1]}))
    session.insert(pd.DataFrame({"a": pd.Categorical(["x"]), "b": [b"x"], "c": [1]}))
    session.insert([{"a": "x"}, {}])
    counts = collection.count().keep()
    ran(flow, session)
    assert sorted(map(tuple, counts.at(0).collect()), key=str) == [
        ("x", None, None, 1), ("x", bytearray(b"x"), 1, 3), (None, None, None, 1),
    ]


#: A type, and values that Arrow by itself would take for one of it, changed.
NOT_EXACT = [
    ("double", [2**53 + 1]),
    ("tinyint", [200]),
    ("boolean", [1]),
    ("decimal(10,2)", [Decimal("1.234"), Decimal("123456789"), 1.5]),
    ("binary", ["abc"]),
    ("date", [datetime.datetime(2026, 1, 1, 5), 5, "2026-01-01"]),
    ("timestamp", [datetime.date(2026, 1, 1), 5, "2026-01-01"]),
    ("timestamp_ntz", [datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), 5]),
    ("interval day to second", [5]),
    ("array<bigint>", [[1.5], [True], "ab", {1}]),
    (
        "struct<x:bigint,y:bigint>",
        [(1,), {"x": 1}, {"x": 1, "y": 2, "z": 3}, Row(x=1, z=2), (1, 2.5)],
    ),
]


@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind, values in NOT_EXACT for value in values], ids=str
)
def test_no_value_is_changed_to_fit(flow, kind, value):
    _, session = flow.input("rows", f"v {kind}")
    with refused(SchemaError, "'v'", "'rows'", kind):
        session.insert([(value,)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("struct<x:bigint,y:string>", {"x": 1, "z": "a"}),
        ("struct<x:bigint,y:string>", {"x": 1}),
        ("struct<x:bigint,y:string>", {"x": 1, "y": 2}),
        ("struct<x:bigint,y:string>", {"x": 1.0, "y": "a"}),
        ("array<string>", [1]),
        ("array<bigint>", [1.0]),
        ("array<struct<x:bigint>>", [{"x": 1, "y": 2}]),
    ],
    ids=str,
)
def test_no_nested_column_is_changed_to_fit(flow, kind, value):
    _, session = flow.input("rows", f"v {kind}")
    with refused(SchemaError, "'v'", "'rows'", kind, "but it is"):
        session.insert(pa.table({"v": [value]}))


def test_nested_rows_are_matched_by_name(flow):
    collection, session = flow.input("rows", "v struct<x:bigint,y:bigint>")
    collection.keep()
    session.insert([(Row(y=2, x=1),), ({"y": 2, "x": 1},), ((1, 2),)])
    session.insert(pa.table({"v": [{"y": 2, "x": 1}]}))
    ran(flow, session)
    assert [tuple(row.v) for row in collection.at(0).collect()] == [(1, 2)] * 4


# Names.


def test_reserved_names_are_refused(spark, flow):
    whole = DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS))
    for use in (
        lambda: DiffFrame(spark.createDataFrame([], "__x long, time long, diff long")),
        lambda: flow.input("rows", "__x long"),
        lambda: whole.withColumn("__x", F.lit(1)),
        lambda: whole.withColumnRenamed("n", "__x"),
        lambda: whole.select(F.col("n").alias("__x")),
        lambda: whole.transform(lambda df: df.withColumn("__x", F.lit(1))),
        lambda: whole.flat_map(lambda row: [(1,)], "__x long"),
        lambda: whole.map_in_pandas(lambda frames: frames, "__x long"),
        lambda: Dataflow(spark, time="__x"),
    ):
        with refused(ReservedNameError, "__x", "reserved", "rename"):
            use()


def test_names_that_differ_in_case_only_are_refused(spark, flow):
    whole = DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS))
    for use in (
        lambda: DiffFrame(spark.createDataFrame([], "n long, N long, time long, diff long")),
        lambda: flow.input("rows", "n long, N long"),
        lambda: whole.withColumn("m", F.lit(1)).toDF("n", "N"),
        lambda: whole.flat_map(lambda row: [(1, 2)], "n long, N long"),
        lambda: Dataflow(spark, time="n", diff="N"),
    ):
        with refused(SchemaError, "more than once", "n", "rename"):
            use()


def test_a_name_may_be_selected_twice_but_not_used_then(spark):
    whole = DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS))
    other = whole.withColumn("m", F.lit(1)).select(F.col("m").alias("n"), "n")
    for twice in (whole.select("n", "n"), other):
        assert twice.columns == ["n", "n"]
        assert twice.at(0).collect() == [(1, 1)]
        for use in (
            lambda: twice.count(), lambda: twice.select(twice.columns[0]),
            lambda: twice.join(whole, twice.columns[0]), lambda: twice.top_k(1, "n"),
        ):
            with refused(SchemaError, "more than one column is called n", "alias", "toDF"):
                use()
        assert twice.toDF("a", "b").columns == ["a", "b"]


def test_a_data_column_is_not_named_as_time_or_diff(spark, flow):
    whole = DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS))
    for name, use in (
        ("time", lambda: flow.input("rows", "n long, time long")),
        ("Diff", lambda: flow.input("rows", "n long, Diff long")),
        ("time", lambda: whole.withColumn("time", F.lit(1))),
        ("Time", lambda: whole.select(F.col("n").alias("Time"))),
        ("diff", lambda: whole.withColumnRenamed("n", "diff")),
        ("diff", lambda: whole.flat_map(lambda row: [(1,)], "diff long")),
    ):
        with refused(SchemaError, f"data column {name}", "time or diff", "Rename"):
            use()
    with Dataflow(spark, time="when", diff="by") as other:
        assert other.input("rows", "time long, diff long")[0].columns == ["time", "diff"]
    counted = DiffFrame(spark.createDataFrame([(1, 0, 3)], "n long, time long, count long"),
                        diff="count").count()
    assert counted.columns == ["n", "count_1"]
    assert counted.to_df().columns == ["n", "count_1", "time", "count"]


def test_inputs_have_different_names(flow):
    flow.input("rows", ONE)
    with refused(SchemaError, "'rows'", "another name"):
        flow.input("rows", TWO)


#: Each is a column of one record.
NAMES = ["a.b", "a`b", "`", "with space", "größe", "列", "`a` or 1=1 --", "'; drop table n; --", "*",
         "1", "select", "a\tb\n", "count"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_names_are_taken_literally(spark, runner):
    struct = T.StructType([T.StructField(name, T.LongType()) for name in NAMES])
    record = tuple(range(len(NAMES)))
    with Dataflow(spark, runner=runner, time="a.time", diff="`diff", buckets=2) as flow:
        rows, session = flow.input("r`o.ws", struct)
        first = rows.select(*NAMES[:4]).distinct().keep()
        mixed = rows.select("*", F.col("`a.b`").alias("c.d")).drop("c.d")
        mixed = mixed.select("a.b", F.col("````").alias("`")).distinct().keep()
        counts = rows.drop("1", "absent").count().keep()
        wider = rows.withColumn("x.y", F.col("`größe`") + 1).where(F.col("`x.y`") > 0)
        renamed = wider.select("x.y").withColumnRenamed("x.y", "`").distinct().keep()
        mapped = rows.flat_map(lambda row: [(row["a.b"], row["`"])], "`a.b` long, `b.a` long")
        mapped = mapped.where("`b.a` > 0").union(rows.select("a.b", "`").negate())
        again = mapped.concat(rows.select("`", F.col("`a.b`")).withColumnRenamed("`", "b.a")).keep()
        paired = rows.map_in_pandas(
            lambda frames: (f.assign(**{"x.y": f["a.b"] + f["`"]}) for f in frames), "`x.y` long"
        ).keep()
        session.insert([record])
        session.insert(pa.table([[v] for v in record], names=NAMES))
        session.insert(pd.DataFrame([record], columns=NAMES))
        session.insert(far(spark.createDataFrame([record], struct)))
        session.insert([dict(zip(NAMES, record))])
        session.update(far(spark.createDataFrame(
            [(*record, 0, -1)],
            struct.add("a.time", T.LongType()).add("`diff", T.LongType()),
        )))
        ran(flow, session)
        assert first.at(0).collect() == [Row(**dict(zip(NAMES[:4], record)))]
        assert [tuple(row) for row in mixed.at(0).collect()] == [(0, 2)]
        left = [name for name in NAMES if name != "1"]
        assert counts.columns == [*left, "count_1"]
        expected = tuple(i for i, name in enumerate(NAMES) if name != "1")
        assert counts.to_df().columns == [*left, "count_1", "a.time", "`diff"]
        assert [tuple(row) for row in counts.to_df().collect()] == [(*expected, 4, 0, 1)]
        assert renamed.at(0).collect() == [Row(**{"`": 5})]
        assert [tuple(row) for row in again.at(0).collect()] == [(0, 2)] * 4
        assert [row["x.y"] for row in paired.at(0).collect()] == [2] * 4


# Types.


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("map('a', parse_json('1'))", ("map<string,variant>",)),
        ("named_struct('m', map('a' collate UTF8_LCASE, 1))", ("UTF8_LCASE",)),
        ("'a' collate UTF8_LCASE", ("UTF8_LCASE", "byte by byte")),
        ("array('a' collate UNICODE_CI)", ("UNICODE_CI", "byte by byte")),
        ("parse_json('{}')", ("variant", "no equality")),
        ("make_ym_interval(1)", ("interval year to month", "no order")),
    ],
)
def test_types_without_exact_equality_are_no_keys(spark, expression, parts):
    frame = spark.createDataFrame([(1, 0, 1), (2, 0, 1)], COLUMNS)
    whole = DiffFrame(frame.withColumn("v", F.expr(expression)))
    for use in (
        whole.count,
        whole.distinct,
        whole.dropDuplicates,
        lambda: whole.dropDuplicates(["v"]),
        lambda: whole.subtract(whole),
        lambda: whole.threshold(lambda n: n),
        lambda: whole.withColumn("w", F.lit(1)).count(),
        lambda: whole.groupBy("v").agg(F.sum("n")),
        lambda: whole.join(whole.select("v"), "v"),
        lambda: whole.join(whole.select("v"), "v", "left_semi"),
        lambda: whole.top_k(1, "v"),
        lambda: whole.top_k(1, "n", per="v"),
        lambda: whole.arrange_by_key("v"),
        lambda: whole.reduce(lambda key, values: [], "n int", key="v"),
    ):
        with refused(UnsupportedTypeError, "'v'", "drop it", *parts):
            use()
    # Operators without a key accept these types.
    if "interval" not in expression:
        left = whole.where("n > 1").concat(whole).drop("v")
        assert sorted(tuple(row) for row in left.count().at(0).collect()) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("runner", RUNNERS)
def test_unusual_types_pass_through_linear_operators(spark, runner):
    with Dataflow(spark, runner=runner) as flow:
        rows, session = flow.input(
            "rows", "m map<string,int>, s string collate UTF8_LCASE, v variant, n long"
        )
        hits = rows.where("m['a'] = 1 and s = 'X' and variant_get(v, '$.k', 'int') = 1").select("n")
        hits.keep()
        schema = "m map<string,int>, s string, j string, n long"
        frame = spark.createDataFrame(
            [({"a": 1}, "x", '{"k": 1}', 5), ({"a": 2}, "X", '{"k": 1}', 6),
             ({"a": 1}, "y", '{"k": 1}', 7), ({}, "x", '{"k": 1}', 8),
             ({"a": 1}, "X", '{"k": 2}', 9), ({"a": 1}, "X", '{"k": 1}', 5)],
            schema,
        )
        session.insert(frame.select(
            "m", F.expr("s collate UTF8_LCASE").alias("s"), F.parse_json("j").alias("v"), "n"
        ))
        ran(flow, session)
        assert [row.n for row in hits.at(0).collect()] == [5, 5]


#: Programs that make a struct with two fields of one name.
TWICE = [
    lambda rows: rows.select(F.struct("s", "s").alias("v")),
    lambda rows: rows.withColumn("v", F.array(F.struct("s", "s"))),
    lambda rows: rows.groupBy("k").agg(F.max(F.struct("s", "s"))),
    lambda rows: rows.groupBy("k").agg(F.size(F.collect_list(F.struct("s", "s")))),
    lambda rows: rows.groupBy(F.struct("s", "s").alias("v")).count(),
    lambda rows: rows.withColumn("v", F.row_number().over(
        Window.partitionBy("k").orderBy(F.struct("s", "s")))),
    lambda rows: rows.alias("a").join(
        rows.alias("b"), F.struct("a.s", "a.s") == F.struct("b.s", "b.s")),
    lambda rows: rows.join(rows._collection.spark.sql(
        "SELECT 1L AS k, named_struct('s', 1, 's', 2) AS v"), "k"),
    lambda rows: rows.flat_map(lambda row: [], "v struct<s:int,s:int>"),
    lambda rows: rows.reduce(lambda key, values: [], "v map<int,struct<s:int,s:int>>", key="k"),
    lambda rows: rows.transform(lambda df: df.withColumn("v", F.struct("s", "s"))),
    lambda rows: DiffFrame(rows._collection.spark.sql(
        "SELECT named_struct('s', 1, 's', 2) AS v, 0 AS time, 1 AS diff")),
]


def test_structs_with_a_name_twice_are_refused(spark):
    frame = spark.createDataFrame([(1, "a", 0, 1)], "k long, s string, time int, diff int")
    for make in TWICE:
        with refused(SchemaError, "two fields called 's'", "name of its own"):
            make(DiffFrame(frame))
    # A name in another case is another field, and expressions may contain any fields.
    rows = DiffFrame(frame).where(F.struct("s", "s") == F.struct("s", "s"))
    rows = rows.select(F.struct("s", F.upper("s").alias("S")).alias("v"))
    assert rows.at(0).collect() == [Row(v=Row(s="a", S="A"))]


def test_inputs_with_a_field_twice_are_refused(spark):
    with Dataflow(spark) as flow:
        for key in (None, "k"):
            with refused(SchemaError, "two fields called 'a'"):
                flow.input("rows", "k int, v array<struct<a:int,a:int>>", key=key)
        with refused(SchemaError, "two fields called 'a'"):
            flow.constant([], "v struct<b:struct<a:int,a:int>>")


# Diffs.

BIG = 2**62


@pytest.mark.parametrize("runner", RUNNERS)
def test_sums_of_diffs_do_not_wrap(another, runner):
    another.conf.set("spark.sql.ansi.enabled", "false")
    with Dataflow(another, runner=runner, buckets=2) as flow:
        rows, feed = flow.input("rows", ONE)
        counts, kinds = rows.count().keep(), rows.distinct().keep()
        feed.update([(1, 0, BIG), (1, 0, BIG - 1), (2, 0, 1)])
        ran(flow, feed)
        assert sorted(tuple(r) for r in counts.at(0).collect()) == [(1, 2**63 - 1), (2, 1)]
        feed.update([(1, 1, 1), (2, 1, 1)])
        feed.advance_to(2)
        feed.flush()
        for _ in range(2):
            with refused(DiffOverflowError, "64-bit", "diffs of the input"):
                flow.step()
        # A failed step changes no output.
        assert sorted(tuple(r) for r in counts.at(0).collect()) == [(1, 2**63 - 1), (2, 1)]
        assert sorted(row.n for row in kinds.at(0).collect()) == [1, 2]


@pytest.mark.parametrize("make", [near, lambda *args: far(near(*args))], ids=["near", "far"])
@pytest.mark.parametrize("ansi", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_diffs_of_one_set_of_updates_do_not_wrap(another, ansi, make):
    another.conf.set("spark.sql.ansi.enabled", ansi)
    whole = DiffFrame(make(another, [(1, 0, BIG), (1, 0, BIG)], COLUMNS))
    for collection in (whole, whole.count(), whole.distinct())[: 3 if make is near else 1]:
        with refused(DiffOverflowError, "64-bit", "diffs of the input"):
            collection.to_df()
    least = DiffFrame(make(another, [(1, 0, -(2**63)), (2, 0, 3)], COLUMNS))
    assert least.distinct().at(0).collect() == [Row(n=2)]
    for collection in (least.negate(), least.negate().where("n < 2").count()):
        with refused(DiffOverflowError, "cannot be negated"):
            collection.to_df()
    assert least.where("n > 1").negate().to_df().collect() == [Row(n=2, time=0, diff=-3)]


# Closed things.

SESSION_CALLS = {
    "time": lambda s: s.time(),
    "insert": lambda s: s.insert([(1,)]),
    "remove": lambda s: s.remove([(1,)]),
    "update": lambda s: s.update([(1, 9, 1)]),
    "advance_to": lambda s: s.advance_to(9),
    "flush": lambda s: s.flush(),
    "discard": lambda s: s.discard(),
}
KEYED_CALLS = {
    **{name: call for name, call in SESSION_CALLS.items() if name != "update"},
    "upsert": lambda s: s.upsert([(1,)]),
    "delete": lambda s: s.delete([1]),
    "replace": lambda s: s.replace([]),
}
FLOW_CALLS = {
    "constant": lambda f: f.constant([(1,)], ONE),
    "input": lambda f: f.input("other", ONE),
    "advance_to": lambda f: f.advance_to(9),
    "step": lambda f: f.step(),
    "step_while": lambda f: f.step_while(lambda: False),
    "step_async": lambda f: f.step_async(),
    "progress": lambda f: f.progress(),
    "arrangements": lambda f: f.arrangements(),
    "describe": lambda f: f.describe(),
    "explain": lambda f: f.explain(),
    "plot": lambda f: f.plot(),
    "report": lambda f: f.report("x.html"),
    "iterations": lambda f: f.iterations(),
    "loop": lambda f: f.loop(),
    "discard": lambda f: f.discard(),
    "session": lambda f: f.session("rows"),
    "source": lambda f: f.source("fed", snapshots(f.spark.range(1))),
    "late": lambda f: f.late("fed"),
    "catch_up": lambda f: f.catch_up(),
    "import_table": lambda f: f.import_table("nosuch"),
    "history": lambda f: f.history(),
    "vacuum": lambda f: f.vacuum(),
    "verify": lambda f: f.verify(),
    "sql": lambda f: f.sql("SELECT 1"),
    "query": lambda f: f.query(f.spark.range(1)),
    "table": lambda f: f.table("rows"),
    "explain_sql": lambda f: f.explain_sql("SELECT 1"),
    "clock": lambda f: f.clock(1),
}
#: Methods that keep state. A flow refuses them if it did not keep the history of the input.
KEEPING = {
    "keep", "sink", "arrange_by_self", "arrange_by_key", "inspect", "assert_empty", "assert_eq",
}
FRAME_CALLS = {
    "arrange_by_self": lambda c: c.arrange_by_self(),
    "at": lambda c: c.at(0),
    "changes": lambda c: c.changes(0),
    "concat": lambda c: c.concat(c),
    "consolidate": lambda c: c.consolidate(),
    "count": lambda c: c.count(),
    "count_total": lambda c: c.count_total(),
    "distinct": lambda c: c.distinct(),
    "drop": lambda c: c.drop("n"),
    "filter": lambda c: c.filter("n > 0"),
    "flat_map": lambda c: c.flat_map(lambda row: [], ONE),
    "inspect": lambda c: c.inspect(print),
    "explain": lambda c: c.explain(),
    "keep": lambda c: c.keep("kept"),
    "sink": lambda c: c.sink("out", foreach(print)),
    "save_as_table": lambda c: c.save_as_table("kept_rows"),
    "iterate": lambda c: c.iterate(lambda x: x),
    "enter_at": lambda c: c.enter_at("n"),
    "leave": lambda c: c.leave(),
    "map_in_pandas": lambda c: c.map_in_pandas(lambda frames: frames, ONE),
    "negate": lambda c: c.negate(),
    "plot_history": lambda c: c.plot_history(),
    "probe": lambda c: c.probe(),
    "select": lambda c: c.select("n"),
    "selectExpr": lambda c: c.selectExpr("n"),
    "set": lambda c: c.set(c),
    "threshold": lambda c: c.threshold(lambda n: n),
    "to_df": lambda c: c.to_df(),
    "transform": lambda c: c.transform(lambda df: df),
    "union": lambda c: c.union(c),
    "where": lambda c: c.where("n > 0"),
    "dropna": lambda c: c.dropna(),
    "fillna": lambda c: c.fillna(1),
    "mapInArrow": lambda c: c.mapInArrow(lambda batches: batches, ONE),
    "mapInPandas": lambda c: c.mapInPandas(lambda frames: frames, ONE),
    "melt": lambda c: c.melt([], ["n"], "what", "value"),
    "replace": lambda c: c.replace(1, 2),
    "unionAll": lambda c: c.unionAll(c),
    "unionByName": lambda c: c.unionByName(c),
    "unpivot": lambda c: c.unpivot([], ["n"], "what", "value"),
    "withColumns": lambda c: c.withColumns({"m": F.lit(1)}),
    "withColumnsRenamed": lambda c: c.withColumnsRenamed({"n": "m"}),
    "withColumn": lambda c: c.withColumn("m", F.lit(1)),
    "withColumnRenamed": lambda c: c.withColumnRenamed("n", "m"),
    "agg": lambda c: c.agg(F.sum("n")),
    "alias": lambda c: c.alias("a"),
    "antijoin": lambda c: c.antijoin(c),
    "arrange_by_key": lambda c: c.arrange_by_key("n"),
    "crossJoin": lambda c: c.crossJoin(c.hint("broadcast")),
    "dropDuplicates": lambda c: c.dropDuplicates(["n"]),
    "drop_duplicates": lambda c: c.drop_duplicates(),
    "exceptAll": lambda c: c.exceptAll(c),
    "cube": lambda c: c.cube("n").count(),
    "groupBy": lambda c: c.groupBy("n").count(),
    "groupingSets": lambda c: c.groupingSets([["n"], []], "n").count(),
    "rollup": lambda c: c.rollup("n").count(),
    "groupby": lambda c: c.groupby("n").max("n"),
    "hint": lambda c: c.hint("broadcast"),
    "hold": lambda c: c.hold(),
    "assert_empty": lambda c: c.assert_empty(),
    "assert_eq": lambda c: c.assert_eq(c),
    "delay": lambda c: c.delay(1),
    "expire_after": lambda c: c.expire_after(1),
    "join_asof": lambda c: c.join_asof(c, "n"),
    "join_interval": lambda c: c.join_interval(c, "n", lower=0, upper=1),
    "intersect": lambda c: c.intersect(c),
    "intersectAll": lambda c: c.intersectAll(c),
    "join": lambda c: c.join(c, "n"),
    "reduce": lambda c: c.reduce(lambda key, values: [], ONE, key=[]),
    "semijoin": lambda c: c.semijoin(c),
    "subtract": lambda c: c.subtract(c),
    "toDF": lambda c: c.toDF("m"),
    "top_k": lambda c: c.top_k(1, "n"),
    "weighted": lambda c: c.weighted("n"),
}


@pytest.mark.parametrize(
    ("kind", "calls", "other"),
    [
        (InputSession, SESSION_CALLS, {"close", "name", "schema"}),
        (KeyedSession, KEYED_CALLS, {"close", "name", "schema", "key"}),
        (Dataflow, FLOW_CALLS, {"close", "report", "open", "at", "token", "last_report"}),
        (
            DiffFrame, FRAME_CALLS,
            {"columns", "schema", "dtypes", "na", "printSchema", "sparkSession"},
        ),
    ],
)
def test_every_public_method_is_tried_after_close(kind, calls, other):
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public - other <= set(calls), "what does it do once the dataflow is closed?"


def test_a_closed_dataflow_does_nothing(spark):
    with Dataflow(spark, runner="local") as flow:
        collection, session = flow.input("rows", ONE)
        _, keyed = flow.input("keyed", ONE, key="n")
        collection.keep()
        session.insert([(1,)])
        keyed.close()
        ran(flow, session)
        frame = collection.at(0)
    flow.close()
    for calls, thing in (
        (KEYED_CALLS, keyed), (SESSION_CALLS, session), (FLOW_CALLS, flow),
        (FRAME_CALLS, collection),
    ):
        for name, call in calls.items():
            with refused(ClosedError, "closed", "make a new one"):
                call(thing)
    with refused(ClosedError, "closed"), flow:
        pass
    session.close()
    assert (session.name, session.schema.names, collection.columns) == ("rows", ["n"], ["n"])
    assert frame.schema.names == ["n"]


def test_a_closed_input_takes_no_more(flow):
    collection, session = flow.input("rows", ONE)
    _, keyed = flow.input("keyed", ONE, key="n")
    collection.keep()
    session.insert([(1,)])
    for calls, fed in ((SESSION_CALLS, session), (KEYED_CALLS, keyed)):
        fed.close()
        fed.close()
        for name, call in calls.items():
            if name != "discard":
                with refused(ClosedError, f"'{fed.name}'", "closed", "no more updates"):
                    call(fed)
    flow.step()
    assert collection.at().collect() == [Row(n=1)]
    with refused(ClosedError, "'words'"):
        with flow_of_words(flow) as words:
            pass
        words.flush()


def test_what_a_closed_input_holds_can_be_discarded(flow):
    collection, session = flow.input("rows", ONE)
    collection.keep()
    session.insert([(1,)])
    session.close()
    (dropped,) = session.discard()
    assert dropped.to_pylist() == [{"n": 1, "time": 0, "diff": 1}]
    flow.step()
    assert collection.at().collect() == []


def flow_of_words(flow: Dataflow) -> InputSession:
    other = Dataflow(flow.spark, runner="local")
    return other.input("words", ONE)[1]


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_step_that_failed_can_be_run_again(spark, runner):
    broken = [True]

    def fragile(row):
        if broken:
            raise ValueError("the disk of the user is full")
        return [(row.n,)]

    shown = []
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, session = flow.input("rows", ONE)
        early = rows.count().keep()
        late = rows.flat_map(fragile, ONE).count().inspect(lambda *update: shown.append(update))
        probe = late.probe()
        session.insert([(1,), (1,), (2,)])
        session.advance_to(1)
        session.flush()
        for _ in range(2):
            with pytest.raises(Exception, match="disk of the user"):
                flow.step()
        assert probe.less_than(1) and not shown
        with refused(NotReadableError, "no time is complete"):
            early.at()
        broken.clear()
        session.insert([(2,)])
        ran(flow, session, 2)
        assert not probe.less_than(2)
        assert sorted(tuple(row) for row in early.at(1).collect()) == [(1, 2), (2, 2)]
        assert sorted(shown) == [((1, 2), 0, 1), ((2, 1), 0, 1), ((2, 1), 1, -1), ((2, 2), 1, 1)]


# Programs.

UNSTABLE = {
    "rand": lambda: F.rand(),
    "randn": lambda: F.randn(1),
    "uuid": lambda: F.uuid(),
    "shuffle": lambda: F.shuffle(F.array(F.lit(1), F.lit(2))),
    "monotonically_increasing_id": lambda: F.monotonically_increasing_id(),
    "current_timestamp": lambda: F.current_timestamp(),
    "current_date": lambda: F.current_date(),
    "spark_partition_id": lambda: F.spark_partition_id(),
    "input_file_block_start": lambda: F.input_file_block_start(),
    "current_user": lambda: F.current_user(),
    "current_catalog": lambda: F.current_catalog(),
    "current_timezone": lambda: F.current_timezone(),
    "udf": lambda: F.udf(lambda: 1, "int").asNondeterministic()(),
    # Spark says that aes_encrypt is deterministic, but draws a vector for each evaluation.
    "aes_encrypt": lambda: F.aes_encrypt(F.lit("a"), F.lit("0123456789abcdef")),
}


@pytest.mark.parametrize("name", UNSTABLE)
def test_expressions_that_change_are_refused(spark, flow, name):
    changing = UNSTABLE[name]().alias("z")
    frame = far(spark.createDataFrame([(1, 0, 1)], COLUMNS))
    whole = DiffFrame(frame)
    rows, session = flow.input("rows", "n long, z string")
    parts = () if name == "udf" else (name,)
    for use in (
        lambda: whole.select("n", changing),
        lambda: whole.where(changing.isNotNull()),
        lambda: whole.withColumn("z", changing),
        lambda: whole.transform(lambda df: df.withColumn("z", changing)),
        lambda: DiffFrame(frame.withColumn("z", changing)),
        lambda: DiffFrame(frame.where(changing.isNotNull())),
        lambda: DiffFrame(frame.where(changing.isNotNull()).distinct().where("n > 0")),
        lambda: session.insert(frame.select("n", changing.cast("string").alias("z"))),
        lambda: session.update(
            frame.select("n", changing.cast("string").alias("z"), "time", "diff")
        ),
        lambda: whole.groupBy(changing).count(),
        lambda: whole.groupBy("n", changing).agg(F.max("n")),
        lambda: whole.agg(F.max(changing.cast("string"))),
        lambda: whole.groupBy("n").agg(F.min_by("n", changing)),
        lambda: whole.top_k(1, changing.desc()),
        lambda: whole.top_k(1, ["n", changing], per="n"),
        lambda: rows.dropDuplicates(["n"], order=["z", changing]),
    ):
        with refused(NonDeterministicError, "retracted", "Compute the value before", *parts):
            use()
    pair = whole.alias("l"), whole.alias("r")
    for how in ("inner", "left", "left_semi"):
        # Spark itself refuses some conditions.
        with pytest.raises((NonDeterministicError, AnalysisException)):
            pair[0].join(pair[1], F.col("l.n") == F.length(changing.cast("string")), how)
        with pytest.raises((NonDeterministicError, AnalysisException)):
            pair[0].join(pair[1], (F.col("l.n") == F.col("r.n")) & changing.isNotNull(), how)


@in_sql_text
@pytest.mark.parametrize("text", [
    "rand()", "monotonically_increasing_id()", "current_timestamp()", "now()", "current_date",
])
def test_sql_text_that_changes_is_refused(spark, text):
    whole = DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS))
    for use in (
        lambda: whole.selectExpr("n", f"{text} AS z"),
        lambda: whole.where(f"{text} IS NOT NULL"),
        lambda: whole.select(F.expr(text)),
        lambda: whole.groupBy(F.expr(text)).count(),
        lambda: whole.agg(F.expr(f"max({text})")),
        lambda: whole.top_k(1, F.expr(text)),
    ):
        with refused(NonDeterministicError, "retracted"):
            use()


def test_a_clock_is_found_in_a_wide_plan(spark):
    wide = [F.lit(i).alias(f"c{i}") for i in range(60)]
    whole = DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS)).select("n", *wide)
    with refused(NonDeterministicError, "retracted"):
        whole.select("*", F.current_timestamp().alias("z"))
    for text in (
        "now() AS z", "current_date AS z", "c1 + rand() AS z",
        "aes_encrypt('a', '0123456789abcdef', 'CBC') AS z",
    ):
        with refused(NonDeterministicError, "retracted"):
            whole.select("*", F.expr(text))


def test_what_only_looks_unstable_is_taken(spark):
    frame = spark.createDataFrame([(1, 0, 1)], "`rand(7)` long, time long, diff long")
    collection = DiffFrame(frame).withColumn("w", F.lit("now()")).where("w != 'uuid()'")
    assert collection.at(0).collect() == [Row(**{"rand(7)": 1, "w": "now()"})]
    for more in ("'ECB'", "'GCM', 'DEFAULT', unhex('000000000000000000000000')"):
        text = f"hex(aes_encrypt('a', '0123456789abcdef', {more})) AS z"
        assert len(collection.selectExpr(text).at(0).collect()) == 1


def over() -> Window:
    return Window.partitionBy("n").orderBy("n")


@pytest.mark.parametrize(
    ("use", "part"),
    [
        (
            lambda c: c.transform(lambda df: df.withColumn("k", F.row_number().over(over()))),
            "a window function",
        ),
        (lambda c: c.transform(lambda df: df.limit(1)), "a limit"),
        (lambda c: c.transform(lambda df: df.distinct()), "distinct"),
        (lambda c: c.transform(lambda df: df.dropDuplicates(["n"])), "dropDuplicates"),
        (lambda c: c.transform(lambda df: df.join(df.select("n"), "n")), "a join"),
        (
            lambda c: c.transform(
                lambda df: df.groupBy("n", "time").agg(F.sum("diff").alias("diff"))
            ),
            "an aggregate",
        ),
        (lambda c: c.transform(lambda df: df.sample(fraction=0.5, seed=1)), "sample"),
        (lambda c: c.transform(lambda df: df.exceptAll(df)), "exceptAll"),
    ],
)
def test_what_looks_at_several_rows_is_refused(spark, use, part):
    window = part == "a window function"
    remedy = "select or withColumn" if window else "operators of DiffFrame"
    with refused(SchemaError, "one row at a time", part, remedy):
        use(DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS)))


def test_an_aggregate_is_no_column(spark):
    whole = DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS))
    for use in (lambda: whole.withColumn("k", F.sum("n")), lambda: whole.select(F.max("n"))):
        with pytest.raises(AnalysisException, match="GROUP"):
            use()
    with pytest.raises(AnalysisException, match="absent"):
        whole.select("absent")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda df: df.drop("time"), ("time column", "bigint", "nothing there")),
        (lambda df: df.drop("diff"), ("diff column", "bigint", "nothing there")),
        (lambda df: df.select("n"), ("time column", "nothing there", "columns n")),
        (lambda df: df.withColumn("time", F.col("time").cast("string")), ("time", "string there")),
        (lambda df: df.withColumn("time", F.col("time").cast("int")), ("time", "int there")),
        (lambda df: df.withColumn("diff", F.col("diff").cast("int")), ("diff", "int there")),
        (lambda df: df.withColumn("diff", F.col("diff") / 2), ("diff", "double there")),
        (lambda df: None, ("must return a DataFrame", "NoneType")),
    ],
)
def test_transform_keeps_time_and_diff(spark, change, parts):
    with refused(SchemaError, "transform", *parts):
        DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS)).transform(change)


@pytest.mark.parametrize("runner", RUNNERS)
def test_transform_does_not_move_updates_behind_the_frontier(spark, runner):
    with Dataflow(spark, runner=runner) as flow:
        rows, session = flow.input("rows", ONE)
        rows.transform(lambda df: df.withColumn("time", F.col("time") - 1)).count()
        early = rows.transform(lambda df: df.withColumn("time", F.col("time") - 1))
        early = early.distinct().keep()
        ran(flow, session, 5)
        session.insert([(1,)])
        with refused(TimeRegressionError, "time 4", "frontier 5", "transform"):
            ran(flow, session, 6)
        assert early.at(4).collect() == []


def test_only_collections_that_are_alike_are_added(spark, flow):
    rows, _ = flow.input("rows", TWO)
    swapped, _ = flow.input("swapped", "b string, a long")
    other, _ = flow.input("other", ONE)
    whole = DiffFrame(spark.createDataFrame([], "a long, b string, time long, diff long"))
    dated = DiffFrame(spark.createDataFrame([], "a long, b string, time date, diff long"))
    with Dataflow(spark) as second:
        foreign, _ = second.input("rows", TWO)
    cases = [
        (rows, other, ("same columns", "a bigint, b string", "n bigint")),
        (rows, rows.withColumn("a", F.array("a")), ("same columns", "a array<bigint>, b string")),
        (rows, rows.drop("a"), ("same columns", "(b string)")),
        (rows, foreign, ("different dataflows",)),
        (rows, whole, ("different dataflows",)),
        (whole, dated, ("times of different types", "bigint", "date", "cast one")),
        (whole, spark.range(1), ("same columns", "a bigint, b string", "id bigint")),
        (whole, [(1, "x")], ("expected a DiffFrame", "list", "DiffFrame(df)")),
    ]
    for left, right, parts in cases:
        for add in (left.union, left.concat):
            with refused(SchemaError, *parts):
                add(right)
    assert rows.concat(swapped).columns == ["a", "b"]


def test_every_operator_can_be_written_after_the_first_step(flow):
    rows, session = flow.input("rows", ONE)
    doubled = rows.concat(rows)
    counts = doubled.count().keep()
    session.insert([(1,)])
    ran(flow, session)
    state = flow._state
    for name, call in FRAME_CALLS.items():
        reading = {
            "at", "changes", "to_df", "hold", "leave", "plot_history", "save_as_table", "set",
            "enter_at",
        }
        if name not in KEEPING | reading:
            call(rows)
    assert flow._state is state and not flow._build().late
    for keep in (rows.keep, doubled.keep, lambda: rows.inspect(print), rows.arrange_by_self):
        with refused(NotReadableError, "input 'rows' was not kept", "before the first step"):
            keep()
    for read in (doubled.at, doubled.to_df, doubled.hold, lambda: doubled.changes(0)):
        with refused(NotReadableError, "concat", "not kept", "keep()"):
            read()
    assert not flow.step()
    assert counts.at(0).collect() == [Row(n=1, count=2)]


def test_only_complete_times_are_read(flow):
    rows, session = flow.input("rows", ONE)
    counts = rows.count().keep()
    for time in (None, 0):
        with refused(NotReadableError, "not", "complete", "Advance"):
            counts.at(time)
    session.insert([(1,)])
    ran(flow, session, 3)
    with refused(NotReadableError, "time 3 is not complete", "not including, 3", "Advance"):
        counts.at(3)
    with refused(NotReadableError, "time 1 was compacted away", "from 2 on", "keep_history=True"):
        counts.at(1)
    assert counts.at(2).collect() == counts.at().collect() == [Row(n=1, count=1)]


@pytest.mark.parametrize("kind", ["long", "date", "timestamp"])
def test_negative_multiplicities_are_named(spark, kind):
    frame = spark.createDataFrame(
        [("a", 0, 1), ("b", 0, -2), ("b", 1, 3), ("c", 1, -1)], "w string, t long, diff long"
    )
    cast = {"long": F.col("t"), "date": F.date_from_unix_date(F.col("t").cast("int")),
            "timestamp": F.timestamp_seconds("t")}[kind]
    whole = DiffFrame(frame.select("w", cast.alias("time"), "diff"))
    first = whole.to_df().agg(F.min("time")).first()[0]
    with refused(NegativeMultiplicityError, "('b',): -2", repr(first), "allow_negative=True"):
        whole.at(first)
    with refused(NegativeMultiplicityError, "('c',): -1", "in the end"):
        whole.at()
    assert [tuple(row) for row in whole.at(first, allow_negative=True).collect()] == [("a",)]
    assert sorted(row.w for row in whole.at(allow_negative=True).collect()) == ["a", "b"]
    assert sorted(row.w for row in whole.distinct().at().collect()) == ["a", "b"]


def test_a_step_that_can_never_finish_says_so(flow):
    rows, session = flow.input("rows", ONE)
    _, other = flow.input("others", ONE)
    probe = rows.count().probe()
    session.advance_to(4)
    session.flush()
    other.close()
    parts = ("input 'rows' at 4", "input 'others' complete", "Advance these")
    with refused(StalledError, *parts):
        flow.step_while(lambda: probe.less_than(5))
    assert not probe.less_than(4)


def test_threshold_wants_whole_numbers_and_zero_for_zero(spark):
    whole = DiffFrame(spark.createDataFrame([(1, 0, 3)], COLUMNS))
    with refused(InvalidDiffError, "returned 1 for the multiplicity 0", "return 0"):
        whole.threshold(lambda n: n + 1)
    for value in (1.5, "1", None):
        with refused(InvalidDiffError, repr(value), "multiplicity 3", "whole number"):
            whole.threshold(lambda n, value=value: value if n else 0).to_df()
    with refused(DiffOverflowError, "too large"):
        whole.threshold(lambda n: n * 2**62).to_df()
    assert whole.threshold(lambda n: n > 2).at(0).collect() == [Row(n=1)]


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        ([(1,)], ("row of 1 values, (1,)", "2 columns: a, b")),
        ([(1, "x", 2)], ("row of 3 values", "2 columns: a, b")),
        ([7], ("row of 1 values, (7,)", "2 columns: a, b")),
        ([("1", "x")], ("'a'", "int64", "'1' is a str")),
        ([(1.5, "x")], ("'a'", "int64", "1.5 is a float")),
        ([(True, "x")], ("'a'", "int64", "True is a bool")),
        ([(1, 2)], ("'b'", "string", "2 is a int")),
    ],
)
def test_flat_map_keeps_its_schema(spark, result, parts):
    whole = DiffFrame(near(spark, [(1, 0, 1)], COLUMNS))
    with refused(SchemaError, "flat_map's function returned", *parts):
        whole.flat_map(lambda row: result, TWO).to_df()


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        (lambda f: f.assign(a=1), SchemaError, ("without b", "n, time, diff, a")),
        (lambda f: f.drop(columns="time").assign(a=1, b="x"), SchemaError, ("without time",)),
        (lambda f: f.drop(columns="diff").assign(a=1, b="x"), SchemaError, ("without diff",)),
        (lambda f: f.assign(a="1", b="x"), SchemaError, ("'a'", "int64")),
        (lambda f: f.assign(a=1.5, b="x"), SchemaError, ("'a'", "int64")),
        (lambda f: f.assign(a=[1.5], b="x").astype({"a": object}), SchemaError, ("'a'", "int64")),
        (lambda f: f.assign(a=1, b=2), SchemaError, ("'b'", "string")),
        (lambda f: f.assign(a=1, b="x", time=None), InvalidTimeError, ("null time",)),
        (lambda f: f.assign(a=1, b="x", diff=None), InvalidDiffError, ("null diff",)),
        (lambda f: f.assign(a=1, b="x", diff=0.5), SchemaError, ("'diff'", "int64")),
    ],
)
def test_map_in_pandas_keeps_its_schema(spark, change, error, parts):
    whole = DiffFrame(near(spark, [(1, 0, 1)], COLUMNS))
    with refused(error, "map_in_pandas", *parts):
        whole.map_in_pandas(lambda frames: map(change, frames), TWO).to_df()


@pytest.mark.parametrize("after", [lambda c: c, lambda c: c.where("a > 0")], ids=["last", "inner"])
def test_what_a_task_finds_is_no_error_of_spark(spark, after):
    whole = DiffFrame(far(near(spark, [(1, 0, 1)], COLUMNS)))
    with refused(SchemaError, "row of 1 values, ('ü',)", "2 columns: a, b"):
        after(whole.flat_map(lambda row: [("ü",)], TWO)).to_df()
    with refused(SchemaError, "frame without b", "n, time, diff, a"):
        after(whole.map_in_pandas(lambda frames: (f.assign(a=1) for f in frames), TWO)).to_df()


@pytest.mark.parametrize(
    ("arguments", "error", "parts"),
    [
        ({"runner": "sparc"}, ValueError, ("'auto', 'spark' or 'local'", "'sparc'")),
        ({"buckets": 0}, ValueError, ("at least one bucket", "0")),
        ({"buckets": -3}, ValueError, ("at least one bucket", "-3")),
        ({"time": "t", "diff": "t"}, SchemaError, ("more than once", "t")),
    ],
)
def test_arguments_are_checked(spark, arguments, error, parts):
    with refused(error, *parts):
        Dataflow(spark, **arguments)


def test_a_whole_collection_has_nothing_to_follow(spark):
    whole = DiffFrame(spark.createDataFrame([(1, 0, 1)], COLUMNS))
    for use in (whole.probe, lambda: whole.inspect(print)):
        with refused(NotReadableError, "its whole history", "Dataflow"):
            use()


# Sessions.

CONF = {
    "without ANSI": {"spark.sql.ansi.enabled": "false"},
    "another zone": {"spark.sql.session.timeZone": "America/New_York"},
    "case matters": {"spark.sql.caseSensitive": "true"},
    "three rows at once": {"spark.sql.execution.arrow.maxRecordsPerBatch": "3"},
    "large types": {"spark.sql.execution.arrow.useLargeVarTypes": "true"},
    "without Arrow": {"spark.sql.execution.arrow.pyspark.enabled": "false"},
    "timestamps without zone": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
}
CONF["all of them"] = {key: value for conf in CONF.values() for key, value in conf.items()}
CONF["none of them"] = {}


def answer(session, runner: str) -> tuple[object, ...]:
    """The outputs of a program with many operators, in forms that no setting changes."""
    moment = datetime.datetime(2026, 11, 1, 5, 30, tzinfo=datetime.timezone.utc)
    hour = datetime.timedelta(hours=1)
    schema = T.StructType([
        T.StructField("word", T.StringType()), T.StructField("at", T.TimestampType()),
        T.StructField("n", T.LongType()), T.StructField("d", T.DecimalType(12, 2)),
    ])
    rows = [(w, moment + (i % 2) * hour, i, Decimal(i) / 4) for i, w in enumerate("abcabcaB" * 2)]
    with Dataflow(session, runner=runner, buckets=3) as flow:
        words, feed = flow.input("words", schema)
        counts = words.select("word", "at").count().keep()
        pairs = words.flat_map(
            lambda row: [(row["word"], row["at"], row["at"].isoformat())] * (row["n"] % 2),
            T.StructType([*schema.fields[:2], T.StructField("text", T.StringType())]),
        ).where("word <> 'b'").distinct().keep()
        shifted = words.map_in_pandas(
            lambda frames: (f.assign(text=f["at"].map(lambda at: at.isoformat())) for f in frames),
            "word string, text string",
        ).distinct().keep()
        totals = words.where("d < 3").withColumn("half", F.col("d") * 2).drop("at", "n").count()
        totals.keep()
        feed.insert(rows[:8])
        feed.insert(far(session.createDataFrame(rows[8:], schema)))
        ran(flow, feed)
        feed.remove(far(session.createDataFrame(rows[4:12], schema)))
        ran(flow, feed, 2)
        micros = F.unix_micros("at").alias("at")

        def read(collection, *columns):
            return sorted(map(tuple, collection.at(1).select(*columns or ["*"]).collect()))

        return (
            read(counts, "word", micros, "count"),
            read(pairs, "word", micros, "text"),
            read(shifted),
            read(totals),
            sorted(map(tuple, counts.to_df().select("word", micros, "time", "diff").collect())),
        )


@pytest.fixture(scope="module")
def usual(spark):
    return answer(connect_server.session_beside(spark), "local")


@pytest.mark.parametrize(
    ("name", "runner"),
    [
        *((name, "local") for name in CONF),
        pytest.param("all of them", "spark", marks=pytest.mark.slow),
    ],
)
def test_settings_of_a_session_change_no_answer(another, usual, name, runner):
    for key, value in CONF[name].items():
        another.conf.set(key, value)
    before = dict(another.conf.getAll)
    actual = answer(another, runner)
    assert actual == usual
    assert any(actual) and all(actual)
    assert dict(another.conf.getAll) == before


# Wrong names and schemas.


@pytest.mark.parametrize("name", [None, 5, "", " \n", b"edges", ["edges"]])
def test_an_odd_name_of_an_input_is_refused(flow, name):
    with refused(SchemaError, "the name of an input is a text such as 'edges'", repr(name)):
        flow.input(name, "n long")
    flow.input("edges", "n long")


@pytest.mark.parametrize("schema", [None, 5, ["n"], T.LongType(), {"n": "long"}])
def test_what_is_no_schema_is_refused(flow, schema):
    with refused(SchemaError, "a schema is a text such as", repr(schema)):
        flow.input("rows", schema)


@pytest.mark.parametrize("odd", [None, 5, b"time"])
def test_odd_names_and_types_of_time_and_diff_are_refused(spark, odd):
    for which in ("time", "diff"):
        with refused(SchemaError, "column names are texts", repr(odd)):
            Dataflow(spark, **{which: odd})
    with refused(SchemaError, "a time type is a text such as", repr(odd)):
        Dataflow(spark, time_type=odd)


def test_a_time_type_that_is_none_is_told_with_those_that_are(spark):
    with refused(SchemaError, "'timestmp'", "no type of Spark", "bigint", "timestamp"):
        Dataflow(spark, time_type="timestmp")


def test_a_program_that_is_no_function_is_told(spark, tmp_path):
    with refused(SchemaError, "def program(flow)", "'prog'"):
        Dataflow.open(tmp_path / "store", "prog", spark=spark)
    assert not (tmp_path / "store").exists()


def test_a_file_that_cannot_be_read_is_told_in_a_few_words(spark, tmp_path):
    (tmp_path / "1.json").write_text('{"op": "c", "id": 1, "amount": "q"}\n')
    with Dataflow(spark) as flow:
        flow.source("orders", files(str(tmp_path), "id int, amount int", key="id")).keep()
        with pytest.raises(SourceError, match="1.json.*'amount'.*Nothing of it was taken") as error:
            flow.catch_up()
    assert len(str(error.value)) < 1000
