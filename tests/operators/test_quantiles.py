"""Values at places in order are those of the sorted list, at every time and however it is cut."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from connect_server import in_sql_text
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, DiffOverflowError
from pyspark_diff.expressions.aggregate_functions import Median, Percentile, PercentileApprox
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.quantiles import Quantiles, at_places, codes, from_codes, has_codes
from pyspark_diff.kernels.updates import UpdateChunk

numbers = st.integers(-3, 3) | st.sampled_from([-2**63, -2**63 + 1, 2**63 - 1])
rows = st.lists(st.tuples(st.integers(0, 2), numbers, st.integers(0, 2), st.integers(-2, 3)),
                max_size=12)


def updates(given_rows):
    key, value, time, diff = np.array(given_rows, np.int64).reshape(-1, 4).T
    return consolidate(UpdateChunk(key, None, time, diff, value))


@settings(max_examples=20 * settings().max_examples)
@example(batches=[[(0, 1, 0, -1), (0, 2, 0, 1)], [(0, 1, 0, 3)]], came=[(0, 1, 1, -1)],
         parts=[0.5], times=1, between=True)
@example(batches=[[(0, 1, 0, -1)], [(0, 2, 0, 1), (0, 3, 0, 1)]], came=[(0, 7, 1, 1)],
         parts=[0.5], times=1, between=False)
@given(
    batches=st.lists(rows, max_size=3), came=rows, times=st.integers(1, 2), between=st.booleans(),
    parts=st.lists(st.sampled_from([0.0, 0.3, 0.5, 1.0]), min_size=1, max_size=2),
)
def test_at_places(batches, came, parts, times, between):
    new = updates(came)
    old = [updates([(k, v, 0, d) for k, v, _, d in batch]).updates for batch in batches]
    old = [
        replace(chunk, diff=int(chunk.diff[0])) if len(chunk) and len({*chunk.diff}) == 1 else chunk
        for chunk in old
    ]
    keys = UpdateChunk(np.arange(3), None, 0, 1)
    wanted = Quantiles(tuple(parts), True, times, between, pa.int64(), pa.list_(pa.float64()))
    key64, time = new.updates.key64, new.updates.times()
    place = np.unique(key64)
    results = at_places(keys, place, old, new, key64 * 4 + 1 + time, 4, wanted)
    events, totals, values, _ = results
    assert events.tolist() == sorted({0, 4, 8, *(key64 * 4 + 1 + time).tolist()})
    for event, total, quantiles in zip(events.tolist(), totals.tolist(), values.tolist()):
        key, until = divmod(event, 4)
        sums = Counter()
        for batch in batches:
            for k, v, _, d in batch:
                sums[v] += d if k == key else 0
        for k, v, t, d in came:
            sums[v] += d if k == key and t < until else 0
        listed = [v for v in sorted(sums) for _ in range(max(sums[v], 0))]
        assert total == len(listed)
        for low, high, part in zip(quantiles[::2], quantiles[1::2], parts):
            if not listed:
                continue
            if between:
                where = (len(listed) * times - 1) * part
                places = math.floor(where) // times, math.ceil(where) // times
            else:
                places = (max(math.ceil(part * len(listed)), 1) - 1,) * 2
            assert (low, high) == tuple(listed[p] for p in places)


def test_more_than_can_be_counted():
    old = updates([(0, 1, 0, 2**62), (0, 2, 0, 2**62)]).updates
    median = Quantiles((0.5,), False, 1, True, pa.int64(), pa.float64())
    with pytest.raises(DiffOverflowError):
        at_places(
            UpdateChunk(np.arange(1), None, 0, 1), np.array([0]), [old], updates([(0, 1, 0, 1)]),
            np.array([1]), 2, median,
        )


KINDS = {
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "bigint": (pa.int64(), numbers),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "decimal(18,4)": (pa.decimal128(18, 4), st.integers(-10**18 + 1, 10**18 - 1)
                      .map(lambda n: Decimal(n).scaleb(-4))),
    "date": (pa.date32(), st.integers(-9, 9).map(lambda n: date(1970, 1, 1) + timedelta(n))),
    "timestamp_ntz": (pa.timestamp("us"), st.integers(-9, 9).map(
        lambda n: datetime(1970, 1, 1) + timedelta(microseconds=n))),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_codes_are_decoded_to_their_values(kind, data):
    arrow, values = KINDS[kind]
    sample = data.draw(st.lists(values, max_size=9))
    column = pa.array([*sample, None], arrow)
    assert has_codes(arrow)
    encoded = codes(column)
    assert encoded.is_null().to_pylist() == column.is_null().to_pylist()
    numbers = encoded.drop_null().to_numpy()
    assert from_codes(numbers, arrow).type == arrow
    again = from_codes(numbers, arrow).to_pylist()
    assert [str(v + 0.0) if isinstance(v, float) else v for v in again] == [
        str(v + 0.0) if isinstance(v, float) else v for v in sample
    ]


def shown(value):
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def order(value):
    return (True, 0) if isinstance(value, float) and math.isnan(value) else (False, value)


#: Aggregates of a column, and their results on sorted values.
FOUND = {
    "median": ("median(x)", Median()),
    "percentile": ("percentile(x, array(0.25, 0.9))", Percentile(parts=(0.25, 0.9))),
    "twice": ("percentile(x, 0.3, 2)", Percentile(parts=0.3, times=2)),
    "approx": ("percentile_approx(x, 0.4)", PercentileApprox(parts=0.4)),
    "several": ("approx_percentile(x, array(0, 0.5, 1))",
                PercentileApprox(parts=(0.0, 0.5, 1.0))),
}
COLUMNS = {
    "int": st.integers(-3, 3), "double": st.sampled_from(
        [0.0, -0.0, 1.5, -2.5, math.inf, -math.inf, math.nan]),
    "decimal(10,2)": st.integers(-300, 300).map(lambda n: Decimal(n).scaleb(-2)),
    "decimal(30,2)": st.integers(-10**20, 10**20).map(lambda n: Decimal(n).scaleb(-2)),
    "date": st.integers(0, 9).map(lambda n: date(2024, 2, 27) + timedelta(n)),
}


@in_sql_text
@pytest.mark.parametrize("kind", COLUMNS)
@given(data=st.data(), runner=st.sampled_from(["local", "local", "spark"]),
       buckets=st.integers(1, 2), grouped=st.booleans())
def test_every_time(spark, kind, data, runner, buckets, grouped):
    some = [n for n in FOUND if kind != "date" or n in ("approx", "several")]
    name, distinct = data.draw(st.sampled_from(some)), data.draw(st.booleans())
    text, function = FOUND[name]
    column = F.expr(text.replace("(x", "(DISTINCT x") if distinct else text)
    key = st.sampled_from([0, 1, None])
    batch = st.lists(st.tuples(key, st.none() | COLUMNS[kind], st.sampled_from([1, 1, 2, -1])),
                     max_size=6)
    with Dataflow(spark, runner=runner, buckets=buckets) as flow:
        frame, session = flow.input("frame", f"k int, x {kind}")
        wanted = [column.alias("found"), F.max("x").alias("most"), F.count("x").alias("n")]
        if not grouped:
            frame = frame.select(F.lit(7).alias("k"), "x")
        output = frame.groupBy("k").agg(*wanted).keep()
        sums, before = Counter(), []
        for time in range(4):
            # Some records are retracted later, so that rows of several batches cancel.
            came = [*data.draw(batch), *((k, x, -n) for k, x, n in before[:2])]
            before = came
            session.update([(k, x, time, n) for k, x, n in came])
            for k, x, n in came:
                # Equal ones are one, and NaN is equal to itself.
                sums[k if grouped else 7, shown(x)] += n
            flow.advance_to(time + 1)
            expected = []
            for k in {k for k, _ in sums}:
                there = {x: n for (j, x), n in sums.items() if j == k}
                if not sum(there.values()):
                    continue
                values = sorted(
                    ((math.nan if x == "nan" else x, 1 if distinct else n)
                     for x, n in there.items() if x is not None and n > 0),
                    key=lambda pair: order(pair[0]),
                )
                expected.append((k, shown(function.collect(values))))
            actual = [(row.k, shown(row.found)) for row in output.at().collect()]
            assert sorted(map(str, actual)) == sorted(map(str, expected))


def test_one_run_over_a_long_history(spark):
    """One group that changes at many times. Each time has its median."""
    n = 2000
    values = np.random.default_rng(0).integers(0, 500, n)
    came = [(int(v), t, 1) for t, v in enumerate(values)]
    gone = [(int(v), t + 300, -1) for t, v in enumerate(values) if t + 300 < n]
    frame = DiffFrame(spark.createDataFrame(came + gone, "x int, time int, diff int"))
    medians = {
        row.time: row.m
        for row in frame.agg(F.median("x").alias("m")).to_df().where("diff > 0").collect()
    }
    last = None
    for t in range(n):
        expected = float(np.median(values[max(0, t - 299):t + 1]))
        last = medians.get(t, last)
        assert last == expected


def test_approx_count_distinct_is_exact(spark):
    frame = spark.createDataFrame(
        [(1, 1, 0, 1), (1, 2, 0, 3), (1, None, 0, 1), (2, None, 0, 1)],
        "k int, x int, time int, diff int")
    counts = DiffFrame(frame).groupBy("k").agg(
        F.approx_count_distinct("x"), F.approx_count_distinct("x", 0.2).alias("n"))
    assert counts.columns == frame.groupBy("k").agg(
        F.approx_count_distinct("x"), F.approx_count_distinct("x", 0.2).alias("n")).columns
    assert sorted(map(tuple, counts.at(0).collect())) == [(1, 2, 2), (2, 0, 0)]
