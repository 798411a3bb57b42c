"""Joins by intervals equal the joins by all pairs.

    lower <= value <= upper  ⟺  the blocks of the value and of the interval have one in common, and
                                the condition is true of the two
"""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import datetime, timedelta
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from connect_server import in_sql_text
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from test_law import examples
from test_ranges import blocks

from pyspark_diff import AssertionFailedError, Dataflow, DiffFrame, SchemaError
from pyspark_diff.expressions.bands import _within_64_bits
from pyspark_diff.expressions.conditions import parse_condition
from pyspark_diff.kernels.blocks import numbers
from pyspark_diff.operators.blocks import OfInterval, OfValue

whole = st.integers(-3, 3) | st.integers(-2**63, 2**63 - 1) | st.sampled_from(
    [sign * 2**k + e for k in (5, 10, 31, 53, 62) for e in (-1, 0, 1) for sign in (-1, 1)]
)
some_float = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-320])
#: Arrow types, values of them, and sizes of blocks.
ORDERED = {
    "long": (pa.int64(), whole, [None, 1, 7, 2**40]),
    "byte": (pa.int8(), st.integers(-128, 127), [None, 5]),
    "boolean": (pa.bool_(), st.booleans(), [None]),
    "date": (pa.date32(), st.integers(-99999, 99999), [None, 1, 30]),
    "decimal(18,2)": (pa.decimal128(18, 2), st.integers(-10**18 + 1, 10**18 - 1), [None, 250]),
    "decimal(19,0)": (pa.decimal128(19, 0), st.integers(-10**19 + 1, 10**19 - 1), [None, 3]),
    "decimal(38,3)": (pa.decimal128(38, 3), st.integers(-10**38 + 1, 10**38 - 1), [None, 9]),
    "double": (pa.float64(), some_float, [None, 0.5, 1e-300, 1e300]),
    "float": (pa.float32(), st.floats(width=32), [None, 0.5]),
    "string": (pa.string(), st.text(max_size=10) | st.text("ab\0", max_size=12), [None]),
    "binary": (pa.binary(), st.binary(max_size=10), [None]),
}


def order(value):
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ORDERED)
@given(data=st.data())
def test_intervals_and_their_values_share_a_block(kind, data):
    arrow, values, sizes = ORDERED[kind]
    bounds = data.draw(st.lists(values, min_size=3, max_size=20))
    if pa.types.is_decimal(arrow):
        bounds = [Decimal(v).scaleb(-arrow.scale, Context(60)) for v in bounds]
    column = pa.array(bounds, arrow)
    size = data.draw(st.sampled_from(sizes))
    at = sorted(range(len(bounds)), key=lambda i: order(bounds[i]))
    codes = numbers(column, size)[at]
    assert (codes[1:] >= codes[:-1]).all()
    if size is not None and data.draw(st.booleans()):
        # Only of about the length of a block, as an interval may have very many of them.
        first, last = at[:-1], at[1:]
        near = np.flatnonzero(np.diff(codes.astype(object)) <= 40)
        first, last = [first[i] for i in near], [last[i] for i in near]
    elif size is None:
        first = data.draw(st.lists(st.sampled_from(at), min_size=1, max_size=9))
        last = data.draw(st.lists(st.sampled_from(at), min_size=len(first), max_size=len(first)))
    else:
        first = last = at
    of_value = blocks(OfValue("b", size, "v"), column)
    table = pa.table({"low": column.take(pa.array(first, pa.int64())),
                      "high": column.take(pa.array(last, pa.int64())),
                      "row": np.arange(len(first))})
    block_rows = OfInterval("b", size, "low", "high").on_table(table)
    of_interval = {row: [] for row in range(len(first))}
    for row, block in zip(block_rows["row"].to_pylist(), block_rows["b"].to_pylist()):
        of_interval[row].append(block)
    for row, there in of_interval.items():
        assert len(set(there)) == len(there) <= 41
        for i, mine in of_value.items():
            met = len(set(mine) & set(there))
            low, value, high = (order(bounds[j]) for j in (first[row], i, last[row]))
            assert met == 1 if low <= value <= high else met <= 1


DAY = datetime(2024, 2, 28)
#: A type and its values, the type of the other side, two bounds by which a value can be moved,
#: and their form in Python.
KINDS = {
    "int": ("int", st.integers(-9, 9), "bigint", (-2, 3), None),
    "int, far": ("bigint", st.integers(-9, 9).map(lambda n: n * 10**9), "int", (-10**9, 0), None),
    "tinyint": ("tinyint", st.integers(-128, 127), "tinyint", (-100, 1000), None),
    "int beside double": ("int", st.integers(-5, 5), "double", (-0.5, 1.5), None),
    "double": ("double", st.integers(-9, 9).map(lambda n: n / 4)
               | st.sampled_from([math.nan, math.inf, -math.inf, -0.0]), "double",
               (-0.5, 0.25), None),
    "decimal": ("decimal(12,2)", st.integers(-99, 99).map(lambda n: Decimal(n).scaleb(-2)),
                "decimal(38,4)", (Decimal("-0.1"), Decimal("0.25")), None),
    "date": ("date", st.integers(0, 9).map(lambda n: (DAY + timedelta(n)).date()), "date",
             (-1, timedelta(2)), (timedelta(-1), timedelta(2))),
    "timestamp_ntz": ("timestamp_ntz", st.integers(0, 90).map(lambda n: DAY + n * timedelta(0, 60)),
                      "timestamp_ntz", (timedelta(0, -600), "5 minutes"),
                      (timedelta(0, -600), timedelta(0, 300))),
    "timestamp": ("timestamp", st.integers(0, 9).map(lambda n: DAY + n * timedelta(0, 3600)),
                  "timestamp", ("-1 hour", "1 day"), (timedelta(0, -3600), timedelta(1))),
}
HOWS = ["inner", "left", "right", "full", "left_semi", "left_anti"]


def pairs_of(left, right, how, keyed, holds):
    """The join of rows (k, n, value), by all pairs; in the columns k, n, value, m, other."""
    pairs = []

    def match(a, b):
        return holds(a[2], b[2]) and (not keyed or a[0] is not None and a[0] == b[0])
    for a in left:
        some = [b for b in right if match(a, b)]
        if how in ("left_semi", "left_anti"):
            pairs += [a] if bool(some) == (how == "left_semi") else []
            continue
        pairs += [(*a, *b[1:]) for b in some]
        if not some and how in ("left", "full"):
            pairs.append((*a, None, None))
    if how in ("right", "full"):
        for b in right:
            if not any(match(a, b) for a in left):
                pairs.append((b[0] if keyed else None, None, None, *b[1:]))
    return Counter(map(shown, pairs))


def shown(row):
    return tuple("nan" if isinstance(v, float) and math.isnan(v) else v for v in row)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), how=st.sampled_from(HOWS), keyed=st.booleans(),
       runner=st.sampled_from(["local", "local", "local", "spark"]), buckets=st.integers(1, 3))
def test_interval(spark, kind, data, how, keyed, runner, buckets):
    mine, values, theirs, bounds, meant = KINDS[kind]
    bound = data.draw(st.sampled_from([bounds, bounds, (bounds[0], None), (None, bounds[1])]))
    lower, upper = (b if n is None else n for n, b in zip((None, None), meant or bounds))
    if bound[0] is None:
        lower = None
    if bound[1] is None:
        upper = None

    def holds(value, other):
        if value is None or other is None:
            return False
        number = isinstance(value, float) or isinstance(other, float)
        above, below = (
            None if b is None else order(float(value + b)) if number else value + b
            for b in (lower, upper)
        )
        other = order(float(other)) if number else other
        return (above is None or above <= other) and (below is None or other <= below)

    if theirs == "double" and mine == "int":
        others = st.integers(-9, 9).map(lambda n: n / 2)
    elif theirs in ("bigint", "int") and mine != theirs and kind == "int, far":
        others = st.integers(-2, 2).map(lambda n: n * 10**9)
    else:
        others = values
    row = st.tuples(st.sampled_from([0, 0, 1, None]), st.integers(0, 1))
    lefts = st.lists(st.tuples(row, st.none() | values).map(lambda r: (*r[0], r[1])), max_size=5)
    rights = st.lists(st.tuples(row, st.none() | others).map(lambda r: (*r[0], r[1])), max_size=5)
    with Dataflow(spark, runner=runner, buckets=buckets) as flow:
        a, a_in = flow.input("a", f"k int, n int, Value {mine}")
        b, b_in = flow.input("b", f"k int, m int, other {theirs}")
        if not keyed:
            b = b.withColumnRenamed("k", "j")
        joined = a.join_interval(
            b, "value", "OTHER", lower=bound[0], upper=bound[1], by="K" if keyed else (), how=how
        )
        if not keyed and how not in ("left_semi", "left_anti"):
            joined = joined.drop("j")
        output = joined.keep()
        left, right = [], []
        for time in range(3):
            for session, there, more in ((a_in, left, lefts), (b_in, right, rights)):
                came, gone = data.draw(more), there[:data.draw(st.integers(0, 2))]
                session.insert(came)
                session.remove(gone)
                there[:] = [*there[len(gone):], *came]
            flow.advance_to(time + 1)
            actual = Counter(shown(row) for row in map(tuple, output.at().collect()))
            expected = pairs_of(left, right, how, keyed, holds)
            assert actual == expected


FLOATS = [-1.5, 0.0, -0.0, 0.1, 0.3, 1.0, 2.5, 1e16, 1e16 + 2, math.nan, math.inf, -math.inf]
CENTS = [None, *(Decimal(n).scaleb(-2) for n in (-500, -99, 0, 1, 25, 499, 501))]
EDGES = [None, -2**63, -2**63 + 2, -1, 0, 3, 2**63 - 3, 2**63 - 1]


#: Bands and overlaps: a type, its values, and in Python the condition on (x, z) of the left side
#: and (y, w) of the right side. No argument is null.
APART = {
    "abs(x - y) <= 2": ("int", range(-4, 9), lambda x, y, z, w: abs(x - y) <= 2),
    "3 > abs(y - x)": ("bigint", EDGES[1:], lambda x, y, z, w: abs(x - y) < 3),
    "x - y between -3 and 1": ("bigint", EDGES[1:], lambda x, y, z, w: -3 <= x - y <= 1),
    "y - x between -3 and 1": ("smallint", range(-4, 9), lambda x, y, z, w: -3 <= y - x <= 1),
    "y - x <= -3": ("int", range(-4, 9), lambda x, y, z, w: y - x <= -3),
    "x - y > w": ("tinyint", range(-4, 9), lambda x, y, z, w: x - y > w),
    "abs(y - x) < z": ("int", range(-4, 9), lambda x, y, z, w: abs(x - y) < z),
    "abs(x - y) <= w": ("bigint", range(-4, 9), lambda x, y, z, w: abs(x - y) <= w),
    "x - y between -3 and w": ("bigint", range(-4, 9), lambda x, y, z, w: -3 <= x - y <= w),
    "abs(x - y) <= 1.5BD": ("bigint", EDGES[1:], lambda x, y, z, w: abs(x - y) <= 1.5),
    "x - y between -1.5D and 2D": ("int", range(-4, 9), lambda x, y, z, w: -1.5 <= x - y <= 2),
    "abs(x - y) <= 0.2D": ("double", FLOATS, lambda x, y, z, w: abs(x - y) <= 0.2),
    "x - y between -0.2D and 2": ("double", FLOATS, lambda x, y, z, w: -0.2 <= x - y <= 2),
    "abs(x - y) <= 0.25BD": ("decimal(7,2)", CENTS[1:], lambda x, y, z, w: abs(x - y) <= 0.25),
    "abs(x - y) <= null": ("int", range(-4, 9), lambda x, y, z, w: False),
    "x - y between -1 and cast(null as double)": ("double", FLOATS, lambda x, y, z, w: False),
    "x <= w and y <= z": ("int", range(-4, 9), lambda x, y, z, w: x <= w and y <= z),
    "w > x and z > y": (
        "double", FLOATS, lambda x, y, z, w: order(w) > order(x) and order(z) > order(y)),
    "x < w and y <= z": ("string", ["", "a", "ab", "b"], lambda x, y, z, w: x < w and y <= z),
    "z >= y and w >= x and abs(x - y) < 9": (
        "bigint", range(-9, 9), lambda x, y, z, w: z >= y and w >= x and abs(x - y) < 9),
}


@in_sql_text
@pytest.mark.parametrize("condition", APART)
@examples(1)
@given(data=st.data(), how=st.sampled_from(HOWS),
       runner=st.sampled_from(["local"] * 9 + ["spark"]), buckets=st.integers(1, 3))
def test_bands_and_overlaps(spark, condition, data, how, runner, buckets):
    kind, values, holds = APART[condition]
    used = [re.search(rf"\b{name}\b", condition) for name in "xyzw"]

    def match(left_row, right_row):
        there = (left_row[1], right_row[1], left_row[2], right_row[2])
        if None in [value for value, known in zip(there, used) if known]:
            return False
        return holds(*(0 if value is None else value for value in there))

    row = st.tuples(
        st.integers(0, 1), *[st.sampled_from([None, *values]) for _ in range(2)]
    )
    with Dataflow(spark, runner=runner, buckets=buckets) as flow:
        a, a_in = flow.input("a", f"n int, x {kind}, z {kind}")
        b, b_in = flow.input("b", f"m int, y {kind}, w {kind}")
        output = a.join(b, F.expr(condition), how).keep()
        left, right = [], []
        for time in range(3):
            for session, there in ((a_in, left), (b_in, right)):
                came = data.draw(st.lists(row, max_size=6))
                gone = there[:data.draw(st.integers(0, 3))]
                session.insert(came)
                session.remove(gone)
                there[:] = [*there[len(gone):], *came]
            flow.advance_to(time + 1)
            actual = Counter(shown(row) for row in map(tuple, output.at().collect()))
            expected = []
            for left_row in left:
                some = [other for other in right if match(left_row, other)]
                if how in ("left_semi", "left_anti"):
                    expected += [left_row] if bool(some) == (how == "left_semi") else []
                else:
                    expected += [(*left_row, *other) for other in some]
                    expected += [(*left_row, None, None, None)] * (
                        not some and how in ("left", "full")
                    )
            if how in ("right", "full"):
                expected += [
                    (None, None, None, *other) for other in right
                    if not any(match(left_row, other) for left_row in left)
                ]
            assert actual == Counter(map(shown, expected))


@pytest.mark.parametrize("adds", [True, False])
def test_sums_within_64_bits(spark, adds):
    """A sum beyond 64 bits is the nearest bound of them."""
    least, most = -2**63, 2**63 - 1
    ends = [least, least + 1, -5, 0, 4, most - 1, most]
    rows = [(value, limit) for value in ends for limit in ends]
    frame = static(spark.createDataFrame(rows, "value long, by long"))
    both = _within_64_bits(F.col("value"), F.col("by"), adds, None)

    def clipped(value, limit):
        return min(max(value + (limit if adds else -limit), least), most)

    both_sums = frame.select("value", "by", both.alias("sum")).at(0).collect()
    assert {tuple(row) for row in both_sums} == {(*row, clipped(*row)) for row in rows}
    for limit in (-5, 0, 4, 2**61):
        clipped_sum = _within_64_bits(F.col("value"), F.lit(limit).cast("long"), adds, limit)
        sums = frame.select("value", clipped_sum.alias("sum")).at(0).collect()
        assert {tuple(row) for row in sums} == {(value, clipped(value, limit)) for value in ends}


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_what_may_wrap_around_is_no_band(spark, ansi):
    """Without ANSI the difference of the least and the greatest number is -1."""
    a = spark.createDataFrame([(2**31 - 1,)], "x int")
    b = spark.createDataFrame([(-2**31,), (2**31 - 3,)], "y int")
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        near = F.abs(F.col("x") - F.col("y")) <= 5
        left, right = static(a), static(b)
        if ansi == "true":
            assert left.join(right, near).at(0).collect() == [(2**31 - 1, 2**31 - 3)]
            return
        with pytest.raises(SchemaError, match="nothing to find matches by"):
            left.join(right, near)
        keyed = (F.col("x") > 0).eqNullSafe(F.col("y") < 2**31 - 1) & near
        assert sorted(left.join(right, keyed).at(0).collect()) == sorted(a.join(b, keyed).collect())
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


@in_sql_text
@pytest.mark.parametrize("condition", [
    "x - y >= -1", "abs(x - y) > 2", "x - y <= 2", "x - y <= x", "abs(x - y) <= x",
    "abs(x - y) <= double('NaN')", "abs(x - y) <= double('Infinity')",
])
def test_one_end_of_doubles_is_none(spark, condition):
    """A NaN is more than any number, also after a subtraction."""
    sides = (static(spark.createDataFrame([], f"{name} double")) for name in "xy")
    left, right = sides
    with pytest.raises(SchemaError, match="nothing to find matches by"):
        left.join(right, F.expr(condition))


def static(frame):
    return DiffFrame(frame.select("*", F.lit(0).alias("time"), F.lit(1).alias("diff")))


@in_sql_text
def test_overlaps_and_bands_meet_few_pairs(spark):
    """Each of twenty thousand short intervals per side meets its neighbours only."""
    for on, pairs in (
        (F.expr("lo <= high and low <= hi"), 3 * 20_000 - 2),
        (F.expr("abs(lo - low) <= 10"), 3 * 20_000 - 2),
    ):
        with Dataflow(spark, runner="local", buckets=1) as flow:
            a, a_in = flow.input("a", "lo long, hi long")
            b, b_in = flow.input("b", "low long, high long")
            counted = a.join(b, on).agg(F.count("*").alias("n")).keep()
            begin = np.arange(20_000) * 10
            a_in.insert(pa.table({"lo": begin, "hi": begin + 10}))
            b_in.insert(pa.table({"low": begin, "high": begin + 10}))
            flow.advance_to(1)
            assert counted.at().collect()[0].n == pairs
            assert flow.last_report.rows_out < 10**6
            a_in.remove([(50, 60)])
            flow.advance_to(2)
            assert counted.at().collect()[0].n == pairs - 3
            assert flow.last_report.rows_read < 1000


#: Conditions, and the length of the interval that they imply; None if they imply none.
BOUNDED = {
    "y between x - 5 and x + 5": 10,
    "y >= x - 5 and y < x + 5": 10,
    "x - 5 <= y and x + 5 > y and x < y": 5,
    "y between 5 + x and x + 1 + 4": 0,
    "y between x - 5.5D and x + 5": None,  # as numbers of two types
    "y between x - 5.5D and x + 5D": 10.5,
    "x + 1 between y and y + 2": 2,
    "d between e and e + interval 3 days": 3,
    "d between date_sub(e, 2) and date_add(e, 1)": 3,
    "t between u - interval 1 hour and u": 3600 * 10**6,
    "t between u and u + interval 1 month": 31 * 86400 * 10**6,
    "p between q - 0.01BD and q + 0.02BD": 3,
    "y between x - z and x + z": None,
    "y between x and 2 * x": None,
    "y between x and v": None,
    "abs(x - y) <= 5": 10,
    "5 > abs(y - x)": 10,
    "x - y between -5 and 3": 8,
    "y - x < 5 and x - y < 2": 7,
    "abs(p - q) <= 0.5BD": 100,
    "abs(datediff(d, e)) <= 3": 6,
    "d - e between interval -1 day and interval 3 days": 4,
    "abs(t - u) <= interval 5 minutes": 600 * 10**6,
    "abs(x - y) <= z": None,
    "x < y": None,
    "s < r": None,
}


@in_sql_text
@pytest.mark.parametrize("condition", BOUNDED)
def test_lengths_of_intervals_in_conditions(spark, condition):
    left = spark.createDataFrame(
        [], "x int, z int, v int, e date, u timestamp, q decimal(10,2), s string")
    right = spark.createDataFrame([], "y bigint, d date, t timestamp, p decimal(10,2), r string")
    for on in (F.expr(condition), [F.expr(part) for part in condition.split(" and ")]
               if "between" not in condition else F.expr(condition)):
        interval = parse_condition(left, right, on).interval
        assert interval is not None and interval.length == BOUNDED[condition]
        alone = condition in ("x < y", "s < r", "y between x - 5.5D and x + 5")
        assert (interval.lower is None or interval.upper is None) == alone


def test_a_band_of_one_key_meets_few_pairs(spark):
    """Twenty thousand records of one key are found by blocks, and not by the key alone."""
    with Dataflow(spark, runner="local", buckets=1) as flow:
        a, a_in = flow.input("a", "k int, x int")
        b, b_in = flow.input("b", "k int, y int")
        near = a.join_interval(b, "x", "y", lower=-5, upper=5, by="k")
        at_blocks = near._node
        while at_blocks.kind != "join":
            (at_blocks,) = at_blocks.inputs
        assert all(len(side.key) == 2 for side in at_blocks.inputs)
        counted = near.agg(F.count("*").alias("n")).keep()
        for session, name in ((a_in, "x"), (b_in, "y")):
            session.insert(pa.table({"k": np.zeros(20_000, np.int32), name: np.arange(20_000)}))
        flow.advance_to(1)
        assert counted.at().collect()[0].n == 11 * 20_000 - 30


def test_comparisons_of_columns_of_frames(spark):
    """A column that is taken from a frame, as PySpark's users write it."""
    with Dataflow(spark, runner="local", buckets=1) as flow:
        a, a_in = flow.input("a", "k int, x int")
        b, b_in = flow.input("b", "k int, x int")
        outputs = {
            name: a.join(b, condition).select(a["x"], b["x"].alias("y")).keep()
            for name, condition in {
                "less": a["x"] < b["x"],
                "near": b["x"].between(a["x"], a["x"] + 1),
                "of a key": (a["k"] == b["k"]) & (a["x"] >= b["x"]) & (a["x"] <= b["x"] + 2),
            }.items()
        }
        rows = [(n % 2, n) for n in range(5)]
        a_in.insert(rows)
        b_in.insert(rows)
        flow.advance_to(1)
        actual = {
            name: sorted(map(tuple, output.at().collect())) for name, output in outputs.items()
        }
    pairs = [(x, y) for _, x in rows for _, y in rows]
    assert actual == {
        "less": [(x, y) for x, y in pairs if x < y],
        "near": [(x, y) for x, y in pairs if x <= y <= x + 1],
        "of a key": [(x, y) for x, y in pairs if (x - y) in (0, 2)],
    }


WRONG = {
    "no bound": lambda a: a.join_interval(a, "x"),
    "no text of an interval": lambda a: a.join_interval(a, "x", lower="x"),
    "a truth": lambda a: a.join_interval(a, "x", lower=True),
    "a list": lambda a: a.join_interval(a, "x", upper=[1]),
    "no such column": lambda a: a.join_interval(a, "z", lower=1),
    "no such column on the right": lambda a: a.join_interval(a, "x", "z", lower=1),
    "no such key": lambda a: a.join_interval(a, "x", lower=1, by="z"),
    "a cross join": lambda a: a.join_interval(a, "x", lower=1, how="cross"),
    "no way to join": lambda a: a.join_interval(a, "x", lower=1, how="sideways"),
    "a text": lambda a: a.join_interval(a, "s", lower=1),
    "an interval of a number": lambda a: a.join_interval(a, "x", lower="1 day"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_interval(spark, what):
    a = DiffFrame(spark.createDataFrame([], "k int, x int, s string, time int, diff int"))
    with pytest.raises((SchemaError, AnalysisException)) as caught:
        WRONG[what](a)
    assert str(caught.value)


def test_an_interval_in_a_loop(spark):
    """The places within 2 of a reached place, from the start on."""
    with Dataflow(spark, runner="local", buckets=2) as flow:
        places, places_in = flow.input("places", "x int")
        start, start_in = flow.input("start", "x int")

        def further(reached):
            near = reached.alias("r").join_interval(places.alias("p"), "x", lower=-2, upper=2)
            return near.select(F.col("p.x").alias("x")).union(start).distinct()

        output = start.iterate(further).keep()
        places_in.insert([(n,) for n in (0, 2, 3, 5, 8, 9, 11)])
        start_in.insert([(0,)])
        flow.advance_to(1)
        assert sorted(r.x for r in output.at().collect()) == [0, 2, 3, 5]
        places_in.insert([(6,)])
        flow.advance_to(2)
        assert sorted(r.x for r in output.at().collect()) == [0, 2, 3, 5, 6, 8, 9, 11]
        places_in.remove([(3,)])
        flow.advance_to(3)
        assert sorted(r.x for r in output.at().collect()) == [0, 2]


@pytest.mark.slow
def test_what_is_stored_goes_on(spark, tmp_path):
    """Joins by intervals, percentiles, cogroups and claims, in one process after the other."""
    def program(flow):
        a, _ = flow.input("a", "k int, x int, d double")
        b, _ = flow.input("b", "k int, y int")
        a.join_interval(b, "x", "y", lower=-2, upper=2, by="k", how="full").keep("near")
        a.join(b.alias("b"), F.col("x") < F.col("y"), "left_anti").keep("less")
        a.groupBy("k").agg(F.median("x"), F.percentile("d", [0.1, 0.5])).keep("middle")
        sizes = a.groupBy("k").cogroup(b.groupBy("k"))
        sizes.reduce(lambda key, left, right: [(len(left), len(right))], "l int, r int").keep("co")
        a.where("x > 1000").assert_empty()

    names = ["near", "less", "middle", "co"]
    steps = [
        ([(n % 3, n, n / 2) for n in range(20)], [], [(n % 2, 2 * n) for n in range(12)], []),
        ([(1, 4, 9.5)], [(1, 4, 2.0), (2, 2, 1.0)], [], [(0, 4)]),
        ([], [(n % 3, n, n / 2) for n in range(5, 9)], [(2, 17)], []),
    ]

    def fed(flow, number):
        for name, came, gone in zip("ab", steps[number][::2], steps[number][1::2]):
            flow.session(name).insert(came)
            flow.session(name).remove(gone)
        flow.advance_to(number + 1)
        return [sorted(map(str, flow[name].at().collect())) for name in names]

    with Dataflow(spark, runner="local", buckets=1) as flow:
        program(flow)
        expected = [fed(flow, number) for number in range(3)]
    for number in range(3):
        with Dataflow.open(str(tmp_path / "store"), program, spark=spark) as flow:
            assert fed(flow, number) == expected[number]
    with Dataflow.open(str(tmp_path / "store"), program, spark=spark) as flow:
        flow.session("a").insert([(0, 2000, 0.0)])
        with pytest.raises(AssertionFailedError):
            flow.advance_to(4)
    with Dataflow.open(str(tmp_path / "store"), program, spark=spark) as flow:
        assert [sorted(map(str, flow[name].at().collect())) for name in names] == expected[2]
