"""Hot keys: spread over the buckets, and joined as if they were not."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, SchemaError
from pyspark_diff.operators.cross import Hot
from pyspark_diff.spark.schema import Schema

HOWS = ["inner", "left", "right", "full", "left_semi", "left_anti"]
#: Conditions, and the ways in which keys are said to be hot on one side or both.
ON = {
    "name": lambda a, b: ["k"],
    "names": lambda a, b: ["k", "s"],
    "null-safe": lambda a, b: [F.col("l.k").eqNullSafe(F.col("r.k"))],
    "residual": lambda a, b: [(F.col("l.k") == F.col("r.k")) & (F.col("l.x") < F.col("r.x"))],
    "overlap": lambda a, b: [F.expr("l.k = r.k and l.x <= 2 * r.x and r.x <= 2 * l.x")],
    "null-safe overlap": lambda a, b: [
        F.expr("l.k <=> r.k and l.x < r.x + r.x and l.s = r.s and r.x <= l.x + nullif(l.x, 3)")],
    "within": lambda a, b: [F.expr("l.k = r.k and l.x between r.x - r.x % 2 and 2 * r.x")],
}
HINTS = {
    "left": lambda a, b: (a.hint("skew", "k", 1), b),
    "right": lambda a, b: (a, b.hint("SKEW", ["K"], [1, 2])),
    "both": lambda a, b: (a.hint("skew", "k", [0]), b.hint("skew", "s", "a")),
    "all": lambda a, b: (a.hint("skew", "k"), b),
    "two columns": lambda a, b: (a.hint("skew", ["s", "k"], [("a", 1), ("b", 0)]), b),
}
updates = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 1, 1, 2, None]), st.sampled_from("ab"), st.integers(0, 3),
        st.integers(0, 3), st.sampled_from([1, 1, 2, -1]),
    ),
    max_size=12,
)


@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("hint", HINTS)
@given(
    how=st.sampled_from(HOWS), left=updates, right=updates,
    buckets=st.integers(1, 4), runner=st.sampled_from(["local", "local", "local", "spark"]),
)
def test_a_spread_join_gives_what_it_gives_unspread(
    spark, on, hint, how, left, right, buckets, runner
):
    counts_by_form = []
    for spread in (True, False):
        with Dataflow(spark, runner=runner, buckets=buckets) as flow:
            schema = "k int, s string, x int"
            (a, a_in), (b, b_in) = (flow.input(name, schema) for name in "ab")
            hinted, other = HINTS[hint](a, b) if spread else (a, b)
            keys = ON[on](a, b)
            if not isinstance(keys[0], str):
                keys, hinted, other = keys[0], hinted.alias("l"), other.alias("r")
            counts: Counter = Counter()

            def take(record, time, diff, counts=counts):
                counts[tuple(record), time] += diff

            hinted.join(other, keys, how).inspect(take)
            for session, rows in ((a_in, left), (b_in, right)):
                session.update([(k, s, x, t, d) for k, s, x, t, d in rows if t < 2])
            for upto in (2, 4):
                flow.advance_to(upto)
                flow.step()
                for session, rows in ((a_in, left), (b_in, right)):
                    session.update([(k, s, x, t, d) for k, s, x, t, d in rows if t >= upto])
            counts_by_form.append({place: diff for place, diff in counts.items() if diff})
    assert counts_by_form[0] == counts_by_form[1]


def test_a_hot_key_is_the_work_of_many_tasks(spark):
    """Half of all rows have one key: with 8 buckets, no task has a fourth of them."""
    rows, buckets = 20_000, 8
    largest = {}
    for hot in (True, False):
        with Dataflow(spark, runner="local", buckets=buckets) as flow:
            sales, sales_in = flow.input("sales", "k long, x long")
            shops, shops_in = flow.input("shops", "k long, town string")
            side = sales.hint("skew", "k", 7) if hot else sales
            side.join(shops, "k").keep()
            sales_in.insert([(7 if i % 2 else i, i) for i in range(rows)])
            shops_in.insert([(i, f"town {i}") for i in range(0, 1000)])
            flow.advance_to(1)
            flow.step()
            traces = [t for t in flow._state.traces.values() if t.rows >= rows]
            assert traces
            largest[hot] = max(
                sum(file.rows for batch in trace.batches for file in batch.files.get(bucket, ()))
                for trace in traces for bucket in range(buckets)
            )
    assert 4 * largest[True] <= rows < 2 * largest[False]


@pytest.mark.parametrize("on", ["lo < high and low < hi", "lo between low and high"])
def test_ranges_are_looked_into_in_a_hot_key(spark, on):
    """Each of twenty thousand intervals of one key meets its neighbours only."""
    with Dataflow(spark, runner="local", buckets=2) as flow:
        a, a_in = flow.input("a", "k int, lo long, hi long")
        b, b_in = flow.input("b", "j int, low long, high long")
        pairs_in = a.join(b.hint("skew", "j", 7), F.expr(f"k = j and {on}"))
        count = pairs_in.agg(F.count("*").alias("n")).keep()
        begin, key = np.arange(20_000) * 10, np.full(20_000, 7, np.int32)
        a_in.insert(pa.table({"k": key, "lo": begin, "hi": begin + 10}))
        b_in.insert(pa.table({"j": key, "low": begin - 5, "high": begin + 15}))
        flow.advance_to(1)
        pairs = (3 if "hi" in on.split() else 2) * 20_000
        assert pairs - 3 < count.at().collect()[0].n <= pairs
        assert flow.last_report.rows_out < 2 * 10**6
        a_in.remove([(7, 50, 60)])
        flow.advance_to(2)
        assert flow.last_report.rows_read < 1000


def test_values_of_all_types_that_may_be_hot(spark):
    day, at = date(2024, 2, 29), datetime(2024, 2, 29, 12, tzinfo=timezone.utc)
    kinds = {
        "tinyint": 1, "smallint": 1, "int": 1, "long": 1, "string": "é", "boolean": True,
        "date": day, "timestamp": at, "timestamp_ntz": at.replace(tzinfo=None),
    }
    for runner in "local", "spark":
        with Dataflow(spark, runner=runner, buckets=2) as flow:
            joins = []
            sessions = []
            for name, value in kinds.items():
                (a, a_in), (b, b_in) = (
                    flow.input(f"{name} {side}", f"k {name}, {side} int") for side in "ab"
                )
                joined = a.hint("skew", "k", value).join(b, "k")
                joined.keep()
                joins.append(joined)
                sessions += [(a_in, value), (b_in, value)]
            for session, value in sessions:
                session.insert([(value, 1), (value, 2)])
            flow.advance_to(1)
            flow.step()
            for joined in joins:
                assert joined.at(0).count() == 4


WRONG = {
    "no column": (("z",), "no column 'z'"),
    "a number for a column": ((1,), "names of columns"),
    "no columns": (([],), "names of columns"),
    "a text for a number": (("k", "one"), "'one' is no value of 'k'"),
    "a number that is too large": (("k", 2**40), "is no value"),
    "a null": (("k", [1, None]), "None is no value"),
    "one value of two columns": ((["k", "s"], [(1,)]), "a value for each of k, s"),
    "a column of doubles": (("d", 1.5), "'d' is of type double"),
    "too much": (("k", 1, 2), "takes a column"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_hint_that_cannot_be_is_refused(spark, name):
    parameters, message = WRONG[name]
    with Dataflow(spark, runner="local") as flow:
        frame, _ = flow.input("a", "k int, s string, d double")
        with pytest.raises(SchemaError, match=message):
            frame.hint("skew", *parameters)


def test_a_hint_for_other_columns_than_the_key_does_nothing(spark):
    with Dataflow(spark, runner="local") as flow:
        frame, session = flow.input("a", "k int, s string")
        plain = frame.join(frame.select("k", F.lit(1).alias("one")), "k")
        same = frame.hint("skew", "s", "a").join(frame.select("k", F.lit(1).alias("one")), "k")
        for result in plain, same:
            result.keep()
        session.insert([(1, "a")])
        flow.advance_to(1)
        flow.step()
        assert plain.at(0).collect() == same.at(0).collect()


#: The types of a key on either side, a value of it on each, and the hot one.
CAST = {
    "whole numbers": ("int", 1, "long", 1, 1),
    "text and number": ("string", "01", "int", 1, "01"),
    "double": ("long", 1, "double", 1.0, 1),
    "double of others": ("long", 2**53 + 1, "double", 2.0**53, 2**53 + 1),
    "decimal": ("int", 1, "decimal(10,2)", Decimal("1.00"), 1),
    "date and timestamp": (
        "date", date(2024, 2, 29), "timestamp", datetime(2024, 2, 29, tzinfo=timezone.utc),
        date(2024, 2, 29),
    ),
}


@pytest.mark.parametrize("name", CAST)
def test_a_key_that_the_other_side_has_in_another_type(spark, name):
    kind, value, other, equal, hot = CAST[name]
    with Dataflow(spark, runner="local", buckets=2) as flow:
        (a, a_in), (b, b_in) = flow.input("a", f"k {kind}, x int"), flow.input("b", f"k {other}")
        joined = a.hint("skew", "k", hot).join(b, "k").keep()
        a_in.insert([(value, 1), (value, 2)])
        b_in.insert([(equal,)])
        flow.advance_to(1)
        flow.step()
        assert sorted(row.x for row in joined.at(0).collect()) == [1, 2]


@pytest.mark.parametrize("kind, value", [
    ("date", date(999, 2, 20)),
    ("timestamp", datetime(1500, 2, 20, 12, tzinfo=timezone.utc)),
    ("timestamp_ntz", datetime(2024, 2, 29, 12)),
    ("timestamp_ntz", datetime(999, 2, 20, 0, 0, 0, 7)),
])
def test_spark_and_the_driver_know_the_same_hot_keys(spark, kind, value):
    """One may spread records, and the other copy those that they meet."""
    schema = Schema(T._parse_datatype_string(f"k {kind}"))
    table = pa.table([pa.array([value, None], schema.arrow()[0].type)], schema.arrow())
    hot = Hot(("k",), ((value,),))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.createDataFrame(table, schema.struct)
        assert frame.schema["k"].dataType.simpleString() == kind
        actual = [row.hot for row in frame.select(hot.in_frame().alias("hot")).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert actual == hot.in_table(table).tolist() == [True, False]
