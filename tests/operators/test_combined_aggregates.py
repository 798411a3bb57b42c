"""Expressions of aggregates, and groupings other than `groupBy`, have PySpark's results.

    f(collection) at t  ==  f(table at t), names and types included, for every t
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatch

import pytest
from connect_server import in_sql_text
from plain import local_frame
from pyspark.sql import GroupedData, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import Dataflow, DiffFrame, SchemaError
from pyspark_diff.expressions.aggregate_functions import FUNCTIONS
from pyspark_diff.frame.grouped import GroupedDiff

NAN = float("nan")
SCHEMA = "k string, p string, x int, y double, d decimal(10,2), b boolean"
#: Rows, their times and diffs.
UPDATES = [
    (("a", "u", 1, 0.5, Decimal("1.25"), True), 0, 1),
    (("a", "u", 3, 1.5, Decimal("2.50"), False), 0, 2),
    (("a", "v", 4, -1.0, None, None), 0, 1),
    (("b", "v", 7, None, Decimal("7.75"), True), 0, 1),
    (("b", None, None, 2.0, Decimal("0.10"), False), 0, 1),
    ((None, "u", 9, 9.5, Decimal("-3.00"), True), 0, 1),
    (("c", "w", 5, NAN, Decimal("5.00"), None), 0, 1),
    (("a", "u", 3, 1.5, Decimal("2.50"), False), 1, -2),
    (("c", "w", 5, NAN, Decimal("5.00"), None), 1, -1),
    (("b", "u", 2, 3.5, Decimal("0.30"), False), 1, 3),
    (("d", "v", 2, 0.0, None, True), 1, 2),
    (("a", "v", 4, -1.0, None, None), 2, 1),
]
TIMES = (0, 1, 2)


def quotient():
    return (F.sum("x") / F.count("y")).alias("r")


#: The operations on a table, ours or PySpark's.
DONE = {
    "arithmetic": lambda t: t.groupBy("k").agg(
        quotient(), F.sum("x") + 1, F.round(F.avg("y"), 2), F.coalesce(F.sum("x"), F.lit(0)),
        -F.max("x"), F.sum("d") / F.count("*"), F.sum("x").cast("string"), F.sum("x"),
        F.when(F.count("*") > 2, F.max("p")).otherwise(F.lit("few")), F.lit(1).alias("one"),
    ),
    "keys in it": lambda t: t.groupBy("k", (F.col("x") % 2).alias("odd")).agg(
        F.concat(F.col("k"), F.count("*").cast("string")).alias("told"), F.sum("x") * F.col("odd"),
    ),
    "of its columns": lambda t: t.groupBy(t.k).agg(
        F.sum(t.x) / F.count(t["y"]), F.max(t.p), F.upper(t.k), F.sum(F.when(t.b, t.x)) + 1,
    ),
    "all records": lambda t: t.where("x is not null").agg(
        quotient(), F.max("x") - F.min("x"), F.expr("sum(x) / count(*) AS mean"),
    ),
    "filter": lambda t: t.groupBy("k").agg(
        F.expr("sum(x) FILTER (WHERE y > 0)"), F.expr("count(*) FILTER (WHERE b) AS n"),
        F.expr("count(DISTINCT x) FILTER (WHERE p = 'u')"), F.expr("max(p) FILTER (WHERE x > 2)"),
        F.expr("max_by(p, x) FILTER (WHERE b IS NOT NULL)"),
        F.expr("avg(y) FILTER (WHERE x > 1) + sum(x)"), F.sum(F.when(F.col("y") > 0, F.col("x"))),
        F.expr("bool_or(b) FILTER (WHERE x < 5)"), F.count_if(F.col("x") > 2),
        F.expr("count(x, y) FILTER (WHERE x > 1)"),
    ),
    "middle": lambda t: t.groupBy("k").agg(
        F.median("x"), F.median("y").alias("m"), F.median("d"), F.percentile("x", 0.3),
        F.percentile("x", [0.1, 0.75]), F.percentile("d", 0.9, F.lit(2)),
        F.percentile_approx("x", 0.5), F.expr("approx_percentile(d, array(0.2, 1.0), 100)"),
        F.expr("median(x) FILTER (WHERE b)"), F.mode("p", True), F.mode("x", True) + 1,
        F.expr("percentile(DISTINCT x, 0.5)"),
        F.expr("percentile_cont(0.3) WITHIN GROUP (ORDER BY x)"),
        F.expr("percentile_cont(array(0.2, 0.7)) WITHIN GROUP (ORDER BY y) AS both"),
        F.expr("percentile_disc(0.3) WITHIN GROUP (ORDER BY x) FILTER (WHERE b)"),
        F.expr("percentile_disc(array(0.2, 1)) WITHIN GROUP (ORDER BY d)"),
        F.expr("mode() WITHIN GROUP (ORDER BY x) + percentile_cont(1) WITHIN GROUP (ORDER BY x)"),
    ),
    "same text, other column": lambda t: t.groupBy("k").agg(
        F.max("p"), F.max(F.lit("p")).alias("text"), F.max(F.lit("p")) == F.max("p"),
    ),
    "rollup": lambda t: t.rollup("k", "p").agg(F.sum("x"), F.count("*").alias("n"), F.max("k")),
    "rollup of expressions": lambda t: t.rollup(t.k, F.upper("p").alias("P2")).agg(
        F.grouping_id().alias("g"), F.grouping("k"), (F.sum("x") / F.count("*")).alias("r"),
    ),
    "rollup count": lambda t: t.rollup("k").count(),
    "rollup dict": lambda t: t.rollup("p").agg({"x": "sum", "y": "max"}),
    "cube": lambda t: t.cube("K", "p").sum("x"),
    "cube with its number": lambda t: t.cube("k", "b").agg(
        F.grouping_id("k", "b").alias("g"), F.sum("x") + F.grouping("b"), F.countDistinct("p"),
    ),
    "groupingSets": lambda t: t.groupingSets([("k",), ("p", "k"), ()], "k", "p").agg(F.sum("x")),
    "pivot sum": lambda t: t.groupBy("k").pivot("p", ["u", "v", "nosuch"]).sum("x"),
    "pivot count": lambda t: t.groupBy("k").pivot("p", ["u", "v"]).count(),
    "pivot several": lambda t: t.groupBy("k", "b").pivot("x", [3, 4]).agg(
        F.sum("y"), F.count(F.lit(1)).alias("n"), (F.max("x") / F.count(F.lit(1))).alias("r")
    ),
    "pivot text": lambda t: t.groupBy("k").pivot("p", ["u", "w"]).agg(
        F.max("p"), F.count(F.lit(1)).alias("n"), F.sum("x").alias("s"), F.max_by("p", "x")
    ),
    "pivot all": lambda t: t.groupBy().pivot("p", ["v"]).agg(F.sum("d")),
    "pivot dict": lambda t: t.groupBy("k").pivot("P", ["u"]).agg({"x": "max"}),
    "dict": lambda t: t.groupBy("k").agg({"x": "sum", "*": "count", "y": "median"}),
    "short ones": lambda t: t.groupBy("k").avg("X", "y"),
    "short ones, all": lambda t: t.groupBy("k").mean(),
}


@pytest.fixture(scope="module")
def tables(spark):
    """The table at each time."""
    return [
        local_frame(spark, [row for row, n in total(time).items() for _ in range(n)], SCHEMA)
        for time in TIMES
    ]


def total(time):
    rows = Counter()
    for row, at, diff in UPDATES:
        if at <= time:
            rows[row] += diff
    assert min(rows.values()) >= 0
    return rows


def multiset(frame):
    return Counter(map(str, frame.collect()))


@pytest.mark.parametrize("done", [
    pytest.param(name, marks=in_sql_text) if name == "filter" else name for name in DONE
])
def test_at_each_time_as_pyspark_does(spark, tables, done):
    rows = [(*row, time, diff) for row, time, diff in UPDATES]
    updates = spark.createDataFrame(rows, f"{SCHEMA}, time int, diff int")
    actual = DONE[done](DiffFrame(updates))
    expected = [DONE[done](table) for table in tables]
    assert actual.dtypes == expected[0].dtypes
    for time, right in zip(TIMES, expected):
        assert multiset(actual.at(time)) == multiset(right), f"at {time}"


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_kept_up_to_date(spark, tables, runner):
    done = [DONE[name] for name in ("arithmetic", "rollup", "pivot several")]
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        rows, session = flow.input("rows", SCHEMA)
        outputs = [aggregate(rows).keep() for aggregate in done]
        for time in TIMES:
            for row, at, diff in UPDATES:
                if at == time:
                    (session.insert if diff > 0 else session.remove)([row] * abs(diff))
            session.advance_to(time + 1)
            session.flush()
            flow.step()
            for aggregate, output in zip(done, outputs):
                assert multiset(output.at(time)) == multiset(aggregate(tables[time]))


#: Rows with an array, a struct and a map.
NESTED = [
    ("a", "u", 1, [1, 2], (1, "q"), {"z": 1}), ("a", "v", 2, [3], (0, "r"), {"y": 2}),
    ("b", "u", 2, [1, 2], (1, "q"), {"z": 1}), ("b", "u", 2, [0], (1, "q"), {}),
]
GROUPS = {
    "groupBy": lambda t: t.groupBy("k"), "rollup": lambda t: t.rollup("k"),
    "cube": lambda t: t.cube("k", "p"), "pivot": lambda t: t.groupBy("k").pivot("p", ["u", "w"]),
    "groupingSets": lambda t: t.groupingSets([("k",), ()], "k"),
    "keys with lists": lambda t: t.rollup("e", "s"),
}


def nested(nullable):
    """The type of nested rows; either nothing or everything may be null."""
    inner = T.StructType([
        T.StructField("a", T.IntegerType(), nullable), T.StructField("b", T.StringType(), nullable)
    ])
    kinds = {
        "k": T.StringType(), "p": T.StringType(), "x": T.IntegerType(),
        "e": T.ArrayType(T.IntegerType(), nullable), "s": inner,
        "m": T.MapType(T.StringType(), T.IntegerType(), nullable),
    }
    return T.StructType([T.StructField(name, kind, nullable) for name, kind in kinds.items()])


def computed_of_lists():
    values = F.sort_array(F.collect_set("x"))
    return [
        values.alias("set"), F.sort_array(F.collect_list("x")).alias("list"),
        F.sort_array(F.collect_list("s")).alias("structs"),
        F.size(F.collect_list("m")).alias("maps"),
        F.sort_array(F.flatten(F.collect_list("e"))).alias("flat"),
        F.transform(values, lambda value: value + 1).alias("transformed"),
        F.aggregate(F.collect_list("x"), F.lit(0), lambda a, b: a + b).alias("folded"),
        F.map_from_arrays(values, values).alias("map"),
        F.struct(values.alias("values"), F.max("s").alias("most")).alias("struct"),
        F.when(F.count("x") > 1, F.array(F.max("x"), F.min("x"))).alias("some"),
        F.map_keys(F.max_by("m", F.struct("x", "p", "e"))).alias("names"),
        F.array(F.lit(1)).alias("constant"),
    ]


def kept_lists(spark, nullable, ways):
    schema = nested(nullable)
    table = spark.createDataFrame(NESTED, schema)
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, session = flow.input("rows", schema)
        outputs = {way: GROUPS[way](rows).agg(*computed_of_lists()).keep(way) for way in ways}
        session.insert(NESTED)
        session.advance_to(1)
        flow.step()
        for way, ours in outputs.items():
            expected = GROUPS[way](table).agg(*computed_of_lists())
            assert ours.dtypes == expected.dtypes
            assert multiset(ours.at(0)) == multiset(expected), way


@pytest.mark.parametrize("nullable", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_lists_that_hold_no_null_are_computed_with(spark, nullable):
    kept_lists(spark, nullable, ["rollup"])


@pytest.mark.slow
@pytest.mark.parametrize("nullable", [False, True])
def test_lists_are_computed_with_in_each_kind_of_groups(spark, nullable):
    kept_lists(spark, nullable, GROUPS)


#: Events, the last of no time; seconds before 1970 as well.
EVENTS = [
    ("a", datetime(2024, 1, 1, 0, 3), 1), ("a", datetime(2024, 1, 1, 0, 7, 1), 2),
    ("b", datetime(1960, 1, 1, 0, 9, 59), 3), ("b", datetime(2024, 1, 1, 0, 10), 5), ("b", None, 4),
]
TIME_WINDOWS = {
    "sliding": lambda: F.window("ts", "10 minutes", "5 minutes"),
    "uneven": lambda: F.window("ts", "10 minutes", "4 minutes", "1 minute"),
    "tumbling": lambda: F.window("ts", "10 minutes"),
}
WINDOWED = {
    "groupBy": lambda t, w: t.groupBy(w(), "k").agg(F.sum("n"), F.count("*") + F.max("n")),
    "a start": lambda t, w: t.groupBy(w().start.alias("s")).count(),
    "rollup": lambda t, w: t.rollup("k", w()).agg(F.sum("n"), F.count("*")),
    "cube": lambda t, w: t.cube(w().alias("w"), "k").agg((F.sum("n") + F.grouping("k")).alias("r")),
    "also an argument": lambda t, w: t.rollup("k", w()).agg(F.max(w()), F.count("*")),
    "pivot": lambda t, w: t.groupBy(w()).pivot("k", ["a", "b"]).agg(F.sum("n")),
    "argument": lambda t, w: t.groupBy("k").agg(F.max(w()), F.count("*")),
    "select": lambda t, w: t.select("n", w().alias("w")).groupBy("n").count(),
    "partition": lambda t, w: t.withColumn(
        "r", F.row_number().over(Window.partitionBy(w()).orderBy("n", "k"))),
}


def windowed(spark, kind, done):
    schema = "k string, ts timestamp, n int"
    table = spark.createDataFrame(EVENTS, schema)
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, session = flow.input("rows", schema)
        make = TIME_WINDOWS[kind]
        outputs = {name: WINDOWED[name](rows, make).keep(name) for name in done}
        session.insert(EVENTS)
        flow.advance_to(1)
        for name, ours in outputs.items():
            expected = WINDOWED[name](table, make)
            assert ours.dtypes == expected.dtypes
            assert multiset(ours.at(0)) == multiset(expected), name
        session.remove(EVENTS)
        flow.advance_to(2)
        assert [name for name, ours in outputs.items() if ours.at(1).collect()] == []


def test_sliding_windows_in_a_rollup(spark):
    windowed(spark, "sliding", ["rollup"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TIME_WINDOWS)
def test_time_windows_of_each_kind_in_each_operator(spark, kind):
    windowed(spark, kind, WINDOWED)


def test_in_a_loop(spark):
    rows = [("a", 4, 0, 1), ("b", 9, 0, 1), ("b", 7, 1, 1)]
    start = DiffFrame(spark.createDataFrame(rows, "k string, n long, time int, diff int"))
    halved = start.iterate(
        lambda x: x.groupBy("k").agg(
            F.greatest(F.floor(F.sum("n") / 2), F.lit(1)).cast("long").alias("n")
        )
    )
    assert sorted(halved.at(1).collect()) == [("a", 1), ("b", 1)]


def test_no_records(spark):
    rows = DiffFrame(spark.createDataFrame([], f"{SCHEMA}, time int, diff int"))
    assert rows.agg(quotient()).at(0).collect() == []
    total = (F.coalesce(F.sum("x"), F.lit(0)) + F.count("*")).alias("n")
    assert rows.agg(total, empty=True).at(0).collect() == [(0,)]
    assert rows.rollup("k").count().at(0).collect() == []
    assert rows.agg(F.median("x"), empty=True).at(0).collect() == [(None,)]


#: An expression that agg refuses, and a pattern of the message.
REFUSED = [
    (lambda t: t.agg(F.size(F.histogram_numeric("x", F.lit(3)))), "histogram_numeric.*its bins"),
    (lambda t: t.agg(F.product("x") + 1), "product.*the aggregates are any_value"),
    (lambda t: t.agg(F.product("x")), "product.*the aggregates are any_value"),
    (lambda t: t.groupBy("k").agg(F.product("k") / F.count("*")), "the aggregate product in"),
    (lambda t: t.agg({"x": "hll_sketch_agg"}), "hll_sketch_agg.*the aggregates are any_value"),
    (lambda t: t.agg(F.percentile("x", F.col("y"))), "(?i)percentile"),
    (lambda t: t.agg(F.percentile("x", 0.5, F.col("x"))), "takes constants after its first"),
    (lambda t: t.agg(F.sum("x"), "y"), "it got Column, str"),
    (lambda t: t.groupBy("k").pivot("p"), "its columns would depend on the records"),
    (lambda t: t.groupBy("k").pivot("p", []), "takes a column's name and values"),
    (lambda t: t.rollup("k").pivot("p", ["u"]), "pivot is for groupBy"),
    (lambda t: t.groupBy("k").pivot("p", ["u"]).agg("x"), "columns such as F.sum"),
    (lambda t: t.cube("k").reduce(list, "n int"), "without rollup, cube or pivot"),
    (lambda t: t.groupingSets([("x",)], "k"), "groupingSets has .*not in its columns"),
    (lambda t: t.groupBy("k").agg(F.sum("x") + 1, (F.sum("x") + 2).alias("K")), "more than once"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused(spark, case):
    make, message = REFUSED[case]
    rows = DiffFrame(spark.createDataFrame([], f"{SCHEMA}, time int, diff int"))
    with pytest.raises(Exception, match=f"(?s){message}"):
        make(rows)


@in_sql_text
@pytest.mark.parametrize("how", ["groupBy", "rollup"])
def test_an_aggregate_that_agg_does_not_have_is_named(spark, how):
    groups = getattr(DiffFrame(spark.createDataFrame([], f"{SCHEMA}, time int, diff int")), how)
    for text in (
        "histogram_numeric(x, 3)", "count_min_sketch(x, 0.5d, 0.5d, 1)", "approx_top_k(x)",
        "hll_sketch_agg(x)", "size(histogram_numeric(x, 2))", "bitmap_construct_agg(x)",
        "histogram_numeric(x, 2) FILTER (WHERE b)",
        "count(*) + size(histogram_numeric(x, 2)) * max(x)",
    ):
        name = next(part for part in re.findall(r"(\w+)\(", text) if part not in KNOWN)
        with pytest.raises(SchemaError) as caught:
            groups("k").agg(F.count("*").alias("c"), F.expr(text).alias("wrong"))
        shown, _, listed = str(caught.value).partition("the aggregates are")
        assert name in shown and "c," not in shown, text
        assert {"sum", "count_if", "regr_slope"} <= set(re.findall(r"\w+", listed)), text
    groups("k").agg(F.count("*"), F.expr("max(struct(x, k)).x + 1"))


KNOWN = {*FUNCTIONS, "round"}


def test_the_docstring_of_agg_lists_the_aggregates():
    text = str(GroupedDiff.agg.__doc__).partition("empty : bool")[0]
    listed = re.findall(r"`([\w.*]+)`", text.partition("*exprs")[2])
    shown = {name.removeprefix("F.") for name in listed}
    # PySpark and SQL have these as other names of a count and of a percentile.
    shown -= {"count_distinct", "percentile_cont", "FILTER"}
    names = {function.name for function in FUNCTIONS.values()}
    assert [n for n in names if not any(fnmatch(n, pattern) for pattern in shown)] == []
    assert [pattern for pattern in shown if not any(fnmatch(n, pattern) for n in names)] == []


@pytest.mark.parametrize("name", sorted(n for n in dir(GroupedData) if not n.startswith("_")))
def test_each_public_name_of_groups_is_there_or_has_a_hint(spark, name):
    rows = DiffFrame(spark.createDataFrame([], "k int, time int, diff int"))
    groups = rows.groupBy("k")
    if hasattr(GroupedDiff, name):
        return
    with pytest.raises(AttributeError, match=f"groups have no {name}: ") as caught:
        getattr(groups, name)
    assert len(str(caught.value)) > 40


def test_an_unknown_name_of_groups(spark):
    groups = DiffFrame(spark.createDataFrame([], "k int, time int, diff int")).groupBy("k")
    with pytest.raises(AttributeError, match="groups have no 'nosuch': .*agg"):
        groups.nosuch
    with pytest.raises(SchemaError, match="agg takes columns"):
        groups.agg()
