"""A step visits exactly the inputs that have changed.

    an input is not marked as changed  ⟹  the state has all of its updates

One changed input among a thousand costs no more than one input alone.
"""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffOverflowError, FunctionError
from pyspark_diff.dataflow.input_session import BaseSession
from pyspark_diff.engine.step import Step

EXAMPLES = settings().max_examples
KEYS = st.integers(0, 2)
PLAIN = st.integers(0, 1)
AHEAD = st.integers(0, 2)

actions = st.one_of(
    st.tuples(st.sampled_from(["insert", "remove", "insert_frame"]), PLAIN, KEYS),
    st.tuples(st.just("update"), PLAIN, KEYS, AHEAD),
    st.tuples(st.sampled_from(["insert_nothing", "update_nothing", "discard"]), PLAIN),
    st.tuples(st.sampled_from(["upsert", "upsert_frame", "delete", "replace"]), KEYS),
    st.tuples(st.just("upsert_at"), KEYS, AHEAD),
    st.tuples(st.sampled_from(["flush", "close"]), st.integers(0, 2)),
    st.tuples(st.just("advance"), st.integers(0, 2), AHEAD),
    st.tuples(st.just("advance_all"), AHEAD),
    st.tuples(st.sampled_from(["step", "step", "failing_step", "another_input", "discard_all"])),
)


class Feeder:
    """A dataflow with two plain inputs and a keyed input, and all of their updates."""

    def __init__(self, spark, flow):
        self.spark, self.flow = spark, flow
        self.sessions, self.counts = [], []
        for name in "ab":
            self.another_input(name)
        rows, session = flow.input("keyed", "k long, v long", key="k")
        self.sessions.append(session)
        self.table = rows.keep()
        #: The updates of each plain input, and the changes by key with their times.
        self.updates = {0: [], 1: []}
        self.changes = []
        self.numbers = iter(range(1000))

    def at(self, i):
        """The time of an open session; None if it is closed."""
        return self.sessions[i]._at()

    def insert(self, i, k, diff=1):
        (self.sessions[i].insert if diff > 0 else self.sessions[i].remove)([(k,)])
        self.updates[i].append((k, self.at(i), diff))

    def remove(self, i, k):
        self.insert(i, k, -1)

    def insert_frame(self, i, k):
        self.sessions[i].insert(self.spark.range(k, k + 1).withColumnRenamed("id", "k"))
        self.updates[i].append((k, self.at(i), 1))

    def update(self, i, k, ahead):
        self.sessions[i].update([(k, self.at(i) + ahead, 2)])
        self.updates[i].append((k, self.at(i) + ahead, 2))

    def insert_nothing(self, i):
        self.sessions[i].insert([])

    def update_nothing(self, i):
        self.sessions[i].update(pa.table({n: pa.array([], pa.int64())
                                          for n in ("k", "time", "diff")}))

    def discard(self, i):
        self.drop(i, self.sessions[i].discard())

    def discard_all(self):
        dropped = self.flow.discard()
        for i in (0, 1):
            self.drop(i, dropped["ab"[i]])
        for table in dropped["keyed"]:
            self.forget(table)

    def drop(self, i, dropped):
        for table in dropped:
            rows = table.to_pylist() if isinstance(table, pa.Table) else table.collect()
            for row in rows:
                self.updates[i].remove((row["k"], row["time"], row["diff"]))

    def forget(self, table):
        rows = table.to_pylist() if isinstance(table, pa.Table) else table.collect()
        gone = Counter((row["k"], row["v"], row["time"]) for row in rows if row["k"] is not None)
        gone.update((None, None, row["time"]) for row in rows if row["k"] is None)
        left = []
        for change in reversed(self.changes):  # earlier changes were processed
            if gone[change]:
                gone[change] -= 1
            else:
                left.append(change)
        self.changes = left[::-1]

    def upsert(self, k, ahead=0, how="rows"):
        v, at = next(self.numbers), self.at(2) + ahead
        if how == "frame":
            self.sessions[2].upsert(self.spark.createDataFrame([(k, v)], "k long, v long"))
        elif how == "time":
            self.sessions[2].upsert([(k, v, at)], time="t")
        else:
            self.sessions[2].upsert([(k, v)])
        self.changes.append((k, v, at))

    def upsert_frame(self, k):
        self.upsert(k, how="frame")

    def upsert_at(self, k, ahead):
        self.upsert(k, ahead, "time")

    def delete(self, k):
        self.sessions[2].delete([k])
        self.changes.append((k, None, self.at(2)))

    def replace(self, k):
        v = next(self.numbers)
        self.sessions[2].replace([(k, v)])
        self.changes += [(None, None, self.at(2)), (k, v, self.at(2))]

    def flush(self, i):
        self.sessions[i].flush()

    def close(self, i):
        self.sessions[i].close()

    def advance(self, i, ahead):
        self.sessions[i].advance_to(self.at(i) + ahead)

    def advance_all(self, ahead):
        first = min(at for i in range(3) if (at := self.at(i)) is not None)
        self.flow.advance_to(first + ahead)

    def step(self):
        self.flow.step()

    def failing_step(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Step, "process", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            try:
                self.flow.step()
            except KeyboardInterrupt:
                pass

    def another_input(self, name=None):
        rows, session = self.flow.input(name or f"more {next(self.numbers)}", "k long")
        if name is None:
            self.flow._inputs.session(session._node)
            session.insert([(1,)])
            session.close()
        else:
            self.sessions.append(session)
        self.counts.append(rows.count().keep())

    def check(self):
        """The law."""
        inputs, state = self.flow._inputs, self.flow._state
        for session in inputs.sessions():
            content = session._content
            if session not in inputs._changed:
                assert not (content.waiting or content.rows or content.flushed), session
                assert content.capability == content.frontier == state.frontiers[session._node]

    def expected(self, i):
        counts = Counter()
        for k, _, diff in self.updates[i]:
            counts[k] += diff
        return {k: n for k, n in counts.items() if n}


@settings(max_examples=EXAMPLES * 4)
@given(todo=st.lists(actions, max_size=25), buckets=st.integers(1, 2))
def test_an_input_that_was_given_anything_is_looked_at(spark, todo, buckets):
    with Dataflow(spark, runner="local", buckets=buckets) as flow:
        feeder = Feeder(spark, flow)
        for name, *arguments in todo:
            target = arguments[0] if name in (
                "insert", "remove", "insert_frame", "update", "insert_nothing", "update_nothing",
                "flush", "advance",
            ) else 2 if name in (
                "upsert", "upsert_frame", "upsert_at", "delete", "replace"
            ) else None
            if target is not None and feeder.at(target) is None:
                continue
            if name == "advance_all" and all(feeder.at(i) is None for i in range(3)):
                continue
            getattr(feeder, name)(*arguments)
            feeder.check()
        for session in feeder.sessions:
            session.close()
        flow.step()
        feeder.check()
        assert not flow._inputs._changed
        for i in (0, 1):
            rows = feeder.counts[i].at(allow_negative=True).collect()
            counts = {row.k: row["count"] for row in rows}
            assert counts == feeder.expected(i)
        table = {}
        for k, v, _ in sorted(feeder.changes, key=lambda change: change[2]):
            if k is None:
                table.clear()
            elif v is None:
                table.pop(k, None)
            else:
                table[k] = v
        assert {row.k: row.v for row in feeder.table.at().collect()} == table


def watched(monkeypatch, *names):
    """A list that gets the name of a session at each call of some methods."""
    asked = []
    for name in names:
        def call(session, *arguments, method=getattr(BaseSession, name)):
            asked.append(session.name)
            return method(session, *arguments)

        monkeypatch.setattr(BaseSession, name, call)
    return asked


def flow_of(flow, inputs):
    sessions, counts = [], []
    for number in range(inputs):
        rows, session = flow.input(f"rows {number}", "k long")
        counts.append(rows.count().keep())
        sessions.append(session)
    return sessions, counts


def test_of_many_inputs_one_is_looked_at(spark, monkeypatch):
    asked = watched(monkeypatch, "_hand_over", "_drop", "_flush")
    with Dataflow(spark, runner="local") as flow:
        sessions, counts = flow_of(flow, 50)
        flow.advance_to(1)
        results, flushed_since = [], flow._inputs.flushed_since

        def counted(graph, state):
            result = flushed_since(graph, state)
            results.append(result)
            return result

        monkeypatch.setattr(flow._inputs, "flushed_since", counted)
        for time in range(2, 5):
            asked.clear()
            results.clear()
            sessions[3].insert([(time,)])
            sessions[3].advance_to(time)
            assert flow.step()
            assert asked == ["rows 3"] * 3
            ((arrivals, upper),) = results
            assert list(arrivals) == list(upper) == [sessions[3]._node]
        assert counts[3].at().count() == 3
        # A step also visits another input when it changes.
        sessions[7].insert([(1,)])
        flow.advance_to(5)
        assert counts[7].at().count() == 1
        assert not flow._inputs._changed


def test_what_was_taken_in_is_let_go_of_also_after_a_step_that_failed(spark, monkeypatch):
    with Dataflow(spark, runner="local") as flow:
        sessions, counts = flow_of(flow, 5)
        flow.advance_to(1)
        sessions[3].insert([(1,)])
        flow.advance_to(2)
        assert not any(session._content.flushed for session in sessions)
        # A failed step keeps the flushed rows, and the next successful step frees them.
        sessions[4].insert([(1,)])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Step, "process", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            flow.advance_to(4)
        assert sessions[4]._content.flushed
        sessions[0].insert([(7,)])
        assert flow.step()
        assert not any(session._content.flushed for session in sessions)
        assert counts[4].at().count() == 1
        flow.advance_to(5)
        assert counts[0].at().count() == 1


def test_a_step_that_failed_and_names_who_is_to_blame_is_run_again(spark):
    with Dataflow(spark, runner="local") as flow:
        parts, parts_in = flow.input("parts", "k long, v long")
        others, others_in = flow.input("others", "k long")
        both = parts.groupBy("k").agg(F.sum("v").alias("v")).join(others, "k").keep()
        flow.advance_to(1)
        others_in.insert([(3,)])
        others_in.advance_to(2)  # ahead of the other input
        flow.step()
        parts_in.insert([(3, 2**63 - 1), (3, 1)])
        parts_in.advance_to(2)
        for _ in range(2):
            with pytest.raises(DiffOverflowError, match="on input 'parts' at time 1: .*diff 1"):
                flow.step()
        parts_in.discard("v = 1")
        assert flow.step()
        assert [row.v for row in both.at().collect()] == [2**63 - 1]
        assert not flow._inputs._changed


def test_what_is_given_while_a_step_runs_is_taken_in_by_the_next(spark, monkeypatch):
    with Dataflow(spark, runner="local") as flow:
        sessions, counts = flow_of(flow, 6)
        flow.advance_to(1)

        def while_it_runs(step, *arguments, process=Step.process):
            result = process(step, *arguments)
            sessions[0].insert([(1,)])
            sessions[1].update([(1, 1, 1)])
            sessions[2].insert([(1,)])
            sessions[2].flush()
            sessions[3].insert([(1,)])
            sessions[3].close()
            sessions[4].advance_to(3)
            return result

        sessions[0].insert([(1,)])
        sessions[0].advance_to(2)
        with monkeypatch.context() as patch:
            patch.setattr(Step, "process", while_it_runs)
            flow.step()
        assert set(flow._inputs._changed) == set(sessions[:5])
        flow.advance_to(3)
        totals = [[row["count"] for row in collection.at().collect()] for collection in counts]
        assert totals == [[2], [1], [1], [1], [], []]
        assert not flow._inputs._changed


def test_a_session_that_is_closed_with_rows_waiting(spark):
    with Dataflow(spark, runner="local") as flow:
        sessions, counts = flow_of(flow, 3)
        flow.advance_to(1)
        sessions[1].insert([(1,), (1,)])
        sessions[1].close()
        assert flow.step()
        assert [row["count"] for row in counts[1].at().collect()] == [2]
        assert not flow.step()
        assert not flow._inputs._changed


def test_threads_feed_inputs_while_another_one_steps(spark):
    rounds, wrong = 150, []
    with Dataflow(spark, runner="local", buckets=2) as flow:
        sessions, counts = flow_of(flow, 4)

        def feed(number):
            try:
                for k in range(rounds):
                    sessions[number].insert([(k,)])
                    sessions[number % 2].insert([(k,)])
                    if k % 7 == number:
                        sessions[number].advance_to(sessions[number].time() + 1)
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=feed, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            flow.step_async().wait()
            flow.step()
        for session in sessions:
            session.close()
        flow.step()
        assert not wrong
        totals = [sum(row["count"] for row in collection.at().collect()) for collection in counts]
        assert totals == [3 * rounds, 2 * rounds, rounds, 0]
        assert not flow._inputs._changed


def test_what_a_ctrl_c_cuts_short_is_not_forgotten(spark):
    """An interrupt while a session is marked as changed leaves the session unchanged."""

    class Cut(dict):
        def __setitem__(self, *arguments):
            raise KeyboardInterrupt

    with Dataflow(spark, runner="local") as flow:
        (session,), (counts,) = flow_of(flow, 1)
        flow.advance_to(1)
        noted = session._changed
        for call, *with_ in (session.insert, [(1,)]), (session.advance_to, 5), (session.close,):
            session._changed = Cut(noted)
            with pytest.raises(KeyboardInterrupt):
                call(*with_)
            session._changed = noted
            assert session.time() == 1 and not session._has_more(0)
        assert not flow.step() and not counts.at().count()


def test_an_input_that_a_function_of_a_failing_step_adds(spark):
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", "k long")

        def failing(key, values):
            if len(flow._inputs.nodes()) == 1:
                flow.input("more", "k long")
            raise ValueError("mine")

        rows.reduce(failing, "n long", key="k").keep()
        session.insert([(1,)])
        with pytest.raises(FunctionError, match="mine(.|\n)*on input 'rows' at time 0: .1,."):
            flow.advance_to(1)
        session.discard()
        assert flow.step()
        assert not flow._inputs._changed
