"""Steps in the background: the same answers and errors, live probes, and an end when asked for."""

import os
import threading
import time

import pytest
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, StepCancelledError, StepError
from pyspark_diff.errors import ClosedError, StalledError

ONE = "n long"


def files_of(root):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(root) for name in names)


class Gate:
    """A reducer that says when it is called, and waits until it may go on."""

    def __init__(self):
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, key, values):
        self.reached.set()
        assert self.opened.wait(60)
        return [(len(values),)]


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


def gated(flow, gate):
    """A count that waits at the gate, on the driver."""
    rows, session = flow.input("rows", ONE)
    return rows.groupBy("n").reduce(gate, "copies long").keep(), session


def test_it_gives_what_a_step_gives(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)
        counts = rows.count().keep()
        session.insert([(1,), (1,), (2,)])
        session.advance_to(1)
        assert flow.step_async().wait() is True
        assert sorted(map(tuple, counts.at().collect())) == [(1, 2), (2, 1)]
        assert flow.step_async().wait() is False


def test_probes_are_live_and_feeding_goes_on(spark, gate):
    with Dataflow(spark, runner="local") as flow:
        copies, session = gated(flow, gate)
        probe = copies.probe()
        session.insert([(1,), (1,)])
        session.advance_to(1)
        running = flow.step_async()
        assert gate.reached.wait(60)
        assert not running.done() and probe.less_than(1)
        at = flow.progress()
        assert at.running and at.step == 1 and at.frontier == probe.frontier()
        assert 0 <= at.operators_done < at.operators and at.operator
        assert repr(running) == "RunningStep(running)"
        with pytest.raises(TimeoutError, match="still running"):
            running.wait(timeout=0.01)
        session.insert([(1,)])
        session.advance_to(2)
        gate.opened.set()
        assert running.wait() and not probe.less_than(1) and probe.less_than(2)
        assert not flow.progress().running
        assert flow.step_async().wait()
        assert [tuple(row) for row in copies.at().collect()] == [(1, 1)]


def test_the_frontier_waits_for_consumers(spark):
    """Whoever sees a time complete finds it with the consumers."""
    shown, seen = [], []
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)

        def consume(*_):
            seen.append((probe.less_than(1), flow.progress().frontier, list(shown)))
            shown.append(1)

        probe = rows.count().inspect(consume).probe()
        session.insert([(1,)])
        session.advance_to(1)
        assert flow.step_async().wait()
        assert seen and all(less for less, _, _ in seen)
        assert not probe.less_than(1)


def test_a_consumer_that_fails_keeps_the_frontier(spark):
    calls = []

    def consume(*_):
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no")

    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)
        probe = rows.inspect(consume).probe()
        session.insert([(1,)])
        session.advance_to(1)
        running = flow.step_async()
        with pytest.raises(ValueError, match="no"):
            running.wait()
        assert probe.less_than(1)
        assert flow.step() and not probe.less_than(1)


def test_errors_come_when_it_is_waited_for(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)
        rows.select((1 / F.col("n")).alias("x")).keep()
        session.insert([(0,)])
        session.advance_to(1)
        running = flow.step_async()
        for _ in range(2):
            with pytest.raises(StepError, match="'rows'"):
                running.wait()
        assert running.done() and repr(running) == "RunningStep(failed)"
        assert running.cancel() is False
        session.discard()


def test_an_error_that_nobody_has_waited_for_is_told_on_close(spark):
    flow = Dataflow(spark, runner="local")
    rows, session = flow.input("rows", ONE)
    rows.select((1 / F.col("n")).alias("x")).keep()
    session.insert([(0,)])
    session.advance_to(1)
    running = flow.step_async()
    while not running.done():
        time.sleep(0.01)
    with pytest.warns(RuntimeWarning, match="nobody has waited"):
        flow.close()


def test_cancelled_on_the_driver(spark, gate, tmp_path):
    with Dataflow(spark, runner="local", root=str(tmp_path)) as flow:
        copies, session = gated(flow, gate)
        counts = copies.count().keep()
        session.insert([(n,) for n in range(100)])
        session.advance_to(1)
        gate.opened.set()
        flow.step()
        before, state = files_of(tmp_path), flow._state
        gate.reached.clear()
        gate.opened.clear()
        session.insert([(n,) for n in range(50)])
        session.advance_to(2)
        running = flow.step_async()
        assert gate.reached.wait(60)
        threading.Timer(0.1, gate.opened.set).start()
        assert running.cancel() is True
        with pytest.raises(StepCancelledError, match="changed nothing"):
            running.wait()
        assert flow._state is state and files_of(tmp_path) == before
        assert repr(running) == "RunningStep(cancelled)"
        assert flow.step()
        assert sum(row["count"] for row in counts.at().collect()) == 100


def test_cancelled_before_it_began(spark, gate):
    with Dataflow(spark, runner="local") as flow:
        copies, session = gated(flow, gate)
        session.insert([(1,)])
        session.advance_to(1)
        first = flow.step_async()
        assert gate.reached.wait(60)
        second = flow.step_async()
        threading.Timer(0.1, gate.opened.set).start()
        assert second.cancel() and first.wait()
        assert copies.at().count() == 1
        assert first.cancel() is False


def test_the_end_of_a_block(spark, gate):
    with pytest.raises(KeyError):
        with Dataflow(spark, runner="local") as flow:
            _, session = gated(flow, gate)
            session.insert([(n,) for n in range(9)])
            session.advance_to(1)
            running = flow.step_async()
            assert gate.reached.wait(60)
            threading.Timer(0.1, gate.opened.set).start()
            raise KeyError
    with pytest.raises(StepCancelledError):
        running.wait()
    with pytest.raises(ClosedError):
        flow.progress()


def test_not_from_within_a_step(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)
        rows.inspect(lambda *_: flow.step_async())
        session.insert([(1,)])
        session.advance_to(1)
        with pytest.raises(StalledError, match="step_async"):
            flow.step()


def slow(row, *_):
    time.sleep(0.2)
    return [(row[0],)]


@pytest.mark.parametrize("where", ["map", "reduce"])
def test_cancelled_on_spark(spark, tmp_path, where):
    """A task is in the middle of a function of the user."""
    with Dataflow(spark, runner="spark", root=str(tmp_path)) as flow:
        rows, session = flow.input("rows", ONE)
        if where == "map":
            mapped = rows.flat_map(slow, ONE)
        else:
            mapped = rows.groupBy("n").reduce(slow, "m long")
        counts = mapped.count().keep()
        session.insert([(1,)])
        session.advance_to(1)
        flow.step()
        before, state = files_of(tmp_path), flow._state
        session.insert([(n,) for n in range(2, 400)])
        session.advance_to(2)
        running = flow.step_async()
        time.sleep(1.0)
        assert not running.done()
        began = time.monotonic()
        assert running.cancel() is True
        print("cancelled after", time.monotonic() - began)
        assert flow._state is state
        until = time.monotonic() + 20
        while files_of(tmp_path) != before and time.monotonic() < until:
            time.sleep(0.1)
        assert files_of(tmp_path) == before
        print("clean after", time.monotonic() - began)
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()
        session.discard()
        session.insert([(1,)])
        session.advance_to(3)
        assert flow.step() and counts.at().count() == 1
