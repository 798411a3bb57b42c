"""Sessions in queries: the law of `flow.sql` for ``session_window``, for both readers.

    answer(t) = the rows of Spark's SQL over the tables at t

Spark moves conditions on a session below its aggregate, and counts distinct values of several
arguments for parts of a session. There the expected rows come from Python.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter

import drawn
import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow
from pyspark_diff.errors import UnsupportedQueryError

SCHEMA = "k int, v int, ts timestamp, gap string"
START = datetime.datetime(2024, 1, 1)
FIVE = "session_window(ts, '5 minutes')"
#: The sessions of each key.
OF_KEYS = f"SELECT k, {FIVE} AS w, count(*) AS n FROM t GROUP BY 1, 2"
QUERIES = {
    "keys": f"SELECT k, {FIVE} AS w, count(*), sum(v) FROM t GROUP BY 1, 2",
    "fields": "SELECT k, session_window.start, session_window.end, max(v) FROM t "
              f"GROUP BY k, {FIVE}",
    "gap of a row": "SELECT session_window(ts, gap) AS w, count(*) FROM t GROUP BY 1",
    "month": "SELECT count(*) FROM t GROUP BY session_window(ts, '1 month')",
    "without a zone": "SELECT count(*) FROM t "
                      "GROUP BY session_window(CAST(ts AS TIMESTAMP_NTZ), '5 minutes')",
    "date": "SELECT count(*) FROM t GROUP BY session_window(CAST(ts AS DATE), '5 minutes')",
    "intervals of rows": f"SELECT k, w.start, v FROM (SELECT k, v, {FIVE} AS w FROM t)",
    "groups of a subquery": f"SELECT w, count(*) AS n FROM (SELECT k, {FIVE} AS w FROM t) "
                            "GROUP BY w HAVING n > 1",
    "merged again": f"SELECT w, sum(n) FROM ({OF_KEYS}) GROUP BY w",
    "merged after a union": f"SELECT w, sum(n) FROM ({OF_KEYS} UNION ALL SELECT k, "
                            "session_window(ts, '1 minute'), 5 FROM u) GROUP BY w",
    "start as a key": f"SELECT count(k) FROM t GROUP BY {FIVE}, session_window.start",
    "expressions": "SELECT k % 2, sum(v) FILTER (WHERE v > 2), sort_array(collect_list(v)) FROM t "
                   f"WHERE v > 0 GROUP BY k % 2, {FIVE}",
    "join": f"SELECT t.v, x.n FROM t JOIN ({OF_KEYS}) x ON t.k = x.k AND t.ts >= x.w.start "
            "AND t.ts < x.w.end",
    "common table": f"WITH c AS ({OF_KEYS}) SELECT a.k, a.w, b.n FROM c a LEFT JOIN c b "
                    "ON a.k = b.k + 1 AND a.w = b.w",
    "window above": "SELECT window(w.end, '1 hour') AS h, count(*) FROM "
                    f"(SELECT {FIVE} AS w, count(*) AS n FROM t GROUP BY 1) GROUP BY 1",
    "rank": f"SELECT k, w, row_number() OVER (PARTITION BY k ORDER BY w.start) FROM ({OF_KEYS})",
    "largest interval": f"SELECT max(w) FROM (SELECT {FIVE} AS w FROM t)",
    "subquery": f"SELECT k, (SELECT max(n) FROM (SELECT {FIVE}, count(*) AS n FROM u "
                "WHERE u.k = t.k GROUP BY 1)) FROM t",
    "name of the call": f"SELECT session_window.end, n FROM (SELECT {FIVE}, count(*) AS n FROM t "
                        "GROUP BY 1)",
}
REFUSED = {
    f"SELECT DISTINCT {FIVE} FROM t": "NODE: DISTINCT or a set operation of session_window",
    f"SELECT {FIVE} AS w FROM t EXCEPT SELECT {FIVE} AS w FROM u": "NODE: DISTINCT or a set oper",
    f"SELECT max(session_window.end) FROM t GROUP BY {FIVE}": "NODE: an aggregate of session_win",
    f"SELECT k, count(*) FROM t GROUP BY ROLLUP (k, {FIVE})": "NODE: grouping sets of session_wi",
    f"SELECT count(*) FROM (SELECT {FIVE} AS w FROM t) a, (SELECT {FIVE} AS w FROM t) b "
    "GROUP BY a.w, b.w": "NODE: GROUP BY of several session_window",
}


@pytest.fixture(params=["plan", "text"])
def reader(request, monkeypatch):
    if request.param == "text":
        monkeypatch.setattr(Dataflow, "_is_classic", lambda self: False)
    return request.param


def at(seconds: int) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def drawn_rows(draw: random.Random) -> list[tuple]:
    return [(
        draw.choice([1, 2, 3, None]), draw.randrange(5),
        None if draw.random() < 0.1 else at(50 * draw.randrange(40)),
        draw.choice(["1 minute", "5 minutes", "-1 second", "0 seconds", None]),
    ) for _ in range(draw.randrange(8))]


def bag(frame) -> Counter:
    return Counter(str(tuple(row)) for row in frame.collect())


def histories(text, seed, steps=3):
    """The rows of t and u after each step, with the changes that lead there."""
    draw = random.Random(f"{text} {seed}")
    rows: dict[str, list] = {"t": [], "u": []}
    for _ in range(steps):
        changes = {}
        for name, old in rows.items():
            removed = [row for row in old if draw.random() < 0.3]
            changes[name] = drawn_rows(draw), removed
            rows[name] = list((Counter(old) + Counter(changes[name][0]) - Counter(removed))
                              .elements())
        yield changes, rows


@pytest.mark.parametrize("name", QUERIES)
def test_an_answer_is_that_of_spark_at_each_time(spark, reader, name):
    text = QUERIES[name]
    with Dataflow(spark) as flow:
        inputs = {table: flow.input(table, SCHEMA)[1] for table in "tu"}
        answer = flow.sql(text).keep("answer")
        for time, (changes, rows) in enumerate(histories(text, drawn.SEED)):
            for table, (inserted, removed) in changes.items():
                inputs[table].insert(inserted)
                inputs[table].remove(removed)
            flow.advance_to(time + 1)
            for table, present in rows.items():
                spark.createDataFrame(present, SCHEMA).createOrReplaceTempView(table)
            assert bag(answer.at(time)) == bag(spark.sql(text)), (name, drawn.SEED, time)


@pytest.mark.parametrize("runner", ["local", "spark"])
@pytest.mark.parametrize("name", ["keys", "gap of a row", "merged again", "groups of a subquery"])
def test_each_cut_and_runner_gives_the_same_updates(spark, name, runner):
    """Small steps, one step and random cuts, with rows that come and go at the same time."""
    text, steps = QUERIES[name], []
    for changes, rows in histories(text, drawn.SEED, steps=4):
        for table, present in rows.items():
            spark.createDataFrame(present, SCHEMA).createOrReplaceTempView(table)
        steps.append((changes, bag(spark.sql(text))))
    draw = random.Random(f"{text} {drawn.SEED} {runner}")
    cuts = {draw.randrange(1, 4)}
    for ends in ({1, 2, 3, 4}, {4}, cuts | {4}):
        actual: Counter = Counter()
        updates = []
        with Dataflow(spark, runner=runner) as flow:
            inputs = {table: flow.input(table, SCHEMA)[1] for table in "tu"}
            flow.sql(text).inspect(lambda *update: updates.append(update))
            for time, (changes, _) in enumerate(steps):
                for table, (inserted, removed) in changes.items():
                    inputs[table].insert([*inserted, *CLICKS])
                    inputs[table].remove([*removed, *CLICKS])
                    inputs[table].advance_to(time + 1)
                if time + 1 in ends:
                    flow.step()
        for time, (_, expected) in enumerate(steps):
            for row, _, diff in [update for update in updates if update[1] == time]:
                actual[str(tuple(row))] += diff
            assert {row: n for row, n in actual.items() if n} == expected, (name, ends, time)


CLICKS = [(1, 0, at(0), ""), (2, 1, at(200), ""), (1, 0, at(400), ""), (3, 0, at(2000), "")]


@pytest.mark.parametrize("text, expected", [
    (f"SELECT * FROM (SELECT {FIVE} AS w, count(*) AS n FROM t GROUP BY 1) "
     "WHERE w.start > timestamp'2024-01-01 00:01:00'", [((at(2000), at(2300)), 1)]),
    (f"SELECT {FIVE} AS w, count(*) AS n FROM t GROUP BY 1 "
     "HAVING w.end < timestamp'2024-01-01 00:11:40'", []),
    (f"SELECT {FIVE} AS w, count(DISTINCT k), count(DISTINCT v) FROM t GROUP BY 1",
     [((at(0), at(700)), 2, 2), ((at(2000), at(2300)), 1, 1)]),
], ids=["where", "having", "distinct"])
def test_a_condition_is_about_whole_sessions(spark, reader, text, expected):
    """Spark 4.2 answers with other rows: it tests each interval before it merges them."""
    with Dataflow(spark) as flow:
        clicks = flow.input("t", SCHEMA)[1]
        answer = flow.sql(text).keep("answer")
        clicks.insert(CLICKS)
        flow.advance_to(1)
        rows = [tuple(tuple(v) if isinstance(v, tuple) else v for v in row)
                for row in answer.at().collect()]
        assert sorted(rows) == expected


@pytest.mark.parametrize("text", [
    "SELECT K, SESSION_WINDOW(`A.B`, '5 minutes').Start AS s, count(*) FROM T "
    "GROUP BY k, session_window(`A.B`, '5 minutes')",
    "SELECT t.session_window, w.start, n FROM t JOIN (SELECT session_window(`a.b`, '5 minutes') "
    "AS w, count(*) AS n FROM t GROUP BY 1) ON t.`a.b` = w.start",
])
def test_names_of_strangers(spark, reader, text):
    """Names in another case, with a dot, and a column that is called session_window."""
    schema = "K int, `a.b` timestamp, session_window string"
    rows = [(k % 2, at(130 * k * k), f"x{k}") for k in range(6)] + [(None, None, None)]
    with Dataflow(spark) as flow:
        events = flow.input("t", schema)[1]
        answer = flow.sql(text).keep("answer")
        events.insert(rows)
        flow.advance_to(1)
        spark.createDataFrame(rows, schema).createOrReplaceTempView("t")
        assert bag(answer.at()) == bag(spark.sql(text))


def test_rows_without_a_session_are_a_group(spark, reader):
    """Spark 4.2 fails on the nulls of an outer join."""
    text = (f"SELECT x.w, count(*) AS n FROM u LEFT JOIN (SELECT {FIVE} AS w, k FROM t) x "
            "ON x.k = u.k GROUP BY x.w")
    with Dataflow(spark) as flow:
        inputs = {table: flow.input(table, SCHEMA)[1] for table in "tu"}
        answer = flow.sql(text).keep("answer")
        inputs["t"].insert(CLICKS[:2])
        inputs["u"].insert([(1, 0, None, None), (8, 0, None, None), (9, 0, None, None)])
        flow.advance_to(1)
        rows = {row.w and tuple(row.w): row.n for row in answer.at().collect()}
        assert rows == {None: 2, (at(0), at(300)): 1}


def test_a_frame_has_sessions(spark, reader):
    with Dataflow(spark) as flow:
        clicks = flow.input("t", SCHEMA)[1]
        frame = flow.table("t").groupBy("k", F.session_window("ts", "5 minutes").alias("w"))
        answer = flow.query(frame.agg(F.sum("v").alias("v"))).keep("answer")
        clicks.insert([*CLICKS, (1, 7, at(500), "")])
        flow.advance_to(1)
        rows = {(row.k, row.w.start, row.w.end): row.v for row in answer.at().collect()}
        assert rows == {(1, at(0), at(300)): 0, (1, at(400), at(800)): 7,
                        (2, at(200), at(500)): 1, (3, at(2000), at(2300)): 0}


#: Times without a zone: one that New York skips, one that it has twice, and early ones.
LOCAL_TIMES = [
    (1, datetime.datetime(2024, 3, 10, 2, 30)), (2, datetime.datetime(2024, 11, 3, 1, 30)),
    (1, datetime.datetime(2024, 3, 10, 2, 59, 59, 999999)), (2, None),
    (3, datetime.datetime(1969, 12, 31, 23, 59, 59)), (3, datetime.datetime(1600, 1, 1, 0, 7)),
]


@pytest.mark.parametrize("text", [
    "SELECT window(ts, '1 hour') AS w, count(*) FROM t GROUP BY 1",
    "SELECT window(ts, '1 hour', '30 minutes') AS w, count(*) FROM t GROUP BY 1",
    "SELECT k, window(ts, '1 day', '1 day', '5 minutes').start FROM t",
    "SELECT session_window(ts, '30 minutes') AS w, count(*) FROM t GROUP BY 1",
])
def test_windows_of_times_without_a_zone(spark, reader, text):
    schema, zone = "k int, ts timestamp_ntz", spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with Dataflow(spark) as flow:
            times = flow.input("t", schema)[1]
            answer = flow.sql(text).keep("answer")
            times.insert(LOCAL_TIMES)
            flow.advance_to(1)
            spark.createDataFrame(LOCAL_TIMES, schema).createOrReplaceTempView("t")
            assert bag(answer.at()) == bag(spark.sql(text))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("text", REFUSED)
def test_a_part_is_refused_by_name(spark, reader, text):
    with Dataflow(spark) as flow:
        for table in "tu":
            flow.input(table, SCHEMA)
        with pytest.raises(UnsupportedQueryError, match=REFUSED[text]):
            flow.sql(text)


def test_all_parts_are_refused_at_once(spark, reader):
    text = ("SELECT max(session_window.end) FROM "
            f"(SELECT ts FROM (SELECT DISTINCT ts, {FIVE} AS w FROM t)) GROUP BY {FIVE}")
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMA)
        with pytest.raises(UnsupportedQueryError) as refused:
            flow.sql(text)
    assert "NODE: DISTINCT or a set operation of session_window" in str(refused.value)
    assert "NODE: an aggregate of session_window" in str(refused.value)


@pytest.mark.classic_only("the reader of texts makes aggregates with FILTER of a pivot")
def test_a_pivot_by_sessions_is_refused(spark):
    text = f"SELECT * FROM (SELECT k, v, {FIVE} AS w FROM t) PIVOT (sum(v) FOR k IN (1, 2))"
    with Dataflow(spark) as flow:
        flow.input("t", SCHEMA)
        with pytest.raises(UnsupportedQueryError, match="NODE: a pivot by session_window"):
            flow.sql(text)
