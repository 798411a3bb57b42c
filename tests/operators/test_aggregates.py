"""Groups, first records, reducers and sets: against the oracle, and against PySpark's own."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal

import pytest
from connect_server import in_sql_text
from hypothesis import given
from hypothesis import strategies as st
from oracle import Op, Program, accumulate, normal
from programs import Run
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from test_joins import check_against_pyspark, ending, fed, multiset, types
from test_law import every_runner, move, one_bit_hash

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    DiffOverflowError,
    NegativeMultiplicityError,
    SchemaError,
)

ROWS = (("k", "int"), ("n", "int"), ("s", "string"), ("b", "boolean"), ("x", "double"))
NAN = float("nan")

#: Values that come and go; groups that get empty and come back; nulls; more removed than inserted.
UPDATES = [
    ((1, 5, "a", True, 0.5), 0, 2), ((1, 7, "b", False, -0.5), 0, 1),
    ((2, 1, "é", None, NAN), 0, 1), ((None, None, None, None, None), 0, 1),
    ((1, None, "Z", True, None), 1, 1), ((1, 7, "b", False, -0.5), 2, -1),
    ((2, 1, "é", None, NAN), 2, -1), ((3, 4, "c", True, 2.5), 2, 3),
    ((None, 1, "a", False, 0.0), 3, 2), ((1, 5, "a", True, 0.5), 3, -2),
    ((3, 4, "c", True, 2.5), 4, -1), ((2, -3, "b", True, -0.0), 4, 1),
    ((2, -3, "d", False, 1.5), 4, 1), ((1, None, "Z", True, None), 5, -1),
    ((3, 9, None, None, 2.5), 5, 2), ((None, None, None, None, None), 5, -1),
]
NEGATIVE = [
    *UPDATES, ((3, 6, "e", False, 1.5), 1, -2), ((1, 5, "a", True, 0.5), 5, -1),
    ((2, -3, "b", True, -0.0), 3, -2),
]
LINEAR = [("sum", "n"), ("count", "n"), ("avg", "n"), ("count_if", "b"), ("count", "")]
ORDERED = [
    ("min", "n"), ("max", "n"), ("min", "s"), ("max", "s"), ("min", "x"), ("max", "x"),
    ("bool_and", "b"), ("bool_or", "b"), ("min_by", "s n"), ("max_by", "s n"), ("max_by", "n x"),
    ("min_by", "b s"), ("countDistinct", "n"), ("countDistinct", "n s"), ("sum_distinct", "n"),
    ("collect_set", "s"), ("collect_list", "n"), ("collect_list", "x"),
]
MOMENTS = [
    (f, c) for f in ("var_samp", "var_pop", "stddev_samp", "stddev_pop", "avg", "sum")
    for c in "nx"
]


def grouped(keys, calls, empty=False):
    aggregates = tuple(
        (function, tuple(columns.split()), f"a{i}") for i, (function, columns) in enumerate(calls)
    )
    return Op("groupBy", (0,), (tuple(keys), aggregates, empty))


class Rounded(Run):
    """A run in which the last digits of floats do not matter."""

    def check(self):
        for output in self.outputs:
            for time in self.times(output.probe.time()):
                actual = accumulate(output.updates, time)
                assert rounded(actual) == rounded(self.expected(output.node, time)), time


def rounded(collection):
    return Counter({
        tuple(round(float(f"{v:.9g}"), 6) if isinstance(v, float) else v for v in record): n
        for record, n in collection.items()
    })


EVEN, UNEVEN = [(t,) for t in range(1, 7)], [(2,), (5,), (6,)]


@pytest.mark.parametrize(("keys", "cuts"), [
    pytest.param(keys, cuts, marks=() if often else pytest.mark.slow,
                 id=f"{keys}-{'even' if cuts is EVEN else 'uneven'}")
    for keys, cuts, often in [
        ("k", EVEN, True), ("k", UNEVEN, False), ("s", EVEN, False), ("s", UNEVEN, False),
        ("", EVEN, False), ("", UNEVEN, True), ("kb", EVEN, False), ("kb", UNEVEN, True),
    ]
])
def test_aggregates(spark, keys, cuts):
    calls = [[c for c in some if c[1] not in tuple(keys)] for some in (LINEAR, ORDERED)]
    program = ending((ROWS,), (
        *(grouped(keys, some) for some in calls),
        grouped(keys, [*calls[0][:2], *calls[1][:3], *calls[1][-2:]]),
        *(grouped(keys, [call]) for call in [*calls[0][:1], *calls[1][:1], *calls[1][-3:]]),
    ))
    fed(spark, program, cuts, [UPDATES], runner="local", buckets=2)
    with one_bit_hash():
        fed(spark, program, cuts, [UPDATES], runner="local", buckets=1, memory_rows=0)


def test_aggregates_in_spark(spark):
    some = [LINEAR[0], LINEAR[3], ORDERED[1], ORDERED[8], ORDERED[-2]]
    program = ending((ROWS,), (grouped("k", some), grouped("", some[:1], True)))
    fed(spark, program, [(3,), (6,)], [UPDATES], runner="spark", buckets=2)


@pytest.mark.parametrize("cuts", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_aggregates_of_negative_multiplicities(spark, cuts):
    linear = [call for call in LINEAR if call[0] != "avg"]
    program = ending((ROWS,), (grouped("k", linear), grouped("k", ORDERED), grouped("", linear)))
    fed(spark, program, cuts, [NEGATIVE], runner="local", buckets=2)


@in_sql_text
@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_group_in_which_only_negative_records_stand(spark, runner):
    """Sums add the negative records; all functions that look for a record see none."""
    sums = [F.count("*"), F.sum("n"), F.count_if("b"), F.avg("n")]
    others = [F.min("n"), F.max("n"), F.min_by("s", "n"), F.max_by("s", "n"), F.bool_and("b"),
              F.bool_or("b"), F.count_distinct("n"), F.sum_distinct("n"), F.collect_set("s"),
              F.expr("count_if(DISTINCT b)"), F.collect_list("s")]
    nothing = (None, None, None, None, None, None, 0, None, [], 0, [])
    with Dataflow(spark, runner=runner, buckets=2, keep_history=True) as flow:
        frame, rows = flow.input("in", "k int, n int, s string, b boolean")
        whole = frame.groupBy("k").agg(*sums, *others).arrange_by_key("k")
        first, last = (
            frame.top_k(1, by, per="k").arrange_by_key("k") for by in ("n", F.col("n").desc())
        )
        once = frame.distinct().arrange_by_key("k")
        rows.update([(1, 7, "a", True, 0, -1), (1, 9, "b", False, 0, -2)])
        rows.update([(1, 8, "c", True, 1, 2)])
        for time in (1, 2):
            rows.advance_to(time)
            rows.flush()
            flow.step()
        assert [tuple(row) for row in whole.at(0).collect()] == [
            (1, -3, -25, -1, 25 / 3, *nothing)
        ]
        assert [tuple(row) for row in whole.at(1).collect()] == [
            (1, -1, -9, 1, 9.0, 8, 8, "c", "c", True, True, 1, 8, ["c"], 1, ["c", "c"])
        ]
        for output in (first, last, once):
            assert output.at(0).collect() == []
            assert [tuple(row) for row in output.at(1).collect()] == [(1, 8, "c", True)]


@in_sql_text
def test_distinct_arguments(spark):
    """DISTINCT has the results of Spark, for all functions."""
    frame = typed(spark)
    names = ["count_if(DISTINCT b)", "avg(DISTINCT t)", "var_samp(DISTINCT l)", "count(DISTINCT k)",
             "stddev_pop(DISTINCT d)", "max(DISTINCT s)", "bool_or(DISTINCT b)", "sum(DISTINCT d)",
             "min_by(DISTINCT s, l)", "collect_set(DISTINCT s)"]
    for calls in (names[:5], names[5:]):
        calls = [F.expr(name).alias(f"c{i}") for i, name in enumerate(calls)]
        same(frame.groupBy("k").agg(*calls), frame.at(1).groupBy("k").agg(*calls))
    lists = frame.groupBy("k").agg(F.expr("collect_list(DISTINCT s)").alias("s")).at(1).collect()
    assert {row.k: row.s for row in lists} == {1: ["a", "b"], 2: [], 3: [""]}


@every_runner
def test_averages_and_variances(spark, runner):
    program = ending((ROWS,), (grouped("k", MOMENTS), grouped("", MOMENTS), grouped("b", MOMENTS)))
    with Rounded(spark, program, runner=runner, buckets=2) as run:
        for time in (0, 2, 3, 5) if runner == "local" else (2, 5):
            now = run.sessions[0].time()
            rows = [(r, t - now, d) for r, t, d in UPDATES if now <= t <= time]
            run.step(((0, "update", ("rows", rows)), *move(time + 1 - now)))
        run.finish()


@given(st.lists(
    st.tuples(st.sampled_from([1, 2]), st.integers(-50, 50) | st.none(), st.integers(0, 3),
              st.integers(1, 3)),
    max_size=12,
))
def test_variances_of_random_numbers(spark, updates):
    updates = [((k, n), t, d) for k, n, t, d in updates]
    updates += [(r, t + 1, -d) for r, t, d in updates[::2]]
    calls = [("var_samp", "n"), ("stddev_pop", "n"), ("avg", "n"), ("var_pop", "n")]
    program = ending((ROWS[:2],), (grouped("k", calls),))
    with Rounded(spark, program, runner="local", buckets=1) as run:
        run.step(((0, "update", ("rows", updates)), *move(2)))
        run.finish()


# PySpark's own.

TYPED = (
    "k int, t tinyint, l bigint, f float, x double, d decimal(10,2), s string, b boolean, day date"
)


def typed(spark):
    day = datetime.date(2024, 2, 29)
    rows = [
        (1, 3, 2**40, 0.5, 1.5, Decimal("1.25"), "a", True, day, 0, 2),
        (1, -128, -1, 2.0, NAN, Decimal("-0.01"), "b", False, None, 1, 1),
        (2, None, None, None, None, None, None, None, None, 0, 1),
        (3, 127, 2**53 + 1, -1.0, float("inf"), Decimal("99999999.99"), "", True, day, 1, 3),
        (1, 3, 2**40, 0.5, 1.5, Decimal("1.25"), "a", True, day, 1, -1),
    ]
    return DiffFrame(spark.createDataFrame(rows, f"{TYPED}, time int, diff int"))


def same(actual, expected, note=None):
    assert types(actual) == types(expected), note
    assert rounded(multiset(actual.at(1))) == rounded(multiset(expected)), note


def test_results_have_pysparks_names_types_and_values(spark):
    frame = typed(spark)
    numbers = "tlfxd"
    calls = [f(c) for f in (F.sum, F.avg, F.min, F.max, F.stddev) for c in numbers]
    calls += [F.var_pop("l"), F.variance("x"), F.count("*"), F.count("s")]
    calls += [F.countDistinct("k", "s")]
    calls += [f(c) for f in (F.min, F.max, F.collect_set) for c in ("s", "b", "day")]
    calls += [F.sum(F.col("t") * 2 + F.col("k")), F.max(F.upper("s")).alias("top")]
    calls += [F.mean(F.col("t") + 1)]
    calls += [F.count_if(F.col("l") > 0), F.bool_and("b"), F.some("b"), F.sum_distinct("d")]
    calls += [F.min_by("s", "l"), F.max_by("d", "l"), F.min_by("day", F.length("s"))]
    same(frame.groupBy("k").agg(*calls), frame.at(1).groupBy("k").agg(*calls))
    same(frame.agg(*calls), frame.at(1).agg(*calls))


def test_other_forms_of_a_group(spark):
    frame = typed(spark)
    now = frame.at(1)
    for make in [
        lambda f: f.groupBy("k", "s").agg({"l": "max", "*": "count", "x": "mean"}),
        lambda f: f.groupBy("b").count(),
        lambda f: f.groupBy(["b", "day"]).sum("l", "d"),
        lambda f: f.groupBy("k").avg("t"),
        lambda f: f.groupBy("k").min("f").select("k"),
        lambda f: f.groupby(F.col("l") % 2, F.upper("s").alias("u")).agg(F.count("*").alias("n")),
        lambda f: f.groupBy().count(),
        lambda f: f.alias("a").groupBy("a.k").agg(F.max("a.l").alias("m")),
    ]:
        same(make(frame), make(now))


@pytest.mark.parametrize("name", ["k", "s"])
def test_an_alias_does_not_stand_for_the_column_of_its_name(spark, name):
    """An alias with the name of a column is still its own expression."""
    schema = "k int, n int, s string, f struct<k int>"
    rows = [(1, 10, "a", (5,), 0, 1), (1, 20, "b", (6,), 0, 2)]
    frame = DiffFrame(spark.createDataFrame(rows, f"{schema}, time int, diff int"))
    groups = {"the field": lambda f: f.groupBy(F.col("f.k")).count()}
    for column in (
        F.col("n"), F.lit(7), F.when(F.col("n") > 10, 3).otherwise(4), F.col("f.k"),
        F.expr("n + 0"), F.col("n").cast("int"),
    ):
        groups.update({
            f"{column}, counted": lambda f, column=column: f.groupBy(column.alias(name)).count(),
            f"{column} and n": lambda f, column=column: (
                f.groupBy(column.alias(name), "n").agg(F.sum("k").alias("t"))
            ),
            f"{column}, summed": lambda f, column=column: (
                f.agg(F.sum(column.alias(name)).alias("t"), F.max(column).alias("m"))
            ),
        })
        with pytest.raises(SchemaError, match="an order takes columns"):
            frame.top_k(1, column.alias(name).desc())
    assert len(groups) == 19
    # One of each kind, and of each kind of expression.
    check_against_pyspark(spark, [schema], [rows], groups, [*groups][::7], at=0)


def test_the_row_of_an_empty_collection(spark):
    calls = [("count", ""), ("count", "n"), ("sum", "n"), ("min", "s"), ("countDistinct", "n"),
             ("collect_list", "n"), ("collect_set", "s"), ("avg", "n"), ("bool_or", "b"),
             ("count_if", "b"), ("max_by", "s n")]
    program = ending((ROWS,), (grouped("", calls), grouped("", calls, True)))
    row = (1, 2, "a", True, 0.5)
    updates = [(row, 2, 1), (row, 3, -1), (row, 5, 2)]
    for cuts in ([(1,), (3,), (4,), (6,)], [(6,)], [(None,)]):
        fed(spark, program, cuts, [updates], runner="local", buckets=2)
    fed(spark, program, [(1,), (4,)], [updates], runner="spark", buckets=2)
    frame = typed(spark).where("k > 5")
    counts = [F.count("*"), F.sum("l"), F.max("s"), F.collect_list("t"), F.count_if("b")]
    assert frame.agg(*counts).at(1).collect() == []
    same(frame.agg(*counts, empty=True), frame.at(1).agg(*counts))


@pytest.mark.parametrize(("kind", "value"), [("bigint", 2**62), ("decimal(38,0)", 10**38 - 1)])
def test_sums_that_are_too_large(spark, kind, value):
    value = Decimal(value) if kind.startswith("decimal") else value
    with Dataflow(spark, runner="local") as flow:
        frame, rows = flow.input("in", f"n {kind}, m int")
        sums = frame.groupBy("m").agg(F.sum("n").alias("n")).keep()
        less = value.copy_negate() if isinstance(value, Decimal) else -value
        for values in ([value], [value, less], [value, value, value]):
            rows.insert([(v, 0) for v in values])
            rows.advance_to(rows.time() + 1)
            rows.flush()
            if len(values) > 2:
                with pytest.raises(DiffOverflowError):
                    flow.step()
            else:
                flow.step()
        assert sums.at(1).collect() == [(0, value)]


def test_nothing_is_left_of_doubles_with_exact(spark):
    rows = [(1, 1e300, 0, 1), (1, 1e-300, 0, 1), (1, 0.1, 0, 3), (1, 1e300, 1, -1), (1, 0.1, 2, -3),
            (1, float("inf"), 3, 1), (1, NAN, 4, 1), (1, float("inf"), 5, -1), (1, NAN, 6, -1)]
    frame = spark.createDataFrame(rows, "k int, x double, time int, diff int")
    sums = DiffFrame(frame).groupBy("k").agg(F.sum("x").alias("x"), exact=True)
    values = [normal(sums.at(t).collect()[0].x) for t in range(7)]
    inf = float("inf")
    assert values == [1e300, 0.1 * 3, 1e-300, inf, "NaN", "NaN", 1e-300]


@every_runner
@pytest.mark.parametrize("exact", [False, True])
def test_sums_of_doubles_beyond_the_range(spark, runner, exact):
    """Infinite as in Spark, in one step and in several, and exact again when they come back."""
    # Without `exact`, a summand below the last digit of so large a sum may be lost.
    big, small = 1e308, 0.5 if exact else 0.0
    rows = [(1, big, 0, 1), (1, small, 0, 1), (2, -big, 0, 1), (1, big, 1, 1), (2, -big, 1, 2),
            (2, 3.0, 2, 1), (1, big, 2, 3), (1, big, 3, -4), (2, -big, 3, -3), (1, big, 4, -1)]
    inf = float("inf")
    expected = [
        {1: big, 2: -big}, {1: inf, 2: -inf}, {1: inf, 2: -inf}, {1: big, 2: 3.0},
        {1: small, 2: 3.0},
    ]
    cuts = range(1, 6) if runner == "local" else (2, 5)
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        frame, session = flow.input("in", "k int, x double")
        sums = frame.groupBy("k").agg(F.sum("x").alias("x"), exact=exact).arrange_by_key("k")
        session.update(rows)
        for time in cuts:
            session.advance_to(time)
            session.flush()
            flow.step()
            assert dict(map(tuple, sums.at(time - 1).collect())) == expected[time - 1]
    columns = "k int, x double, time int, diff int"
    whole = DiffFrame(spark.createDataFrame(rows, columns))
    sums = whole.groupBy("k").agg(F.sum("x").alias("x"), exact=exact)
    assert [dict(map(tuple, sums.at(t).collect())) for t in range(5)] == expected
    for time in (1, 3):
        now = dict(map(tuple, whole.at(time).groupBy("k").agg(F.sum("x")).collect()))
        assert now == expected[time]


@pytest.mark.parametrize("wrong", [
    lambda f: f.groupBy("k").agg(), lambda f: f.groupBy("z").count(), lambda f: f.agg(F.col("l")),
    lambda f: f.groupBy("k").agg(F.histogram_numeric("l", F.lit(3))),
    lambda f: f.groupBy("k").agg(F.sum("z")),
    lambda f: f.groupBy("k").agg(F.sum("day")),
    lambda f: f.groupBy("k").agg(F.max("l"), empty=True), lambda f: f.groupBy("k").agg("sum"),
    lambda f: f.top_k(0, "l"), lambda f: f.top_k(2, "z"), lambda f: f.top_k(2, "l", per="z"),
    lambda f: f.top_k(2, "l", number="place"), lambda f: f.top_k(2, []),
    lambda f: f.top_k(2, F.col("l") + 1), lambda f: f.reduce(list, "n int"),
    lambda f: f.reduce(list, "k int", "k"), lambda f: f.reduce(list, "n int", "z"),
    lambda f: f.dropDuplicates(["z"]), lambda f: f.weighted("s"), lambda f: f.weighted("z"),
    lambda f: f.subtract(f.select("k")),
    lambda f: f.intersect(f.drop("k").withColumn("k", F.lit(1))),
    lambda f: f.arrange_by_key("z"), lambda f: f.groupBy("k").agg(F.sum("l").alias("k")),
])
def test_what_cannot_be_asked_for(spark, wrong):
    with pytest.raises((SchemaError, AnalysisException)):
        wrong(typed(spark))


# First records, reducers, sets.


@pytest.mark.parametrize("number", [None, "row_number", "rank"])
@pytest.mark.parametrize("per", [(), ("k",), ("b", "s")])
def test_first_records(spark, per, number):
    orders = [(("n", False),), (("s", True), ("x", False)), (("x", True),), (("b", False),)]
    program = ending((ROWS,), tuple(
        Op("top_k", (0,), (k, tuple(by for by in order if by[0] not in per), per, number))
        for k, order in zip((1, 2, 3, 2), orders) if any(by[0] not in per for by in order)
    ))
    for cuts in (EVEN, UNEVEN):
        fed(spark, program, cuts, [UPDATES], runner="local", buckets=2)
    with one_bit_hash():
        fed(spark, program, UNEVEN, [UPDATES], runner="local", buckets=1)


def test_places_of_nulls(spark):
    frame = typed(spark)
    for order in ("asc_nulls_last", "desc_nulls_first", "asc", "desc"):
        top = frame.top_k(2, [getattr(F.col("t"), order)()])
        window = frame.at(1).orderBy(getattr(F.col("t"), order)(), "k").limit(2)
        assert multiset(top.at(1)) == multiset(window), order


KEYED = ending((ROWS,), (
    *(Op("reduce", (0,), (name, key)) for name in ("ends", "each", "sizes", "several")
      for key in (("k",), ("b", "s"))),
    *(Op("dropDuplicates", (0,), (key, order)) for key in ((), ("k",), ("b", "s"))
      for order in ((), (("n", False), ("s", True)))),
    Op("arrange_by_key", (0,), ("k",)), Op("weighted", (0,), ("n",)),
))


@pytest.mark.parametrize("cuts", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_reducers_and_duplicates(spark, cuts):
    fed(spark, KEYED, cuts, [UPDATES], runner="local", buckets=2)


def test_reducers_and_duplicates_in_spark(spark):
    ops = (KEYED.ops[1], KEYED.ops[2], KEYED.ops[-4], KEYED.ops[-1])
    fed(spark, ending((ROWS,), ops), [(3,), (6,)], [UPDATES], runner="spark", buckets=2)


SETS = tuple(
    Op(name, inputs) for inputs in ((0, 1), (1, 0), (0, 0))
    for name in ("subtract", "exceptAll", "intersect", "intersectAll")
)


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_set_operations(spark, runner):
    other = [(r, (t * 5 + 1) % 6, 1 - i % 3) for i, (r, t, d) in enumerate(UPDATES)]
    cuts = [(1, 3), (4, 3), (6, 6)] if runner == "local" else [(2, 6), (6, 6)]
    program = ending((ROWS, ROWS), SETS if runner == "local" else SETS[:2])
    fed(spark, program, cuts, [NEGATIVE, other], runner=runner, buckets=2)


def test_a_reducer_is_called_only_where_values_change(spark):
    calls = []

    def counted(key, values):
        calls.append((key, list(values)))
        return [(len(values),)]

    with Dataflow(spark, runner="local") as flow:
        frame, rows = flow.input("in", "k int, n int")
        frame.reduce(counted, "many int", "k").inspect(lambda *_: None)

        def step(updates):
            rows.update([(*r, t, d) for r, t, d in updates])
            rows.advance_to(rows.time() + 2)
            rows.flush()
            calls.clear()
            flow.step()

        step([((k, n), 0, n) for k in (1, 2, 3) for n in (2, 1)])
        assert sorted(calls) == [((k,), [((1,), 1), ((2,), 2)]) for k in (1, 2, 3)]
        step([((2, 1), 2, -1), ((3, 1), 3, 1), ((3, 1), 3, -1)])
        assert calls == [((2,), [((2,), 2)])]
        step([((2, 2), 4, -2), ((1, None), 5, 1)])
        assert calls == [((1,), [((None,), 1), ((1,), 1), ((2,), 2)])]


@every_runner
def test_negative_counts_reach_a_reducer_only_if_they_may(spark, runner):
    with Dataflow(spark, runner=runner) as flow:
        frame, rows = flow.input("in", "k int, n int")
        func = F_OF["counts"]
        frame.reduce(func, "total bigint", ["k"], allow_negative=True).keep()
        rows.update([(1, 2, 0, -3)])
        rows.advance_to(1)
        rows.flush()
        flow.step()
    with Dataflow(spark, runner=runner) as flow:
        frame, rows = flow.input("in", "k int, n int")
        sums = frame.reduce(func, "total bigint", ["k"]).keep()
        rows.update([(1, 2, 0, -3)])
        rows.advance_to(1)
        rows.flush()
        with pytest.raises(NegativeMultiplicityError):
            flow.step()
        assert sums.columns == ["k", "total"]


F_OF = {"counts": lambda key, values: [(sum(n for _, n in values),)]}


def test_several_weights(spark):
    rows = [("a", 3, 10, 0, 1), ("a", 4, 1, 0, 2), ("b", None, 2, 0, 1), ("a", 3, 10, 1, -1),
            ("b", 1, -2, 1, 1)]
    frame = DiffFrame(spark.createDataFrame(rows, "s string, n int, p int, time int, diff int"))
    sums = frame.weighted("n", "p")
    assert multiset(sums.at(0)) == {("a", 11, 12): 1, ("b", 0, 2): 1}
    assert multiset(sums.at(1)) == {("a", 8, 2): 1, ("b", 1, 0): 1}
    assert multiset(frame.select("s", "n").weighted("n").count().at(0)) == {("a", 11): 1}


def test_a_kept_index_can_be_read_and_reduced(spark):
    program = Program((ROWS,), (Op("arrange_by_key", (0,), ("k",)),), (1,))
    fed(spark, program, EVEN, [NEGATIVE], runner="local", buckets=2)
    frame = typed(spark).select("k", "t")
    index = frame.arrange_by_key("k")
    assert multiset(index.at(1)) == multiset(frame.at(1))
    many = index.reduce(F_OF["counts"], "many bigint")
    assert multiset(many.at(0)) == {(1, 2): 1, (2, 1): 1}


def test_aggregates_keep_no_more_than_they_are_made_of(spark):
    functions = [
        F.count("*"), F.sum("n"), F.min("n"), F.max("n"), F.countDistinct("n"),
        F.sum_distinct("n"), F.median("n"), F.collect_list("n"),
    ]
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", "k int, n int")
        rows.groupBy("k").agg(*functions).inspect(lambda *_: None)
        session.insert([(1, 5), (1, 7), (2, None)])
        flow.advance_to(1)
        flow.step()
        # The states of sums, of values, of sums over distinct values, and of lists.
        kinds = [node.kind for node, trace in flow._state.traces.items() if trace.batches]
        assert sorted(kinds) == ["arrange", "arrange", "arrange_by_key", "reduce"]
        session.remove([(1, 7)])
        flow.advance_to(2)
        flow.step()
        assert flow.last_report.local_runs == 6


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_null_and_zero_as_keys_that_come_in_another_order(spark, runner):
    """Their hashes are equal: which comes first is another one where rows have been left out."""
    with Dataflow(spark, runner=runner, buckets=1) as flow:
        frame, session = flow.input("frame", "k long, x long")
        groups = frame.groupBy("k").agg(
            F.count("*").alias("n"), F.min("x").alias("low"), F.max("x").alias("high"),
            F.countDistinct("x").alias("of"),
        ).keep()
        session.insert([(0, None), (None, 5), (0, 7), (0, 8)])
        flow.advance_to(1)
        flow.step()
        rows = set(map(tuple, groups.at(0).collect()))
        assert rows == {(0, 3, 7, 8, 2), (None, 1, 5, 5, 1)}
        session.insert([(0, None), (None, 4), (0, 6), (0, 9), (0, 8)])
        flow.advance_to(2)
        flow.step()
        rows = set(map(tuple, groups.at(1).collect()))
        assert rows == {(0, 7, 6, 9, 4), (None, 2, 4, 5, 2)}
