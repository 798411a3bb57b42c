"""Steps: state stays bounded, a failed step changes nothing, and no diff ever wraps round."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import weakref
from collections import Counter
from time import sleep

import numpy as np
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from oracle import Op, Program, accumulate, total
from programs import Run, files_of
from pyspark.sql import functions as F

from pyspark_diff import (
    Dataflow,
    DiffFrame,
    DiffOverflowError,
    InvalidTimeError,
    NotReadableError,
    TimeRegressionError,
)
from pyspark_diff.engine.step import Step
from pyspark_diff.engine.traces import Traces
from pyspark_diff.runners import local

every_runner = pytest.mark.parametrize("runner", ["local", "spark"])

MOST = 2**63 - 1
KS = (("k", "int"), ("s", "string"))


# Compaction bounds the state.


def changes_forever(spark, steps, **options):
    """Rows, bytes and files after each step of a stream of changes to at most twenty records."""
    program = Program(
        (KS,),
        (Op("count", (0,)), Op("pick", (1,), ("s", "count")), Op("distinct", (2,)),
         Op("arrange_by_self", (3,))),
        (4,),
    )
    choice = random.Random(steps)
    records: Counter[tuple[int, str]] = Counter()
    sizes = []
    with Run(spark, program, kept=True, runner="local", buckets=2, memory_rows=0, **options) as run:
        check, run.check = run.check, lambda: None
        run.flow._piece_rows = 1000  # else each record would have a file of its own
        for step in range(steps):
            coming = [(choice.randrange(5), choice.choice("abcd")) for _ in range(3)]
            going = choice.sample(sorted(records.elements()), min(3, max(0, len(records) - 5)))
            records.update(coming)
            records.subtract(going)
            records += Counter()
            # Two times a step, so that compaction has times to advance.
            run.step((
                (0, "insert", ("rows", coming)), (0, "advance", 1), (0, "remove", ("rows", going)),
                (0, "advance", 1), (0, "flush", None),
            ))
            traces = run.flow._state.traces.values()
            sizes.append((
                sum(trace.rows for trace in traces),
                sum(trace.size for trace in traces),
                max(len(trace.batches) for trace in traces),
                len(files_of(run.flow)),
            ))
        run.check = check
        run.check()
    return sizes


#: Generous bounds for three arrangements of twenty records. No batch has many more rows than
#: records, and the number of tiny new batches is limited.
ROWS, BYTES, BATCHES, FILES = 200, 60_000, 9, 60


def test_compaction_bounds_the_state(spark):
    for rows, size, batches, files in changes_forever(spark, 150):
        assert rows <= ROWS and size <= BYTES and batches <= BATCHES and files <= FILES


def test_kept_history_is_not_compacted(spark):
    # The bounds above would prove little if a kept history did not exceed them.
    rows, _, batches, _ = changes_forever(spark, 100, keep_history=True)[-1]
    assert rows > ROWS and batches <= BATCHES


# A failed step changes nothing.


class Planned(Exception):
    """Raised by a user's function while a file exists."""


def failing(flag, kind):
    """A user's function that fails for one value as long as the file exists."""

    def check(value):
        if value == 2 and flag.exists():
            raise Planned("this was planned")

    if kind == "flat_map":
        def function(row):
            check(row.k)
            return [(row.k,)]
    else:
        def function(n):
            check(n)
            return min(n, 5)
    return function


@every_runner
@pytest.mark.parametrize("kind", ["flat_map", "threshold"])
def test_failed_step_changes_nothing(spark, tmp_path, runner, kind):
    flag, updates = tmp_path / "fail", []
    function = failing(flag, kind)
    with Dataflow(spark, runner=runner, buckets=3) as flow:
        numbers, numbers_in = flow.input("numbers", "k long")
        before = numbers.count()
        if kind == "flat_map":
            mapped = before.select("k").flat_map(function, "k long")
        else:
            mapped = numbers.threshold(function)
        probe = mapped.count().inspect(lambda *update: updates.append(update)).probe()
        arranged = mapped.arrange_by_self()
        first, second = list(range(10, 20)), [1, 2, 10, 21, 22]
        numbers_in.insert([(k,) for k in first])
        numbers_in.advance_to(1)
        numbers_in.flush()
        flow.step()

        flag.touch()
        # Now there is a value of two, and a multiplicity of two, in one bucket of three.
        numbers_in.insert([(k,) for k in second])
        numbers_in.advance_to(2)
        numbers_in.flush()
        state, files, shown, frontier = flow._state, files_of(flow), list(updates), probe.frontier()
        for _ in range(2 if runner == "local" else 1):  # Spark restarts its failed workers
            with pytest.raises(Exception, match="this was planned"):
                flow.step()
            assert flow._state is state
            assert files_of(flow) == files == state.paths()
            assert updates == shown and probe.frontier() == frontier
        assert sorted(arranged.at(0).collect()) == [(k,) for k in first]

        flag.unlink()
        assert flow.step()
        assert not flow.step()
        assert files_of(flow) == flow._state.paths()
        expected = Counter(set(first + second) if kind == "flat_map" else first + second)
        assert sorted(arranged.at(1).collect()) == [(k,) for k in sorted(expected.elements())]
        assert accumulate(updates, 1) == total(((k, n), 1) for k, n in expected.items())


# Diffs that leave 64 bits.


@pytest.fixture(params=["true", "false"], ids=["ansi", "no ansi"])
def ansi(spark, request):
    """Spark's arithmetic raises on overflow or wraps round; ours raises in any case."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    yield
    spark.conf.set("spark.sql.ansi.enabled", before)


#: Updates of a record with a sum beyond 64 bits: at one time, or over two times.
TOO_LARGE = {
    "one time": [(1, 0, 2**62), (1, 0, 2**62)],
    "two times": [(1, 0, MOST), (1, 1, 1)],
    "below": [(1, 0, -MOST), (1, 1, -2)],
}


@every_runner
@pytest.mark.parametrize("case", TOO_LARGE)
def test_sums_do_not_wrap(spark, ansi, runner, case):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        numbers, numbers_in = flow.input("numbers", "k long")
        counts = numbers.count().keep()
        numbers_in.update(TOO_LARGE[case])
        numbers_in.close()
        with pytest.raises(DiffOverflowError):
            flow.step()
        assert files_of(flow) == set()
        with pytest.raises(NotReadableError):
            counts.at(0)


@every_runner
def test_sums_with_what_stands_do_not_wrap(spark, ansi, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        numbers, numbers_in = flow.input("numbers", "k long")
        counts = numbers.count().keep()
        numbers_in.update([(1, 0, MOST), (2, 0, 1)])
        numbers_in.advance_to(1)
        numbers_in.flush()
        flow.step()
        state, files = flow._state, files_of(flow)
        numbers_in.update([(1, 1, 1), (2, 1, 1)])
        numbers_in.flush()
        numbers_in.advance_to(2)
        numbers_in.flush()
        with pytest.raises(DiffOverflowError):
            flow.step()
        assert flow._state is state and files_of(flow) == files
        assert sorted(counts.at(0).collect()) == [(1, MOST), (2, 1)]


@every_runner
@pytest.mark.parametrize("where", [False, True])
def test_negation_does_not_wrap(spark, ansi, runner, where):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        numbers, numbers_in = flow.input("numbers", "k long")
        # With a condition before it Spark evaluates the negation, otherwise Arrow does.
        numbers = numbers.where("k > 0") if where else numbers
        numbers.negate().count().inspect(print)
        numbers_in.update([(1, 0, -MOST - 1)])
        numbers_in.close()
        with pytest.raises(DiffOverflowError):
            flow.step()


# Times that an operator changes.


@every_runner
@pytest.mark.parametrize(("by", "error"), [(-1, TimeRegressionError), (1, InvalidTimeError)])
def test_changed_times_are_refused(spark, runner, by, error):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        numbers, numbers_in = flow.input("numbers", "k long", start=5)
        moved = numbers.transform(lambda frame: frame.withColumn("time", F.col("time") + by))
        moved.count().inspect(print)
        numbers_in.insert([(1,)])
        numbers_in.advance_to(6)
        numbers_in.flush()
        with pytest.raises(error):
            flow.step()


# Many rows.


def test_large_outputs_travel_as_files(spark):
    rows = 120_000
    with Dataflow(spark, runner="spark", buckets=2) as flow:
        numbers, numbers_in = flow.input("numbers", "k long")
        counts = numbers.count()
        evens = counts.where("k % 2 = 0").keep()
        distinct = counts.distinct().keep()
        numbers_in.insert(spark.range(rows).withColumnRenamed("id", "k"))
        numbers_in.advance_to(1)
        numbers_in.insert(spark.range(rows // 2).withColumnRenamed("id", "k"))
        numbers_in.advance_to(2)
        numbers_in.flush()
        flow.step()
        assert files_of(flow) == flow._state.paths()
        for frame, stride in [(distinct, 1), (evens, 2)]:
            table = frame.at(1).toArrow().sort_by("k")
            keys = np.arange(0, rows, stride)
            assert np.array_equal(table["k"].to_numpy(), keys)
            assert np.array_equal(table["count"].to_numpy(), np.where(keys < rows // 2, 2, 1))


def test_many_rows_on_the_driver(spark):
    # Too many to collect as rows, so Spark returns them as Arrow.
    numbers = [(k % 700, k % 3, 1) for k in range(2000)]
    with Dataflow(spark, runner="local", buckets=2) as flow:
        frame, numbers_in = flow.input("numbers", "k long")
        counts = frame.where("k % 2 = 0").withColumn("h", F.col("k") / 2).select("h").count().keep()
        numbers_in.update(numbers)
        numbers_in.advance_to(3)
        numbers_in.flush()
        flow.step()
        expected = Counter(k / 2 for k, _, _ in numbers if k % 2 == 0)
        assert {row["h"]: row["count"] for row in counts.at(2).collect()} == expected


# Tables.


def test_whole_history_and_steps_give_the_same_tables(spark):
    updates = [(1, "a", 0, 2), (1, "b", 0, 1), (1, "a", 1, -1), (2, "a", 2, 1), (1, "a", 3, -1)]
    schema = "k int, s string, time long, diff long"

    def program(frame):
        return frame.select("s").count().keep()

    expected = spark.createDataFrame(
        [("a", 2, 0, 1), ("b", 1, 0, 1), ("a", 2, 1, -1), ("a", 1, 1, 1),
         ("a", 1, 2, -1), ("a", 2, 2, 1), ("a", 2, 3, -1), ("a", 1, 3, 1)],
        "s string, count long, time long, diff long",
    )
    snapshot = spark.createDataFrame([("a", 1), ("b", 1)], "s string, count long")
    whole = program(DiffFrame(spark.createDataFrame(updates, schema)))
    with Dataflow(spark, keep_history=True, buckets=2) as flow:
        frame, session = flow.input("in", "k int, s string")
        stepped = program(frame)
        for time in range(4):
            session.update([update for update in updates if update[2] == time])
            session.advance_to(time + 1)
            session.flush()
            flow.step()
        for result in (whole, stepped):
            assert_df_equality(
                result.to_df(), expected, ignore_row_order=True, ignore_nullable=True
            )
            assert_df_equality(result.at(1), snapshot, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_rows_that_wait_for_a_lagging_input_are_taken_once(spark, runner):
    """Three steps read one source, each for the times that have become complete."""
    with Dataflow(spark, runner=runner, buckets=2, keep_history=True) as flow:
        left, left_in = flow.input("left", "k long")
        right, right_in = flow.input("right", "k long")
        counts = left.union(right).count().keep()
        left_in.update([(7, time, 1) for time in range(9)])
        left_in.advance_to(9)
        left_in.flush()
        for frontier in (3, 6, 9):
            right_in.advance_to(frontier)
            right_in.flush()
            flow.step()
            assert counts.at().collect() == [(7, frontier)]
        assert [counts.at(time).collect()[0]["count"] for time in range(9)] == list(range(1, 10))


def test_workers_that_run_steps_have_been_taken_out_of_the_collector(spark):
    """PySpark collects garbage after each task, which would take longer than the task."""

    def frozen(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [gc.get_freeze_count()]})

    with Dataflow(spark, runner="spark", buckets=2) as flow:
        words, session = flow.input("words", "word string")
        words.count().keep()
        for time in range(1, 9):
            session.insert([("a",), ("b",), ("c",)])
            session.advance_to(time)
            session.flush()
            flow.step()
    counts = [row.n for row in spark.range(0, 8, 1, 8).mapInArrow(frozen, "n long").collect()]
    assert max(counts) > 10_000


def test_what_nothing_comes_to_is_not_visited(spark, monkeypatch):
    """A step only visits operators with new input. Idle operators advance without a visit."""
    visited = []
    visit = Step._visit
    monkeypatch.setattr(
        Step, "_visit", lambda self, node, before: visited.append(node) or visit(self, node, before)
    )
    with Dataflow(spark, runner="local") as flow:
        inputs = [flow.input(f"i{number}", "k long, v long") for number in range(5)]
        sums = [rows.groupBy("k").agg(F.sum("v").alias("v")).keep() for rows, _ in inputs]
        for _, session in inputs:
            session.insert([(1, 1), (2, 2)])
        flow.advance_to(1)
        visits, before = len(visited), flow._state
        visited.clear()
        inputs[0][1].insert([(1, 5)])
        inputs[0][1].advance_to(2)
        flow.step()
        assert len(visited) == visits // 5
        same = [node for node, trace in flow._state.traces.items() if trace is before.traces[node]]
        assert len(same) == len(before.traces) * 4 // 5
        visited.clear()
        inputs[1][1].insert([(2, 7)])
        flow.advance_to(9)  # all inputs advance, and one has new rows
        assert len(visited) == visits // 5
        assert {trace.upper.bound for trace in flow._state.traces.values()} == {9}
        actual = [sorted((row.k, row.v) for row in frame.at(8).collect()) for frame in sums]
        assert actual == [[(1, 6), (2, 2)], [(1, 1), (2, 9)]] + [[(1, 1), (2, 2)]] * 3
        # Operators without new input are compacted too.
        sinces = {trace.since.bound for trace in flow._state.traces.values()}
        assert sinces == {8}, sinces


def calls(do) -> int:
    """The number of function calls of `do` in this thread."""
    calls_seen = 0

    def count(frame, event, argument):
        nonlocal calls_seen
        calls_seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
    return calls_seen


def test_what_a_step_costs_follows_neither_buckets_nor_operators(spark):
    """Many buckets, and many operators without new input, add no work to a small step."""

    def of_buckets(buckets: int) -> int:
        random = np.random.default_rng(3)
        with Dataflow(spark, runner="local", buckets=buckets) as flow:
            words, session = flow.input("words", "word long, size long")
            words.select("word").count().select("count").count().keep()
            session.insert(pa.table({
                "word": random.integers(0, 3000, 9000), "size": np.arange(9000)
            }))
            flow.advance_to(1)
            costs = []
            for time in range(2, 9):
                rows = {"word": random.integers(0, 3000, 900), "size": np.arange(900)}
                session.insert(pa.table(rows))
                costs.append(calls(lambda time=time: flow.advance_to(time)))
        return sorted(costs)[3]

    def of_inputs(inputs: int) -> int:
        with Dataflow(spark, runner="local", buckets=2) as flow:
            sources = [flow.input(f"i{number}", "k long") for number in range(inputs)]
            for rows, session in sources:
                rows.groupBy("k").count().keep()
                session.insert([(1,), (2,)])
            flow.advance_to(1)
            costs = []
            for time in range(2, 9):
                session.insert([(1,)])
                session.advance_to(time)
                costs.append(calls(flow.step))
        return sorted(costs)[3]

    assert of_buckets(32) < 1.5 * of_buckets(1)
    assert of_inputs(60) < 1.5 * of_inputs(1)


def test_a_step_leaves_no_cycles(spark):
    """Old states are freed at once, without the collector of cycles."""
    with Dataflow(spark, runner="local", buckets=4) as flow:
        rows, rows_in = flow.input("rows", "k long, n long")
        rows.select("k").count().select("count").count().inspect(lambda *_: None)
        rows.select("k").iterate(lambda ks: ks.select("k").distinct()).keep()
        gone = []
        for time in range(1, 4):
            rows_in.insert([(time % 2, time), (7, time)])
            rows_in.advance_to(time)
            gone.append(weakref.ref(flow._state))
            gc.disable()
            try:
                flow.step()
            finally:
                gc.enable()
        # A report may still refer to the state before the last step.
        assert [state() is None for state in gone[:2]] == [True, True]


def test_what_rests_is_seen_as_if_it_had_run(spark):
    with Dataflow(spark, runner="local") as flow:
        inputs = [flow.input(f"i{number}", "k long") for number in range(3)]
        counts = [rows.groupBy("k").count().keep() for rows, _ in inputs]
        for _, session in inputs:
            session.insert([(1,)])
        flow.advance_to(1)
        for time in range(2, 9):
            inputs[0][1].insert([(time,)])
            flow.advance_to(time)
        hold = counts[1].hold(7)
        with pytest.raises(NotReadableError, match="compacted"):
            counts[1].at(5)
        flow.advance_to(20)
        assert counts[1].at(7).collect() == counts[1].at(19).collect() == [(1, 1)]
        inputs[1][1].insert([(1,)])
        flow.advance_to(21)
        assert [counts[1].at(t).collect() for t in (7, 19, 20)] == [[(1, 1)], [(1, 1)], [(1, 2)]]
        hold.release()
        flow.advance_to(30)
        with pytest.raises(NotReadableError, match="compacted"):
            counts[1].at(20)


def test_what_rests_is_seen_by_two_threads_at_once():
    """Another thread advances a trace while this thread is about to do so."""

    class Stored(dict):
        def __getitem__(self, node):
            trace = super().__getitem__(node)
            others, self.others = self.others, []
            for other in others:
                assert other() == "later"
            return trace

    stored = Stored(node="earlier")
    traces = Traces(stored)
    traces.rest(["node"], lambda node, trace: "later")
    stored.others = [lambda: traces["node"]]
    assert traces["node"] == "later"
    stored.others = []
    assert traces["node"] == stored["node"] == "later"


@pytest.mark.parametrize("buckets, rows, threads", [(2, 20_000, 2), (2, 9_000, 0), (64, 20_000, 0)])
def test_many_rows_of_few_buckets_are_done_side_by_side(spark, monkeypatch, buckets, rows, threads):
    """A step with few rows for each bucket runs all buckets at once, without threads."""
    idents = set()

    def watched(*arguments, run=local.run_bucket, **options):
        idents.add(threading.get_ident())
        sleep(0.01)
        return run(*arguments, **options)

    monkeypatch.setattr(local, "run_bucket", watched)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with Dataflow(spark, runner="local", buckets=buckets) as flow:
        numbers, numbers_in = flow.input("numbers", "k long")
        counts = numbers.count().keep()
        numbers_in.insert(pa.table({"k": np.arange(rows) % 7000}))
        flow.advance_to(1)
        assert counts.at().count() == 7000
    assert len(idents) == threads
