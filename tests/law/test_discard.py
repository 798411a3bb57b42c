"""Discarded updates leave no trace, even if they waited for another input.

    at every time:  accumulate(outputs)  is that of the program without the discarded updates
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Program
from programs import Run, files_of, programs, schedules
from pyspark.sql import functions as F

from pyspark_diff import (
    Dataflow,
    FunctionError,
    NonDeterministicError,
    SchemaError,
    StaleWarning,
    StepError,
)
from pyspark_diff.engine import rewind
from pyspark_diff.engine.context import StepContext

EXAMPLES = settings().max_examples
buckets = st.integers(1, 3)
memory_rows = st.sampled_from([0, 1, 4096])


def examples(share: float) -> settings:
    """A share of the run's examples."""
    return settings(max_examples=max(1, round(EXAMPLES * share)))


def check_discards(spark, data, **options):
    program = data.draw(programs())
    # The inputs are outputs too, and often ahead of the other outputs.
    nodes = {*program.outputs, *range(len(program.inputs))}
    program = Program(program.inputs, program.ops, tuple(sorted(nodes)))
    schedule = data.draw(schedules(program.inputs, lags=True, discards=True))
    late = data.draw(st.lists(
        st.sampled_from([0, 0, 0, 1, 2]), min_size=len(nodes), max_size=len(nodes)
    ))
    with Run(spark, program, late=late, keeps=range(len(program.inputs)), **options) as run:
        run.take(schedule)


@examples(3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows, history=st.booleans())
def test_random_programs_on_the_driver(spark, data, buckets, memory_rows, history):
    check_discards(
        spark, data, runner="local", buckets=buckets, memory_rows=memory_rows, keep_history=history
    )


@examples(0.3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_random_programs_in_spark(spark, data, buckets, memory_rows):
    check_discards(spark, data, runner="spark", buckets=buckets, memory_rows=memory_rows)


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_the_rest_of_rows_that_two_steps_released(spark, runner):
    """Two steps release the two times of one update call, which waits for the other input.

    Without its later row, the earlier one is read up to the end of the first release.
    """
    with Dataflow(spark, runner=runner, buckets=1, keep_history=True) as flow:
        slow, slow_in = flow.input("slow", "k int")
        fast, fast_in = flow.input("fast", "k int")
        counts = slow.union(fast).groupBy("k").count().keep()
        pairs = slow.union(fast).join(fast, "k").keep()
        fast_in.update([(1, 10, 1), (1, 13, 2)])
        for slow_time, fast_time in (7, 11), (10, 15):
            slow_in.advance_to(slow_time)
            fast_in.advance_to(fast_time)
            flow.step()
        (dropped,) = fast_in.discard("time = 13", waiting=True)
        assert dropped.num_rows == 1
        slow_in.advance_to(14)
        flow.step()
        for time, count in (9, 0), (10, 1), (12, 1), (13, 1):
            assert [row["count"] for row in counts.at(time).collect()] == [count] * bool(count)
            assert pairs.at(time).count() == count, time


# Poison that waits for another input, and the error that names it.


def summed(key, values):
    total = sum(value * count for (value,), count in values)
    if key[0] == 0 and total >= 7:
        raise ArithmeticError("too much for zero")
    return [(total,)]


def reduced(a, b):
    return a.union(b).reduce(summed, "made long", "k")


def overflowing(a, b):
    return a.union(b).groupBy("k").agg(F.sum("v").alias("made"))


def in_a_loop(a, b):
    both = a.union(b)
    return both.iterate(
        lambda now: now.reduce(summed, "v long", "k").union(both).distinct(),
        max_iterations=3, on_limit="return",
    )


def joined(a, b):
    pairs = a.join(b.toDF("k", "w"), "k").selectExpr("k", "v + w AS v")
    return pairs.reduce(summed, "made long", "k").join(a.select("k").count(), "k")


def keyed_behind(a, b):
    """Join the sums of both inputs to the keys of the input that is ahead."""
    ahead = a.select("k").distinct()
    return reduced(a, b).join(ahead, "k").groupBy("made").count()


def ending(driver, row):
    if row.k == 5:
        assert os.getpid() != driver
        os._exit(7)
    return [tuple(row)]


def test_what_ends_a_process_of_python_is_not_tried_in_the_driver(spark):
    with Dataflow(spark, buckets=2, runner="spark") as flow:
        a, a_in = flow.input("a", "k int")
        counts = a.flat_map(partial(ending, os.getpid()), "k int").count().keep()
        a_in.insert([(k,) for k in range(7)])
        with pytest.raises(StepError, match="7 updates or frames .no trial looked for"):
            flow.advance_to(1)
        a_in.discard(F.col("k") == 5)
        flow.advance_to(1)
        assert counts.at().count() == 6


#: Program, poison, the error, and whether the input has a key.
POISONS = {
    "reduce": (reduced, (0, 7), FunctionError, False),
    "overflow": (overflowing, (1, 2**63 - 1), ArithmeticError, False),
    "loop": (in_a_loop, (0, 7), FunctionError, False),
    "join": (joined, (0, 7), FunctionError, False),
    "behind": (keyed_behind, (0, 7), FunctionError, False),
    "keyed": (reduced, (0, 7), FunctionError, True),
}


class Fed:
    """A program of two inputs, its inspected output and its first input, which is ahead."""

    def __init__(self, spark, program, keyed, **options):
        self.flow = Dataflow(spark, buckets=2, keep_history=True, **options)
        key = {"key": ["k"]} if keyed else {}
        a, self.a = self.flow.input("a", "k int, v long", **key)
        b, self.b = self.flow.input("b", "k int, v long")
        self.shown, self.ahead = Counter(), Counter()
        output = program(a, b)
        output.inspect(lambda r, t, d: self.shown.update({(r, t): d}))
        a.inspect(lambda r, t, d: self.ahead.update({(r, t): d}))
        self.frames = [output.keep(), a.select("k").count().keep()]

    def send(self, rows):
        getattr(self.a, "upsert" if hasattr(self.a, "upsert") else "insert")(rows)

    def step(self, session, time):
        session.advance_to(time)
        session.flush()
        return self.flow.step()

    def begin(self, poison):
        """Feed both inputs, the first ahead of the second, with the poison at time 3."""
        self.send([(1, 1), (2, 2)])
        self.b.insert([(0, 1), (1, 1), (1, 5)])
        self.step(self.a, 1)
        self.step(self.b, 1)
        self.a.advance_to(2)
        self.send([(2, 3), (4, 4)])
        self.a.advance_to(3)
        self.send([*poison, (3, 3)])
        self.step(self.a, 4)
        self.send([(1, 8)])
        self.step(self.a, 6)
        self.step(self.a, 7)

    def all(self):
        """The kept outputs at all times, and the inspected updates."""
        times = range(9)
        states = [[sorted(frame.at(t).collect()) for t in times] for frame in self.frames]
        return states, {**self.shown - Counter()}, {**self.ahead - Counter()}


CASES = [
    *((name, "local") for name in POISONS),
    *(pytest.param(name, "spark", marks=pytest.mark.slow) for name in ("join", "keyed")),
]


@pytest.mark.parametrize(("name", "runner"), CASES)
def test_poison_that_waits_for_another_input_is_found_and_dropped(spark, name, runner):
    program, poison, error, keyed = POISONS[name]
    poisoned, clean = (Fed(spark, program, keyed, runner=r) for r in (runner, "local"))
    with poisoned.flow as flow, clean.flow:
        poisoned.begin([poison])
        clean.begin([])
        if name == "behind":
            for fed in poisoned, clean:
                fed.a.close()
                fed.flow.step()
        poisoned.step(poisoned.b, 2)
        state, files = flow._state, files_of(flow)
        poisoned.b.insert([(1, 1)])
        for _ in range(2):
            with pytest.raises(error) as caught:
                poisoned.step(poisoned.b, 5)
            what = "upsert " if keyed else ""
            message = f"input 'a' at time 3: {what}{poison!r}{'' if keyed else ' with diff 1'}; an"
            assert message in str(caught.value), caught.value
            assert "discard(waiting=True)" in str(caught.value)
            assert flow._state is state and files_of(flow) == files
        assert [row["k"] for table in poisoned.a.discard() for row in table.to_pylist()] == []
        with pytest.raises(error):
            flow.step()
        (dropped,) = poisoned.a.discard(F.col("v") == poison[1], waiting=True)
        row = {"k": poison[0], "v": poison[1], "time": 3}
        assert dropped.to_pylist() == [{**row, "change": "upsert"} if keyed else {**row, "diff": 1}]
        assert poisoned.a.discard("v = 7", waiting=True) == []
        assert flow.step() and files_of(flow) == flow._state.paths() | flow._outputs.pinned
        # Corrected rows enter like any others.
        for fed in poisoned, clean:
            if name != "behind":
                fed.send([(5, 7)])
            if fed is clean:
                fed.step(fed.b, 2)
                fed.b.insert([(1, 1)])
            fed.step(fed.b, 5)
            if name != "behind":
                fed.step(fed.a, 9)
            fed.step(fed.b, 9)
        assert poisoned.all() == clean.all()
        assert not any(flow._state.recent.values()) and not flow._state.shown
        assert files_of(flow) == flow._state.paths() | flow._outputs.pinned


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_step_that_takes_back_may_be_cut_short(spark, runner, use_thresholds):
    use_thresholds(spine_merge_rows_min=0)  # so that a batch has to be cut
    poisoned, clean = (Fed(spark, reduced, False, runner=r) for r in (runner, "local"))
    with poisoned.flow as flow, clean.flow:
        poisoned.begin([(0, 7)])
        assert [table.num_rows for table in flow.discard(waiting=True)["a"]] == [5]
        state, files = flow._state, files_of(flow)
        with pytest.warns(StaleWarning, match="of input 'a' were discarded.*step()"):
            poisoned.frames[1].at()
        for name in "cut", "settle", "emit":
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(StepContext, name, Mock(side_effect=KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    flow.step()
            assert flow._state is state and files_of(flow) == files
        assert flow.step() and not flow._state.rewinds
        clean.send([(1, 1), (2, 2)])
        clean.b.insert([(0, 1), (1, 1), (1, 5)])
        for fed in poisoned, clean:
            fed.a.close(), fed.b.close()
            fed.flow.step()
        assert poisoned.all() == clean.all()


def test_frames_that_wait_are_dropped_in_part(spark):
    with Dataflow(spark, buckets=2, runner="spark") as flow:
        a, a_in = flow.input("a", "k int, v long")
        b, b_in = flow.input("b", "k int, v long")
        sums = reduced(a, b).keep()
        a_in.insert(spark.range(4).selectExpr("int(id) k", "id + 7 v"))
        a_in.advance_to(2)
        flow.step()
        a_in.insert(spark.range(3, 9).selectExpr("int(id % 7) k", "id v"))
        with pytest.raises(FunctionError, match=r"'a' at time 0: \(0, 7\).*an earlier step took"):
            flow.advance_to(1)
        first, second = a_in.discard("k = 0", waiting=True)
        assert first.to_pylist() == [{"k": 0, "v": 7, "time": 0, "diff": 1}]
        assert second.collect() == [(0, 7, 2, 1)]
        flow.advance_to(3)
        assert sorted(sums.at().collect()) == [(1, 16), (2, 9), (3, 13), (4, 4), (5, 5), (6, 6)]


def test_what_can_be_taken_back_is_bounded(spark, use_thresholds):
    with Dataflow(spark, buckets=1, runner="local") as flow:
        a, a_in = flow.input("a", "k int, v long")
        b, b_in = flow.input("b", "k int, v long")
        a.join(b.toDF("k", "w"), "k").keep()
        counts = a.select("k").count().keep()
        use_thresholds(rewind_rows_max=20)
        most = 0
        for time in range(1, 60):
            a_in.insert([(1, time)])
            a_in.advance_to(time)
            flow.step()
            most = max(most, len(flow._state.recent[a_in._node]))
            rows = flow._state.traces[flow._state.graph.arrangement(
                flow._outputs._sinks[counts._node])].rows
            assert rows < 110, rows
        assert 15 < most <= 22
        assert sum(table.num_rows for table in a_in.discard(waiting=True)) < 22


def test_conditions_are_checked(spark):
    with Dataflow(spark, runner="local") as flow:
        _, a_in = flow.input("a", "k int, v long")
        a_in.insert([(1, None), (2, 2), (3, 3)])
        with pytest.raises(SchemaError, match="condition as a Column or as SQL text, not 5"):
            a_in.discard(5)
        with pytest.raises(Exception, match="nosuch"):
            a_in.discard("nosuch = 1")
        (dropped,) = a_in.discard("v = 2 AND time = 0")
        assert dropped["k"].to_pylist() == [2]
        (dropped,) = a_in.discard()
        assert dropped["k"].to_pylist() == [1, 3]


def test_one_poison_after_the_other(spark):
    poisoned, clean = (Fed(spark, reduced, False, runner="local") for _ in range(2))
    with poisoned.flow as flow, clean.flow:
        poisoned.begin([(0, 7), (0, 8)])
        clean.begin([])
        for value in 8, 7:
            with pytest.raises(FunctionError, match=r"input 'a' at time 3: \(0, 7\).*waiting=True"):
                poisoned.step(poisoned.b, 5)
            (dropped,) = poisoned.a.discard(f"k = 0 AND v = {value}", waiting=True)
            assert dropped["v"].to_pylist() == [value]
        assert flow.step()
        clean.step(clean.b, 5)
        for fed in poisoned, clean:
            fed.a.close(), fed.b.close()
            fed.flow.step()
        assert poisoned.all() == clean.all()
        assert flow.discard(waiting=True) == {"a": [], "b": []}


def test_what_waits_is_looked_at_once(spark, monkeypatch):
    """While an input lags, each small step costs its new updates alone."""
    with Dataflow(spark, buckets=1, runner="local") as flow:
        a, a_in = flow.input("a", "k int")
        b, b_in = flow.input("b", "k int")
        a.union(b).count().keep()
        a.inspect(lambda *update: None)
        looked = []
        part = rewind._part
        monkeypatch.setattr(rewind, "_part", lambda *args: looked.append(1) or part(*args))
        for time in range(1, 31):
            a_in.insert([(time,)])
            a_in.advance_to(time)
            flow.step()
        assert len(flow._state.shown) == 30 and len(looked) < 40
        batches = flow._state.recent[a_in._node]
        assert a_in.discard("k = 99", waiting=True) == []
        assert all(x is y for x, y in zip(batches, flow._state.recent[a_in._node], strict=True))
        b_in.advance_to(20)
        flow.step()
        assert len(flow._state.shown) == len(flow._state.recent[a_in._node]) == 10


def test_what_is_released_bit_by_bit_waits_once(spark, use_thresholds):
    use_thresholds(rewind_rows_max=150)
    with Dataflow(spark, buckets=1, runner="local") as flow:
        a, a_in = flow.input("a", "k int")
        b, _ = flow.input("b", "k int")
        a.union(b).count().keep()
        a_in.update([(time, time, 1) for time in range(100)])
        for time in range(1, 8):
            a_in.advance_to(time)
            flow.step()
        dropped = a_in.discard("time < 7", waiting=True)
        assert sum(table.num_rows for table in dropped) == 7


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_what_was_shown_before_its_time_is_taken_back(spark, runner):
    updates, both = [], ("k int",)
    with Dataflow(spark, buckets=1, runner=runner) as flow:
        (a, a_in), (b, b_in) = (flow.input(name, *both) for name in "ab")
        output = a.concat(b)
        output.inspect(lambda r, t, d: updates.append((r.k, t, d)))
        output.count().keep()
        b_in.insert([(1,)])
        b_in.advance_to(4)
        a_in.advance_to(4)
        flow.step()
        # The output shows these rows at once; its frontier stays at 4 with the other input.
        b_in.insert([(2,), (3,)])
        b_in.advance_to(6)
        flow.step()
        assert sorted(updates) == [(1, 0, 1), (2, 4, 1), (3, 4, 1)]
        assert [table["k"].to_pylist() for table in b_in.discard("k = 2", waiting=True)] == [[2]]
        flow.step()
        assert updates[3:] == [(2, 4, -1)]
        flow.advance_to(9)
        assert updates[4:] == []


def test_a_condition_on_frames_is_deterministic(spark):
    with Dataflow(spark, runner="local") as flow:
        _, a_in = flow.input("a", "k long")
        a_in.insert(spark.range(9).toDF("k"))
        with pytest.raises(NonDeterministicError, match="rand"):
            a_in.discard("rand() > 0.5")
        (dropped,) = a_in.discard()
        assert dropped.count() == 9


def test_a_condition_with_a_time_window_is_refused(spark):
    """Spark leaves out the rows without a window under a condition and under its negation."""
    nulls = "SELECT CAST(NULL AS TIMESTAMP) AS ts FROM range(9)"
    with Dataflow(spark, runner="local") as flow:
        _, a_in = flow.input("a", "ts timestamp")
        for rows, count in (spark.sql(nulls), lambda frame: frame.count()), ([(None,)] * 9, len):
            a_in.insert(rows)
            with pytest.raises(SchemaError, match="condition of discard has a time window"):
                a_in.discard("window(ts, '1 day') IS NOT NULL")
            (dropped,) = a_in.discard()
            assert count(dropped) == 9
