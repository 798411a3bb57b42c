"""A comparison with an aggregate of all records uses ranges, and equals the one by pairs.

    blocks of a and blocks of b have one in common  ⟹  a > b
    a > b  ⟹  they have one in common, or their codes are near
"""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from pyspark_diff import Dataflow
from pyspark_diff.frame.comparisons import may_be_compared
from pyspark_diff.operators.ranges import Beyond, Near, Within
from pyspark_diff.spark.schema import DIFF, TIME

number = (
    st.integers(-3, 3) | st.integers(-2**63, 2**63 - 1)
    | st.sampled_from([2**k + e for k in (24, 31, 52, 53, 62) for e in (-1, 0, 1)])
)
#: Unscaled values of decimals that are close to each other.
digits = number | st.integers(-10**30, 10**30) | st.integers(10**20, 10**20 + 3)


def blocks(stage, column):
    """For each value the blocks that it has."""
    rows = pa.table({"row": np.arange(len(column)), "v": column})
    zeros = pa.array([0] * len(column), pa.int64())
    table = stage.on_table(rows.append_column(TIME, zeros).append_column(DIFF, zeros))
    by_row: dict = {row: [] for row in range(len(column))}
    for row, block in zip(table["row"].to_pylist(), table["b"].to_pylist()):
        by_row[row].append(block)
    return by_row


# Both halves of a small negative number are large.
@example(values=[(-11, -1025)], scales=(0, 2), larger=True, whole=False)
@example(values=[(-11, -1025)], scales=(0, 2), larger=False, whole=False)
@given(
    values=st.lists(st.tuples(digits, digits), min_size=1, max_size=30),
    scales=st.tuples(st.sampled_from([0, 2, 6]), st.sampled_from([0, 2, 6])),
    larger=st.booleans(), whole=st.booleans(),
)
def test_each_pair_meets_in_one_block(values, scales, larger, whole):
    columns = []
    for side, scale in enumerate(scales):
        numbers = [pair[side] for pair in values]
        if whole:
            numbers = [max(-2**63, min(v, 2**63 - 1)) for v in numbers]
            columns.append(pa.array(numbers, pa.int64()))
        else:
            columns.append(pa.array([Decimal(v).scaleb(-scale) for v in numbers],
                                    pa.decimal128(38, scale)))
    a, b = (column.to_pylist() for column in columns)
    ours = blocks(Within("b", "v", None), columns[0])
    sure = blocks(Beyond("b", "v", None, larger), columns[1])
    near = blocks(Near("b", "v", None), columns[1])
    for i, mine in ours.items():
        for j in sure:
            together = [*sure[j], *near[j]]
            assert len(set(together)) == len(together)
            met, close = (len(set(mine) & set(other)) for other in (sure[j], near[j]))
            holds = a[i] > b[j] if larger else a[i] < b[j]
            assert met + close <= 1
            assert holds if met else True
            assert met + close == 1 or not holds


@pytest.mark.parametrize("stage", [
    Within("b", "v", None), Near("b", "v", None), Beyond("b", "v", None, True),
    Beyond("b", "v", None, False),
])
def test_a_null_has_no_blocks(stage):
    """No comparison with a null holds."""
    (five,) = blocks(stage, pa.array([5])).values()
    assert blocks(stage, pa.array([None, 5, None])) == {0: [], 1: five, 2: []} and five


def accumulated(table):
    """The sum of the updates of a table: the diff by time and block."""
    totals: Counter = Counter()
    for time, block, diff in zip(*(table[name].to_pylist() for name in (TIME, "b", DIFF))):
        totals[time, block] += diff
    return {record: diff for record, diff in totals.items() if diff}


@given(
    values=st.lists(st.tuples(
        number | st.integers(0, 10**6) | st.none(), st.integers(0, 3),
        st.sampled_from([-2, -1, 1, 1, 2**62]),
    ), max_size=40),
    larger=st.booleans(), kind=st.sampled_from([pa.int64(), pa.date32(), pa.timestamp("us")]),
)
def test_blocks_of_values_that_nobody_reads(values, larger, kind):
    """They are added up first, and come to the same."""
    columns = list(zip(*values)) or [()] * 3
    arrays = [pa.array(column, pa.int64()) for column in columns]
    time = pa.array(arrays[1].to_numpy().astype("int32")) if kind == pa.date32() else arrays[1]
    table = pa.table({"v": arrays[0], TIME: time.cast(kind), DIFF: arrays[2]})
    plain = Beyond("b", "v", None, larger)
    assert plain.giving(frozenset("bv")) == plain and not plain.giving(frozenset("bv")).unread
    reduced = plain.giving(frozenset("b")).on_table(table)
    assert reduced.column_names == [TIME, DIFF, "b"]
    assert reduced.schema == plain.on_table(table).drop_columns(["v"]).schema
    assert accumulated(reduced) == accumulated(plain.on_table(table))
    places = set(zip(*(reduced[name].to_pylist() for name in (TIME, "b"))))
    assert len(places) == reduced.num_rows or (
        2**62 in arrays[2].to_pylist()
    )


@pytest.mark.parametrize("larger", [True, False])
def test_a_value_that_moves_a_little_has_few_blocks(larger):
    """An average at each of many times: more rows than are worked on at once, in any order."""
    moment = np.repeat(np.arange(30_000), 2)
    value = np.repeat(np.arange(30_000), 2) + 10**6
    value[1::2] += 1
    order = np.random.default_rng(1).permutation(moment.size)
    diff = np.tile([-1, 1], 30_000)
    table = pa.table({"v": value[order], TIME: moment[order], DIFF: diff[order]})
    plain = Beyond("b", "v", None, larger)
    reduced = plain.giving(frozenset("b")).on_table(table)
    assert 0 < reduced.num_rows < 30_000
    assert accumulated(reduced) == accumulated(plain.on_table(table))


KINDS = {
    "int": st.integers(-4, 4),
    "long": number,
    "decimal(12,2)": st.integers(-500, 500).map(lambda n: Decimal(n).scaleb(-2)),
    "date": st.integers(0, 5).map(lambda n: date(1969, 12, 29) + timedelta(n)),
    "timestamp_ntz": st.integers(0, 5).map(lambda n: datetime(1969, 12, 31, 23) + timedelta(0, n)),
}
#: The comparisons, in SQL; ``w`` is the aggregate.
CONDITIONS = ["v > w", "v >= w", "v < w", "w < v", "w >= v", "NOT v > w"]


def program(flow, kind, condition, wanted):
    rows, rows_in = flow.input("rows", f"k int, v {kind}")
    others, others_in = flow.input("others", f"u {kind}")
    largest = others.agg(F.max("u").alias("w"))
    pairs = rows.crossJoin(largest.hint("broadcast")).where(condition)
    return pairs.select(*wanted).keep(), rows_in, others_in


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), condition=st.sampled_from(CONDITIONS), wanted=st.sampled_from(["k", "kvw"]),
       runner=st.sampled_from(["local", "local", "local", "spark"]), buckets=st.integers(1, 3))
def test_what_is_compared_with_an_aggregate(spark, kind, data, condition, wanted, runner, buckets):
    value = KINDS[kind] | st.none()
    batch = st.lists(st.tuples(st.integers(0, 2), value), max_size=6)
    with Dataflow(spark, runner=runner, buckets=buckets) as flow:
        output, rows_in, others_in = program(flow, kind, condition, list(wanted))
        rows, others = [], []
        for time in range(3):
            came, more = data.draw(batch), data.draw(st.lists(st.tuples(value), max_size=3))
            gone = rows[:data.draw(st.integers(0, 2))]
            less = others[:data.draw(st.integers(0, 2))]
            for session, news, olds in ((rows_in, came, gone), (others_in, more, less)):
                session.insert(news)
                session.remove(olds)
            rows, others = [*rows[len(gone):], *came], [*others[len(less):], *more]
            flow.advance_to(time + 1)
            w = max((u for u, in others if u is not None), default=None)
            test = {
                "v > w": lambda v: v > w, "v >= w": lambda v: v >= w, "v < w": lambda v: v < w,
                "w < v": lambda v: w < v, "w >= v": lambda v: w >= v,
                "NOT v > w": lambda v: v <= w,
            }[condition]
            expected = [
                (k,) if wanted == "k" else (k, v, w) for k, v in rows
                if others and w is not None and v is not None and test(v)
            ]
            assert sorted(map(tuple, output.at().collect())) == sorted(expected)


def test_only_comparisons_with_one_record_are_found_by_ranges(spark):
    with Dataflow(spark) as flow:
        rows, _ = flow.input("rows", "k int, v long, x double")
        extremes = rows.agg(F.max("v").alias("w"), F.max("x").alias("y"), empty=True)
        pairs = rows.crossJoin(extremes.hint("broadcast"))
        assert may_be_compared(pairs._node)
        assert not may_be_compared(rows.crossJoin(rows.select("v").hint("broadcast"))._node)

        def by_ranges(frame):
            return frame._node.kind == "concat"

        # Columns, as a client of Connect does not take SQL text apart.
        k, v, w, x, y = map(F.col, "kvwxy")
        for condition in (v > w, w <= v, v < w):
            assert by_ranges(pairs.where(condition))
        for condition in (v == w, v > 3, v > k, x > y, v + 1 > w, (v > w) & (k == 1)):
            assert not by_ranges(pairs.where(condition))


def test_values_that_are_rounded_are_compared_as_rounded(spark):
    """With 38 digits before the point there are none after it: 0.4 is no larger than 0."""
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, rows_in = flow.input("rows", "v decimal(38,10)")
        others, others_in = flow.input("others", "u decimal(38,0)")
        pairs = rows.crossJoin(others.agg(F.max("u").alias("w")).hint("broadcast"))
        output = pairs.where("v > w").select("v").keep()
        rows_in.insert([(Decimal("0.4"),), (Decimal("0.6"),), (Decimal(2),)])
        others_in.insert([(Decimal(0),)])
        flow.advance_to(1)
        assert sorted(float(v) for v, in output.at().collect()) == [0.6, 2]


def test_a_comparison_of_kept_pairs_is_added_when_they_have_run(spark):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        rows, rows_in = flow.input("rows", "v long")
        pairs = rows.crossJoin(rows.agg(F.max("v").alias("w")).hint("broadcast")).keep()
        rows_in.insert([(1,), (2,)])
        flow.advance_to(1)
        output = pairs.where("v < w").keep()
        rows_in.insert([(3,)])
        flow.advance_to(2)
        assert sorted(map(tuple, output.at().collect())) == [(1, 3), (2, 3)]


def test_a_step_looks_at_what_is_near(spark):
    """If the aggregate changes a little, the step reads few records."""
    with Dataflow(spark, runner="local", buckets=1) as flow:
        output, rows_in, others_in = program(flow, "long", F.col("v") > F.col("w"), ["k"])
        rows_in.insert([(n, n * 1000) for n in range(20_000)])
        others_in.insert([(10_000_000,)])
        flow.advance_to(1)
        assert output.at().count() == 9_999
        others_in.insert([(10_003_500,)])
        flow.advance_to(2)
        assert output.at().count() == 9_996
        assert flow._state.report.rows_out < 400


def test_decimals_of_too_many_digits_are_rounded_before_they_are_compared(spark):
    """As in Spark: with 34 digits before the point, four of the 6 after it remain."""
    values = [Decimal(n).scaleb(-6) for n in (0, 30, 40, 49, 50, 51, 99, 149, 150, 10**6 + 50)]
    frame = spark.createDataFrame([(v,) for v in values], "u decimal(38,6)")
    for least in map(Decimal, ("0.00", "0.01", "1.00")):
        with Dataflow(spark, runner="local") as flow:
            rows, rows_in = flow.input("rows", "u decimal(38,6)")
            others, others_in = flow.input("others", "w decimal(36,2)")
            largest = others.agg(F.max("w").alias("w"))
            for condition in ("u > w", "u <= w"):
                pairs = rows.crossJoin(largest.hint("broadcast")).where(condition)
                pairs.select("u").keep(condition)
            rows_in.insert(frame)
            others_in.insert([(least,)])
            flow.advance_to(1)
            for condition in ("u > w", "u <= w"):
                plain = frame.crossJoin(spark.createDataFrame([(least,)], "w decimal(36,2)"))
                expected = sorted(plain.where(condition).select("u").collect())
                assert sorted(flow[condition].at().collect()) == expected


@pytest.mark.parametrize(("left", "right", "condition", "expected"), [
    ("int", "decimal(10,2)", "v > w", [10]),
    ("decimal(10,2)", "long", "v >= w", [9, 10]),
    ("smallint", "long", "v < w", [8]),
    # As texts 9 is larger than 10.
    ("long", "long", "CAST(v AS string) > CAST(w AS string)", []),
    ("long", "long", "CAST(v AS string) < CAST(w AS string)", [8, 10]),
])
def test_values_of_several_types_are_compared(spark, left, right, condition, expected):
    with Dataflow(spark, runner="local") as flow:
        rows, rows_in = flow.input("rows", f"v {left}")
        others, others_in = flow.input("others", f"u {right}")
        largest = others.agg(F.max("u").alias("w"))
        output = rows.crossJoin(largest.hint("broadcast")).where(condition).keep()
        for session, values in ((rows_in, [8, 9, 10]), (others_in, [9])):
            kind = left if session is rows_in else right
            number = Decimal if kind.startswith("decimal") else int
            session.insert([(number(value),) for value in values])
        flow.advance_to(1)
        assert sorted(int(row.v) for row in output.at().collect()) == expected
