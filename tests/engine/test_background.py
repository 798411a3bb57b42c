"""Steps in the background: the same answers and errors, live probes, and cancellation."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import connect_server
import pytest
from pyspark import SparkContext
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pyspark_diff import Dataflow, StepCancelledError, StepError
from pyspark_diff.errors import ClosedError, StalledError
from pyspark_diff.runners import local, stop
from pyspark_diff.spark import jobs
from pyspark_diff.trace.arrangement import Arrangement

ONE = "n long"


def files_of(root):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(root) for name in names)


class Gate:
    """A reducer that signals its call, and waits until the gate opens."""

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
    """A time is complete only after the consumers have its updates."""
    shown, reports = [], []
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)

        def consume(*_):
            reports.append((probe.less_than(1), flow.progress().frontier, list(shown)))
            shown.append(1)

        probe = rows.count().inspect(consume).probe()
        session.insert([(1,)])
        session.advance_to(1)
        assert flow.step_async().wait()
        assert reports and all(less for less, _, _ in reports)
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
        rows.select((1 % F.col("n")).alias("x")).keep()
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


@pytest.mark.parametrize("read, inside", [
    (lambda frame: frame.at(), "snapshot"), (lambda frame: frame.changes(0), "changed"),
    (lambda frame: frame.to_df(), "updates"),
], ids=["at", "changes", "to_df"])
def test_a_step_waits_for_a_reading(spark, monkeypatch, read, inside):
    """The step would remove files that the reader still needs."""
    with Dataflow(spark, runner="local", buckets=1, keep_history=True) as flow:
        words, words_in = flow.input("words", "word string")
        counts = words.count().keep()

        def step():
            words_in.insert([("a",)])
            words_in.advance_to(words_in.time() + 1)
            words_in.flush()
            flow.step()

        step()
        look = getattr(Arrangement, inside)
        there = []

        def slowly(*arguments, **options):
            stepping = threading.Thread(target=step)
            stepping.start()
            stepping.join(0.5)
            there.append(stepping)
            assert stepping.is_alive()
            return look(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Arrangement, inside, slowly)
            frame = read(counts)
        there[0].join()
        assert len(there) == 1
        assert {row["count"] for row in frame.collect()} <= {1}
        assert counts.at().collect() == [("a", 2)]


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


@pytest.mark.parametrize("where", [pytest.param("map", marks=pytest.mark.slow), "reduce"])
def test_cancelled_on_spark(spark, tmp_path, where):
    """A task is inside a function of the user."""
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
        assert is_idle(spark)
        session.discard()
        session.insert([(1,)])
        session.advance_to(3)
        assert flow.step() and counts.at().count() == 1


def is_idle(spark):
    """Whether no job runs, after a wait, as Spark reports the end of a job late.

    A Connect server does not report jobs. There, whether `interruptAll` finds no work.
    """
    if connect_server.WANTED:
        return not spark.interruptAll()
    until = time.monotonic() + 20
    while (left := spark.sparkContext.statusTracker().getActiveJobsIds()):
        if time.monotonic() > until:
            print("running:", left)
            return False
        time.sleep(0.05)
    return True


def test_cancelled_while_another_one_runs(spark, gate):
    """The second step ends without a wait for the first."""
    with Dataflow(spark, runner="local") as flow:
        _, session = gated(flow, gate)
        session.insert([(1,)])
        session.advance_to(1)
        first = flow.step_async()
        assert gate.reached.wait(60)
        second = flow.step_async()
        time.sleep(0.2)
        threading.Timer(20, gate.opened.set).start()
        assert second.cancel() and not first.done()
        gate.opened.set()
        assert first.wait()


def test_the_end_of_a_block_waits_for_steps(spark):
    for _ in range(5):
        rows_shown = []
        with Dataflow(spark, runner="local") as flow:
            rows, session = flow.input("rows", ONE)
            rows.inspect(lambda *row: rows_shown.append(row))
            session.insert([(1,)])
            session.advance_to(1)
            running = flow.step_async()
        assert running.wait() and len(rows_shown) == 1


def naps(row, *_):
    time.sleep(0.05)
    return [(1,)]


@F.udf(T.LongType())
def naps_in_a_worker(n):
    time.sleep(0.3)
    return n


@pytest.mark.parametrize("where", ["map", "reduce", "threshold", "udf"])
def test_cancelled_between_calls_on_the_driver(spark, where):
    """On the driver all calls are one piece of work."""
    makes = {
        "map": lambda rows: rows.flat_map(naps, "m long"),
        "reduce": lambda rows: rows.groupBy("n").reduce(naps, "m long"),
        "threshold": lambda rows: rows.threshold(lambda n: len(naps(n)) if n else 0),
        "udf": lambda rows: rows.select(naps_in_a_worker("n").alias("m")),
    }
    with Dataflow(spark, runner="local", buckets=1) as flow:
        rows, session = flow.input("rows", ONE)
        mapped = makes[where](rows).keep()
        # Each record has another multiplicity.
        session.update([(n, 0, n + 1) for n in range(400)])
        session.advance_to(1)
        running = flow.step_async()
        time.sleep(1.5)
        assert running.cancel()
        session.discard()
        session.insert([(1,)])
        session.advance_to(2)
        assert flow.step() and mapped.at().count() == 1 and is_idle(spark)


def test_cancelled_by_what_it_calls(spark):
    """A function that a step calls cannot wait for the step."""
    answers, here = [], threading.Event()
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)

        def consume(*_):
            assert here.wait(60)
            answers.append(running.cancel())
            with pytest.raises(StalledError, match="wait"):
                running.wait()

        def cancel(key, values):
            assert here.wait(60)
            answers.append(running.cancel())
            return []

        rows.inspect(consume)
        session.insert([(1,)])
        session.advance_to(1)
        running = flow.step_async()
        here.set()
        assert running.wait() and answers == [False]
    here.clear()
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)
        rows.groupBy("n").reduce(cancel, "m long").keep()
        # Enough rows that each bucket gets a thread.
        session.insert(spark.range(60_000).selectExpr("id % 7 AS n").toArrow())
        session.advance_to(2)
        running = flow.step_async()
        here.set()
        with pytest.raises(StepCancelledError):
            running.wait(timeout=60)
        assert answers[1:] and all(answers[1:])
        session.discard()


def test_a_step_that_only_hands_over_is_not_cancelled(spark):
    calls, going, opened = [], threading.Event(), threading.Event()

    def consume(*_):
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no")
        going.set()
        assert opened.wait(60)

    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)
        rows.inspect(consume)
        session.insert([(1,)])
        session.advance_to(1)
        with pytest.raises(ValueError):
            flow.step()
        running = flow.step_async()
        assert going.wait(60)
        assert running.cancel() is False and not running.done()
        opened.set()
        assert running.wait()


def test_probes_of_inputs_that_came_after_a_consumer_failed(spark):
    calls = []

    def consume(*_):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no")

    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ONE)
        rows.inspect(consume)
        for time_ in (1, 2):
            session.insert([(1,)])
            session.advance_to(time_)
            if time_ == 1:
                flow.step()
        with pytest.raises(ValueError):
            flow.step()
        others, _ = flow.input("others", ONE)
        assert others.count().keep().probe().less_than(3)
        assert flow.progress().frontier.less_than(2)


def test_progress_while_inputs_are_added(spark):
    """Concurrent calls of `progress` raise nothing."""
    errors, over = [], threading.Event()
    switch = sys.getswitchinterval()
    with Dataflow(spark, runner="local") as flow:

        def look():
            while not over.is_set():
                try:
                    flow.progress()
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=look) for _ in range(4)]
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for number in range(150):
                flow.input(f"rows{number}", ONE)
        finally:
            over.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(switch)
    assert not errors


class SlowToPlan(DataSource):
    """Spark asks a source for its parts before there is a job."""

    @classmethod
    def name(cls):
        return "slow_to_plan"

    def schema(self):
        return ONE

    def reader(self, schema):
        return SlowReader()


class SlowReader(DataSourceReader):
    def partitions(self):
        time.sleep(4)
        return [InputPartition(0)]

    def read(self, partition):
        for n in range(600):
            time.sleep(0.1)
            yield (n,)


def test_a_job_is_looked_at_often_while_it_runs(spark):
    """Frequent checks let a cancelled step end soon."""
    looks: list[float] = []
    jobs.run_job(spark, lambda: time.sleep(0.5), lambda: looks.append(time.monotonic()))
    assert len(looks) >= 10


def sleeps_once(row, *_):
    time.sleep(60)
    return [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["map", "reduce"])
def test_cancelled_within_one_call_in_a_worker(spark, where):
    """A cancellation interrupts a call in a worker, but not on the driver."""
    with Dataflow(spark, runner="spark", buckets=1) as flow:
        rows, session = flow.input("rows", ONE)
        keyed = rows.groupBy("n").reduce(sleeps_once, "m long")
        (rows.flat_map(sleeps_once, "m long") if where == "map" else keyed).keep()
        session.insert([(1,)])
        session.advance_to(1)
        running = flow.step_async()
        time.sleep(8)  # so that the worker has begun
        began = time.monotonic()
        # The call itself would take 50 more seconds.
        assert running.cancel() and time.monotonic() - began < 40
        assert is_idle(spark)
        session.discard()


@pytest.mark.slow
def test_cancelled_while_spark_plans(spark, tmp_path):
    """A job that begins after the planning is cancelled too."""
    spark.dataSource.register(SlowToPlan)
    frame = spark.read.format("slow_to_plan").load()
    with Dataflow(spark, runner="spark", root=str(tmp_path)) as flow:
        rows, session = flow.input("rows", ONE)
        rows.count().keep()
        session.insert(frame)
        session.advance_to(1)
        before = files_of(tmp_path)
        running = flow.step_async()
        time.sleep(1)
        began = time.monotonic()
        # Spark plans for four seconds and then reads for a minute.
        assert running.cancel() and time.monotonic() - began < 40
        assert files_of(tmp_path) == before
        left = [t for t in threading.enumerate() if t.name == "pyspark_diff cancel"]
        # A server also cancels work while it plans, so no thread cancels it again.
        assert connect_server.WANTED or len(left) == 1
        for thread in left:
            thread.join(60)
            assert not thread.is_alive()
        assert is_idle(spark)
        assert files_of(tmp_path) == before
        session.discard()


@pytest.mark.classic_only("is about the handler of Ctrl-C that PySpark sets with a context")
def test_ctrl_c_ends_the_wait_only(spark):
    """PySpark's own handler would cancel all jobs."""
    def handler(*_):
        spark.sparkContext.cancelAllJobs()
        raise KeyboardInterrupt

    handler.__module__ = SparkContext.__module__
    before = signal.signal(signal.SIGINT, handler)
    try:
        with Dataflow(spark, runner="spark", buckets=1) as flow:
            rows, session = flow.input("rows", ONE)
            counts = rows.flat_map(slow, ONE).count().keep()
            session.insert([(n,) for n in range(15)])
            session.advance_to(1)
            running = flow.step_async()
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                running.wait()
            assert signal.getsignal(signal.SIGINT) is handler
            assert running.wait() and counts.at().count() == 15
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_that_takes_nothing_over_says_so(spark, monkeypatch):
    """A thread may fail at its start, for example if its session stops."""
    answer = Future()
    thread = jobs.inheriting_thread(spark, lambda: 1, answer)
    thread.start()
    assert answer.result(60) == 1
    broken = Future()
    thread = jobs.inheriting_thread(spark, lambda: 1, broken)
    thread._target = None  # the thread fails at this
    monkeypatch.setattr(
        threading.Thread, "run", lambda self: (_ for _ in ()).throw(AssertionError("stopped"))
    )
    thread.start()
    with pytest.raises(AssertionError, match="stopped"):
        broken.result(60)


ENDS = """
import sys
from pyspark_diff import Dataflow, session
spark = session(master="local[1]", conf={"spark.ui.enabled": False})
flow = Dataflow(spark, runner="local", root=sys.argv[1])
rows, session = flow.input("rows", "n long")
rows.count().inspect(lambda row, *_: row.n == 7 and print("handed over", flush=True))
session.insert(spark.range(100_000).toDF("n").toArrow())
session.advance_to(1)
flow.step_async()
"""


@pytest.mark.slow
def test_a_program_that_ends_waits(spark, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ran.returncode == 0 and ran.stdout == "handed over\n", ran.stderr
    assert "Traceback" not in ran.stderr and not files_of(tmp_path)


def test_cancelled_by_many_at_once(spark, gate):
    with Dataflow(spark, runner="local") as flow:
        copies, session = gated(flow, gate)
        session.insert([(n,) for n in range(9)])
        session.advance_to(1)
        state, running, answers = flow._state, flow.step_async(), []
        assert gate.reached.wait(60)
        threads = [
            threading.Thread(target=lambda: answers.append(running.cancel())) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        gate.opened.set()
        for thread in threads:
            thread.join(60)
        assert answers == [True] * 8 and flow._state is state
        assert flow.step() and copies.at().count() == 9


@pytest.mark.parametrize("place", ["merge_bucket", "pass_by"])
def test_cancelled_while_it_compacts_and_commits(spark, monkeypatch, tmp_path, place):
    """The last places at which a step can be cancelled."""
    # A merge of few rows is one call for several buckets, so only one bucket has its own call.
    buckets = 1 if place == "merge_bucket" else 3
    with Dataflow(spark, runner="local", root=str(tmp_path), buckets=buckets) as flow:
        rows, session = flow.input("rows", ONE)
        counts = rows.count().keep()
        where = local if place == "merge_bucket" else stop.Stop
        real, asked, known, started = getattr(where, place), [], [], threading.Event()

        def and_cancel(*arguments, **options):
            if not asked and time_ > 3:
                assert started.wait(60)
                asked.append(known[-1]._stop.ask())
            return real(*arguments, **options)

        monkeypatch.setattr(where, place, and_cancel)
        for time_ in range(1, 40):
            session.insert([(n,) for n in range(20)])
            session.advance_to(time_)
            before, state = files_of(tmp_path), flow._state
            started.clear()
            known.append(flow.step_async())
            started.set()
            try:
                known[-1].wait()
            except StepCancelledError:
                break
        assert asked == [True]
        assert flow._state is state and files_of(tmp_path) == before
        assert flow.step()
        assert {row["count"] for row in counts.at().collect()} == {time_}


def test_of_failures_that_nobody_waits_for_the_last_is_told(spark):
    flow = Dataflow(spark, runner="local")
    rows, session = flow.input("rows", ONE)
    rows.select((1 / F.col("n")).alias("x")).keep()
    session.insert([(0,)])
    session.advance_to(1)
    for _ in range(3):
        running = flow.step_async()
        while not running.done():
            time.sleep(0.01)
    with pytest.warns(RuntimeWarning, match="nobody has waited") as caught:
        flow.close()
    assert len(caught) == 1


def test_asked_by_many_threads_while_spark_works(spark):
    with Dataflow(spark, runner="spark") as flow:
        rows, session = flow.input("rows", ONE)
        counts = rows.flat_map(lambda row: (time.sleep(0.02), [(row.n,)])[1], ONE).count().keep()
        session.insert([(n,) for n in range(40)])
        session.advance_to(1)
        over, failed, looks = threading.Event(), [], [0]

        def look():
            last = None
            try:
                while not over.is_set():
                    now = flow.progress()
                    if last is not None and last.step == now.step:
                        assert now.rows >= last.rows and now.task_rows >= last.task_rows
                        assert now.tasks_done >= last.tasks_done and now.jobs >= last.jobs
                    last = now
                    looks[0] += 1
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            assert flow.step_async().wait()
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        assert not failed and looks[0] > 50 and counts.at().count() == 40
