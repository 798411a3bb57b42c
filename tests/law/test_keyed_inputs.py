"""Inputs with a key equal a plain dict, for any changes, times and steps."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import Row

from pyspark_diff import (
    Dataflow,
    DuplicateKeyError,
    InputSession,
    InvalidTimeError,
    KeyedSession,
    NegativeMultiplicityError,
    SchemaError,
    TimeRegressionError,
    UnsupportedTypeError,
)

ROWS = "id long, city string, age int"


@dataclass(frozen=True)
class Call:
    """A method of a session with its time and its rows or keys."""

    time: int
    kind: str
    rows: tuple[tuple[Any, ...], ...]
    #: Whether the rows bring the time, which may lie ahead of the session's.
    ahead: bool = False


CITIES = st.sampled_from(["Rome", "Oslo", None])
RECORDS = st.tuples(st.integers(0, 3), CITIES, st.sampled_from([None, 7]))
CALLS = st.one_of(
    st.builds(Call, st.integers(0, 2), st.sampled_from(["insert", "upsert", "remove"]),
              st.lists(RECORDS, max_size=3).map(tuple), st.booleans()),
    st.builds(Call, st.integers(0, 2), st.just("delete"),
              st.lists(st.tuples(st.integers(0, 4)), max_size=3).map(tuple), st.booleans()),
    st.builds(Call, st.integers(0, 1), st.just("replace"),
              st.lists(RECORDS, max_size=3, unique_by=lambda row: row[0]).map(tuple)),
)
#: Between two of them the dataflow steps.
SCRIPTS = st.lists(st.lists(CALLS, max_size=4), min_size=1, max_size=4)


def applied(table: dict[int, Any], call: Call) -> tuple[dict[int, Any], Call]:
    """The table after a call, and the call or a permitted one in its place."""
    table, kind = dict(table), call.kind
    if kind == "replace":
        return {row[0]: row for row in call.rows}, call
    if kind == "delete":
        for (key,) in call.rows:
            table.pop(key, None)
        return table, call
    once = {row[0] for row in call.rows}
    wrong = len(once) < len(call.rows)
    if kind == "insert" and (wrong or once & table.keys()):
        call = replace(call, kind="upsert")
    if kind == "remove" and (wrong or any(table.get(row[0]) != row for row in call.rows)):
        return applied(table, replace(call, kind="delete", rows=tuple((r[0],) for r in call.rows)))
    for row in call.rows:
        table.pop(row[0], None)
        if call.kind != "remove":
            table[row[0]] = row
    return table, call


def planned(script: list[list[Call]]) -> tuple[list[list[Call]], list[dict[int, Any]]]:
    """The calls at the times at which they happen, and the table at each time."""
    now, calls = 0, []
    for number, part in enumerate(script):
        for call in part:
            now += 0 if call.ahead else call.time
            time = now + call.time if call.ahead else now
            calls.append((time, len(calls), number, now, replace(call, time=time)))
        now += 1
    parts: list[list[Any]] = [[] for _ in script]
    table: dict[int, Any] = {}
    tables: dict[int, dict[int, Any]] = {}
    for time, order, number, at, call in sorted(calls, key=lambda c: c[:2]):
        table, call = applied(table, call)
        tables[time] = table
        parts[number].append((order, at, call))
    last = now + 3
    history, table = [], {}
    for time in range(last):
        table = tables.get(time, table)
        history.append(table)
    return [[c[1:] for c in sorted(part, key=lambda c: c[0])] for part in parts], history


def do(session: KeyedSession, call: Call) -> None:
    method = getattr(session, call.kind)
    if call.ahead:
        method([(*row, call.time) for row in call.rows], time="when")
    else:
        method(list(call.rows))


def rows_of(frame: Any) -> Counter[Any]:
    return Counter(map(tuple, frame.collect()))


REPLACED = [
    [Call(0, "upsert", ((0, "Rome", 7), (1, "Oslo", 7), (2, None, 7)))],
    [Call(1, "replace", ((1, "Oslo", 7),)), Call(0, "upsert", ((2, None, None),))],
    [Call(1, "replace", ()), Call(1, "insert", ((3, None, 7),), True)],
]


@example(REPLACED, 1, False)
@given(SCRIPTS, st.sampled_from([1, 3]), st.booleans())
def test_the_collection_is_the_table_at_every_time(spark, script, buckets, history):
    parts, tables = planned(script)
    with Dataflow(spark, runner="local", buckets=buckets, keep_history=history) as flow:
        frame, session = flow.input("people", ROWS, key="id")
        accumulated: Counter[Any] = Counter()
        shown: list[tuple[int, Any, int]] = []
        frame.inspect(lambda row, time, diff: shown.append((time, tuple(row), diff)))
        output = frame.keep("people")
        cities = frame.select("city").count().keep("cities")
        pairs = frame.join(frame.select("id", "age"), "id").keep("pairs")
        for number, part in enumerate(parts):
            for at, call in part:
                session.advance_to(max(at, session.time()))
                do(session, call)
            last = number == len(parts) - 1
            session.advance_to(len(tables) if last else max([session.time(), *(
                at for at, _ in parts[number + 1][:1])]))
            session.flush()
            flow.step()
            now = session.time() - 1
            for time in range(now + 1) if history and now >= 0 else [now]:
                if time < 0:
                    continue
                table = tables[time]
                assert rows_of(output.at(time)) == Counter(table.values())
            if now >= 0:
                table = tables[now]
                by_city = Counter(row[1] for row in table.values())
                assert rows_of(cities.at(now)) == Counter(by_city.items())
                assert rows_of(pairs.at(now)) == Counter(
                    (*row, row[2]) for row in table.values())
        for time, table in enumerate(tables):
            for when, row, diff in shown:
                if when == time:
                    accumulated[row] += diff
            assert +accumulated == Counter(table.values()) and min([0, *accumulated.values()]) == 0


def test_on_spark_from_frames(spark):
    with Dataflow(spark, runner="spark", buckets=2) as flow:
        frame, session = flow.input("people", ROWS, key=["ID"])
        output = frame.keep()
        first = spark.range(20).selectExpr("id", "'Rome' city", "int(id) age")
        session.insert(first)
        session.advance_to(1)
        session.upsert(first.selectExpr("id", "'Oslo' city", "1 age").where("id < 3"))
        session.delete(spark.range(3, 5))
        session.advance_to(2)
        session.flush()
        flow.step()
        assert rows_of(output.at(1)) == Counter(
            [(n, "Oslo", 1) for n in range(3)] + [(n, "Rome", n) for n in range(5, 20)])
        session.replace(spark.range(2, 7).selectExpr("id", "'Rome' city", "int(id) age"))
        session.advance_to(3)
        later = spark.range(2).selectExpr("id", "'Bonn' city", "0 age", "id + 3 when")
        session.upsert(later, time="when")
        session.advance_to(5)
        session.flush()
        flow.step()
        assert rows_of(output.at(4)) == Counter(
            [(n, "Rome", n) for n in range(2, 7)] + [(0, "Bonn", 0), (1, "Bonn", 0)])
        # Rows of a frame have no order.
        session.upsert(spark.createDataFrame([(1, "a", 0), (1, "b", 0)], ROWS).repartition(2))
        session.close()
        with pytest.raises(DuplicateKeyError, match="one Spark frame"):
            flow.step()
        (dropped,) = session.discard()
        assert [(row.id, row.change) for row in dropped.collect()] == [(1, "upsert")] * 2
        flow.step()
        assert rows_of(output.at())[0, "Bonn", 0] == 1


@pytest.fixture
def people(spark) -> Iterator[tuple[Dataflow, Any, KeyedSession]]:
    with Dataflow(spark, runner="local", buckets=2) as flow:
        frame, session = flow.input("people", ROWS, key="id")
        yield flow, frame.keep("people"), session


def stepped(flow: Dataflow, session: KeyedSession | InputSession) -> None:
    session.advance_to(session.time() + 1)
    session.flush()
    flow.step()


def test_all_kinds_of_data(people):
    flow, output, session = people
    session.upsert([(1, "a", 1), Row(id=2, city="b", age=2), {"id": 3, "city": "c"}])
    session.upsert(pd.DataFrame({"id": [4], "age": [4], "city": ["d"]}))
    table = pa.table({"id": [5], "city": ["e"], "age": pa.array([5], pa.int8())})
    session.upsert(table)
    session.upsert(table.slice(0, 0))
    session.upsert([])
    session.delete([])
    session.delete((1,))
    session.delete([(2,), {"id": 77}])
    session.delete(range(5, 9))
    session.delete(pa.table({"id": [78]}))
    stepped(flow, session)
    assert rows_of(output.at()) == Counter([(3, "c", None), (4, "d", 4)])


def test_a_failing_call_is_found_in_the_step_and_can_be_discarded(people):
    flow, output, session = people
    session.insert([(1, "a", 1), (2, "b", 2)])
    stepped(flow, session)
    before = rows_of(output.at())
    for call, error, texts in [
        (lambda: session.insert([(3, "c", 3), (1, "z", 0)]), DuplicateKeyError,
         ["(1, 'z', 0)", "(1, 'a', 1) is there", "insert (1, 'z', 0)"]),
        (lambda: session.remove([(1, "a", 2)]), NegativeMultiplicityError,
         ["(1, 'a', 2)", "has (1, 'a', 1)", "remove (1, 'a', 2)"]),
        (lambda: session.remove([(9, "a", 2)]), NegativeMultiplicityError,
         ["(9, 'a', 2)", "has no row"]),
        (lambda: (session.replace([]), session.remove([(2, "b", 2)])), NegativeMultiplicityError,
         ["(2, 'b', 2)", "has no row"]),
        (lambda: (session.upsert([(7, "x", 0)]), session.insert([(7, "y", 0)])), DuplicateKeyError,
         ["(7, 'y', 0)", "(7, 'x', 0) is there"]),
    ]:
        call()
        session.advance_to(session.time() + 1)
        session.flush()
        for _ in range(2):
            with pytest.raises(error) as caught:
                flow.step()
            for text in [*texts, "input 'people' at time", "discard()"]:
                assert text in str(caught.value)
            assert rows_of(output.at()) == before
        (dropped,) = session.discard()
        assert dropped.column_names == ["id", "city", "age", "time", "change"]
        flow.step()
        assert rows_of(output.at()) == before
    assert dropped["change"].to_pylist() == ["upsert", "insert"]
    session.delete([2])
    stepped(flow, session)
    assert rows_of(output.at()) == Counter([(1, "a", 1)])


def test_what_needs_no_state_is_refused_at_the_call(people):
    flow, output, session = people
    for call, error, *texts in [
        (lambda: session.upsert([(None, "a", 1)]), SchemaError, "null", "key column id"),
        (lambda: session.upsert([{"city": "a"}]), SchemaError, "null", "key column id"),
        (lambda: session.delete([None]), SchemaError, "null", "key column id"),
        (lambda: session.insert([(1, "a", 1), (1, "a", 1)]), DuplicateKeyError, "(1,)", "upsert"),
        (lambda: session.remove([(1, "a", 1), (1, "a", 1)]), DuplicateKeyError, "(1,)"),
        (lambda: session.replace([(1, "a", 1), (1, "b", 1)]), DuplicateKeyError, "(1,)"),
        (lambda: session.upsert([(1, "a")]), SchemaError, "(1, 'a')"),
        (lambda: session.upsert([(1, "a", "x")]), SchemaError, "age"),
        (lambda: session.delete([(1, "a", 1)]), SchemaError, "(id)"),
        (lambda: session.delete(["one"]), SchemaError, "id"),
        (lambda: session.delete("1"), SchemaError, "str"),
        (lambda: session.upsert([(1, "a", 1)], time="age"), SchemaError, "age", "int"),
        (lambda: session.upsert([{"id": 1, "agee": 1}]), SchemaError, "unknown agee"),
        (lambda: session.upsert([(1, "a", 1)], time=3), SchemaError, "3", "advance_to"),
        (lambda: session.upsert([(1, "a", 1, None)], time="t"), InvalidTimeError, "null"),
        (lambda: session.upsert([(1, "a", 1, -1)], time="t"), TimeRegressionError, "-1"),
    ]:
        with pytest.raises(error) as caught:
            call()
        for text in texts:
            assert text in str(caught.value), caught.value
    session.upsert([(1, "a", 1)])
    stepped(flow, session)
    assert rows_of(output.at()) == Counter([(1, "a", 1)])


def test_a_null_key_of_a_spark_frame_is_found_in_the_step(people, spark):
    flow, output, session = people
    session.upsert(spark.createDataFrame([(None, "a", 1), (2, "b", 1)], ROWS).repartition(2))
    session.advance_to(1)
    session.flush()
    with pytest.raises(SchemaError, match="null in the key column id"):
        flow.step()
    session.discard()
    flow.step()
    assert rows_of(output.at()) == Counter()


def test_the_key_is_found_as_spark_is_told_to(flow, spark):
    frame, session = flow.input("a", "Id long, x int", key="iD")
    assert session.key == ("Id",) and session.schema.names == frame.columns == ["Id", "x"]
    for key, message in [
        ("y", "no column 'y'"), ([], "list"), (["Id", "ID"], "more than once"), (3, "list"),
        ([3], "no column 3"),
    ]:
        with pytest.raises(SchemaError, match=message):
            flow.input("b", "Id long, x int", key=key)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(SchemaError, match="no column 'id'"):
            flow.input("b", "Id long, x int", key="id")
        flow.input("b", "Id long, x int", key="Id")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.fixture
def flow(spark) -> Iterator[Dataflow]:
    with Dataflow(spark, runner="local", buckets=2) as flow:
        yield flow


def test_keys_of_several_columns_in_any_place(flow):
    """The key is not first, or is the whole record. Columns have names of internal columns."""
    columns = "change string, b int, number double"
    pairs, pairs_in = flow.input("pairs", columns, key=["number", "b"])
    only, only_in = flow.input("only", "b int, a string", key=["a", "b"])
    pairs, only = pairs.keep(), only.keep()
    pairs_in.upsert([("x", 1, 0.0), ("y", 1, float("nan")), ("z", 2, 0.0)])
    pairs_in.upsert([("w", 1, -0.0), ("v", 1, float("nan"))])
    only_in.upsert([(1, "a"), (2, "b")])
    only_in.upsert([(1, "a")])
    for session in (pairs_in, only_in):
        session.advance_to(1)
        session.flush()
    flow.step()
    assert sorted(row.change for row in pairs.at().collect()) == ["v", "w", "z"]
    assert rows_of(only.at()) == Counter([(1, "a"), (2, "b")])
    pairs_in.delete([(float("nan"), 1)])
    only_in.delete([("a", 1)])
    only_in.insert([(1, "a"), (3, "c")])
    pairs_in.close()
    only_in.close()
    flow.step()
    assert sorted(row.change for row in pairs.at().collect()) == ["w", "z"]
    assert rows_of(only.at()) == Counter([(1, "a"), (2, "b"), (3, "c")])


def test_state_is_bounded_and_joins_read_the_inputs_own_arrangement(people):
    flow, output, session = people
    with pytest.raises(SchemaError, match="already"):
        flow.input("people", ROWS, key="id")
    orders, orders_in = flow.input("orders", "id long, item string")
    joined = orders.join(output, "id").keep()
    for round_ in range(12):
        session.upsert([(n, f"city {round_}", round_) for n in range(50)])
        if round_ % 3 == 0:
            session.replace([(n, f"city {round_}", -1) for n in range(round_, 50)])
        orders_in.insert([(40, "tea")])
        for source in (session, orders_in):
            source.advance_to(round_ + 1)
            source.flush()
        flow.step()
        rows = {row.name.split("-")[0]: row.rows for row in flow.arrangements().collect()}
        assert rows["changes"] == 0 and rows["upsert"] <= 4 * 50
    names = [row.name for row in flow.arrangements().collect() if "people" in row.name]
    assert sum("people)" in name and "orders" not in name for name in names) == 2, names
    assert rows_of(joined.at()) == Counter({(40, "tea", "city 11", 11): 12})


def test_a_keyed_input_in_a_loop(flow):
    """Reachability over edges that each have one target at a time."""
    edges, edges_in = flow.input("edges", "src long, dst long", key="src")
    roots, roots_in = flow.input("roots", "node long", check=True)

    def grown(nodes):
        reached = nodes.join(edges.withColumnRenamed("src", "node"), "node").select("dst")
        return reached.withColumnRenamed("dst", "node").union(roots).distinct()

    reachable = roots.iterate(grown).keep()
    roots_in.insert([(1,)])
    edges_in.upsert([(1, 2), (2, 3), (3, 4), (9, 1)])
    for source in (edges_in, roots_in):
        source.advance_to(1)
        source.flush()
    flow.step()
    assert rows_of(reachable.at()) == Counter([(1,), (2,), (3,), (4,)])
    edges_in.upsert([(2, 9)])
    edges_in.close()
    roots_in.close()
    flow.step()
    assert rows_of(reachable.at()) == Counter([(1,), (2,), (9,)])


def test_threads_feed_while_another_steps(people):
    flow, output, session = people

    def feed(first: int) -> None:
        for round_ in range(20):
            session.upsert([(first + n, str(round_), round_) for n in range(5)])
            session.delete([first])
            if round_ < 19:
                session.insert([(first, "again", round_)])

    threads = [threading.Thread(target=feed, args=(10 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        stepped(flow, session)
    for thread in threads:
        thread.join()
    stepped(flow, session)
    assert rows_of(output.at()) == Counter(
        (10 * n + k, "19", 19) for n in range(3) for k in range(1, 5))


def test_what_waits_for_its_time_is_done_then_whatever_came_before(people):
    """A change at a later time applies last, even if it was sent first."""
    flow, output, session = people
    session.upsert([(1, "later", 0, 5), (2, "later", 0, 5)], time="when")
    session.upsert([(1, "now", 0)])
    stepped(flow, session)
    assert rows_of(output.at()) == Counter([(1, "now", 0)])
    session.advance_to(4)
    session.replace([(3, "all", 0)])
    session.advance_to(6)
    session.flush()
    flow.step()
    assert rows_of(output.at()) == Counter(
        [(1, "later", 0), (2, "later", 0), (3, "all", 0)])


def test_many_rows_in_pieces(spark):
    """More rows than a piece has, cleared and set again, in ranges of keys."""
    spark.conf.set("spark.pyspark_diff.pieceRows", "1000")
    try:
        flow = Dataflow(spark, runner="local", buckets=1)
    finally:
        spark.conf.unset("spark.pyspark_diff.pieceRows")
    with flow:
        frame, session = flow.input("people", ROWS, key="id")
        output = frame.select("age").count().keep()
        n = 5000
        ids = pa.array(range(n), pa.int64())
        whole = pa.table({"id": ids, "city": ["x"] * n, "age": pa.array([1] * n, pa.int32())})
        session.insert(whole)
        stepped(flow, session)
        session.replace(whole.slice(100, 50))
        session.upsert([(3, "y", 2)])
        stepped(flow, session)
        assert rows_of(output.at()) == Counter([(1, 50), (2, 1)])


def test_check_refuses_a_negative_multiplicity(flow):
    frame, session = flow.input("words", "word string", check=True)
    assert isinstance(session, InputSession)
    output = frame.keep()
    session.insert([("a",), ("a",)])
    session.remove([("a",)])
    stepped(flow, session)
    session.update([("b", 4, -1), ("b", 3, 1), ("a", 4, -2), ("c", 3, -1), ("c", 3, 1)])
    session.insert([("c",)])
    session.advance_to(5)
    session.flush()
    with pytest.raises(NegativeMultiplicityError) as caught:
        flow.step()
    assert "at time 4 ('a',) has the multiplicity -1" in str(caught.value)
    assert "input 'words' at time 4: ('a',) with diff -2" in str(caught.value)
    assert rows_of(output.at(0)) == Counter([("a",)])
    (dropped,) = session.discard()
    good = [row for row in dropped.to_pylist() if row["word"] != "a"]
    assert len(good) == 5
    flow.step()
    session.insert([("a",)])
    session.remove([("a",), ("a",)])
    session.close()
    flow.step()
    assert rows_of(output.at()) == Counter()


def test_an_input_that_was_refused_is_not_there(flow):
    """Otherwise it would hold back all other inputs, since no session could advance it."""
    for more, kind in (
        ({}, "interval month"), ({"check": True}, "interval month"),
        ({"key": "n"}, "interval month"), ({"key": "m"}, "variant"),
    ):
        with pytest.raises(UnsupportedTypeError, match="'m'"):
            flow.input("words", f"n int, m {kind}", **more)
    frame, session = flow.input("words", "n int")
    output = frame.keep()
    session.insert([(1,)])
    stepped(flow, session)
    assert rows_of(output.at()) == Counter([(1,)])


def test_without_check_nothing_is_refused(flow):
    frame, session = flow.input("words", "word string")
    output = frame.count().keep()
    session.remove([("a",)])
    stepped(flow, session)
    assert rows_of(output.at()) == Counter([("a", -1)])


@pytest.mark.parametrize("change", ["upsert", "delete", "replace"])
def test_an_input_without_a_key_says_how_to_have_one(flow, change):
    _, plain = flow.input("plain", "k int, v int")
    with pytest.raises(AttributeError, match=rf"'plain' has no key to {change} .*key=\.\.\."):
        getattr(plain, change)
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        plain.nosuch
