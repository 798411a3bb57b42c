"""Which inputs a step looks at: those that were given anything, however, and no others.

    an input is not among those that have changed  ⟹  the state has all that it was given

so that of a thousand inputs of which one is fed one costs anything.
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


class Fed:
    """A dataflow with two plain inputs and one that has a key, and what they were given."""

    def __init__(self, spark, flow):
        self.spark, self.flow = spark, flow
        self.sessions, self.kept = [], []
        for name in "ab":
            self.another_input(name)
        rows, session = flow.input("keyed", "k long, v long", key="k")
        self.sessions.append(session)
        self.table = rows.keep()
        #: By input the updates, and changes by key with their times.
        self.updates = {0: [], 1: []}
        self.changes = []
        self.numbers = iter(range(1000))

    def at(self, i):
        """The time of an open session; None of one that is closed."""
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
        found = self.flow.discard()
        for i in (0, 1):
            self.drop(i, found["ab"[i]])
        for table in found["keyed"]:
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
        kept = []
        for change in reversed(self.changes):  # those of before were processed
            if gone[change]:
                gone[change] -= 1
            else:
                kept.append(change)
        self.changes = kept[::-1]

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
        self.kept.append(rows.count().keep())

    def check(self):
        """The law."""
        inputs, state = self.flow._inputs, self.flow._state
        for session in inputs.sessions():
            held = session._content
            if session not in inputs._changed:
                assert not (held.waiting or held.rows or held.flushed), session
                assert held.capability == held.frontier == state.frontiers[session._node]

    def expected(self, i):
        found = Counter()
        for k, _, diff in self.updates[i]:
            found[k] += diff
        return {k: n for k, n in found.items() if n}


@settings(max_examples=EXAMPLES * 4)
@given(todo=st.lists(actions, max_size=25), buckets=st.integers(1, 2))
def test_an_input_that_was_given_anything_is_looked_at(spark, todo, buckets):
    with Dataflow(spark, runner="local", buckets=buckets) as flow:
        fed = Fed(spark, flow)
        for name, *arguments in todo:
            of = arguments[0] if name in (
                "insert", "remove", "insert_frame", "update", "insert_nothing", "update_nothing",
                "flush", "advance",
            ) else 2 if name in (
                "upsert", "upsert_frame", "upsert_at", "delete", "replace"
            ) else None
            if of is not None and fed.at(of) is None:
                continue
            if name == "advance_all" and all(fed.at(i) is None for i in range(3)):
                continue
            getattr(fed, name)(*arguments)
            fed.check()
        for session in fed.sessions:
            session.close()
        flow.step()
        fed.check()
        assert not flow._inputs._changed
        for i in (0, 1):
            found = {row.k: row["count"] for row in fed.kept[i].at(allow_negative=True).collect()}
            assert found == fed.expected(i)
        table = {}
        for k, v, _ in sorted(fed.changes, key=lambda change: change[2]):
            if k is None:
                table.clear()
            elif v is None:
                table.pop(k, None)
            else:
                table[k] = v
        assert {row.k: row.v for row in fed.table.at().collect()} == table


def watched(monkeypatch, *names):
    """The names of sessions that some methods of theirs are called of."""
    asked = []
    for name in names:
        def call(session, *given, of=getattr(BaseSession, name)):
            asked.append(session.name)
            return of(session, *given)

        monkeypatch.setattr(BaseSession, name, call)
    return asked


def flow_of(flow, inputs):
    sessions, kept = [], []
    for number in range(inputs):
        rows, session = flow.input(f"rows {number}", "k long")
        kept.append(rows.count().keep())
        sessions.append(session)
    return sessions, kept


def test_of_many_inputs_one_is_looked_at(spark, monkeypatch):
    asked = watched(monkeypatch, "_hand_over", "_drop", "_flush")
    with Dataflow(spark, runner="local") as flow:
        sessions, kept = flow_of(flow, 50)
        flow.advance_to(1)
        given, seen = [], flow._inputs.flushed_since

        def counted(graph, state):
            found = seen(graph, state)
            given.append(found)
            return found

        monkeypatch.setattr(flow._inputs, "flushed_since", counted)
        for time in range(2, 5):
            asked.clear()
            given.clear()
            sessions[3].insert([(time,)])
            sessions[3].advance_to(time)
            assert flow.step()
            assert asked == ["rows 3"] * 3
            ((arrivals, upper),) = given
            assert list(arrivals) == list(upper) == [sessions[3]._node]
        assert kept[3].at().count() == 3
        # And the others as soon as they are fed.
        sessions[7].insert([(1,)])
        flow.advance_to(5)
        assert kept[7].at().count() == 1
        assert not flow._inputs._changed


def test_what_was_taken_in_is_let_go_of_also_after_a_step_that_failed(spark, monkeypatch):
    with Dataflow(spark, runner="local") as flow:
        sessions, kept = flow_of(flow, 5)
        flow.advance_to(1)
        sessions[3].insert([(1,)])
        flow.advance_to(2)
        assert not any(session._content.flushed for session in sessions)
        # What a step that fails has not taken in is let go of when another one has taken it.
        sessions[4].insert([(1,)])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Step, "process", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            flow.advance_to(4)
        assert sessions[4]._content.flushed
        sessions[0].insert([(7,)])
        assert flow.step()
        assert not any(session._content.flushed for session in sessions)
        assert kept[4].at().count() == 1
        flow.advance_to(5)
        assert kept[0].at().count() == 1


def test_a_step_that_failed_and_names_who_is_to_blame_is_run_again(spark):
    with Dataflow(spark, runner="local") as flow:
        parts, parts_in = flow.input("parts", "k long, v long")
        others, others_in = flow.input("others", "k long")
        both = parts.groupBy("k").agg(F.sum("v").alias("v")).join(others, "k").keep()
        flow.advance_to(1)
        others_in.insert([(3,)])
        others_in.advance_to(2)  # ahead of the other one
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
        sessions, kept = flow_of(flow, 6)
        flow.advance_to(1)

        def while_it_runs(step, *given, process=Step.process):
            found = process(step, *given)
            sessions[0].insert([(1,)])
            sessions[1].update([(1, 1, 1)])
            sessions[2].insert([(1,)])
            sessions[2].flush()
            sessions[3].insert([(1,)])
            sessions[3].close()
            sessions[4].advance_to(3)
            return found

        sessions[0].insert([(1,)])
        sessions[0].advance_to(2)
        with monkeypatch.context() as patch:
            patch.setattr(Step, "process", while_it_runs)
            flow.step()
        assert set(flow._inputs._changed) == set(sessions[:5])
        flow.advance_to(3)
        found = [[row["count"] for row in one.at().collect()] for one in kept]
        assert found == [[2], [1], [1], [1], [], []]
        assert not flow._inputs._changed


def test_a_session_that_is_closed_with_rows_waiting(spark):
    with Dataflow(spark, runner="local") as flow:
        sessions, kept = flow_of(flow, 3)
        flow.advance_to(1)
        sessions[1].insert([(1,), (1,)])
        sessions[1].close()
        assert flow.step()
        assert [row["count"] for row in kept[1].at().collect()] == [2]
        assert not flow.step()
        assert not flow._inputs._changed


def test_threads_feed_inputs_while_another_one_steps(spark):
    rounds, wrong = 150, []
    with Dataflow(spark, runner="local", buckets=2) as flow:
        sessions, kept = flow_of(flow, 4)

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
        found = [sum(row["count"] for row in one.at().collect()) for one in kept]
        assert found == [3 * rounds, 2 * rounds, rounds, 0]
        assert not flow._inputs._changed


def test_what_a_ctrl_c_cuts_short_is_not_forgotten(spark):
    """Between the note that a session has changed and the change: what is not noted is not there.
    """

    class Cut(dict):
        def __setitem__(self, *given):
            raise KeyboardInterrupt

    with Dataflow(spark, runner="local") as flow:
        (session,), (kept,) = flow_of(flow, 1)
        flow.advance_to(1)
        noted = session._changed
        for call, *with_ in (session.insert, [(1,)]), (session.advance_to, 5), (session.close,):
            session._changed = Cut(noted)
            with pytest.raises(KeyboardInterrupt):
                call(*with_)
            session._changed = noted
            assert session.time() == 1 and not session._has_more(0)
        assert not flow.step() and not kept.at().count()


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
