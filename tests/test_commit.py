"""The edge of a step: what lies between it and its inputs, its consumers and other threads.

    a step is one commit:  whatever cuts it short, the next goes on from there, and the law holds
    a consumer sees        every update, in order; none twice, unless it was cut short just then
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

from pyspark_diff import Dataflow, NotReadableError, StalledError
from pyspark_diff.dataflow.dataflow import BaseDataflow
from pyspark_diff.dataflow.input_session import InputSession
from pyspark_diff.engine.state import Delivery
from pyspark_diff.engine.step import Step
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.trace import storage


class Planned(Exception):
    """Raised where a test wants it."""


# A step is one commit.


def functions(*given):
    return {getattr(function, "__wrapped__", function).__code__ for function in given}


#: All that runs when a step has made its state, but what takes locks.
AFTER = functions(
    BaseDataflow._advance, BaseDataflow._commit, BaseDataflow._deliver, BaseDataflow._tidy,
    InputSession._drop, Delivery.give, Inspect.calls, storage.remove_files,
)
DELIVERS = functions(Delivery.give)


class Fault:
    """Raises an error at the n-th line that is executed after a step has made its state."""

    def __init__(self, error, at):
        self.error, self.left, self.where = error, at, None

    def __enter__(self):
        self.made = False
        sys.settrace(self.called)
        # Frames that are on the stack already are of no interest.
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def called(self, frame, event, argument):
        if frame.f_code is Step.run.__code__:
            return self.running
        return self.line if frame.f_code in AFTER else None

    def running(self, frame, event, argument):
        if event == "return":
            self.made = True
            self.hit(frame)
        return self.running

    def line(self, frame, event, argument):
        if event == "line" and self.made:
            self.hit(frame)
        return self.line

    def hit(self, frame):
        self.left -= 1
        if self.left < 0 and self.where is None:
            self.where = frame.f_code, frame.f_lineno
            raise self.error("at this line")


class Told:
    """A program with consumers of all forms, and what each of them was given."""

    def __init__(self, spark, fails=0):
        self.flow = Dataflow(spark, runner="local", buckets=2)
        words, self.session = self.flow.input("words", "word string")
        self.counts = words.count().arrange_by_self()
        self.seen = [], [], []
        self.fails = fails
        words.inspect(lambda *update: self.seen[0].append(update))
        self.counts.inspect(self.second)
        self.counts.inspect(
            lambda table: self.seen[2].append(table.to_pydict()), by_table=True
        )
        self.times = 0

    def second(self, *update):
        if self.fails:
            self.fails -= 1
            raise Planned("the consumer is not ready")
        self.seen[1].append(update)

    def feed(self):
        self.session.insert([("a",), ("b",), (f"c{self.times}",)])
        self.times += 1
        self.session.advance_to(self.times)
        self.session.flush()

    def check(self):
        n = self.times
        found = {word: count for word, count in self.counts.at().collect()}
        assert found == {"a": n, "b": n, **{f"c{time}": 1 for time in range(n)}}
        assert files_of(self.flow) <= self.flow._state.paths() | self.flow._outputs.pinned


def without_repeats(seen):
    return [item for i, item in enumerate(seen) if i == 0 or seen[i - 1] != item]


@pytest.mark.parametrize("fails", [0, 1])
@pytest.mark.parametrize("error", [Planned, KeyboardInterrupt])
def test_a_step_may_be_cut_short_at_every_line_after_its_commit(spark, error, fails):
    wanted = Told(spark)
    for _ in range(3):
        wanted.feed()
        wanted.flow.step()
    wanted.check()
    lines = set()
    for at in count():
        told = Told(spark)
        with told.flow:
            told.feed()
            told.flow.step()
            told.feed()
            told.fails = fails
            fault = Fault(error, at)
            raised = False
            try:
                with fault:
                    told.flow.step()
            except (Planned, KeyboardInterrupt):
                raised = True
            if fault.where is None:
                break
            lines.add(fault.where)
            assert raised, fault.where
            told.fails = 0
            told.flow.step()
            assert files_of(told.flow) == told.flow._state.paths()
            told.feed()
            assert told.flow.step()
            told.check()
            assert not told.flow.step()
            for given, expected in zip(told.seen, wanted.seen):
                assert without_repeats(given) == expected, fault.where
                if fault.where[0] not in DELIVERS:
                    assert given == expected, fault.where
    wanted.flow.close()
    assert len(lines) > 30  # so many different lines there are


def test_consumers_do_not_lose_updates_to_one_that_raises(spark):
    told = Told(spark, fails=2)
    with told.flow:
        told.feed()
        with pytest.raises(Planned):
            told.flow.step()
        # The step stands, and the others have theirs.
        told.check()
        first, second, third = map(list, told.seen)
        assert len(first) == 3 and second == [] and len(third) == 1
        told.feed()
        with pytest.raises(Planned):
            told.flow.step()
        left = [delivery for delivery in told.flow._state.outbox if not delivery.done]
        assert [delivery.epoch for delivery in left] == [1, 2]
        # There are no news, but there is something to be given.
        assert told.flow.step() is True
        assert told.flow.step() is False
        assert [time for _, time, _ in told.seen[1]] == [0] * 3 + [1] * 5
        assert (len(told.seen[0]), len(told.seen[2])) == (6, 2)


def test_what_a_record_at_a_time_was_given_is_not_given_again(spark):
    seen = []

    def show(record, time, diff):
        if record.word == "b" and seen != ["a", "b"]:
            seen.append("b")
            raise KeyboardInterrupt
        seen.append(record.word)

    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        words.inspect(show)
        session.insert([("a",), ("b",), ("c",)])
        session.close()
        with pytest.raises(KeyboardInterrupt):
            flow.step()
        assert flow.step()
        assert seen == ["a", "b", "b", "c"]


def test_a_flush_that_is_cut_short_changes_nothing(spark):
    for at in count():
        with Dataflow(spark, runner="local", buckets=1) as flow:
            words, session = flow.input("words", "word string")
            counts = words.count()
            session.insert([("a",)])
            session.update([("b", 0, 2)])
            session.advance_to(1)
            fault = Fault(KeyboardInterrupt, at)
            fault.made = True
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
    """Run functions at the same time, a thread each; what one of them raises is raised."""
    with ThreadPoolExecutor(len(functions)) as pool:
        for running in [pool.submit(function) for function in functions]:
            running.result()


@pytest.fixture
def many_switches():
    """Threads change places as often as can be."""
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
    turns, seen = 20, []
    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        counts = words.count().arrange_by_self()
        counts.inspect(lambda record, time, diff: seen.append((record["count"], time, diff)))

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
    standing = Counter()
    for number, _, diff in seen:
        standing[number] += diff
    assert +standing == {2 * turns: 1}
    assert [time for _, time, _ in seen] == sorted(time for _, time, _ in seen)


def test_a_function_that_a_step_calls_cannot_step(spark):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        found = []

        def show(record, time, diff):
            if not found:
                session.insert([("again",)])  # it may feed the input
            with pytest.raises(StalledError, match="called by a function that a step"):
                flow.step()
            found.append(record.word)

        words.inspect(show)
        session.insert([("a",)])
        session.advance_to(1)
        session.flush()
        flow.step()
        session.close()
        flow.step()
        assert found == ["a", "again"]


def test_operators_are_not_added_while_another_thread_steps(spark):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        words, session = flow.input("words", "word string")
        inside, go_on, done = threading.Event(), threading.Event(), []

        def show(table):
            inside.set()
            go_on.wait(60)

        words.inspect(show, by_table=True)

        def step():
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
