"""Expressions have the values of the settings at the time of their definition, or are refused.

    a step evaluates an expression  ⟹  the session has the settings of the expression's definition

The settings are the table of `pyspark_diff.spark.settings`.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone

import connect_server
import pytest
from pyspark.sql import functions as F

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    ProgramChangedError,
    SchemaError,
    SettingsChangedError,
)
from pyspark_diff.spark.settings import ANSI, LEFT_OUT, VALUES, ZONE

POLICY = "spark.sql.mapKeyDedupPolicy"
RUNNERS = pytest.mark.parametrize("runner", ["local", "spark"])


@pytest.fixture
def own(another):
    """A session of the test's own in UTC and ANSI mode."""
    another.conf.set(ZONE, "UTC")
    another.conf.set(ANSI, "true")
    return another


@contextmanager
def under(spark, **values):
    """Changes settings by their short names, and restores them after the block."""
    names = {"zone": ZONE, "ansi": ANSI}
    before = {names[name]: spark.conf.get(names[name]) for name in values}
    for name, value in values.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def night(number):
    return datetime(2026, 1, number, 20, tzinfo=timezone.utc)


#: Expressions that depend on a setting: their input, the setting, another value of it, the
#: expression, and an input value with another result.
CASES = {
    "day": ("at timestamp", ZONE, "Asia/Tokyo", lambda: F.to_date("at"), night(1)),
    "hour": ("at timestamp", ZONE, "Asia/Tokyo", lambda: F.hour("at"), night(1)),
    "epoch": ("n long", ZONE, "Asia/Tokyo", lambda: F.from_unixtime("n"), 0),
    "text": (
        "s string", ZONE, "Asia/Tokyo", lambda: F.hour(F.col("s").cast("timestamp")),
        "2026-01-01T00:30:00Z",
    ),
    "sql": (
        "at timestamp", ZONE, "Asia/Tokyo", lambda: F.expr("at > TIMESTAMP '2026-01-02'"),
        night(1),
    ),
    "overflow": ("s string", ANSI, "false", lambda: F.col("s").cast("int"), "x"),
    "map": ("s string", POLICY, "LAST_WIN", lambda: F.str_to_map("s").getItem("a"), "a:1,a:2"),
    "date": (
        "s string", "spark.sql.legacy.timeParserPolicy", "LEGACY",
        lambda: F.to_date("s", "yyyy-MM-dd"), "2026-1-1",
    ),
    "json": (
        "s string", "spark.sql.jsonGenerator.ignoreNullFields", "false",
        lambda: F.to_json(F.struct(F.lit(None).cast("int").alias("x"), "s")), "a",
    ),
    "struct": (
        "s string", "spark.sql.legacy.castComplexTypesToString.enabled", "true",
        lambda: F.struct("s").cast("string"), "a",
    ),
    "escape": (
        "s string", "spark.sql.parser.escapedStringLiterals", "true",
        lambda: F.expr("regexp_replace(s, '\\\\d', 'x')"), "1",
    ),
}


@RUNNERS
@pytest.mark.parametrize("case", CASES)
def test_a_step_with_another_setting_is_refused_and_works_when_it_is_set_back(own, runner, case):
    schema, setting, other, expression, value = CASES[case]
    before = own.conf.get(setting)
    with Dataflow(own, runner=runner, buckets=2) as flow:
        rows, rows_in = flow.input("rows", f"id int, {schema}")
        out = rows.select("id", expression().alias("out")).keep("out")
        rows_in.insert([(1, None)])
        flow.advance_to(1)
        own.conf.set(setting, other)
        rows_in.insert([(2, None)])
        with pytest.raises(SettingsChangedError) as error:
            flow.advance_to(2)
        own.conf.set(setting, before)
        for part in (setting, before, other, "spark.conf.set(", "mix"):
            assert part in str(error.value)
        flow.step()
        assert sorted(row["id"] for row in out.at().collect()) == [1, 2]


@pytest.mark.parametrize("case", CASES)
def test_the_setting_of_a_case_changes_its_value(own, case):
    schema, setting, other, expression, value = CASES[case]

    def answer():
        frame = own.createDataFrame([(value,)], schema)
        try:
            return frame.select(expression().alias("out")).collect()[0][0]
        except Exception as error:
            return type(error).__name__

    before = answer()
    own.conf.set(setting, other)
    assert answer() != before


@pytest.mark.classic_only("the server's list of settings is not known to a client")
def test_each_setting_of_spark_is_compared_or_left_out_with_a_reason(spark):
    entries = getattr(getattr(spark._jvm, "org.apache.spark.sql.internal.SQLConf$"), "MODULE$")
    names = [str(entry.key()) for entry in entries.getConfigEntries().toArray()]
    known = [name.removeprefix("spark.sql.") for name in names if name not in VALUES]
    assert len(known) < len(names)
    begins = tuple(" ".join(LEFT_OUT.values()).split())
    assert [name for name in known if not name.startswith(begins)] == []


def test_a_number_does_not_depend_on_the_zone(own):
    with Dataflow(own, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "id int, s string, at timestamp")
        replaced = rows.select("id", "at", F.regexp_replace("s", "b", "c").alias("s"))
        out = replaced.withColumn("n", F.bin(F.col("id").cast("long"))).keep("out")
        for number, name in enumerate(("UTC", "Asia/Tokyo"), 1):
            with under(own, zone=name):
                rows_in.insert([(number, "b", night(number))])
                if connect_server.WANTED and number == 2:
                    with pytest.raises(SettingsChangedError):  # the server's plan is not known
                        flow.advance_to(number)
                    return
                flow.advance_to(number)
        assert sorted(row["s"] for row in out.at().collect()) == ["c", "c"]


@RUNNERS
def test_settings_that_change_no_value_may_change(own, runner):
    with Dataflow(own, runner=runner, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "id int, at timestamp")
        out = rows.select("id", F.hour("at").alias("h")).keep("out")
        for number, count in enumerate(("2", "3", "2"), 1):
            own.conf.set("spark.sql.shuffle.partitions", count)
            rows_in.insert([(number, night(number))])
            flow.advance_to(number)
        assert len(out.at().collect()) == 3


def test_a_setting_may_change_between_the_dataflow_and_its_first_expression(own):
    with Dataflow(own, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "id int, at timestamp")
        own.sql("SET TIME ZONE 'Asia/Tokyo'").collect()
        out = rows.select(F.hour("at").alias("h")).keep("out")
        rows_in.insert([(1, night(1))])
        flow.advance_to(1)
        assert [row["h"] for row in out.at().collect()] == [5]


def test_set_time_zone_in_a_cell_is_found(own):
    with Dataflow(own, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "id int, at timestamp")
        rows.groupBy(F.to_date("at").alias("day")).count().keep("out")
        rows_in.insert([(1, night(1))])
        flow.advance_to(1)
        own.sql("SET TIME ZONE 'Asia/Tokyo'").collect()
        rows_in.insert([(2, night(1))])
        with pytest.raises(SettingsChangedError, match="timeZone = UTC, and the session has Asia"):
            flow.advance_to(2)
        # A new dataflow has the days of the new zone.
        with Dataflow(own, buckets=2) as again:
            rows, rows_in = again.input("rows", "id int, at timestamp")
            out = rows.groupBy(F.to_date("at").alias("day")).count().keep("out")
            rows_in.insert([(1, night(1)), (2, night(1))])
            again.advance_to(1)
            assert [(str(d), n) for d, n in out.at().collect()] == [("2026-01-02", 2)]


@RUNNERS
def test_a_program_that_is_written_in_a_with_block_is_stepped_in_one(own, runner):
    with Dataflow(own, runner=runner, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "id int, s string")
        with under(own, ansi="false"):
            out = rows.select("id", F.col("s").cast("int").alias("n")).keep("out")
        rows_in.insert([(1, "x")])
        with pytest.raises(SettingsChangedError, match="ansi.enabled = false"):
            flow.advance_to(1)
        with under(own, ansi="false"):
            flow.step()
        assert [tuple(row) for row in out.at().collect()] == [(1, None)]


@RUNNERS
def test_formulas_keep_the_mode_in_which_they_were_written(own, runner):
    most = 2**31 - 1
    with Dataflow(own, runner=runner, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "n int")
        with under(own, ansi="false"):
            out = rows.select((F.col("n") + 1).alias("n")).keep("out")
        rows_in.insert([(most,)])
        try:
            flow.advance_to(1)
        except SettingsChangedError:
            with under(own, ansi="false"):
                flow.step()
        assert [row["n"] for row in out.at().collect()] == [-(2**31)]


@RUNNERS
def test_frames_that_spark_evaluates_are_refused_as_rows_are(own, runner):
    with Dataflow(own, runner=runner, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "n int")
        with under(own, ansi="false"):
            out = rows.where(F.col("n") + 1 < 0).keep("out")
        rows_in.insert(own.range(2**31 - 2, 2**31).selectExpr("CAST(id AS int) AS n"))
        with under(own, ansi="false"):
            flow.advance_to(1)
        assert [row["n"] for row in out.at().collect()] == [2**31 - 1]
        rows_in.insert(own.range(2**31 - 2, 2**31).selectExpr("CAST(id AS int) AS n"))
        try:
            flow.advance_to(2)
        except SettingsChangedError:
            with under(own, ansi="false"):
                flow.step()
        assert len(out.at().collect()) == 2


@pytest.mark.classic_only("frames of two sessions cannot meet over Connect")
@RUNNERS
def test_a_frame_of_a_session_with_another_zone_is_refused(own, spark, runner):
    other = own.newSession()
    other.conf.set(ZONE, "Asia/Tokyo")
    with Dataflow(own, runner=runner, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "at timestamp")
        out = rows.select(F.hour("at").alias("h")).keep("out")
        for session in own, other:
            rows_in.insert(session.createDataFrame([(night(1),)], "at timestamp"))
            time_ = 1 if session is own else 2
            try:
                flow.advance_to(time_)
            except SettingsChangedError:
                flow.discard()
                flow.step()
        assert {row["h"] for row in out.at().collect()} == {20}


def test_a_whole_history_is_read_under_the_settings_of_its_expressions(own):
    frame = own.createDataFrame([(night(1), 0, 1)], "at timestamp, time long, diff long")
    hours = DiffFrame(frame).select(F.hour("at").alias("h"))
    own.conf.set(ZONE, "Asia/Tokyo")
    with pytest.raises(SettingsChangedError):
        hours.at(0).collect()
    own.conf.set(ZONE, "UTC")
    assert [row["h"] for row in hours.at(0).collect()] == [20]


@RUNNERS
def test_loops_and_steps_in_the_background_are_refused_alike(own, runner):
    with Dataflow(own, runner=runner, buckets=2) as flow:
        edges, edges_in = flow.input("edges", "src string, dst string")
        reached = edges.iterate(lambda r: r.union(
            r.join(edges.withColumnRenamed("src", "mid").withColumnRenamed("dst", "to"),
                   F.col("dst") == F.col("mid"))
            .select(F.concat_ws("", F.regexp_replace("src", " ", "")).alias("src"),
                    F.col("to").alias("dst"))
        ).distinct())
        out = reached.keep("out")
        edges_in.insert([("a", "b"), ("b", "c")])
        flow.advance_to(1)
        with under(own, ansi="false"):
            edges_in.insert([("c", "d")])
            edges_in.advance_to(2)
            with pytest.raises(SettingsChangedError):
                flow.step_async().wait(timeout=120)
        flow.step()
        assert len(out.at().collect()) == 6


def _sql_function(own, more):
    own.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION more(x INT) RETURNS INT RETURN x + {more}"
    ).collect()


#: The ways to register a function ``more`` in a session.
REGISTER = {
    "python": lambda own, more: own.udf.register("more", lambda x: x + more, "int"),
    "sql": _sql_function,
}


@pytest.mark.classic_only("a client does not know which function of the server a name means")
@RUNNERS
@pytest.mark.parametrize("kind", REGISTER)
def test_a_function_that_is_registered_again_is_refused(own, runner, kind):
    REGISTER[kind](own, 1)
    with Dataflow(own, runner=runner, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "x int")
        out = rows.select(F.expr("more(x) AS y")).keep("out")
        rows_in.insert([(1,)])
        flow.advance_to(1)
        own.udf.register("other", lambda x: x, "int")  # the program does not call it
        rows_in.insert([(1,)])
        flow.advance_to(2)
        REGISTER[kind](own, 100)
        rows_in.insert([(1,)])
        with pytest.raises(SettingsChangedError, match="registered under that name"):
            flow.advance_to(3)
        assert [row["y"] for row in out.at(1).collect()] == [2, 2]


@pytest.mark.classic_only("a client does not know which function of the server a name means")
@RUNNERS
@pytest.mark.parametrize("kind", REGISTER)
def test_a_function_that_a_later_process_registers_otherwise_changes_the_program(
    own, tmp_path, runner, kind
):
    handles = []

    def program(flow):
        rows, rows_in = flow.input("rows", "x int")
        handles[:] = rows_in, rows.select(F.expr("more(x) AS y")).keep("out")

    def insert(time_):
        with Dataflow.open(
            tmp_path / "store", program, spark=own, runner=runner, buckets=2
        ) as flow:
            rows_in, out = handles
            rows_in.insert([(1,)])
            flow.advance_to(time_)
            return [row["y"] for row in out.at().collect()]

    REGISTER[kind](own, 1)
    assert insert(1) == [2]
    REGISTER[kind](own, 1)
    assert insert(2) == [2, 2]
    REGISTER[kind](own, 100)
    with pytest.raises(ProgramChangedError, match="functions"):
        insert(3)


@RUNNERS
def test_the_object_of_a_function_is_called_whatever_is_registered(own, runner):
    more = own.udf.register("more", lambda x: x + 1, "int")
    with Dataflow(own, runner=runner, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "x int")
        out = rows.select(more("x").alias("y")).keep("out")
        rows_in.insert([(1,)])
        flow.advance_to(1)
        own.udf.register("more", lambda x: x + 100, "int")
        rows_in.insert([(1,)])
        flow.advance_to(2)
        assert [row["y"] for row in out.at().collect()] == [2, 2]


TEXT = "regexp_replace(s, 'a', '${my.word}')"


@pytest.mark.parametrize("write", [
    lambda rows: rows.select(F.expr(TEXT).alias("s")),
    lambda rows: rows.withColumn("s", F.expr(TEXT)),
    lambda rows: rows.where(f"{TEXT} = 'b'"),
    lambda rows: rows.groupBy(F.expr(TEXT).alias("s")).count(),
])
def test_text_that_reads_a_setting_is_refused_where_it_is_written(own, write):
    own.conf.set("my.word", "b")
    with Dataflow(own, buckets=2) as flow:
        rows, rows_in = flow.input("rows", "s string")
        with pytest.raises(SchemaError, match="literal"):
            write(rows)
        out = rows.select(F.concat("s", F.lit("${my.word}")).alias("s")).keep("out")
        rows_in.insert([("a",)])
        flow.advance_to(1)
        assert [row["s"] for row in out.at().collect()] == ["a${my.word}"]
