"""As-of joins against a search through all records, at each time of random histories."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F
from test_law import examples
from test_windows import small

from pyspark_diff import Dataflow, DiffFrame, SchemaError

OURS = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([None, *range(12)]),
                 st.integers(0, 2))
THEIRS = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([None, *range(12)]),
                   st.sampled_from([None, 1, 2]))


@st.composite
def sides(draw: st.DrawFn) -> list[list[tuple[int, tuple, int]]]:
    """For each of some times the changes of both sides."""
    present: tuple[list, list] = ([], [])
    times = []
    for _ in range(draw(st.integers(2, 5))):
        changes: list[tuple[int, tuple, int]] = []
        for side, records in enumerate((OURS, THEIRS)):
            for record in draw(st.lists(records, max_size=6)):
                present[side].append(record)
                changes.append((side, record, 1))
            for _ in range(draw(st.integers(0, min(3, len(present[side]))))):
                at = draw(st.integers(0, len(present[side]) - 1))
                changes.append((side, present[side].pop(at), -1))
        times.append(changes)
    return times


def asof(ours, theirs, direction, tolerance, exact, how) -> Counter:
    """The join of two multisets."""
    result: Counter = Counter()
    for (key, at, x), count in ours.items():
        matches = [
            (-abs(at - other), other < at, y is not None, y or 0, y)
            for (k, other, y), n in theirs.items()
            if n and None not in (key, at, other) and k == key and (exact or at != other)
            and (other <= at or direction != "backward")
            and (other >= at or direction != "forward")
        ]
        best = max(matches, default=None)
        if best is not None and tolerance is not None and -best[0] > tolerance:
            best = None
        if best is not None:
            result[key, at, x, best[4]] += count
        elif how == "left":
            result[key, at, x, None] += count
    return +result


@examples(4)
@given(
    history=sides(), direction=st.sampled_from(["backward", "forward", "nearest"]),
    exact=st.booleans(), tolerance=st.sampled_from([None, None, 0, 2]),
    how=st.sampled_from(["left", "inner"]), step_times=st.integers(1, 3), near=st.booleans(),
)
def test_random_histories(spark, history, direction, exact, tolerance, how, step_times, near):
    with small(), Dataflow(spark, runner="local", buckets=2) as flow:
        a, a_in = flow.input("a", "k string, at int, x int")
        b, b_in = flow.input("b", "K string, At int, y int")
        joined = a.join_asof(
            b, "at", "k", direction=direction, exact=exact, tolerance=tolerance, how=how
        )
        assert joined.columns == ["k", "at", "x", "y"]
        emitted: list = []
        joined.inspect(lambda r, t, d: emitted.append((tuple(r), t, d)))
        present = (Counter(), Counter())
        expected = []
        for time, changes in enumerate(history):
            for side, record, diff in changes:
                (a_in, b_in)[side].update([(*record, time, diff)])
                present[side][record] += diff
            expected.append(asof(*present, direction, tolerance, exact, how))
            for session in (a_in, b_in):
                session.advance_to(time + 1)
                session.flush()
            if (time + 1) % step_times == 0 or time + 1 == len(history):
                flow.step()
        for time, wanted in enumerate(expected):
            total: Counter = Counter()
            for record, at, diff in emitted:
                total[record] += diff if at <= time else 0
            assert {r: n for r, n in total.items() if n} == wanted, time


def test_other_names_and_no_key(spark):
    day = datetime.date
    a = DiffFrame(spark.createDataFrame(
        [(day(2024, 1, 5), "x", 0, 1), (day(2024, 3, 1), "y", 0, 1)],
        "d date, v string, time int, diff int",
    ))
    b = DiffFrame(spark.createDataFrame(
        [(day(2024, 1, 1), "p", 0, 1), (day(2024, 1, 4), "q", 1, 1)],
        "e date, v string, time int, diff int",
    ))
    joined = a.alias("a").join_asof(b.alias("b"), ("d", "e"))
    assert joined.columns == ["d", "v", "e", "v"]
    joined = joined.select("d", F.col("a.v").alias("v"), "e", F.col("b.v").alias("w"))
    assert sorted(tuple(r)[1:] for r in joined.at(1).collect()) == [
        ("x", day(2024, 1, 4), "q"), ("y", day(2024, 1, 4), "q")
    ]
    near = a.drop("v").join_asof(b, ("d", "e"), tolerance=datetime.timedelta(days=4))
    rows = sorted(near.at(0).collect())
    assert [tuple(r)[1:] for r in rows] == [(day(2024, 1, 1), "p"), (None, None)]


def test_a_plain_table(spark):
    a = DiffFrame(spark.createDataFrame([(3, 0, 1)], "at int, time int, diff int"))
    prices = spark.createDataFrame([(1, 10), (3, 30), (4, 40)], "at int, price int")
    assert [tuple(r) for r in a.join_asof(prices, "at").at(0).collect()] == [(3, 30)]
    assert [tuple(r) for r in a.join_asof(prices, "at", exact=False).at(0).collect()] == [(3, 10)]


BIG = 2**63
PLACES = {
    "bigint": [-BIG, BIG - 1, 0, 2**62],
    "double": [float("-inf"), -1.5, 0.0, 2.5, float("inf")],
    "float": [-1.5, 0.0, 2.5],
    "decimal(6, 2)": [decimal.Decimal(n) / 4 for n in (-5, 0, 1, 7)],
    "date": [datetime.date(2024, 2, day) for day in (1, 28, 29)],
    "timestamp": [datetime.datetime(2024, 2, 1, hour) for hour in (0, 5, 6)],
    "timestamp_ntz": [datetime.datetime(2024, 2, 1, hour) for hour in (0, 5, 6)],
}


@pytest.mark.parametrize("kind", list(PLACES))
def test_the_nearest_of_each_type(spark, kind):
    """Right also where the distance has no room in the type."""
    places = PLACES[kind]
    a = DiffFrame(spark.createDataFrame(
        [(n, at, 0, 1) for n, at in enumerate(places)], f"n int, at {kind}, time int, diff int"
    ))
    # At time 1 the one that is next to each goes.
    b = DiffFrame(spark.createDataFrame(
        [(at, n, 0, 1) for n, at in enumerate(places[1:], 1)] + [(places[1], 1, 1, -1)],
        f"at {kind}, m int, time int, diff int",
    ))
    tolerance = datetime.timedelta(days=2) if kind in ("date", "timestamp", "timestamp_ntz") else 2
    for exact in (True, False):
        for most in (None, tolerance):
            joined = a.join_asof(b, "at", direction="nearest", exact=exact, tolerance=most)
            for time, there in ((0, range(1, len(places))), (1, range(2, len(places)))):
                expected = {}
                for n, at in enumerate(places):
                    far = {m: abs(at - places[m]) for m in there if m != n}
                    far |= {n: tolerance * 0} if exact and n in there else {}
                    near = {m: d for m, d in far.items() if most is None or d <= most}
                    # If two are equally far away, the earlier one.
                    expected[n] = min(
                        near, key=lambda m: (near[m], m > n, abs(m - n)), default=None
                    )
                assert {r.n: r.m for r in joined.at(time).collect()} == expected, (time, exact)


@pytest.mark.parametrize(
    ("use", "part"),
    [
        (lambda a, b: a.join_asof(b, "nope"), "no column 'nope'"),
        (lambda a, b: a.join_asof(b, ("at", "nope")), "on the other side"),
        (lambda a, b: a.join_asof(b, "at", "x"), "no column 'x'"),
        (lambda a, b: a.join_asof(b, ("x", "at")), "cast one"),
        (lambda a, b: a.join_asof(b, "at", direction="next"), "direction must be.*nearest"),
        (lambda a, b: a.join_asof(b, "at", how="full"), "left, inner"),
        (lambda a, b: a.join_asof(b, "at", tolerance=-1), "largest distance of a match"),
    ],
)
def test_bad_input(spark, use, part):
    a = DiffFrame(spark.createDataFrame([], "k int, at int, x string, time int, diff int"))
    b = DiffFrame(spark.createDataFrame([], "k int, at int, y int, time int, diff int"))
    with pytest.raises(SchemaError, match=part):
        use(a, b)
