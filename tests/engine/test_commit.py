"""The boundary between a step and its inputs, its consumers and other threads.

    A step is one commit: after an interrupt the next step continues, and the law still applies.
    A consumer gets each update in order. An update repeats only if an interrupt hit its delivery.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pyarrow as pa
import pytest
from programs import files_of
from pyspark.errors import ArithmeticException
from pyspark.sql import functions as F

from pyspark_diff import (
    Dataflow,
    DiffOverflowError,
    FunctionError,
    InvalidTimeError,
    NotReadableError,
    StalledError,
    StepError,
)
from pyspark_diff.dataflow import discarding
from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.input_session import InputSession
from pyspark_diff.engine.state import Delivery
from pyspark_diff.engine.step import Step
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.trace import storage


class Planned(Exception):
    """The error that a test raises on purpose."""


# A step is one commit.


def functions(*callables):
    return {getattr(function, "__wrapped__", function).__code__ for function in callables}


#: The functions that run after a step has made its state, except those that take locks. A tracer
#: can raise between the end of a `with` and the release of its lock, but a signal cannot.
AFTER = functions(
    BaseDataflow._advance, BaseDataflow._commit, BaseDataflow._deliver, BaseDataflow._tidy,
    Delivery.give, Inspect.calls, storage.remove_files,
)
DELIVERS = functions(Delivery.give)


class Fault:
    """Raises an error at the n-th executed line after a step has made its state."""

    def __init__(self, error, at):
        self.error, self.left, self.where = error, at, None

    def __enter__(self):
        self.armed = False
        sys.settrace(self.called)
        # The tracer ignores frames that are on the stack already.
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def called(self, frame, event, argument):
        if frame.f_code is Step.run.__code__:
            return self.running
        return self.line if frame.f_code in AFTER else None

    def running(self, frame, event, argument):
        if event == "return":
            self.armed = True
            self.hit(frame)
        return self.running

    def line(self, frame, event, argument):
        if event == "line" and self.armed:
            self.hit(frame)
        return self.line

    def hit(self, frame):
        self.left -= 1
        if self.left < 0 and self.where is None:
            self.where = frame.f_code, frame.f_lineno
            raise self.error("at this line")


class Consumers:
    """A program with consumers of all forms, and the updates that each consumer got."""

    def __init__(self, spark, fails=0):
        self.flow = Dataflow(spark, runner="local", buckets=2)
        words, self.session = self.flow.input("words", "word string")
        self.counts = words.count().arrange_by_self()
        self.updates = [], [], []
        self.fails = fails
        words.inspect(lambda *update: self.updates[0].append(update))
        self.counts.inspect(self.second)
        self.counts.inspect(
            lambda table: self.updates[2].append(table.to_pydict()), by_table=True
        )
        self.times = 0

    def second(self, *update):
        if self.fails:
            self.fails -= 1
            raise Planned("the consumer is not ready")
        self.updates[1].append(update)

    def feed(self):
        self.session.insert([("a",), ("b",), (f"c{self.times}",)])
        self.times += 1
        self.session.advance_to(self.times)
        self.session.flush()

    def check(self):
        n = self.times
        counts = {word: count for word, count in self.counts.at().collect()}
        assert counts == {"a": n, "b": n, **{f"c{time}": 1 for time in range(n)}}
        assert files_of(self.flow) <= self.flow._state.paths() | self.flow._outputs.pinned


def without_repeats(updates):
    return [item for i, item in enumerate(updates) if i == 0 or updates[i - 1] != item]


@pytest.mark.parametrize(("error", "fails"), [
    (Planned, 1),
    (KeyboardInterrupt, 0),
    pytest.param(Planned, 0, marks=pytest.mark.slow),
    pytest.param(KeyboardInterrupt, 1, marks=pytest.mark.slow),
])
def test_a_step_may_be_cut_short_at_every_line_after_its_commit(spark, error, fails):
    wanted = Consumers(spark)
    for _ in range(3):
        wanted.feed()
        wanted.flow.step()
    wanted.check()
    lines = set()
    for at in count():
        consumers = Consumers(spark)
        with consumers.flow:
            consumers.feed()
            consumers.flow.step()
            consumers.feed()
            consumers.fails = fails
            fault = Fault(error, at)
            raised = False
            try:
                with fault:
                    consumers.flow.step()
            except (Planned, KeyboardInterrupt):
                raised = True
            except StepError as step_error:  # before the commit
                raised = isinstance(step_error.__cause__, Planned)
            if fault.where is None:
                break
            lines.add(fault.where)
            assert raised, fault.where
            consumers.fails = 0
            consumers.flow.step()
            assert files_of(consumers.flow) == consumers.flow._state.paths()
            consumers.feed()
            assert consumers.flow.step()
            consumers.check()
            assert not consumers.flow.step()
            for updates, expected in zip(consumers.updates, wanted.updates):
                assert without_repeats(updates) == expected, fault.where
                if fault.where[0] not in DELIVERS:
                    assert updates == expected, fault.where
    wanted.flow.close()
    assert len(lines) > 30  # the code has that many lines


def test_consumers_do_not_lose_updates_to_one_that_raises(spark):
    consumers = Consumers(spark, fails=2)
    with consumers.flow:
        consumers.feed()
        with pytest.raises(Planned):
            consumers.flow.step()
        # The step is committed, and the other consumers have their updates.
        consumers.check()
        first, second, third = map(list, consumers.updates)
        assert len(first) == 3 and second == [] and len(third) == 1
        consumers.feed()
        with pytest.raises(Planned):
            consumers.flow.step()
        left = [delivery for delivery in consumers.flow._state.outbox if not delivery.done]
        assert [delivery.epoch for delivery in left] == [1, 2]
        # No input is new, but a consumer still waits for updates.
        assert consumers.flow.step() is True
        assert consumers.flow.step() is False
        assert [time for _, time, _ in consumers.updates[1]] == [0] * 3 + [1] * 5
        assert (len(consumers.updates[0]), len(consumers.updates[2])) == (6, 2)


def test_what_a_record_at_a_time_was_given_is_not_given_again(spark):
    words_shown = []

    def show(record, time, diff):
        if record.word == "b" and words_shown != ["a", "b"]:
            words_shown.append("b")
            raise KeyboardInterrupt
        words_shown.append(record.word)

    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        words.inspect(show)
        session.insert([("a",), ("b",), ("c",)])
        session.close()
        with pytest.raises(KeyboardInterrupt):
            flow.step()
        assert flow.step()
        assert words_shown == ["a", "b", "b", "c"]


def test_a_flush_that_is_cut_short_changes_nothing(spark):
    for at in count():
        with Dataflow(spark, runner="local", buckets=1) as flow:
            words, session = flow.input("words", "word string")
            counts = words.count().keep()
            session.insert([("a",)])
            session.update([("b", 0, 2)])
            session.advance_to(1)
            fault = Fault(KeyboardInterrupt, at)
            fault.armed = True
            codes = functions(InputSession._flush, InputSession._gathered)

            def called(frame, event, argument):
                return fault.line if frame.f_code in codes else None

            sys.settrace(called)
            try:
                session.flush()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            session.flush()
            flow.step()
            assert sorted(counts.at(0).collect()) == [("a", 1), ("b", 2)]
            if fault.where is None:
                break
    assert at > 8


# Threads.


def together(*functions):
    """Run functions at the same time, each in a thread, and raise their first error."""
    with ThreadPoolExecutor(len(functions)) as pool:
        for running in [pool.submit(function) for function in functions]:
            running.result()


@pytest.fixture
def many_switches():
    """Threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_four_threads_insert_while_another_steps(spark, many_switches):
    turns = 300
    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        counts = words.count().arrange_by_self()
        table = pa.table({"word": ["a"]})
        feeding = [4]

        def insert():
            for _ in range(turns):
                session.insert(table)
            feeding[0] -= 1

        def step():
            while feeding[0] > 0:
                session.advance_to(session.time() + 1)
                session.flush()
                flow.step()

        together(step, *[insert] * 4)
        session.close()
        flow.step()
        assert counts.at().collect() == [("a", 4 * turns)]


def test_two_threads_step(spark, many_switches):
    turns, updates = 20, []
    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        counts = words.count().arrange_by_self()
        counts.inspect(lambda record, time, diff: updates.append((record["count"], time, diff)))

        def step():
            for _ in range(turns):
                session.insert([("a",)])
                with advancing:
                    session.advance_to(session.time() + 1)
                session.flush()
                flow.step()

        advancing = threading.Lock()
        together(step, step)
        session.close()
        flow.step()
        assert counts.at().collect() == [("a", 2 * turns)]
        assert files_of(flow) == flow._state.paths()
    sums = Counter()
    for number, _, diff in updates:
        sums[number] += diff
    assert +sums == {2 * turns: 1}
    assert [time for _, time, _ in updates] == sorted(time for _, time, _ in updates)


def test_a_function_that_a_step_calls_cannot_step(spark):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        shown = []

        def show(record, time, diff):
            if not shown:
                session.insert([("again",)])  # it may feed the input
            with pytest.raises(StalledError, match="called by a function that a step"):
                flow.step()
            shown.append(record.word)

        words.inspect(show)
        session.insert([("a",)])
        session.advance_to(1)
        session.flush()
        flow.step()
        session.close()
        flow.step()
        assert shown == ["a", "again"]


def test_operators_are_not_added_while_another_thread_steps(spark):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        inside, go_on, done = threading.Event(), threading.Event(), []

        def show(table):
            inside.set()
            go_on.wait(60)

        words.inspect(show, by_table=True)

        def step():
            session.insert([("a",)])
            session.close()
            flow.step()
            done.append("step")

        def add():
            inside.wait(60)
            threading.Timer(0.2, go_on.set).start()
            with pytest.raises(NotReadableError, match="before the first step"):
                words.inspect(print)
            done.append("refused")

        together(step, add)
        assert sorted(done) == ["refused", "step"]


# Updates that a step fails on.


def raises_for_zero(value):
    if value == 0:
        raise Planned("this was planned")
    return value


def by_division(parts):
    return parts.selectExpr("total", "total div number AS made")


def by_division_in_spark(parts):
    # Arrow knows no such function, so Spark evaluates it.
    return parts.selectExpr("total", "assert_true(number != 0) IS NULL AS made")


def by_overflow(parts):
    return parts.selectExpr("total", "2147483647 + (1 - number) AS made")


def by_cast(parts):
    return parts.select("total", F.when(F.col("number") == 0, "x").otherwise("1").cast("int"))


def by_flat_map(parts):
    return parts.flat_map(lambda row: [(raises_for_zero(row.number),)], "made int")


def by_reduce(parts):
    return parts.reduce(
        lambda key, values: [(raises_for_zero(min(row[0] for row, _ in values)),)],
        "made int", "total",
    )


POISONS = {
    by_division: (StepError, DiffOverflowError), by_division_in_spark: StepError,
    by_overflow: (StepError, DiffOverflowError), by_cast: StepError,
    by_flat_map: StepError, by_reduce: FunctionError,
}


@pytest.mark.parametrize(("poison", "runner"), [
    pytest.param(
        poison, runner, id=f"{poison.__name__}-{runner}",
        # Spark reports both errors like a division.
        marks=[pytest.mark.slow] if runner == "spark" and poison in (by_overflow, by_cast) else [],
    )
    for poison in POISONS for runner in ("local", "spark")
])
def test_what_a_step_fails_on_is_named_and_can_be_dropped(spark, runner, poison):
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    good = [(7, 3), (8, 4)]
    try:
        with Dataflow(spark, runner=runner, buckets=2) as flow, \
                Dataflow(spark, runner="local", buckets=2) as plain:
            collections = []
            for dataflow in flow, plain:
                parts, session = dataflow.input("parts", "total int, number int")
                others, others_in = dataflow.input("others", "total int, number int")
                collections.append((poison(parts.union(others)).count().keep(), session, others_in))
            counts, session, others_in = collections[0]
            session.insert([(9, 5)])
            others_in.insert([(6, 2)])
            others_in.close()
            session.advance_to(3)
            session.flush()
            flow.step()
            session.insert([good[0], (5, 0), good[1]])
            session.advance_to(4)
            session.flush()
            state, files = flow._state, files_of(flow)
            with pytest.raises(POISONS[poison]) as caught:
                flow.step()
            message = str(caught.value)
            assert "input 'parts' at time 3: (5, 0) with diff 1" in message, message
            assert "'others'" not in message and "(7, 3)" not in message
            assert caught.value.__cause__ is not None
            assert flow._state is state and files_of(flow) == files

            session.insert([(4, 0)])  # was not flushed
            assert session.time() == 4
            table, = session.discard()
            assert table.sort_by("total").to_pylist() == [
                {"total": 4, "number": 0, "time": 4, "diff": 1},
                {"total": 5, "number": 0, "time": 3, "diff": 1},
                {"total": 7, "number": 3, "time": 3, "diff": 1},
                {"total": 8, "number": 4, "time": 3, "diff": 1},
            ]
            assert flow.discard() == {"parts": [], "others": []}
            assert session.time() == 4
            assert flow.step()
            mended = [row for row in table.drop_columns(["time", "diff"]).to_pylist()
                      if row["number"]]
            session.insert(mended)
            session.close()
            assert flow.step() and not flow.step()

            expected, session, others_in = collections[1]
            session.insert([(9, 5), *good])
            others_in.insert([(6, 2)])
            session.close(), others_in.close()
            plain.step()
            assert sorted(counts.at().collect()) == sorted(expected.at().collect())
            assert files_of(flow) <= flow._state.paths() | flow._outputs.pinned
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def test_the_cause_is_what_spark_raised(spark):
    with Dataflow(spark, runner="spark", buckets=1) as flow:
        parts, session = flow.input("parts", "total int, number int")
        divided = parts.transform(lambda frame: frame.withColumn("made", F.expr("total / number")))
        counts = divided.count().keep()
        frame = spark.range(3).selectExpr("2 AS total", "int(id) AS number")
        session.insert(frame)
        session.close()
        with pytest.raises(StepError, match="input 'parts' at time 0: a Spark frame") as caught:
            flow.step()
        assert isinstance(caught.value.__cause__, ArithmeticException)
        dropped, = session.discard()
        assert dropped.columns == ["total", "number", "time", "diff"]
        assert sorted(dropped.collect()) == [(2, number, 0, 1) for number in range(3)]
        assert flow.step() and counts.at().collect() == []


def test_updates_that_wait_for_their_time_are_dropped_too(spark):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        parts, session = flow.input("parts", "number int")
        reduced = parts.reduce(
            lambda key, values: [(raises_for_zero(key[0]),)], "made int", "number"
        ).keep()
        session.update([(1, 0, 1), (2, 5, 1), (0, 6, 1)])
        session.advance_to(1)
        session.flush()
        flow.step()
        session.advance_to(7)
        session.flush()
        with pytest.raises(FunctionError, match=r"input 'parts' at time 6: \(0,\) with diff 1"):
            flow.step()
        table, = flow.discard()["parts"]
        assert table.to_pydict() == {"number": [2, 0], "time": [5, 6], "diff": [1, 1]}
        assert flow.step()
        assert reduced.at().collect() == [(1, 1)]


def behind_a_loop(parts):
    return parts.iterate(lambda inner: inner.select("total", "made").distinct()).count()


def behind_a_sum(parts):
    return parts.groupBy("total").agg(F.sum("made").alias("made"))


@pytest.mark.parametrize(("runner", "behind"), [
    ("local", behind_a_sum), ("local", behind_a_loop),
    pytest.param("spark", behind_a_sum, marks=pytest.mark.slow),
])
def test_what_waits_for_another_input_is_evaluated_once(spark, runner, behind):
    broken = []

    def shares(row):
        if broken:
            raise Planned("a service that it asks is down")
        return [(row.total, 6 // row.number)]

    def program(flow):
        parts, session = flow.input("parts", "total int, number int")
        others, others_in = flow.input("others", "total int, made int")
        mapped = parts.flat_map(shares, "total int, made int").union(others)
        return behind(mapped).keep(), session, others_in

    def step(flow, time, *sessions):
        for session in sessions:
            session.advance_to(time)
            session.flush()
        return flow.step()

    rows = [(7, 3, 2, 1), (8, 2, 3, 1), (7, 3, 3, -1), (7, 2, 4, 1), (8, 1, 5, 1)]
    with Dataflow(spark, runner=runner, buckets=2, keep_history=True) as flow, \
            Dataflow(spark, runner="local", buckets=2, keep_history=True) as plain:
        sums, session, others_in = program(flow)
        session.insert([(7, 3), (5, 0)])
        with pytest.raises(StepError, match=r"input 'parts' at time 0: \(5, 0\)"):
            step(flow, 2, session)
        assert session.discard()[0].num_rows == 2
        frame = spark.createDataFrame(rows[:1], "total int, number int, time long, diff long")
        session.update(frame if runner == "spark" else rows[:1])
        session.update(rows[1:])
        for time in 4, 6:  # late rows wait for their time, early rows for the other input
            step(flow, time, session)
            assert files_of(flow) == flow._state.paths()
        assert any(flow._state.pending.values())
        if runner == "local":
            broken.append(True)
        others_in.insert([(9, 1)])
        for time in 3, 4, 5, 6:
            step(flow, time, others_in)
        assert not any(flow._state.pending.values())
        assert files_of(flow) == flow._state.paths()

        broken.clear()
        expected, session, others_in = program(plain)
        session.update(rows)
        others_in.insert([(9, 1)])
        step(plain, 6, session, others_in)
        for time in range(6):
            assert sorted(sums.at(time).collect()) == sorted(expected.at(time).collect())


def test_a_time_that_was_changed_is_found_before_the_update_waits(spark):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        parts, session = flow.input("parts", "total int")
        others, others_in = flow.input("others", "total int")
        later = parts.transform(
            lambda frame: frame.withColumn("time", F.expr("IF(total = 5, time + 9, time)"))
        )
        counts = later.union(others).count().keep()
        session.insert([(5,), (6,)])
        session.advance_to(1)
        session.flush()
        with pytest.raises(InvalidTimeError, match=r"input 'parts' at time 0: \(5,\)"):
            flow.step()
        session.discard()
        session.insert([(6,)])
        session.close(), others_in.close()
        assert flow.step() and counts.at().collect() == [(6, 1)]


def test_a_discard_may_be_cut_short_at_every_line(spark):
    codes = functions(
        BaseDataflow._take_back, discarding.without, discarding._user_form, discarding._updates,
        InputSession._all_flushed, InputSession._gathered,
    )
    dropped = {  # an update that waits for its time, a flushed one, and new ones
        "a": [("x", 7, 1), ("y", 2, 1), ("z", 3, 1)], "b": [("w", 0, 1)],
    }
    lines = set()
    for at in count():
        with Dataflow(spark, runner="local", buckets=1) as flow:
            a, a_in = flow.input("a", "word string")
            b, b_in = flow.input("b", "word string")
            diffs = Counter()
            a.union(b).inspect(lambda record, time, diff: diffs.update({record.word: diff}))
            frame = spark.createDataFrame(
                [("v", 0, 1), ("x", 7, 1)], "word string, time long, diff long"
            ) if at == 0 else [("v", 0, 1), ("x", 7, 1)]
            a_in.update(frame)
            for session in a_in, b_in:
                session.advance_to(int(session is a_in))
                session.flush()
            flow.step()
            a_in.advance_to(2)
            a_in.insert([("y",)])
            a_in.flush()
            a_in.advance_to(3)
            a_in.insert([("z",)])
            b_in.insert([("w",)])
            fault = Fault(KeyboardInterrupt, at - 1)
            fault.armed = at > 0

            def called(frame, event, argument):
                return fault.line if frame.f_code in codes else None

            discarded = None
            sys.settrace(called)
            try:
                discarded = flow.discard()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            if at and fault.where is None:
                break
            lines.add(fault.where)
            again = flow.discard()
            if discarded is None and any(again.values()):
                discarded, again = again, flow.discard()
            if discarded is not None:  # else the interrupt hit its return
                assert dropped == {
                    name: [tuple(row.values()) for table in tables for row in table.to_pylist()]
                    for name, tables in discarded.items()
                }, fault.where
            assert not any(again.values()), fault.where
            assert a_in.time() == 3
            a_in.insert([("u",)])
            a_in.close(), b_in.close()
            flow.step()
            assert diffs == {"u": 1, "v": 1}, fault.where
            assert files_of(flow) == flow._state.paths(), fault.where
    assert len(lines) > 25, len(lines)


def test_what_a_watch_raises_is_not_blamed_on_updates(spark):
    def watch(iteration):
        raise Planned("enough")

    with Dataflow(spark, runner="local", buckets=1) as flow:
        edges, session = flow.input("edges", "src int, dst int")
        counts = edges.iterate(lambda inner: inner.select("src", "dst").distinct()).count().keep()
        session.insert([(1, 2)])
        session.close()
        with pytest.raises(Planned, match="^enough$"):
            flow.step(on_iteration=watch)
        assert flow.step() and counts.at().collect() == [(1, 2, 1)]
