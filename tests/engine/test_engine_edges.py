"""Parts of the engine at the edges of their input, without Spark."""

from __future__ import annotations

import decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_diff.engine import progress
from pyspark_diff.engine.compaction import last_before
from pyspark_diff.engine.costs import OperatorCost
from pyspark_diff.engine.description import _arrow_type_text, described, digest_of
from pyspark_diff.engine.oscillation import Oscillation
from pyspark_diff.operators.node import LoopScope
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.times import Antichain


@pytest.mark.parametrize("frontier, last", [
    ([7], [6]), ([(3, 2)], [(2, 0)]), ([(3, 2, 5)], [(2, 0, 0)]), ([], []),
])
def test_the_last_complete_time_of_a_frontier(frontier, last):
    assert last_before(Antichain(frontier)) == Antichain(last)


def test_the_cost_of_a_bucket_is_the_sum_of_its_runs():
    cost = OperatorCost()
    for seconds in (0.5, 0.25):
        results = [
            SimpleNamespace(bucket=bucket, rows_in=3, rows_read=2, seconds=seconds,
                            output=SimpleNamespace(rows=1))
            for bucket in (0, 4)
        ]
        cost.took(results, on_spark=True)
    assert cost.buckets == {0: (6, 4, 0.75), 4: (6, 4, 0.75)}
    assert (cost.rows_in, cost.rows_read, cost.rows_out, cost.spark_runs) == (12, 8, 4, 2)


def test_a_digest_is_what_stores_hold():
    """Another digest of the same parts would stop the continuation of stored programs."""
    assert digest_of("join", "a") == "01bbb30f932b04b44e0565fce50b0fc3"
    assert len({digest_of("ab", ""), digest_of("a", "b"), digest_of("", "ab")}) == 3


def test_a_class_of_a_known_package_is_its_name():
    assert described(decimal.Decimal).unseen == ()
    assert described(decimal.Decimal) != described(decimal.Context)


def test_the_text_of_an_arrow_type_says_which_fields_are_never_null():
    fields = [pa.field("a", pa.int64()), pa.field("b", pa.string(), nullable=False)]
    assert _arrow_type_text(fields[0]) == "'a': int64"
    assert _arrow_type_text(pa.schema(fields)) == "'a': int64; 'b': string not null"
    assert _arrow_type_text(pa.list_(pa.int64())) == str(pa.list_(pa.int64()))


class OfOneColumn:
    schema = Schema(T.StructType([T.StructField("n", T.LongType())]))


def test_a_loop_that_swings_after_many_iterations_is_noticed():
    """The test exceeds the small numbers that Python caches as objects."""
    swings, variable = Oscillation(), OfOneColumn()

    def takes(number, diff):
        return swings.takes([(variable, pa.table({
            "n": pa.array([number], pa.int64()), TIME: pa.array([0], pa.int64()),
            DIFF: pa.array([diff], pa.int64())}))])

    for number in range(520):
        assert takes(number, 1) is None
    periods = [takes(-1, 1 if turn % 2 else -1) for turn in range(520)]
    assert [period[0] for period in periods if period is not None][:1] == [2]


def test_a_look_at_a_step_that_fails_shows_no_bars_and_goes_on():
    def look(now):
        raise ZeroDivisionError

    times = []
    runs = [SimpleNamespace(look=look, bars=True), SimpleNamespace(look=times.append, bars=True)]
    watcher = progress._Watcher()
    watcher._runs = runs
    watcher._each(5.0)
    assert [run.bars for run in runs] == [False, True] and times == [5.0]


def test_the_loop_at_a_depth():
    outer = LoopScope("outer", None, 9, stops=False)
    middle = LoopScope("middle", outer, 9, stops=False)
    inner = LoopScope("inner", middle, 9, stops=False)
    assert [inner.enclosing(depth) for depth in (3, 2, 1, 0)] == [inner, middle, outer, outer]
    assert outer.enclosing(4) is outer
