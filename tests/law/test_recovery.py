"""A step that was refused for some rows succeeds when their corrections have come, without discard.

    refused(U),  corrections C   ⟹   the next step gives the answer of the input U + C
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple

import pytest
from programs import files_of
from pyspark.sql import functions as F

from pyspark_diff import (
    AssertionFailedError,
    Dataflow,
    DiffError,
    DiffOverflowError,
    DuplicateKeyError,
    FunctionError,
    InvalidDiffError,
    InvalidTimeError,
    NegativeMultiplicityError,
    NonDeterministicError,
    SchemaError,
    StalledError,
    graphs,
)

BIG = 2**63 - 1
COUNTED: Counter = Counter()


class Case(NamedTuple):
    """A program of one input, rows that are refused, and changes that correct them."""

    error: type[Exception]
    schema: str
    build: Callable[..., Any]
    good: list[tuple]
    bad: list[tuple[str, list[tuple]]]
    fix: list[tuple[str, list[tuple]]]
    options: dict[str, Any] = {}


def removed(error, schema, build, good, bad, **options):
    """A case in which bad rows are inserted, and corrected by their removal."""
    return Case(error, schema, build, good, [("insert", bad)], [("remove", bad)], options)


def refusing(key, values):
    if any(value < 0 for (value,), _ in values):
        raise ValueError("a negative value")
    return [(sum(value * count for (value,), count in values),)]


def refuse_rows(row):
    if row.v < 0:
        raise ValueError("a negative value")
    return [(row.k, row.v)]


def refuse_tables(tables):
    for table in tables:
        if (table["v"] < 0).any():
            raise ValueError("a negative value")
        yield table


def moody(key, values):
    total = sum(value for (value,), _ in values)
    if total < 0:
        COUNTED["calls"] += 1
        total -= COUNTED["calls"]
    return [(total,)]


def refusing_value(value):
    if value < 0:
        raise ValueError("a negative value")
    return value


def counter(frame, **options):
    """Numbers from 5 on grow without end."""
    step = F.when(F.col("n") >= 5, F.col("n") + 1).otherwise(F.col("n"))
    return frame.iterate(lambda x: x.select(step.alias("n")), **options)


def swinging(frame):
    """A number of magnitude 5 or more changes its sign in each iteration."""
    turned = F.when(F.abs(F.col("n")) < 5, F.col("n")).otherwise(-F.col("n"))
    return frame.iterate(lambda x: x.select(turned.alias("n")))


def in_a_loop(body):
    """The body of a case, in a loop that is run three times."""
    def build(frame):
        return frame.iterate(
            lambda x: x.union(body(x).toDF("k", "v")).distinct(),
            max_iterations=3, on_limit="return",
        )
    return build


def reduced(frame):
    return frame.reduce(refusing, "made long", "k")


def upserted(bad, fix, error=DuplicateKeyError):
    return Case(error, "k long, v long", lambda f: f.groupBy("v").count(), [(1, 1), (2, 2)],
                bad, fix, {"key": ["k"]})


ROWS = [(1, 2), (2, 3)]
CASES = {
    "negative cycle": removed(
        StalledError, "src long, dst long, weight long",
        lambda f: graphs.shortest_paths(f, [1], negative_weights=True),
        [(1, 2, 1), (2, 3, 1)], [(3, 1, -5)]),
    "negative cycle of doubles": removed(
        StalledError, "src long, dst long, weight double",
        lambda f: graphs.shortest_paths(f, [1], negative_weights=True),
        [(1, 2, 1.0), (2, 3, 1.5)], [(3, 1, -5.0)]),
    "negative weight": removed(
        AssertionFailedError, "src long, dst long, weight long",
        lambda f: graphs.shortest_paths(f, [1]), [(1, 2, 1), (2, 3, 0)], [(3, 1, -5)]),
    "iteration limit": removed(
        StalledError, "n long", lambda f: counter(f, max_iterations=9), [(1,), (3,)], [(7,)]),
    "oscillation": removed(StalledError, "n long", swinging, [(1,), (3,)], [(7,)]),
    "nested iteration limit": removed(
        StalledError, "n long",
        lambda f: f.iterate(lambda x: counter(x, max_iterations=9).union(f).distinct()),
        [(1,), (3,)], [(7,)]),
    "late entry": removed(
        SchemaError, "n long",
        lambda f: f.iterate(lambda x: f.enter_at("n").union(x).distinct()), [(1,)], [(-7,)]),
    "reduce": removed(FunctionError, "k long, v long", reduced, ROWS, [(1, -1)]),
    "reduce in a loop": removed(
        FunctionError, "k long, v long", in_a_loop(reduced), ROWS, [(1, -1)]),
    "flat_map": removed(
        DiffError, "k long, v long", lambda f: f.flat_map(refuse_rows, "k long, v long"), ROWS,
        [(1, -1)]),
    "mapInPandas": removed(
        DiffError, "k long, v long",
        lambda f: f.map_in_pandas(refuse_tables, "k long, v long").groupBy("k").count(), ROWS,
        [(1, -1)]),
    "udf": removed(
        DiffError, "k long, v long",
        lambda f: f.select(F.udf(refusing_value, "long")("v").alias("v")), ROWS, [(1, -1)]),
    "division by zero": removed(
        DiffError, "k long, v long", lambda f: f.selectExpr("k div v AS share"), ROWS, [(1, 0)]),
    "division by zero in a loop": removed(
        DiffError, "k long, v long", in_a_loop(lambda x: x.selectExpr("k", "6 div v AS v").where(
            "v <> 0")), ROWS, [(1, 0)]),
    "division by zero in a condition": removed(
        DiffError, "k long, v long", lambda f: f.where("6 div v > 1").count(), ROWS, [(1, 0)]),
    "division by zero in a join": removed(
        DiffError, "k long, v long",
        lambda f: f.join(f.toDF("k", "w"), "k").selectExpr("k", "6 div (v * w) AS made"), ROWS,
        [(7, 0)]),
    "cast": removed(
        DiffError, "s string", lambda f: f.selectExpr("CAST(s AS int) AS n"), [("1",)], [("x",)]),
    "overflow of an expression": removed(
        DiffError, "n long", lambda f: f.selectExpr("n + 1 AS n"), [(1,)], [(BIG,)]),
    "overflow of a sum": removed(
        DiffOverflowError, "k long, v long",
        lambda f: f.groupBy("k").agg(F.sum("v").alias("s")), [(1, 1), (2, 2)], [(1, BIG)]),
    "negative multiplicity": Case(
        NegativeMultiplicityError, "k long, v long", reduced, ROWS,
        [("remove", [(1, 7)])], [("insert", [(1, 7)])]),
    "negative multiplicity of a checked input": Case(
        NegativeMultiplicityError, "k long, v long", lambda f: f.groupBy("k").count(), ROWS,
        [("remove", [(1, 7)])], [("insert", [(1, 7)])], {"check": True}),
    "negative multiplicity in a window": Case(
        NegativeMultiplicityError, "k long, v long",
        "SELECT k, sum(v) OVER (PARTITION BY k ORDER BY v) AS s FROM rows", ROWS,
        [("remove", [(5, 7)])], [("insert", [(5, 7)])]),
    "claim": removed(
        AssertionFailedError, "k long, v long",
        lambda f: (f.where("v < 0").assert_empty(), f.groupBy("k").count())[1], ROWS, [(1, -1)]),
    "scalar subquery": removed(
        DiffError, "k long, v long", "SELECT k, (SELECT v FROM rows WHERE k = 7) AS s FROM rows",
        [(1, 2), (2, 3)], [(7, 5), (7, 6)]),
    "inserted key": upserted([("insert", [(1, 7)])], [("remove", [(1, 7)])]),
    "inserted key, then an upsert": upserted([("insert", [(1, 7)])], [("upsert", [(1, 8)])]),
    "inserted key, then a deletion": upserted([("insert", [(1, 7)])], [("delete", [(1,)])]),
    "inserted key, then all anew": upserted([("insert", [(1, 7)])], [("replace", [(4, 8)])]),
    "removed key": upserted(
        [("remove", [(1, 7)])], [("upsert", [(1, 8)])], NegativeMultiplicityError),
    "no determinism": removed(
        NonDeterministicError, "k long, v long",
        lambda f: f.reduce(moody, "made long", "k", check=True), ROWS, [(1, -7)]),
    "weight": removed(
        DiffOverflowError, "k long, v long", lambda f: f.weighted("v").groupBy("k").count(), ROWS,
        [(1, BIG)] * 2),
    "threshold": removed(
        InvalidDiffError, "k long, v long",
        lambda f: f.threshold(lambda n: n if n < 3 else None), ROWS, [(5, 5)] * 3),
    "event time": removed(
        InvalidTimeError, "k long, v int", lambda f: f.expire_after(5, "v"), ROWS, [(1, None)]),
}


@contextmanager
def opened(spark, case, runner, path=None, **options):
    """A dataflow of a case, in memory or with a store."""
    COUNTED.clear()
    sessions = []

    def program(flow):
        frame, session = flow.input("rows", case.schema, **case.options)
        sessions.append(session)
        output = flow.sql(case.build) if isinstance(case.build, str) else case.build(frame)
        output.keep("o")

    options = {"runner": runner, "buckets": 2, **options}
    if path is not None:
        flow = Dataflow.open(str(path), program, spark=spark, **options)
    else:
        flow = Dataflow(spark, **options)
        program(flow)
    with flow:
        yield flow, sessions[-1]


def send(session, changes):
    for method, rows in changes:
        getattr(session, method)(rows)


def rows_of(flow):
    return Counter(map(tuple, flow["o"].at().collect()))


def check(spark, name, runner, path=None):
    case = CASES[name]
    start = "upsert" if "key" in case.options else "insert"
    with opened(spark, case, "local") as (flow, session):
        send(session, [(start, case.good)])
        flow.advance_to(1)
        if start == "upsert" and case.fix[0][0] != "remove":
            send(session, case.fix)
        flow.advance_to(2)
        expected = rows_of(flow)
    with opened(spark, case, runner, path) as (flow, session):
        send(session, [(start, case.good)])
        flow.advance_to(1)
        before = rows_of(flow)
        send(session, case.bad)
        for _ in range(2):
            with pytest.raises(case.error):
                flow.advance_to(2)
            assert rows_of(flow) == before
        send(session, case.fix)
        assert flow.advance_to(4)
        assert rows_of(flow) == expected
        send(session, [(start, case.good[:1])] if start == "upsert" else [])
        flow.advance_to(5)
    if path is not None:
        with opened(spark, case, runner, path) as (flow, session):
            assert start == "upsert" or rows_of(flow) == expected


#: The cases of each default run.
FEW = ("negative cycle", "reduce in a loop", "division by zero", "negative multiplicity",
       "scalar subquery", "inserted key")
#: An operator whose function may look at times: its failed rows need discard().
LOOKING = "mapInPandas"


def cases(few, without=(LOOKING,)):
    return [
        pytest.param(name, marks=[] if name in few else pytest.mark.slow)
        for name in CASES if name not in without
    ]


@pytest.mark.parametrize("name", cases(FEW))
def test_corrected_rows_are_no_reason_to_refuse_a_step(spark, name):
    check(spark, name, "local")


# A worker of Spark counts the calls of its own.
@pytest.mark.parametrize("name", cases(FEW[:1], (LOOKING, "no determinism")))
def test_the_same_in_spark(spark, name):
    check(spark, name, "spark")


@pytest.mark.parametrize("name", cases(FEW[:1]))
def test_the_same_with_a_store(spark, name, tmp_path):
    check(spark, name, "auto", tmp_path / "store")


@pytest.mark.parametrize("name", cases(["division by zero"]))
def test_corrections_of_the_same_time(spark, name):
    """All times stay readable, and no time has an update that is refused."""
    case = CASES[name]
    if "key" in case.options or name in ("no determinism", "negative multiplicity"):
        return
    with opened(spark, case, "local", keep_history=True) as (flow, session):
        send(session, [("insert", case.good), *case.bad, *case.fix])
        flow.advance_to(1)
        expected = rows_of(flow)
    with opened(spark, case, "local") as (flow, session):
        send(session, [("insert", case.good)])
        flow.advance_to(1)
        assert rows_of(flow) == expected


@pytest.mark.parametrize("name, options", [
    ("division by zero", {"keep_history": True}),
    ("negative cycle", {"keep_history": True}),
    (LOOKING, {}),
])
def test_a_time_that_stays_readable_has_no_correction(spark, name, options):
    case = CASES[name]
    with opened(spark, case, "local", **options) as (flow, session):
        send(session, [("insert", case.good)])
        flow.advance_to(1)
        before = rows_of(flow)
        send(session, case.bad)
        with pytest.raises(case.error) as first:
            flow.advance_to(2)
        send(session, case.fix)
        with pytest.raises(case.error) as second:
            flow.advance_to(3)
        for error in first, second:
            assert "discard() of the input" in str(error.value)
            assert "Feed the correction" not in str(error.value)
        session.discard()
        flow.advance_to(4)
        assert rows_of(flow) == before


def test_a_later_time_of_the_same_step_is_no_correction(spark):
    """The first step refuses the earlier time, and each later step takes the last time only."""
    case = CASES["division by zero"]
    with opened(spark, case, "local") as (flow, session):
        send(session, [("insert", case.good)])
        flow.advance_to(1)
        send(session, case.bad)
        session.advance_to(2)
        send(session, case.fix)
        with pytest.raises(case.error, match="input 'rows' at time 1: "):
            flow.advance_to(3)
        flow.advance_to(4)
        expected = rows_of(flow)
    with opened(spark, case, "local") as (flow, session):
        send(session, [("insert", case.good)])
        flow.advance_to(1)
        assert rows_of(flow) == expected


def refusing_sum(key, values):
    total = sum(value * count for (value,), count in values)
    if total < 0:
        raise ValueError("a negative sum")
    return [(total,)]


def test_a_later_row_corrects_without_a_removal(spark):
    """No update cancels out. The refused sum is that of a time that ends with the step."""
    with Dataflow(spark, buckets=2, runner="local") as flow:
        rows, session = flow.input("rows", "k long, v long")
        rows.reduce(refusing_sum, "total long", "k").keep("o")
        session.insert([(1, -5), (2, 3)])
        with pytest.raises(FunctionError):
            flow.advance_to(1)
        session.insert([(1, 7)])
        flow.advance_to(2)
        assert rows_of(flow) == {(1, 2): 1, (2, 3): 1}


def test_the_error_names_the_correction_and_what_is_not_corrected(spark):
    case = CASES["division by zero"]
    with opened(spark, case, "local") as (flow, session):
        session.insert([(1, 0), (8, 2)])
        with pytest.raises(case.error, match="such as the removal of a wrong row, and step again"):
            flow.advance_to(1)
        session.remove([(1, 0)])
        session.insert([(2, 0)])
        session.advance_to(2)
        session.insert([(9, 3)])
        with pytest.raises(case.error) as caught:
            flow.advance_to(3)
        assert "input 'rows' at time 1: (2, 0) with diff 1. It" in str(caught.value)
        session.remove([(2, 0)])
        flow.advance_to(4)
        assert rows_of(flow) == {(4,): 1, (3,): 1}


def test_a_hold_keeps_its_times_apart(spark):
    case = CASES["division by zero"]
    with opened(spark, case, "local") as (flow, session):
        session.insert([(6, 2)])
        flow.advance_to(1)
        with flow["o"].hold():
            session.insert([(1, 0)])
            with pytest.raises(case.error) as caught:
                flow.advance_to(2)
            session.remove([(1, 0)])
            with pytest.raises(case.error):
                flow.advance_to(3)
        flow.advance_to(4)
        assert caught and rows_of(flow) == {(3,): 1}


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_rows_that_wait_for_another_input_are_corrected(spark, runner):
    updates = []
    with Dataflow(spark, buckets=2, runner=runner) as flow:
        (a, a_in), (b, b_in) = (flow.input(name, "k long, v long") for name in "ab")
        a.union(b).reduce(refusing, "made long", "k").keep("o")
        a.inspect(lambda row, time, diff: updates.append((tuple(row), diff)))
        a_in.insert([(1, 1), (2, -2)])
        a_in.advance_to(2)
        a_in.flush()
        flow.step()
        b_in.insert([(1, 5)])
        with pytest.raises(FunctionError):
            flow.advance_to(3)
        a_in.remove([(2, -2)])
        flow.advance_to(4)
        assert rows_of(flow) == {(1, 6): 1}
        total = Counter()
        for row, diff in updates:
            total[row] += diff
        assert +total == {(1, 1): 1}
        b_in.remove([(1, 5)])
        flow.advance_to(5)
        assert rows_of(flow) == {(1, 1): 1}


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_frames_are_corrected_by_rows(spark, runner):
    case = CASES["division by zero"]
    with opened(spark, case, runner) as (flow, session):
        session.insert(spark.range(4).selectExpr("id AS k", "id AS v"))
        with pytest.raises(case.error):
            flow.advance_to(1)
        session.remove([(0, 0)])
        flow.advance_to(2)
        assert rows_of(flow) == {(1,): 3}


def test_too_many_pending_rows_are_left_as_they_are(spark, use_thresholds):
    use_thresholds(pending_rows_max=3)
    case = CASES["division by zero"]
    with opened(spark, case, "local") as (flow, session):
        session.insert([(1, 0), (1, 1), (2, 1)])
        with pytest.raises(case.error):
            flow.advance_to(1)
        session.remove([(1, 0)])
        with pytest.raises(case.error):
            flow.advance_to(2)
        session.discard("v = 0")
        flow.advance_to(3)
        assert rows_of(flow) == {(1,): 1, (2,): 1}


def test_no_file_of_a_refused_step_is_left(spark):
    case = CASES["reduce"]
    with opened(spark, case, "local") as (flow, session):
        session.insert([(1, -1), (2, 2)])
        with pytest.raises(FunctionError):
            flow.advance_to(1)
        assert not files_of(flow)
        session.remove([(1, -1)])
        flow.advance_to(2)
        assert files_of(flow) == flow._state.paths() | flow._outputs.pinned
