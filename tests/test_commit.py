"""The edge of a step: what lies between it and its inputs, its consumers and other threads.

    a step is one commit:  whatever cuts it short, the next goes on from there, and the law holds
    a consumer sees        every update, in order; none twice, unless it was cut short just then
"""

from __future__ import annotations

import sys
from itertools import count

import pytest
from programs import files_of

from pyspark_diff import Dataflow
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
