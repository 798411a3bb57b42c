"""`session_window` as a key of `groupBy`, against plain Spark at each time of random histories."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from test_law import examples

from pyspark_diff import Dataflow, SchemaError

#: Minutes touch at gaps of five, and tie; None is no time.
MINUTES = st.sampled_from([None, 0, 1, 4, 5, 6, 10, 15, 16, 21, 60])
RECORDS = st.tuples(st.sampled_from([1, 2, None]), MINUTES, st.integers(-1, 3))
GAPS: dict[str, Any] = {
    "static": "5 minutes",
    "dynamic": None,
    "negative": "-1 minute",
    "days": "1 day",
}
#: By n from -1 to 3: negative, none, touching, long, and null.
DYNAMIC = (
    "case when n = -1 then '-3 minutes' when n = 0 then '0 seconds' when n = 1 then '5 minutes' "
    "when n = 2 then '11 minutes' end"
)
COLUMNS = "user long, ts {}, n long"


def session(gap: str, name: str | None = None) -> Any:
    window = F.session_window("ts", F.expr(DYNAMIC) if gap == "dynamic" else GAPS[gap])
    return window if name is None else window.alias(name)


def text(gap: str) -> Any:
    return F.expr(f"session_window(ts, {DYNAMIC if gap == 'dynamic' else repr(GAPS[gap])})")


def aggregates() -> list[Any]:
    return [
        F.count("*").alias("c"), F.sum("n").alias("s"), F.max("ts"),
        F.sort_array(F.collect_list("n")).alias("ns"),
        (F.sum("n") / F.count("*")).alias("share"),
    ]


#: Queries over a table with keys that come before their own.
QUERIES = {
    "by key": lambda t, w, gap, *k: t.groupBy(*k, "user", w(gap)).agg(*aggregates()),
    "alone": lambda t, w, gap, *k: t.groupBy(*k, w(gap)).count(),
    "first of keys": lambda t, w, gap, *k: t.groupBy(
        w(gap), *k, (F.col("n") % 2).alias("odd"), F.col("user") + 1
    ).agg(F.min("n"), F.count("ts")),
    "fields": lambda t, w, gap, *k: t.groupBy(*k, F.col("user").alias("u"), w(gap)).agg(
        F.sum("n").alias("s")
    ).select(*k, "u", "session_window.start", F.col("session_window.end").alias("until"), "s"),
    "named": lambda t, w, gap, *k: t.groupBy(*k, "user", session(gap, "w")).agg(
        F.count("*").alias("c")
    ).where("w.end > w.start").groupBy(*k, "user").agg(F.max("w.end"), F.sum("c")),
}


def at(minute: int | None) -> datetime.datetime | None:
    return None if minute is None else (
        datetime.datetime(2021, 3, 27, 23, 30) + datetime.timedelta(minutes=minute)
    )


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[Any, int]]]:
    """The changes at each of some times; only a record that is there is removed."""
    present: list[Any] = []
    times = []
    for _ in range(draw(st.integers(2, 4))):
        changes = []
        for record in draw(st.lists(RECORDS, max_size=7)):
            present.append(record)
            changes.append((record, 1))
        for _ in range(draw(st.integers(0, min(4, len(present))))):
            place = draw(st.integers(0, len(present) - 1))
            changes.append((present.pop(place), -1))
        times.append(changes)
    return times


#: Sessions that touch, tie, merge by a record between, and split again; a key comes and goes.
HISTORY = [
    [((1, 0, 1), 1), ((1, 5, 1), 1), ((1, 5, 2), 1), ((1, 21, 3), 1), ((2, 60, 1), 1)],
    [((1, 16, 1), 1), ((1, 10, 1), 2), ((None, 5, 1), 1), ((1, None, 1), 1), ((1, 4, 0), 1)],
    [((1, 10, 1), -1), ((2, 60, 1), -1), ((1, 0, 1), -1)],
    [((1, 10, 1), -1), ((1, 5, 2), -1), ((None, 5, 1), -1)],
]


def hashable(value: Any) -> Any:
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else value


def answers(
    spark: Any, name: str, write: Any, gap: str, kind: str, collections: list[Counter]
) -> list[Counter]:
    """The answers of plain Spark at each time: one query, with the time as one more key."""
    rows = [
        (time, user, at(minute), n)
        for time, there in enumerate(collections) for user, minute, n in there.elements()
    ]
    table = spark.createDataFrame(rows, "time int, " + COLUMNS.format(kind))
    frame = QUERIES[name](table, write, gap, "time")
    place = frame.columns.index("time")
    counts: list[Counter] = [Counter() for _ in collections]
    for row in frame.collect():
        time, rest = row[place], [value for i, value in enumerate(row) if i != place]
        counts[time][hashable(rest)] += 1
    return counts


def check(
    spark: Any, name: str, gap: str, history: list[list[tuple[Any, int]]], *, step_times: int = 1,
    write: Any = session, kind: str = "timestamp", runner: str = "local",
) -> None:
    """Step after so many times, and compare at each of them."""
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        events, events_in = flow.input("events", COLUMNS.format(kind))
        updates: list[tuple[Any, int, int]] = []
        QUERIES[name](events, write, gap).inspect(lambda r, t, d: updates.append((r, t, d)))
        present: Counter = Counter()
        stages = []
        for time, changes in enumerate(history):
            for (user, minute, n), diff in changes:
                events_in.update([(user, at(minute), n, time, diff)])
                present[user, minute, n] += diff
            stages.append(Counter(present))
            events_in.advance_to(time + 1)
            events_in.flush()
            if (time + 1) % step_times == 0 or time + 1 == len(history):
                flow.step()
    expected = answers(spark, name, write, gap, kind, stages)
    for time, wanted in enumerate(expected):
        actual: Counter = Counter()
        for record, moment, diff in updates:
            actual[hashable(record)] += diff if moment <= time else 0
        assert {r: n for r, n in actual.items() if n} == wanted, f"{name}, {gap} at {time}"


@examples(0.3)
@given(
    name=st.sampled_from(sorted(QUERIES)), gap=st.sampled_from(["static", "dynamic"]),
    history=histories(), step_times=st.integers(1, 3),
)
def test_random_histories(spark, name, gap, history, step_times):
    check(spark, name, gap, history, step_times=step_times)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_each_query_and_gap(spark, runner, name, gap):
    check(spark, name, gap, HISTORY, runner=runner)


@pytest.mark.parametrize("gap", ["static", "dynamic"])
@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_times_without_a_zone_and_sql_text(spark, runner, gap):
    check(spark, "by key", gap, HISTORY, runner=runner, write=text,
          kind="timestamp_ntz", step_times=2)


def test_a_session_more_changes_no_other(spark):
    with Dataflow(spark) as flow:
        events, events_in = flow.input("events", COLUMNS.format("timestamp"))
        updates: list[Any] = []
        counts = events.groupBy("user", session("static")).count()
        counts.inspect(lambda r, t, d: updates.append((t, d)))
        events_in.insert([(1, at(minute), 0) for minute in range(60, 600, 10)])
        flow.advance_to(1)
        flow.step()
        del updates[:]
        events_in.insert([(1, at(0), 0)])
        flow.advance_to(2)
        flow.step()
    assert updates == [(1, 1)]


USES = {
    "rollup": lambda t, w: t.rollup("n", w).agg(F.count("*")),
    "cube": lambda t, w: t.cube("n", w).agg(F.count("*")),
    "pivot": lambda t, w: t.groupBy(w).pivot("n", [1, 2]).agg(F.count("ts")),
    "withColumn": lambda t, w: t.withColumn("w", w),
    "select": lambda t, w: t.select("n", w.alias("w")),
    "where": lambda t, w: t.where(w.isNotNull()),
    "argument": lambda t, w: t.groupBy("n").agg(F.max(w)),
    "argument beside": lambda t, w: t.groupBy("n", w).agg(F.max(w)),
    "output": lambda t, w: t.groupBy(w).agg(F.count("*"), w["start"]),
    "field": lambda t, w: t.groupBy(w["start"]).count(),
    "field beside": lambda t, w: t.groupBy(w, w["start"]).count(),
    "reduce": lambda t, w: t.groupBy(w).reduce(lambda key, rows: [], "n int"),
    "join": lambda t, w: t.alias("a").join(
        t.alias("b"), F.session_window("a.ts", "5 minutes")["start"] == F.col("b.ts")),
    "join that compares": lambda t, w: t.alias("a").join(
        t.alias("b"), (F.col("a.n") == F.col("b.n"))
        & (F.session_window("a.ts", "5 minutes")["end"] > F.col("b.ts"))),
    "transform": lambda t, w: t.transform(lambda rows: rows.withColumn("w", w)),
    "window": lambda t, w: t.select(F.expr(
        "count(*) over (partition by session_window(ts, '5 minutes'))"
    )),
}


def test_other_uses_are_refused_by_name(spark):
    with Dataflow(spark) as flow:
        events, _ = flow.input("events", COLUMNS.format("timestamp"))
        for use in USES.values():
            with pytest.raises(SchemaError, match="uses session_window"):
                use(events, session("static"))


def test_a_second_session_and_a_star_are_refused(spark):
    with Dataflow(spark) as flow:
        events, _ = flow.input("events", COLUMNS.format("timestamp"))
        with pytest.raises(SchemaError, match="several session_window"):
            events.groupBy(session("static"), session("days")).count()
        with pytest.raises(SchemaError, match="has a star"):
            events.groupBy(session("static")).agg(F.collect_list(F.struct("*")))
        twice = events.groupBy(session("static"), session("static", "w")).count()
        assert twice.columns == ["session_window", "w", "count"]


@pytest.mark.parametrize("named", [True, False])
def test_a_time_window_in_a_join_condition_is_refused(spark, named):
    """Spark has an internal error of its analyser for each of them."""
    with Dataflow(spark) as flow:
        events, _ = flow.input("events", COLUMNS.format("timestamp"))
        start = F.window("a.ts", "5 minutes")["start"]
        on = start == F.col("b.ts") if named else F.expr("window(a.ts, '5 minutes').end > b.ts")
        with pytest.raises(SchemaError, match="a join condition uses a time window, and Spark"):
            events.alias("a").join(events.alias("b"), on)
        starts = events.withColumn("start", F.window("ts", "5 minutes")["start"])
        assert starts.alias("a").join(events.alias("b"), F.col("a.start") == F.col("b.ts")).columns


def test_a_text_like_a_window_is_none(spark):
    """Neither a text nor the name of a column is a call."""
    with Dataflow(spark, runner="local") as flow:
        rows, rows_in = flow.input("rows", "`window(x)` string, n int")
        text = F.lit("session_window(")
        a, b = rows.alias("a"), rows.alias("b")
        collections = [
            rows.where("`window(x)` = 'window('").keep("where"),
            a.join(b, (F.col("a.`window(x)`") != text) & (F.col("a.n") == F.col("b.n"))).keep("on"),
        ]
        rows_in.insert([("window(", 1), ("other", 2)])
        rows_in.discard("`window(x)` = 'window(' AND n > 1")
        flow.advance_to(1)
        assert [ours.at().count() for ours in collections] == [1, 2]
        for wrong in (F.col("a.nosuch") == text, F.expr("a.`window(x)` = b.`session_window(y)`")):
            with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
                a.join(b, wrong)
        other = spark.createDataFrame([(1,)], "n int").where("n > 0")
        largest = other.where(F.col("n") == F.col("b.n").outer()).select(F.max("n")).scalar()
        with pytest.raises(SchemaError, match="an expression reads a subquery"):
            a.join(b, F.col("a.n") == largest)
        both = F.window("a.ts", "1 day") == F.window("b.ts", "1 day")
        events, _ = flow.input("events", COLUMNS.format("timestamp"))
        with pytest.raises(SchemaError, match="a join condition uses a time window"):
            events.alias("a").join(events.alias("b"), both)


#: Conditions with windows of each kind, and such a condition in a loop and in SQL text.
CONDITIONS = {
    "where": lambda t: t.where(F.window("ts", "1 day").isNotNull()),
    "filter": lambda t: t.filter(F.window("ts", "1 day")["start"] > F.lit("1960-01-01")),
    "sliding": lambda t: t.where("window(ts, '1 day', '6 hours').start IS NOT NULL"),
    "loop": lambda t: t.iterate(lambda rows: rows.where("window(ts, '1 day') IS NOT NULL")),
}


@pytest.mark.parametrize("use", CONDITIONS)
def test_conditions_with_time_windows_are_refused(spark, use):
    """Spark adds the column of the window to the rows, which the collection does not have."""
    with Dataflow(spark) as flow:
        events, _ = flow.input("events", COLUMNS.format("timestamp"))
        assert CONDITIONS["where"](spark.range(1).selectExpr(
            "timestamp_seconds(id) AS ts")).columns == ["window", "ts"]
        with pytest.raises(SchemaError, match="has a time window.*Make the window a column first"):
            CONDITIONS[use](events)


def test_time_windows_are_still_accepted(spark):
    with Dataflow(spark) as flow:
        events, _ = flow.input("events", COLUMNS.format("timestamp"))
        events.groupBy(F.window("ts", "5 minutes")).count()
