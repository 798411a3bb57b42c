"""Cogroups: at every time the function of both sides' accumulated records, key by key."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F
from test_law import every_runner

from pyspark_diff import Dataflow, DiffFrame, FunctionError, SchemaError
from pyspark_diff.errors import NonDeterministicError

keys = st.sampled_from([0, 1, None])
left_rows = st.lists(st.tuples(keys, st.sampled_from(["a", "b", None])), max_size=5)
right_rows = st.lists(st.tuples(keys, st.sampled_from([1, 2, None])), max_size=5)


def both(key, left, right):
    """The arguments, as text."""
    return [(repr((key, sorted(map(repr, left)), sorted(map(repr, right)))),)]


def in_arrow(key, left, right):
    def rows(table):
        return [(tuple(row[:-1]), row[-1]) for row in zip(*(c.to_pylist() for c in table.columns))]

    return pa.table({"found": [value for (value,) in both(key, rows(left), rows(right))]})


def in_pandas(key, left, right):
    def rows(table):
        return pa.Table.from_pandas(table, preserve_index=False)

    return in_arrow(key, rows(left), rows(right)).to_pandas()


FORMS = {"rows": both, "arrow": in_arrow, "pandas": in_pandas}


def expected(left, right):
    result = Counter()
    for key in {k for k, _ in (*left, *right)}:
        ours, theirs = (
            [((v,), n) for v, n in Counter(v for k, v in rows if k == key).items()]
            for rows in (left, right)
        )
        result[key, both((key,), ours, theirs)[0][0]] += 1
    return result


@given(data=st.data(), form=st.sampled_from(["rows", "rows", "arrow"]),
       runner=st.sampled_from(["local", "local", "spark"]), buckets=st.integers(1, 3))
def test_a_cogroup(spark, data, form, runner, buckets):
    with Dataflow(spark, runner=runner, buckets=buckets) as flow:
        a, a_in = flow.input("a", "k int, v string")
        b, b_in = flow.input("b", "key int, v int")
        grouped = a.groupBy("K").cogroup(b.groupBy("key")).reduce(
            FORMS[form], "found string", form=form)
        output = grouped.keep()
        left, right = [], []
        for time in range(3):
            for session, there, rows in ((a_in, left, left_rows), (b_in, right, right_rows)):
                came, gone = data.draw(rows), there[:data.draw(st.integers(0, 2))]
                session.insert(came)
                session.remove(gone)
                there[:] = [*there[len(gone):], *came]
            flow.advance_to(time + 1)
            assert Counter(map(tuple, output.at().collect())) == expected(left, right)


@given(updates=st.lists(
    st.tuples(st.booleans(), keys, st.integers(0, 1), st.integers(0, 3)), max_size=8))
def test_every_time_of_a_history(spark, updates):
    """One run over the whole history: late updates count at their own times."""
    sides = [[(k, v, t, 1) for s, k, v, t in updates if s == side] for side in (False, True)]
    a, b = (
        DiffFrame(spark.createDataFrame(rows, "k int, v int, time int, diff int"))
        for rows in sides
    )
    grouped = a.groupBy("k").cogroup(b.groupBy("k")).reduce(both, "found string")
    for time in range(4):
        left, right = ([(k, v) for k, v, t, _ in rows if t <= time] for rows in sides)
        assert Counter(map(tuple, grouped.at(time).collect())) == expected(left, right)


VALUES = [
    (1, 1.5, "a", date(2024, 2, 29), datetime(2024, 2, 29, 12), Decimal("1.50"), [1, 2], True),
    (1, float("nan"), None, None, None, None, None, None),
    (2, None, "b", date(1960, 1, 1), datetime(1960, 1, 1), Decimal("-2.25"), [], False),
]
STRUCT = ("k int, x double, s string, day date, at timestamp_ntz, p decimal(10,2), "
          "list array<int>, b boolean")


def shapes(key, left, right):
    """The rows of a table, as text, with its columns."""
    def shown(table):
        # Pandas 3 has other nulls in Spark's frames, and its astype(str) keeps nulls.
        rows = table.astype(object).where(table.notna(), None).map(str).values.tolist()
        return repr((list(table.columns), sorted(rows)))

    return pd.DataFrame({"k": [key[0]], "left": [shown(left)], "right": [shown(right)]})


@every_runner
def test_what_pyspark_gives(spark, runner):
    other = [(3, 7), (1, 8), (1, 8), (None, 9)]
    plain = (
        spark.createDataFrame(VALUES, STRUCT).groupBy("k")
        .cogroup(spark.createDataFrame(other, "j int, n int").groupBy("j"))
        .applyInPandas(shapes, "k int, left string, right string")
    )
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        a, a_in = flow.input("a", STRUCT)
        b, b_in = flow.input("b", "j int, n int")
        grouped = a.groupBy("k").cogroup(b.groupBy("j")).applyInPandas(
            shapes, "k int, left string, right string")
        assert grouped.columns == ["k", "left", "right"]
        output = grouped.keep()
        a_in.insert(VALUES)
        b_in.insert(other)
        flow.advance_to(1)
        assert sorted(map(str, output.at().collect())) == sorted(map(str, plain.collect()))


def test_only_touched_keys_are_called(spark):
    calls = []

    def called(key, left, right):
        calls.append(key)
        return [(len(left), len(right))]

    with Dataflow(spark, runner="local", buckets=2) as flow:
        a, a_in = flow.input("a", "k int, v int")
        b, b_in = flow.input("b", "k int, w int")
        output = a.groupBy("k").cogroup(b.groupBy("k")).reduce(called, "l int, r int").keep()
        a_in.insert([(k, 0) for k in range(100)])
        b_in.insert([(k, 0) for k in range(50, 150)])
        flow.advance_to(1)
        output.at().collect()
        assert sorted(calls) == [(k,) for k in range(150)]
        calls.clear()
        b_in.remove([(70, 0)])
        a_in.insert([(149, 1)])
        flow.advance_to(2)
        sizes = {r.k: (r.l, r.r) for r in output.at().collect()}
        assert sorted(calls) == [(70,), (149,)]
        assert sizes[70] == (1, 0) and sizes[149] == (1, 1) and len(sizes) == 150
        a_in.remove([(70, 0)])
        flow.advance_to(3)
        assert 70 not in {r.k for r in output.at().collect()}


def test_a_cogroup_in_a_loop(spark):
    """The least label that reached each node along the edges."""
    def least(key, labels, edges):
        return [(to, min(n for (n,), _ in labels)) for (to,), _ in edges] if labels else []

    with Dataflow(spark, runner="local", buckets=2) as flow:
        edges, edges_in = flow.input("edges", "src int, dst int")
        start = edges.select(F.col("src").alias("node"), F.col("src").alias("label"))

        def spread(labels):
            sent = labels.groupBy("node").cogroup(edges.groupBy("src")).reduce(
                least, "to int, label int")
            there = sent.select(F.col("to").alias("node"), "label").union(start)
            return there.groupBy("node").agg(F.min("label").alias("label"))

        labels = start.groupBy("node").agg(F.min("label").alias("label")).iterate(spread).keep()
        edges_in.insert([(1, 2), (2, 3), (3, 3), (5, 4), (4, 4)])
        flow.advance_to(1)
        assert dict(map(tuple, labels.at().collect())) == {1: 1, 2: 1, 3: 1, 4: 4, 5: 5}
        edges_in.remove([(1, 2)])
        edges_in.insert([(3, 5)])
        flow.advance_to(2)
        assert dict(map(tuple, labels.at().collect())) == {2: 2, 3: 2, 4: 2, 5: 2}


def test_one_key_of_all(spark):
    columns = "n int, time int, diff int"
    a = DiffFrame(spark.createDataFrame([(1, 0, 1), (2, 1, 1)], columns))
    b = DiffFrame(spark.createDataFrame([(5, 0, 2)], columns))
    grouped = a.groupBy().cogroup(b.groupBy()).reduce(
        lambda key, left, right: [(len(left), right[0][1])], "l int, r int")
    assert [tuple(r) for r in grouped.at(1).collect()] == [(2, 2)]


WRONG = {
    "no groups": lambda a: a.groupBy("k").cogroup(a),
    "other keys": lambda a: a.groupBy("k").cogroup(a.groupBy("s")),
    "more keys": lambda a: a.groupBy("k").cogroup(a.groupBy("k", "s")),
    "no such column": lambda a: a.groupBy("z").cogroup(a.groupBy("k")),
    "an expression": lambda a: a.groupBy(F.col("k") + 1).cogroup(a.groupBy("k")),
    "a rollup": lambda a: a.rollup("k").cogroup(a.groupBy("k")),
    "a form": lambda a: a.groupBy("k").cogroup(a.groupBy("k")).reduce(both, "x int", form="x"),
    "a column twice": lambda a: a.groupBy("k").cogroup(a.groupBy("k")).reduce(both, "K int"),
    "one argument": lambda a: a.groupBy("k").cogroup(a.groupBy("k")).applyInPandas(
        lambda left: left, "k int"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_cogroup(spark, what):
    a = DiffFrame(spark.createDataFrame([], "k int, s string, time int, diff int"))
    with pytest.raises(SchemaError) as caught:
        WRONG[what](a)
    assert str(caught.value)


def test_what_fails_names_the_key(spark):
    a = DiffFrame(spark.createDataFrame([(7, 0, 1)], "k int, time int, diff int"))
    groups = a.groupBy("k").cogroup(a.groupBy("k"))
    with pytest.raises(FunctionError, match="7"):
        groups.reduce(lambda key, left, right: 1 / 0, "x int").at(0)
    more = iter(range(100))
    with pytest.raises(NonDeterministicError):
        groups.reduce(lambda key, left, right: [(next(more),)], "x int", check=True).at(0)
    with pytest.raises(SchemaError, match="without x"):
        groups.applyInArrow(lambda left, right: left, "x int").at(0)
    rows = groups.applyInArrow(lambda left, right: left, "k int").at(0).collect()
    assert [tuple(row) for row in rows] == [(7,)]


def test_groups_are_named_as_pyspark_names_them(spark):
    """In backticks, and as columns."""
    frame = DiffFrame(spark.createDataFrame(
        [("x", 1, 0, 1)], "`a b` string, n int, time int, diff int"))
    for name in ("`a b`", "a b", F.col("`a b`"), frame["a b"]):
        groups = frame.groupBy(name)
        for output in (
            groups.reduce(lambda key, rows: [(len(rows),)], "size int"),
            groups.cogroup(groups).reduce(lambda key, a, b: [(len(a),)], "size int"),
        ):
            assert output.at(0).collect() == [("x", 1)]
    for name in (F.col("n") + 1, F.col("n").alias("a b")):
        with pytest.raises(SchemaError, match="is an expression.*withColumn"):
            frame.groupBy(name).reduce(lambda key, rows: [], "size int")
