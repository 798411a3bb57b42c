"""Struct times: the output at a time comes from the updates that are no later in any field.

    frame.at((i, j))  =  program( updates of the inputs at times (a, b) with a <= i and b <= j )
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections import Counter
from itertools import product

import pytest
from crashes import At, operations
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Op, Program, evaluate, normal, total
from program_ops import ddl
from programs import build, formed, pool, programs
from pyspark.errors import AnalysisException
from pyspark.sql import Window
from pyspark.sql import functions as F
from test_iterate import looping

from pyspark_diff import (
    AssertionFailedError,
    Dataflow,
    DiffError,
    DiffFrame,
    DiffOverflowError,
    InvalidTimeError,
    Loop,
    NegativeMultiplicityError,
    NotReadableError,
    ProgramChangedError,
    SchemaError,
    SinkError,
    StaleWarning,
    StateReader,
    TimeRegressionError,
    graphs,
)
from pyspark_diff.sinks import foreach, snapshot
from pyspark_diff.times import Antichain, meet_all
from pyspark_diff.trace import arrangement

EXAMPLES = settings().max_examples
SIDE = 3
TIMES = [("a", "int"), ("b", "bigint"), ("c", "smallint")]


def examples(share):
    return settings(max_examples=max(1, round(EXAMPLES * share)))


def accumulated(history, time):
    return total(
        (normal(record), diff) for record, at, diff in history
        if all(a <= b for a, b in zip(at, time))
    )


def answers(program, histories, time):
    """The oracle's answers at a time."""
    def before(interval):
        then = tuple(a - b for a, b in zip(time, interval))
        return [accumulated(history, then) for history in histories]

    return evaluate(program, before((0,) * len(time)), before)


@st.composite
def moving(draw, program, fields):
    """A program, perhaps with delays or expiries of its first input and of its last node."""
    if draw(st.booleans()):
        return program
    interval = st.tuples(*[st.integers(0, 2)] * fields).filter(any)
    count, kinds = len(program.inputs), st.sampled_from(["delay", "expire_after"])
    added = (Op(draw(kinds), (0,), (draw(interval),)),)
    shifted = {0: draw(st.sampled_from([0, count]))}
    ops = tuple(
        Op(op.name, tuple(n + 1 if n >= count else shifted.get(n, n) for n in op.reads), op.args)
        for op in program.ops
    )
    last = count + len(ops)
    more = (Op(draw(kinds), (last,), (draw(interval),)),)
    others = {node + 1 if node >= count else node for node in program.outputs}
    # Delays and expiries keep the column names, so the other operators stay valid.
    return Program(program.inputs, (*added, *ops, *more), tuple(sorted(others | {count, last + 1})))


def kind_of(fields):
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in TIMES[:fields])}>"


@st.composite
def histories(draw, inputs, fields):
    pools = {columns: draw(pool(columns)) for columns in dict.fromkeys(inputs)}
    time = st.tuples(*[st.integers(0, SIDE - 1)] * fields)
    return [
        draw(st.lists(
            st.tuples(st.sampled_from(pools[columns]), time, st.sampled_from([1, 1, 2, -1, -2, 0])),
            max_size=12,
        ))
        for columns in inputs
    ]


def framed(spark, form, history, columns, fields):
    rows = [(*record, *time, diff) for record, time, diff in history]
    names = [f"time {number}" for number in range(fields)]
    schema = (*columns, *((n, "bigint") for n in names), ("diff", "bigint"))
    source = formed(spark, form, rows, schema)
    frame = source if form == "frame" else spark.createDataFrame(source, ddl(schema))
    parts = [F.col(f"`{n}`").cast(kind).alias(name) for n, (name, kind) in zip(names, TIMES)]
    rest = [F.col(f"`{name}`") for name, _ in columns]
    return DiffFrame(frame.select(*rest, F.struct(*parts).alias("time"), "diff"))


def check(spark, data, program, fields, form):
    updates = data.draw(histories(program.inputs, fields))
    frames = [
        framed(spark, form, history, columns, fields)
        for history, columns in zip(updates, program.inputs)
    ]
    nodes = build(program, frames)
    for node in program.outputs:
        output = nodes[node].to_df()
        assert output.schema["time"].dataType.simpleString() == kind_of(fields).replace(" ", "")
        rows = [(tuple(row[:-2]), tuple(row[-2]), row[-1]) for row in output.collect()]
        keys = [(normal(record), time) for record, time, _ in rows]
        assert len(set(keys)) == len(keys) and all(diff for _, _, diff in rows)
        for time in product(range(SIDE), repeat=fields):
            assert accumulated(rows, time) == answers(program, updates, time)[node], time
        time = data.draw(st.tuples(*[st.integers(0, SIDE)] * fields))
        expected = answers(program, updates, time)[node]
        if min(expected.values(), default=0) < 0:
            with pytest.raises(NegativeMultiplicityError):
                nodes[node].at(time)
        else:
            there = Counter(normal(tuple(row)) for row in nodes[node].at(list(time)).collect())
            assert there == expected


@examples(2)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]))
def test_random_programs(spark, data, fields):
    program = data.draw(moving(data.draw(programs(most=3, whole=True)), fields))
    check(spark, data, program, fields, "arrow")


@examples(0.3)
@given(data=st.data())
def test_random_programs_of_frames_that_spark_reads(spark, data):
    program = data.draw(moving(data.draw(programs(most=2, whole=True)), 2))
    check(spark, data, program, 2, "frame")


@examples(1.5)
@given(data=st.data(), loops=st.sampled_from([0, 0, 1]))
def test_random_loops(spark, data, loops):
    check(spark, data, data.draw(looping(loops)), 2, "arrow")


# In steps of random size.


def shown(updates):
    return lambda record, time, diff: updates.append((tuple(record), time, diff))


def writing(written):
    def write(changes, epoch):
        written.extend((tuple(r[:-2]), tuple(r[-2]), r[-1]) for r in changes.collect())

    return write


@st.composite
def frontiers(draw, before, fields):
    """A frontier at or after ``before``, of one to three times."""
    time = st.tuples(*[st.sampled_from([0, 0, 1, 1, 2, 3])] * fields)
    points = draw(st.lists(st.tuples(st.sampled_from(list(before)), time), min_size=1, max_size=3))
    return [tuple(map(max, *pair)) for pair in points]


def check_steps(spark, data, program, fields, steps=3, **options):
    pending = data.draw(histories(program.inputs, fields))
    sent = [[] for _ in pending]
    history = data.draw(st.booleans())
    with Dataflow(spark, time_type=kind_of(fields), keep_history=history, **options) as flow:
        sources = [
            flow.input(f"in{n}", ", ".join(f"`{name}` {k}" for name, k in columns))
            for n, columns in enumerate(program.inputs)
        ]
        nodes = build(program, [frame for frame, _ in sources])
        inspected = {node: [] for node in program.outputs}
        outputs = {}
        for node in program.outputs:
            nodes[node].inspect(shown(inspected[node]))
            outputs[node] = nodes[node].keep()
        sink_node, written = program.outputs[0], []
        if data.draw(st.booleans()):
            nodes[sink_node].sink("written", foreach(writing(written)))
        else:
            written = None
        for _ in range(data.draw(st.integers(1, steps))):
            for number, (_, session) in enumerate(sources):
                now = [u for u in pending[number] if data.draw(st.booleans())]
                pending[number] = [u for u in pending[number] if u not in now]
                # Late updates are dropped.
                now = [u for u in now if session._frontier.less_equal(u[1])]
                session.update([(*record, time, diff) for record, time, diff in now])
                sent[number] += now
                if data.draw(st.sampled_from([False, False, True])):
                    session.advance_to(data.draw(frontiers(session._frontier, fields)))
            least = meet_all(session._frontier for _, session in sources)
            flow.advance_to(data.draw(frontiers(least, fields)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StaleWarning)
                flow.step()
            check_complete(flow, program, sent, outputs, inspected, fields)
            if written is not None:
                check_complete(flow, program, sent, outputs, {sink_node: written}, fields)
                # A sink writes complete updates, each once.
                assert not any(outputs[sink_node].probe().less_equal(at) for _, at, _ in written)
                keys = [(normal(record), at) for record, at, _ in written]
                assert len(set(keys)) == len(keys)
        for node in program.outputs:
            check_read(data, program, sent, outputs[node], node, fields)


def check_complete(flow, program, sent, outputs, inspected, fields):
    """The inspected updates add up to the answer at every complete time."""
    expected = {
        t: answers(program, sent, t)
        for t in product(range(SIDE), repeat=fields)
    }
    for node in inspected:
        probe = outputs[node].probe()
        for time, answer in expected.items():
            if not probe.less_equal(time):
                assert accumulated(inspected[node], time) == answer[node], (node, time)


def check_read(data, program, sent, frame, node, fields):
    """A kept output is the answer at a readable time; at other times it is refused."""
    time = data.draw(st.tuples(*[st.integers(0, SIDE)] * fields))
    try:
        records = frame.at(time, allow_negative=True).collect()
    except NotReadableError as error:
        assert frame.probe().less_equal(time) == ("not complete" in str(error)), time
        assert not frame.probe().less_equal(time) or "not complete" in str(error)
    else:
        expected = +answers(program, sent, time)[node]
        assert Counter(normal(tuple(row)) for row in records) == expected, time
    rows = [(tuple(row[:-2]), tuple(row[-2]), row[-1]) for row in frame.to_df().collect()]
    assert not any(frame.probe().less_equal(at) for _, at, _ in rows)


@examples(4)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]), buckets=st.integers(1, 3))
def test_random_programs_in_steps(spark, data, fields, buckets):
    program = data.draw(moving(data.draw(programs(most=4, whole=True)), fields))
    check_steps(spark, data, program, fields, runner="local", buckets=buckets)


@examples(0.3)
@given(data=st.data())
def test_random_programs_in_steps_in_spark(spark, data):
    program = data.draw(moving(data.draw(programs(most=2, whole=True)), 2))
    check_steps(spark, data, program, 2, runner="spark", buckets=2)


@examples(2)
@given(data=st.data(), loops=st.sampled_from([0, 0, 1]))
def test_random_loops_in_steps(spark, data, loops):
    check_steps(spark, data, data.draw(looping(loops)), 2, runner="local", buckets=2)


def test_inputs_that_are_apart_may_stay_where_they_are(spark):
    """A dataflow's frontier is the meet of its inputs' frontiers, and may equal none of them."""
    with Dataflow(spark, time_type=kind_of(2), runner="local") as flow:
        sessions = [flow.input(name, "k int")[1] for name in "ab"]
        sessions[0].advance_to([(1, 2), (3, 0)])
        sessions[1].advance_to([(0, 2)])
        flow.advance_to([(0, 2), (3, 0)])
        assert [session._frontier for session in sessions] == [
            Antichain([(1, 2), (3, 0)]), Antichain([(0, 2)])]
        for time in (0, 0), [(0, 2), (2, 0)]:
            with pytest.raises(TimeRegressionError, match="cannot go back"):
                flow.advance_to(time)


# Programs that grow while they run.


class Grown:
    """A dataflow with the outputs of a program, each added before one of the steps."""

    def __init__(self, data, program, fields, keeps, late):
        self.data, self.program, self.fields = data, program, fields
        self.keeps, self.late, self.steps = keeps, late, 0
        self.names = [f"in{n}" for n in range(len(program.inputs))]
        self.sent = [[] for _ in program.inputs]
        #: The inspected updates of each output, and the frontier from which they are complete.
        self.inspected, self.first = {}, {}
        #: A reader of the store, if there is one.
        self.reads = None

    def write(self, flow):
        """Add the inputs, the nodes kept from the beginning and the outputs added so far."""
        frames = [
            flow.input(name, ", ".join(f"`{column}` {k}" for column, k in columns))[0]
            for name, columns in zip(self.names, self.program.inputs)
        ]
        self.nodes, self.flow = build(self.program, frames), flow
        for node in self.keeps:
            self.nodes[node].keep(f"n{node}")
        for steps in range(self.steps):
            self.add(steps, again=True)

    def add(self, steps, again=False):
        """Add the outputs that are due after ``steps`` steps."""
        added = [n for n, at in zip(self.program.outputs, self.late) if at == steps]
        for node in added:
            self.nodes[node].keep(f"out{node}")
            if not again:
                self.nodes[node].inspect(shown(self.inspected.setdefault(node, [])))
        if added and not again:
            growth = self.flow._build()
            first = growth.since if growth.bases else Antichain()
            self.first.update(dict.fromkeys(added, first))

    def feed(self, pending):
        """Send some pending updates, and drop the late ones."""
        for number, name in enumerate(self.names):
            session = self.flow.session(name)
            now = [u for u in pending[number] if self.data.draw(st.booleans())]
            pending[number] = [u for u in pending[number] if u not in now]
            now = [u for u in now if session._frontier.less_equal(u[1])]
            session.update([(*record, time, diff) for record, time, diff in now])
            self.sent[number] += now

    def step(self, pending):
        self.add(self.steps)
        self.steps += 1
        self.feed(pending)
        least = meet_all(self.flow.session(name)._frontier for name in self.names)
        to = self.data.draw(st.one_of(st.just(list(least)), frontiers(least, self.fields)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StaleWarning)
            self.flow.advance_to(to)
        self.check()

    def check(self):
        if self.reads:
            self.reads.refresh()
        self.check_all()

    def check_all(self):
        """Kept outputs and inspected updates are the answer at all readable times."""
        answers = {
            t: evaluate(self.program, [accumulated(history, t) for history in self.sent])
            for t in product(range(SIDE + 1), repeat=self.fields)
        }
        for node, at in zip(self.program.outputs, self.late):
            if at >= self.steps:
                continue
            frame = self.flow[f"out{node}"]
            trace = self.flow._arrangement(frame._in_fields()._node).trace
            rows = [(tuple(r[:-2]), tuple(r[-2]), r[-1]) for r in frame.to_df().collect()]
            readable = [
                t for t in answers if trace.since.less_equal(t) and not trace.upper.less_equal(t)
            ]
            for time in readable:
                assert accumulated(rows, time) == answers[time][node], (node, time)
            for time in self.data.draw(st.sets(st.sampled_from(readable), max_size=1)) if (
                readable
            ) else ():
                records = frame.at(time, allow_negative=True).collect()
                assert Counter(normal(tuple(row)) for row in records) == +answers[time][node], time
            if self.reads and f"out{node}" in self.reads:
                # A reader without the program reads the same.
                stored = self.reads[f"out{node}"]
                assert (stored.frontier(), stored.since()) == (trace.upper, trace.since)
                updates = [(tuple(r[:-2]), tuple(r[-2]), r[-1]) for r in stored.to_df().collect()]
                assert normal_rows(updates) == normal_rows(rows)
                for time in readable[:1]:
                    records = stored.at(time, allow_negative=True).collect()
                    counts = Counter(normal(tuple(row)) for row in records)
                    assert counts == +answers[time][node], time
            if node in self.inspected:
                first = self.first[node]
                for time in answers:
                    known = first.is_empty or first.less_equal(time)
                    if known and not trace.upper.less_equal(time):
                        assert accumulated(self.inspected[node], time) == answers[time][node], (
                            node, time
                        )


def normal_rows(rows):
    return Counter((normal(record), time, diff) for record, time, diff in rows)


def growing(data, program, fields, steps):
    """Draw the nodes kept from the beginning and the step that adds each output."""
    outputs = len(program.outputs)
    late = data.draw(st.lists(st.integers(0, steps), min_size=outputs, max_size=outputs))
    others = data.draw(st.sets(st.integers(0, len(program.inputs) + len(program.ops) - 1)))
    return Grown(data, program, fields, sorted({*range(len(program.inputs)), *others}), late)


def refused(error):
    """Whether an error is one of the permitted refusals to backfill."""
    return any(text in str(error) for text in ("may look at the times", "loop", "leave"))


def check_growth(spark, data, program, fields, steps=4, **options):
    pending = data.draw(histories(program.inputs, fields))
    grown = growing(data, program, fields, steps - 1)
    history = data.draw(st.booleans())
    with Dataflow(spark, time_type=kind_of(fields), keep_history=history, **options) as flow:
        grown.write(flow)
        try:
            for _ in range(steps):
                grown.step(pending)
        except NotReadableError as error:
            assert refused(error), error


@examples(2)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]), buckets=st.integers(1, 3))
def test_operators_that_are_added_late(spark, data, fields, buckets):
    program = data.draw(programs(most=4, whole=True))
    check_growth(spark, data, program, fields, runner="local", buckets=buckets)


@examples(0.3)
@given(data=st.data())
def test_operators_that_are_added_late_in_spark(spark, data):
    check_growth(spark, data, data.draw(programs(most=2, whole=True)), 2, runner="spark", buckets=2)


@examples(1)
@given(data=st.data(), loops=st.sampled_from([0, 0, 1]))
def test_loops_that_are_added_late(spark, data, loops):
    check_growth(spark, data, data.draw(looping(loops)), 2, runner="local", buckets=2)


@examples(1)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]), history=st.booleans())
def test_stores_that_are_opened_with_more(spark, data, fields, history):
    program = data.draw(programs(most=3, whole=True))
    pending, steps = data.draw(histories(program.inputs, fields)), 4
    grown = growing(data, program, fields, steps - 1)

    with tempfile.TemporaryDirectory() as root:
        def opened():
            return Dataflow.open(
                f"{root}/store", grown.write, spark=spark, time_type=kind_of(fields),
                keep_history=history, runner="local", buckets=2, on_change="extend",
            )

        flow = opened()
        try:
            for step in range(steps):
                if step and data.draw(st.booleans()):
                    flow.close()
                    if data.draw(st.booleans()):
                        # The program grows before or after it is opened.
                        grown.late = [max(at, step) for at in grown.late]
                    grown.inspected, grown.first = {}, {}
                    flow = opened()
                with StateReader(f"{root}/store", spark=spark) as grown.reads:
                    grown.step(pending)
        except (NotReadableError, ProgramChangedError) as error:
            assert refused(error), error
        finally:
            flow.close()


def check_stored(data, flow, program, sent, fields, history):
    """A store's kept outputs are the answer at all readable times."""
    for node in program.outputs:
        frame = flow[f"out{node}"]
        check_read(data, program, sent, frame, node, fields)
        rows = [(tuple(row[:-2]), tuple(row[-2]), row[-1]) for row in frame.to_df().collect()]
        for time in product(range(SIDE), repeat=fields) if history else ():
            if not frame.probe().less_equal(time):
                assert accumulated(rows, time) == answers(program, sent, time)[node], (node, time)


def check_store(spark, data, program, fields, root, history, **options):
    """Runs that continue a store, and copies of it from a kill at any operation."""
    pending = data.draw(histories(program.inputs, fields))
    sent = [[] for _ in pending]
    path, names = f"{root}/store", [f"in{n}" for n in range(len(pending))]

    def write(flow):
        frames = [
            flow.input(name, ", ".join(f"`{column}` {k}" for column, k in columns))[0]
            for name, columns in zip(names, program.inputs)
        ]
        nodes = build(program, frames)
        for node in program.outputs:
            nodes[node].keep(f"out{node}")

    def opened(path):
        return Dataflow.open(
            path, write, spark=spark, time_type=kind_of(fields), keep_history=history, **options
        )

    flow = opened(path)
    for step in range(3):
        sessions = [flow.session(name) for name in names]
        for number, session in enumerate(sessions):
            now = [u for u in pending[number] if data.draw(st.booleans())]
            pending[number] = [u for u in pending[number] if u not in now]
            now = [u for u in now if session._frontier.less_equal(u[1])]
            session.update([(*record, time, diff) for record, time, diff in now])
            sent[number] += now
        copy = f"{root}/copy{step}"
        kill = At(lambda *_: shutil.copytree(path, copy), data.draw(st.integers(1, 30)))
        least = meet_all(session._frontier for session in sessions)
        with warnings.catch_warnings(), operations(path, kill):
            warnings.simplefilter("ignore", StaleWarning)
            flow.advance_to(data.draw(frontiers(least, fields)))
        check_stored(data, flow, program, sent, fields, history)
        if kill.struck:
            with opened(copy) as other:
                if other._state.graph is not None:
                    check_stored(data, other, program, sent, fields, history)
        if data.draw(st.booleans()):
            before = flow["out%d" % program.outputs[0]].probe().frontier()
            flow.close()
            flow = opened(path)
            assert flow["out%d" % program.outputs[0]].probe().frontier() == before
    flow.close()


@examples(1)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]), history=st.booleans())
def test_random_programs_in_stores(spark, data, fields, history):
    program = data.draw(moving(data.draw(programs(most=3, whole=True)), fields))
    with tempfile.TemporaryDirectory() as root:
        check_store(spark, data, program, fields, root, history, runner="local", buckets=2)


PAIR = "struct<i: int, j: int>"


def test_a_session_takes_what_is_beyond_its_frontier(spark):
    with Dataflow(spark, time_type=PAIR) as flow:
        frame, session = flow.input("source", "k int", start=(1, 2))
        counts = frame.count().keep("counted")
        assert session.time() == (1, 2) and flow.session("source") is session
        assert session.name == "source" and session.schema.names == ["k"]
        session.insert([(7,)])
        session.advance_to([(3, 2), (1, 5)])
        for time in [(2, 4), (3, 1), (0, 9)]:
            for rows in ([(8, time, 1)], spark.createDataFrame(
                [(8, time, 1)], f"k int, time {PAIR}, diff long"
            ).repartition(1)):
                with pytest.raises(TimeRegressionError, match=rf"time \({time[0]}, {time[1]}\) is"):
                    session.update(rows)
        session.update([(8, (1, 5), 1), (9, (4, 2), 1)])
        session.update(spark.createDataFrame(
            [(8, (3, 2), 2)], f"k int, time {PAIR}, diff long"
        ).repartition(1))
        with pytest.raises(InvalidTimeError, match="at several times"):
            session.insert([(8,)])
        for to in [(2, 3), (0, 0), [(3, 2), (0, 5)]]:
            with pytest.raises(TimeRegressionError, match="cannot go back"):
                session.advance_to(to)
        probe = counts.probe()
        assert probe.less_than((1, 3)) and not probe.less_than((1, 2)) and probe.less_equal((1, 2))
        flow.step()
        assert probe.frontier().elements == ((1, 5), (3, 2))
        assert repr(probe) == "Probe(at [(1, 5), (3, 2)])"
        with pytest.raises(InvalidTimeError, match="and none comes before all others"):
            probe.time()
        assert not probe.less_equal((2, 4)) and probe.less_equal((3, 2))
        assert counts.at((2, 4)).collect() == [(7, 1)]
        flow.advance_to((4, 0))
        assert session._frontier.elements == ((4, 2),)
        assert not probe.less_than((4, 2)) and probe.less_than((4, 3)) and probe.time() == (4, 2)
        assert repr(session) == "ProductSession('source', at [(4, 2)])"
        assert repr(probe) == "Probe(at (4, 2))"
        assert sorted(counts.at((3, 2)).collect()) == [(7, 1), (8, 2)]
        assert sorted(flow["counted"].at((3, 5)).collect()) == [(7, 1), (8, 3)]
        with pytest.raises(NotReadableError, match=r"time \(4, 2\) is not complete"):
            counts.at((4, 2))
        with pytest.raises(NotReadableError, match=r"time \(2, 2\) was compacted away"):
            counts.at((2, 2))
        with pytest.raises(TimeRegressionError, match="a dataflow cannot go back to"):
            flow.advance_to((4, 1))
        with session:
            pass
        flow.step()
        assert probe.done() and probe.time() is None
        assert sorted(counts.at().collect()) == [(7, 1), (8, 3), (9, 1)]


def test_rows_that_have_no_time(spark):
    with Dataflow(spark, time_type=PAIR) as flow:
        _, session = flow.input("source", "k int")
        for time in (None, (None, 0), (0, None)):
            frame = spark.createDataFrame([(1, time, 1)], f"k int, time {PAIR}, diff long")
            for rows in ([(1, time, 1)], frame.repartition(1)):
                with pytest.raises(InvalidTimeError, match="1 rows for input 'source' have a null"):
                    session.update(rows)
        with pytest.raises(InvalidTimeError, match="never negative"):
            session.advance_to((1, -1))
        with pytest.raises(InvalidTimeError, match="an integer for each field"):
            flow.advance_to(3)


def test_tables_that_do_not_change_in_a_dataflow(spark):
    with Dataflow(spark, time_type=PAIR, keep_history=True) as flow:
        frame, session = flow.input("source", "k int")
        names = flow.constant([(1, "one")], "k int, name string")
        named = frame.join(names, "k").keep()
        session.update([(1, (0, 2), 1), (2, (0, 0), 1), (1, (0, 4), 2)])
        flow.advance_to((0, 0))
        for to in [(0, 1), (0, 3), (1, 0), (2, 0)]:
            # The constant counts once, however often the second field advances.
            flow.advance_to(to)
            for time, count in [((0, 1), 0), ((0, 2), 1), ((0, 3), 1), ((0, 4), 3)]:
                if not named.probe().less_equal(time):
                    assert named.at(time).collect() == [(1, "one")] * count


def test_a_time_is_complete_that_is_before_each_of_the_frontier_in_a_field(spark):
    with Dataflow(spark, time_type=PAIR, keep_history=True) as flow:
        words, session = flow.input("words", "w string")
        counts = words.count().keep()
        session.update([("a", (5, 0), 1), ("a", (0, 1), 2), ("b", (9, 9), 1)])
        flow.advance_to((0, 1))                                  # all of the second field before 1
        assert counts.at((9, 0)).collect() == [("a", 1)]
        with pytest.raises(NotReadableError, match=r"time \(0, 1\) is not complete.*\[\(0, 1\)\]"):
            counts.at((0, 1))
        with pytest.warns(StaleWarning, match=r"input 'words' at \(0, 1\) wait there"):
            flow.step()
        with pytest.raises(NotReadableError, match="no time is complete by its first field alone"):
            counts.at()
        flow.advance_to([(1, 1), (0, 3)])
        assert counts.at((0, 2)).collect() == [("a", 2)]
        # (5, 0) and (0, 1) are complete; their join is not, and is left out.
        assert {tuple(row) for row in counts.to_df().collect()} == {
            ("a", 1, (5, 0), 1), ("a", 2, (0, 1), 1)
        }
        session.update([("a", (3, 1), -2)])
        flow.advance_to((6, 4))
        assert counts.at((5, 3)).collect() == [("a", 1)]
        assert counts.at((2, 1)).collect() == [("a", 2)]
        session.close()
        flow.step()
        assert sorted(counts.at().collect()) == [("a", 1), ("b", 1)] and counts.probe().done()


def test_what_waits_is_given_part_by_part(spark):
    with Dataflow(spark, time_type=PAIR, keep_history=True, runner="spark", buckets=2) as flow:
        numbers, session = flow.input("numbers", "n int")
        distinct = numbers.distinct().keep()
        rows = [(n, (n % 3, n // 3), 1) for n in range(9)]
        session.update(spark.createDataFrame(rows, f"n int, time {PAIR}, diff long").repartition(2))
        for frontier in [(0, 1)], [(0, 2), (1, 1)], [(3, 3)]:
            flow.advance_to(frontier)
            for time in product(range(3), repeat=2):
                if not distinct.probe().less_equal(time):
                    expected = [n for n, at, _ in rows if at[0] <= time[0] and at[1] <= time[1]]
                    assert sorted(row.n for row in distinct.at(time).collect()) == expected
        assert distinct.probe().time() == (3, 3)


def test_inputs_go_on_together(spark):
    with Dataflow(spark, time_type=PAIR) as flow:
        (a, a_in), (b, b_in) = (flow.input(name, "k int") for name in "ab")
        joined, alone = a.join(b, "k").keep(), a.keep()
        for session in (a_in, b_in):
            session.update([(1, (0, 0), 1)])
        a_in.advance_to((5, 5))
        b_in.advance_to([(0, 3), (2, 0)])
        flow.step()
        assert joined.probe().frontier() == Antichain([(0, 3), (2, 0)])
        assert alone.probe().frontier() == a.probe().frontier() == Antichain([(0, 3), (2, 0)])
        for frame in joined, alone:
            with pytest.raises(NotReadableError, match="by its first field alone"):
                with pytest.warns(StaleWarning, match=r"'b' at \(0, 3\), \(2, 0\) holds it back"):
                    frame.at()
        with pytest.raises(NotReadableError):
            joined.at((2, 2))
        uppers = {tuple(map(tuple, row.upper)) for row in flow.arrangements().collect()}
        assert uppers == {((0, 3), (2, 0))} and "(0, 3), (2, 0)" in flow.describe()
        b_in.close()
        flow.step()
        assert joined.probe().time() == (5, 5) and joined.at((4, 9)).collect() == [(1,)]


def test_holds_and_changes(spark):
    with Dataflow(spark, time_type=PAIR) as flow:
        words, session = flow.input("words", "w string")
        counts = words.count().keep()
        hold = counts.hold([(1, 0), (0, 2)])
        session.update([("a", (0, 0), 1), ("a", (1, 1), 1), ("b", (3, 0), 1), ("b", (2, 2), -1)])
        flow.advance_to((4, 4))
        assert repr(hold) == "Hold((0, 2), (1, 0))"
        assert counts.at((1, 0)).collect() == [("a", 1)] == counts.at((0, 3)).collect()
        with pytest.raises(NotReadableError, match=r"time \(0, 1\) was compacted away"):
            counts.at((0, 1))
        changes = {tuple(row) for row in counts.changes((1, 0), (3, 1)).collect()}
        assert changes == {
            ("a", 1, (1, 1), -1), ("a", 2, (1, 1), 1), ("b", 1, (3, 0), 1)
        }
        for since, until in [((3, 0), (2, 2)), ((2, 2), (3, 1))]:
            with pytest.raises(TimeRegressionError, match="no later than the second in any field"):
                counts.changes(since, until)
        with pytest.raises(NotReadableError, match="not complete"):
            counts.changes((1, 0), (4, 4))
        with pytest.raises(TimeRegressionError, match="a hold at"):
            hold.advance_to((0, 0))
        hold.advance_to((2, 1))
        assert hold.time() == (2, 1)
        session.insert([("c",)])
        flow.advance_to((5, 5))
        with pytest.raises(NotReadableError, match="compacted away"):
            counts.at((1, 9))
        with pytest.raises(NotReadableError, match="can be held from"):
            counts.hold((0, 0))
        assert sorted(counts.at((2, 1)).collect()) == [("a", 2)]
        hold.release()
        session.insert([("c",)])
        flow.advance_to((6, 6))
        assert counts.at((5, 4)).columns == ["w", "count"]
        with pytest.raises(NotReadableError, match="compacted away"):
            counts.at((2, 1))
        assert counts.hold().time() == (5, 0)
    whole = history(spark, [("a", (0, 0), 1), ("a", (1, 1), 1)], "w string").count()
    assert len(whole.changes((0, 9)).collect()) == 2


def check_holds(spark, data, fields, **options):
    history = data.draw(histories([(("k", "int"),)], fields))[0]
    known, holds = [], []
    with Dataflow(spark, time_type=kind_of(fields), **options) as flow:
        words, session = flow.input("words", "k int")
        counted = words.count().keep()
        holds += [counted.hold(data.draw(frontiers([(0,) * fields], fields))) for _ in range(2)]
        for _ in range(data.draw(st.integers(3, 5))):
            now = [u for u in history if data.draw(st.booleans())]
            history = [u for u in history if u not in now]
            now = [u for u in now if session._frontier.less_equal(u[1])]
            session.update([(*record, time, diff) for record, time, diff in now])
            known += now
            trace = flow._arrangement(counted._in_fields()._node).trace
            what = data.draw(st.sampled_from(["hold", "hold", "release", "advance", "nothing"]))
            if what == "hold":
                at = data.draw(st.one_of(st.none(), frontiers(trace.since, fields)))
                holds.append(counted.hold(at))
                whole = trace.since if at is None else Antichain(at)
                assert holds[-1]._frontier == whole
            elif what != "nothing" and holds:  # in any order
                hold = holds.pop(data.draw(st.integers(0, len(holds) - 1)))
                if what == "release":
                    hold.release()
                else:
                    hold.advance_to(data.draw(frontiers(hold._frontier, fields)))
                    holds.append(hold)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StaleWarning)
                to = data.draw(frontiers(session._frontier, fields))
                on = data.draw(st.integers(0, 2))  # compaction goes by the first field alone
                flow.advance_to([(time[0] + on, *time[1:]) for time in to])
            trace = flow._arrangement(counted._in_fields()._node).trace
            answers = {}
            for time in product(range(SIDE + 2), repeat=fields):
                is_held = any(hold._frontier.less_equal(time) for hold in holds)
                if is_held and not trace.upper.less_equal(time):
                    assert trace.since.less_equal(time), (time, holds)
                counts = accumulated(known, time)
                answers[time] = {(*k, n): 1 for k, n in counts.items()}
            readable = [
                t for t in answers if trace.since.less_equal(t) and not trace.upper.less_equal(t)
            ]
            rows = [(tuple(r[:-2]), tuple(r[-2]), r[-1]) for r in counted.to_df().collect()]
            for time in readable:
                assert accumulated(rows, time) == answers[time], time
            pairs = [
                (a, b) for a in readable for b in readable if all(x <= y for x, y in zip(a, b))
            ]
            if not pairs:
                continue
            since, until = data.draw(st.sampled_from(pairs))
            changes = [
                (tuple(r[:-2]), tuple(r[-2]), r[-1])
                for r in counted.changes(since, until).collect()
            ]
            for time in readable:
                if (since, time) in pairs and (time, until) in pairs:
                    assert accumulated(changes, time) == total([
                        *answers[time].items(), *((r, -n) for r, n in answers[since].items())
                    ]), (since, time, until)
            # No other updates are among them.
            for _, at, _ in changes:
                assert all(a <= b for a, b in zip(at, until))
                assert not all(a <= b for a, b in zip(at, since))


@examples(3)
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]))
def test_holds_that_go_in_any_order_and_changes_between_any_times(spark, data, fields):
    check_holds(spark, data, fields, runner="local", buckets=2)


def test_inspect_by_tables_and_tables_that_are_saved(spark):
    shown = []
    with Dataflow(spark, time_type="struct<day: int, known: bigint>") as flow:
        words, session = flow.input("words", "w string")
        counts = words.count().inspect(shown.append, by_table=True).keep()
        session.update([("a", (2, 1), 3)])
        flow.advance_to((3, 0))
        (table,) = [table for table in shown if table.num_rows]
        assert table.to_pylist() == [
            {"w": "a", "count": 3, "time": {"day": 2, "known": 1}, "diff": 1}
        ]
        assert str(table.schema.field("time").type) == "struct<day: int32, known: int64>"
        try:
            counts.save_as_table("saved_of_structs", time=(2, 4))
            assert spark.table("saved_of_structs").collect() == [("a", 3)]
            counts.save_as_table("saved_of_structs", updates=True, by="w", mode="overwrite")
            assert spark.table("saved_of_structs").collect() == [("a", 3, (2, 1), 1)]
        finally:
            spark.sql("DROP TABLE IF EXISTS saved_of_structs")


def test_claims_of_collections_given_as_a_whole(spark):
    frame = history(spark, [("a", (0, 1), 1), ("a", (1, 0), 1)], "w string")
    assert len(frame.assert_eq(frame.select("w")).to_df().collect()) == 2
    with pytest.raises(AssertionFailedError, match=r"not at time \(1, 1\): there is \('a', 2\)"):
        frame.count().where("count > 1").assert_empty().to_df()


def test_a_removal_whose_insertion_is_still_to_come_where_two_times_meet(spark):
    def sizes(key, values):
        return [(sum(count for _, count in values),)]

    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        rows, session = flow.input("rows", "k int, v int")
        totals = rows.groupBy("k").reduce(sizes, "n long").keep()
        session.update([(1, 7, (0, 0), 1), (1, 7, (0, 2), -1), (1, 7, (2, 0), -1)])
        flow.advance_to((2, 2))                         # both removals, which meet at (2, 2)
        assert totals.at((1, 1)).collect() == [(1, 1)] and totals.at((1, 9)).collect() == []
        session.update([(1, 7, (2, 2), 1)])
        flow.advance_to((3, 3))
        assert totals.at((2, 2)).collect() == []
        session.update([(1, 7, (3, 3), -1)])
        with pytest.raises(NegativeMultiplicityError):
            flow.advance_to((4, 4))


def ranked(rows):
    """Each record with its rank by ``v`` within its ``k`` and the running sum of ``v``."""
    return Counter({
        (k, v, 1 + sum(n for (g, w), n in rows.items() if g == k and w < v),
         sum(n * w for (g, w), n in rows.items() if g == k and w <= v)): count
        for (k, v), count in rows.items() if count
    })


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
@given(data=st.data())
@examples(1)
def test_windows_where_a_removal_is_made_up_for_later(spark, runner, data):
    """Two incomparable times remove the same row, and their join inserts it again.

    Until that insertion arrives, the row's count at the join is negative.
    """
    updates = []
    small = st.integers(0, 2)
    for k, v, i, j in data.draw(st.lists(st.tuples(st.integers(0, 1), small, small, small))):
        gaps = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
        right, up = i + 1 + gaps[0], j + 1 + gaps[1]
        updates += [((k, v), (i, j), 1), ((k, v), (right, j), -1), ((k, v), (i, up), -1),
                    ((k, v), (right, up), 1)]
    over = Window.partitionBy("k").orderBy("v")
    with Dataflow(spark, time_type=PAIR, runner=runner, keep_history=True) as flow:
        rows, session = flow.input("rows", "k int, v int")
        ranks = rows.select("k", "v", F.rank().over(over), F.sum("v").over(over)).keep()
        inspected = []
        ranks.inspect(shown(inspected))
        done = Antichain([(0, 0)])
        for time in [*data.draw(st.lists(st.tuples(*[st.integers(0, 4)] * 2))), (5, 5)]:
            to = data.draw(st.sampled_from([[time], [(time[0], 0), (0, time[1])]]))
            to = Antichain(to)
            if to == done or not done.precedes(to):
                continue
            session.update([
                (*record, time, diff) for record, time, diff in updates
                if done.less_equal(time) and not to.less_equal(time)
            ])
            flow.advance_to(list(to))
            done = to
            complete = [t for t in product(range(5), repeat=2) if not done.less_equal(t)]
            for time in complete:
                assert accumulated(inspected, time) == ranked(accumulated(updates, time)), time
        for time in complete[::5]:
            expected = ranked(accumulated(updates, time))
            assert Counter(map(tuple, ranks.at(time).collect())) == expected, time


def test_a_window_tells_of_a_removal_that_nothing_makes_up_for(spark):
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        rows, session = flow.input("rows", "k int, v int")
        rows.select("v", F.row_number().over(Window.orderBy("v"))).keep()
        session.update([(1, 7, (0, 1), -1)])
        with pytest.raises(NegativeMultiplicityError, match=r"multiplicity -1"):
            flow.advance_to((2, 2))


# Claims are checked at complete times.


def claims(kind, a, b):
    if kind == "empty":
        return a.count().where("count > 1").assert_empty("twice")
    return a.distinct().assert_eq(b.distinct(), "differ")


def broken(kind, a, b):
    if kind == "empty":
        return any(n > 1 for n in a.values())
    return {k for k, n in a.items() if n > 0} != {k for k, n in b.items() if n > 0}


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["empty", "eq"])
@given(data=st.data(), fields=st.sampled_from([2, 2, 3]))
@examples(2)
def test_claims_fail_at_the_first_complete_time_that_breaks_them(spark, kind, runner, data, fields):
    """A step fails iff a time that it completes is wrong. Later updates may still correct
    incomplete times."""
    update = st.tuples(
        st.tuples(st.integers(0, 1)), st.tuples(*[st.integers(0, SIDE - 1)] * fields),
        st.sampled_from([1, 1, -1]),
    )
    pending = data.draw(st.lists(update, max_size=6))
    if kind == "eq":  # mostly the same, in another order
        others = [u for u in pending if data.draw(st.sampled_from([True, True, True, False]))]
    else:
        others = []
    sent = [[], []]
    with Dataflow(spark, time_type=kind_of(fields), runner=runner, buckets=2) as flow:
        (a, a_in), (b, b_in) = flow.input("a", "k int"), flow.input("b", "k int")
        assert claims(kind, a, b).columns == (["k", "count"] if kind == "empty" else ["k"])
        output = a.keep()
        for last in (False, False, True):
            for left, session, known in ((pending, a_in, sent[0]), (others, b_in, sent[1])):
                now = [u for u in left if last or data.draw(st.booleans())]
                left[:] = [u for u in left if u not in now]
                now = [u for u in now if session._frontier.less_equal(u[1])]
                session.update([(*record, time, diff) for record, time, diff in now])
                known += now
            before, close = output.probe().frontier(), last and data.draw(st.booleans())
            to = data.draw(frontiers(a_in._frontier, fields))
            whole = [] if close else Antichain(to)
            wrong = [
                t for t in product(range(SIDE + 1), repeat=fields)
                if (close or not whole.less_equal(t))
                and broken(kind, *(accumulated(updates, t) for updates in sent))
            ]
            try:
                if close:
                    a_in.close()
                    b_in.close()
                    flow.step()
                else:
                    flow.advance_to(to)
            except AssertionFailedError as error:
                reported_time = str(error).split("at time ")[1].split(": there")[0]
                assert reported_time == repr(min(wrong)), wrong
                assert output.probe().frontier() == before
                return
            assert not wrong


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_claim_waits_for_what_makes_up_for_it(spark, runner):
    with Dataflow(spark, time_type=PAIR, runner=runner, buckets=2) as flow:
        words, session = flow.input("words", "w string")
        counts = words.count().keep()
        words.count().where("count > 1").assert_empty("twice")
        words.select().assert_eq(words.select())
        flow.advance_to((1, 0))                           # without updates
        session.update([("a", (1, 3), 1), ("a", (3, 0), 1)])
        flow.advance_to([(3, 1), (1, 4)])                 # both; they meet at (3, 3)
        session.update([("a", (3, 3), -1)])
        flow.advance_to((4, 4))
        assert counts.at((3, 3)).collect() == [("a", 1)]
        session.update([("b", (4, 7), 1), ("b", (6, 4), 1)])
        flow.advance_to([(7, 4), (4, 8), (6, 7)])
        for _ in range(2):                                # no update comes at their join
            with pytest.raises(AssertionFailedError) as caught:
                flow.advance_to((7, 8)) if _ == 0 else flow.step()
            message = str(caught.value)
            assert message.startswith(
                "twice: a collection of (w, count) was to be empty, and is not "
            )
            assert "at time (6, 7): there is ('b', 2) with the multiplicity 1" in message
            assert "The step failed at assert_empty" in message
            # No update can be discarded.
            assert "Open the store again" in message and "discard" not in message
            assert counts.probe().frontier().elements == ((4, 8), (6, 7), (7, 4))
            assert sorted(counts.at((6, 6)).collect()) == [("a", 1), ("b", 1)]


def test_a_claim_sees_what_comes_and_goes_in_one_step(spark):
    for upper in ((9, 9), None):
        with Dataflow(spark, time_type=PAIR, runner="local") as flow:
            words, session = flow.input("words", "w string")
            words.assert_empty()
            session.update([("a", (2, 1), 1), ("a", (3, 1), -1)])
            with pytest.raises(AssertionFailedError, match=r"at time \(2, 1\)"):
                if upper is None:
                    session.close()
                    flow.step()
                else:
                    flow.advance_to(upper)


def test_a_claim_in_the_place_of_a_checked_input(spark):
    """Two removals: each alone is valid, and their join has one too many."""
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        words, session = flow.input("words", "w string")
        words.count().where("count < 0").assert_empty()
        session.update([("a", (0, 0), 1), ("a", (0, 2), -1), ("a", (2, 0), -1)])
        flow.advance_to([(2, 2), (3, 0), (0, 3)])
        with pytest.raises(AssertionFailedError, match=r"at time \(2, 2\): there is \('a', -1\)"):
            flow.advance_to((3, 3))


def test_many_records_that_break_a_claim_are_not_all_named(spark):
    with Dataflow(spark, time_type=PAIR, runner="local", buckets=4) as flow:
        numbers, session = flow.input("numbers", "n int")
        numbers.assert_empty()
        session.update([(n, (1 + n % 2, 2 - n % 2), 1) for n in range(40)])
        with pytest.raises(AssertionFailedError) as caught:
            flow.advance_to((5, 5))
        message = str(caught.value).split("The step failed")[0]
        assert (
            message.count("multiplicity") == 3 and "..." in message and "at time (1, 2)" in message
        )


def test_a_claim_in_a_store_that_is_opened_again(spark, tmp_path):
    def program(flow):
        words, _ = flow.input("words", "w string")
        words.count().where("count > 1").assert_empty()
        words.keep("words")

    path = str(tmp_path / "store")
    with Dataflow.open(path, program, spark=spark, time_type=PAIR) as flow:
        flow.session("words").update([("a", (0, 2), 1), ("a", (2, 0), 1)])
        flow.advance_to([(3, 0), (0, 3), (2, 2)])
    with Dataflow.open(path, program, spark=spark, time_type=PAIR) as flow:
        with pytest.raises(AssertionFailedError, match=r"at time \(2, 2\)"):
            flow.advance_to((3, 3))
    with Dataflow.open(path, program, spark=spark, time_type=PAIR) as flow:
        assert flow.session("words")._frontier.elements == ((0, 3), (2, 2), (3, 0))
        flow.session("words").update([("a", (2, 2), -1)])
        flow.advance_to((3, 3))
        assert flow["words"].at((2, 2)).collect() == [("a",)]


def test_updates_that_a_step_fails_on_are_named_and_discarded(spark):
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        numbers, session = flow.input("numbers", "n int")
        inverse = numbers.selectExpr("12 div n AS m").keep()
        session.update([(3, (0, 0), 1), (0, (1, 2), 1), (4, (9, 9), 2)])
        with pytest.raises(DiffOverflowError, match=r"'numbers' at time \(1, 2\): \(0,\) with"):
            flow.advance_to((2, 3))
        (dropped,) = session.discard()
        assert dropped.to_pylist()[1] == {"n": 0, "time": {"i": 1, "j": 2}, "diff": 1}
        session.advance_to((2, 3))
        session.update([(4, (9, 9), 2)])
        session.update(spark.createDataFrame(
            [(6, (2, 3), 1), (0, (5, 5), 1)], f"n int, time {PAIR}, diff long"
        ).repartition(1))
        (rows, frame) = flow.discard()["numbers"]
        assert rows.to_pylist() == [{"n": 4, "time": {"i": 9, "j": 9}, "diff": 2}]
        session.update(frame.where("n > 0"))
        flow.advance_to((9, 9))
        assert inverse.at((8, 8)).collect() == [(2,)]


def test_what_dataflows_with_such_times_have_not(spark, tmp_path):
    spark.createDataFrame([], "k int").createOrReplaceTempView("doctest_pairs")
    with Dataflow(spark, time_type=PAIR) as flow:
        for call, why in (
            (lambda: flow.input("a", "k int", key="k"), r".*int>: .* none is the later one"),
            (lambda: flow.input("a", "k int", check=True), r".*int>: two removals of a record"),
            (lambda: flow.clock(1), r".*int>: a clock ticks in one field.*Feed an input"),
            (lambda: flow.source("a", None), r".*int>: its rows have .*Read it yourself"),
            (lambda: flow.import_table("doctest_pairs", input="a"),
             r".*int>: give an input its rows.*session\('a'\)"),
        ):
            with pytest.raises(SchemaError, match=f"totally ordered times.*structs{why}"):
                call()
        frame, _ = flow.input("source", "k int")
        with pytest.raises(NotReadableError, match="no struct time .* is the latest"):
            frame.sink("s", snapshot(str(tmp_path)))
        with pytest.raises(NotReadableError, match="times that come one after the other"):
            frame.plot_history()


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_what_is_added_after_steps_is_filled_from_what_is_kept(spark, runner):
    with Dataflow(spark, time_type=PAIR, runner=runner, buckets=2) as flow:
        words, session = flow.input("words", "w string")
        kept_words = words.keep("words")
        flow.constant([("a",)], "w string").join(words, "w").keep("both")
        session.update([("a", (0, 1), 1), ("a", (2, 0), 1), ("b", (1, 1), 1)])
        flow.advance_to([(3, 0), (0, 3), (2, 2)])
        inspected = []
        late = flow["words"].count().inspect(shown(inspected)).keep("counts")
        common = flow.constant([("b",)], "w string").join(kept_words, "w").keep("common")
        again = flow["both"].union(flow["words"]).count().keep("again")
        with pytest.raises(NotReadableError, match="the next one fills it"):
            late.at((1, 1))
        # One step backfills it and advances no frontier.
        assert flow.step() and not flow.step()
        assert late.probe().frontier() == kept_words.probe().frontier()
        # The updates at the incomplete join (2, 1) are there already.
        assert sorted(inspected) == [
            (("a", 1), (0, 1), 1), (("a", 1), (2, 0), 1), (("a", 1), (2, 1), -2),
            (("a", 2), (2, 1), 1), (("b", 1), (1, 1), 1),
        ]
        assert sorted(late.at((1, 2)).collect()) == [("a", 1), ("b", 1)]
        session.update([("a", (0, 3), 1), ("b", (2, 2), -1)])
        flow.advance_to((4, 4))
        assert sorted(late.at((3, 3)).collect()) == [("a", 3)]
        assert common.at((3, 3)).collect() == []
        assert sorted(again.at((3, 3)).collect()) == [("a", 6)]
        more = flow["counts"].where("count > 2").keep()
        flow.step()
        assert more.at((3, 3)).collect() == [("a", 3)]
        with pytest.raises(NotReadableError, match=r"time \(2, 3\) was compacted away"):
            more.at((2, 3))


def test_sinks_and_claims_that_are_added_late(spark):
    written = []

    def write(changes, epoch):
        written.append({tuple(row) for row in changes.collect()})

    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        words, session = flow.input("words", "w string")
        words.keep("words")
        session.update([("a", (0, 2), 1), ("a", (2, 0), 1), ("b", (0, 0), 1)])
        flow.advance_to([(2, 1), (0, 3)])
        flow["words"].count().sink("out", foreach(write))
        claim = flow["words"].count().where("count > 2").assert_empty("thrice")
        flow.step()
        # The join (2, 2) is not complete.
        assert written == [{("a", 1, (0, 2), 1), ("a", 1, (2, 0), 1), ("b", 1, (0, 0), 1)}]
        session.update([("a", (2, 2), 1)])
        with pytest.raises(AssertionFailedError, match=r"thrice.*at time \(2, 2\)"):
            flow.advance_to((3, 3))
        assert len(written) == 1 and claim.columns == ["w", "count"]
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        words, session = flow.input("words", "w string")
        words.keep("words")
        session.update([("a", (0, 1), 1), ("a", (1, 0), 1)])
        flow.advance_to((2, 2))
        words.count().where("count > 1").assert_empty("twice")
        for _ in range(2):
            with pytest.raises(AssertionFailedError, match=r"twice.*at time \(1, 1\)"):
                flow.step()
        assert words.at((1, 1)).count() == 2


def test_a_step_that_fails_to_fill_leaves_all_as_it_was(spark):
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        pairs, session = flow.input("pairs", "k int, v int")
        pairs.keep()
        session.update([(1, 0, (0, 1), 1), (2, 5, (1, 0), 1)])
        flow.advance_to((2, 2))
        shares = pairs.selectExpr("k div v AS share").keep()
        for _ in range(2):
            with pytest.raises(DiffError, match="DIVIDE_BY_ZERO|[Zz]ero|overflow"):
                flow.step()
        assert sorted(pairs.at((1, 1)).collect()) == [(1, 0), (2, 5)]
        with pytest.raises(NotReadableError):
            shares.at((1, 1))


def test_what_cannot_be_filled_is_refused_where_it_is_added(spark):
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        words, session = flow.input("words", "w string")
        grown = words.iterate(lambda now: now.union(words).distinct())
        counts = words.count().keep("counts")
        grown.inspect(lambda *_: None)
        session.update([("a", (0, 1), 1)])
        flow.advance_to((1, 0))
        with pytest.raises(NotReadableError, match="input 'words' was not kept.*keep()"):
            words.distinct().keep("late")
        with pytest.raises(NotReadableError, match="the output of loop.* was not kept"):
            grown.count().keep()
        assert "late" not in flow
        session.update([("a", (1, 1), 1)])
        flow.advance_to((2, 2))
        assert counts.at((1, 1)).collect() == [("a", 2)]


def test_inputs_that_come_later_begin_where_the_others_are(spark):
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        a, a_in = flow.input("a", "k int")
        unused, unused_in = flow.input("unused", "k int")
        a.keep()
        a_in.update([(1, (0, 0), 1), (2, (1, 1), 1)])
        a_in.advance_to([(2, 1), (1, 3)])
        flow.step()
        for start in ((0, 0), [(2, 1), (0, 4)]):
            with pytest.raises(TimeRegressionError, match=r"processed up to \[\(1, 3\), \(2, 1\)"):
                flow.input("b", "k int", start=start)
        b, b_in = flow.input("b", "k int")
        c, c_in = flow.input("c", "k int", start=(2, 3))
        assert b_in._frontier.elements == ((1, 3), (2, 1)) and c_in.time() == (2, 3)
        both = a.join(b, "k").union(c).keep("both")
        b_in.update([(1, (1, 3), 1), (2, (2, 1), 1)])
        flow.advance_to((3, 3))
        for time, expected in {(1, 3): [1], (2, 1): [2], (2, 3): [1, 2]}.items():
            if both._in_fields() is not None and not both.probe().less_equal(time):
                try:
                    values = sorted(row.k for row in both.at(time).collect())
                except NotReadableError as error:
                    assert "compacted away" in str(error) and time[0] < 2
                else:
                    assert values == expected
        # An unused earlier input is still at its start.
        late = unused.union(a).distinct().keep("late")
        flow.step()
        assert sorted(row.k for row in late.at((2, 3)).collect()) == [1, 2]
        for session in (a_in, b_in, c_in, unused_in):
            session.close()
        flow.step()
        with pytest.raises(TimeRegressionError, match="all others are closed"):
            flow.input("d", "k int")


def test_an_input_that_lags_is_advanced_before_it_is_used(spark):
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        a, a_in = flow.input("a", "k int")
        b, b_in = flow.input("b", "k int")
        a.keep()
        a_in.update([(1, (0, 0), 1)])
        a_in.advance_to((2, 2))
        flow.step()
        union = b.union(a).keep()
        with pytest.raises(TimeRegressionError, match=r"input 'b' is at \[\(0, 0\)\].*advance_to"):
            flow.step()
        b_in.advance_to((2, 2))
        flow.step()
        assert union.at((1, 2)).collect() == [(1,)]


def test_a_sink_of_a_store_is_given_what_has_become_complete(spark, tmp_path):
    written = []

    def program(flow):
        words, _ = flow.input("words", "w string")
        words.count().sink("out", foreach(write))

    def write(changes, epoch):
        written.append({tuple(row) for row in changes.collect()})
        if len(written) == 2:
            raise OSError("full")

    path = str(tmp_path / "store")
    with Dataflow.open(path, program, spark=spark, time_type=PAIR) as flow:
        flow.session("words").update([("a", (0, 1), 1), ("a", (2, 0), 1)])
        flow.advance_to([(1, 1), (0, 3)])
        assert written == [{("a", 1, (0, 1), 1), ("a", 1, (2, 0), 1)}]
        with pytest.raises(SinkError, match="full"):
            flow.advance_to((3, 3))
    with Dataflow.open(path, program, spark=spark, time_type=PAIR) as flow:
        flow.advance_to((4, 4))
    # The join (2, 1) is complete after the second step. Both attempts write it.
    assert written[1:] == [{("a", 1, (2, 1), -2), ("a", 2, (2, 1), 1)}] * 2


@pytest.mark.parametrize("most", [None, 0])
def test_spark_is_given_for_a_sink_what_has_become_complete_alone(
    spark, monkeypatch, use_thresholds, most,
):
    if most is not None:  # Spark then reads the whole state
        use_thresholds(driver_table_rows_max=most)
    row_counts, written = [], []

    def frame_of_table(spark, table, struct):
        row_counts.append(table.num_rows)
        return frame_of(spark, table, struct)

    frame_of = arrangement.frame_of_table
    monkeypatch.setattr(arrangement, "frame_of_table", frame_of_table)
    with Dataflow(spark, time_type=PAIR, runner="local") as flow:
        words, session = flow.input("words", "w string")
        words.count().sink("out", foreach(lambda changes, epoch: written.append(
            {tuple(row) for row in changes.collect()}
        )))
        session.update([("a", (0, 2), 1), ("a", (2, 0), 1), ("b", (0, 0), 1)])
        flow.advance_to([(2, 1), (0, 3)])
        assert written.pop() == {("a", 1, (0, 2), 1), ("a", 1, (2, 0), 1), ("b", 1, (0, 0), 1)}
        # The state has the join (2, 2), which is not complete.
        row_counts.clear()
        flow.advance_to([(2, 2), (0, 3)])
        assert not row_counts and not written
        flow.advance_to((3, 3))
        assert written == [{("a", 1, (2, 2), -2), ("a", 2, (2, 2), 1)}]
        assert set(row_counts) == ({2} if most is None else set())


def test_stores_know_their_times(spark, tmp_path):
    def program(flow):
        words, _ = flow.input("words", "w string")
        words.count().keep("counts")

    path = str(tmp_path / "store")
    with Dataflow.open(path, program, spark=spark, time_type=PAIR) as flow:
        flow.session("words").update([("a", (0, 1), 1), ("b", (7, 7), 1)])
        flow.advance_to([(1, 0), (0, 3)])
    with Dataflow.open(path, program, spark=spark, time_type=PAIR) as flow:
        assert flow["counts"].at((0, 2)).collect() == [("a", 1)]
        assert repr(flow.session("words")) == "ProductSession('words', at [(0, 3), (1, 0)])"
        flow.session("words").update([("a", (0, 3), 1)])
        flow.advance_to((8, 8))                             # also the waiting update
        assert sorted(flow["counts"].at((7, 7)).collect()) == [("a", 2), ("b", 1)]
    for other in "long", "struct<i: int, k: int>":
        with pytest.raises(SchemaError, match="has times of type 'struct<i:int,j:int>'"):
            Dataflow.open(path, program, spark=spark, time_type=other)
    for reads in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match="bucket by bucket.*Read it with StateReader"):
            reads.format("diff").option("path", path).option("name", "counts").load()


def test_stores_are_read_without_their_program(spark, tmp_path):
    def program(flow):
        words, _ = flow.input("words", "w string")
        words.count().keep("counts")
        words.alias("l").join(words.alias("r"), F.col("l.w") == F.col("r.w")).keep("pairs")
        words.select().keep("nothing")
        words.keep("words")

    path = str(tmp_path / "store")
    with Dataflow.open(path, program, spark=spark, time_type="struct<day: int, j: bigint>") as flow:
        session = flow.session("words")
        hold = flow["counts"].hold((0, 0))
        session.update([("a", (0, 1), 1), ("a", (2, 0), 1), ("b", (1, 1), -1)])
        flow.advance_to([(2, 1), (0, 3)])
        with StateReader(path, spark=spark) as reader:
            counts, output = reader["counts"], flow["counts"]
            assert counts.schema.names == ["w", "count"]
            assert repr(counts).startswith("StoredCollection('counts', w string, count bigint, com")
            assert counts.frontier() == output.probe().frontier() == Antichain([(0, 3), (2, 1)])
            assert counts.since() == Antichain([(0, 0)])
            assert counts.at((0, 1)).collect() == output.at((0, 1)).collect() == [("a", 1)]
            rows = {tuple(row) for row in counts.to_df().collect()}
            assert rows == {tuple(row) for row in output.to_df().collect()}
            assert counts.to_df().schema == output.to_df().schema
            for since, until in [((0, 0), (1, 2)), ((0, 1), (0, 2)), ((0, 0), (9, 0))]:
                expected, actual = (
                    sorted(map(tuple, collection.changes(since, until).collect()))
                    for collection in (output, counts)
                )
                assert actual == expected
            for wrong in ((2, 1), (0, 9)):
                with pytest.raises(NotReadableError, match="not complete.*at commit"):
                    counts.at(wrong)
            with pytest.raises(NotReadableError, match="no time is complete by its first field"):
                counts.at()
            with pytest.raises(TimeRegressionError, match="run backwards"):
                counts.changes((1, 2), (0, 2))
            with pytest.raises(InvalidTimeError, match="an integer for each field"):
                counts.at(3)
            pairs = reader["pairs"]
            assert pairs.at((0, 2)).columns == ["w", "w"] and pairs.schema.names == ["w", "w"]
            assert pairs.to_df().columns == ["w", "w", "time", "diff"]
            with pytest.raises(NegativeMultiplicityError, match=r"\(1, 1\) .*\('b',\): -1"):
                reader["words"].at((1, 1))
            assert reader["words"].at((1, 1), allow_negative=True).collect() == [("a",)]
            for time, count in {(1, 0): 0, (0, 1): 1, (1, 1): 0}.items():
                assert reader["nothing"].at(time).count() == count
                assert flow["nothing"].at(time).count() == count
            # The reader stays at its commit until it is refreshed.
            session.update([("c", (5, 5), 1)])
            hold.release()
            flow.advance_to((6, 6))
            assert counts.at((0, 1)).collect() == [("a", 1)]
            assert reader.refresh()
            counts = reader["counts"]
            assert sorted(counts.at().collect()) == sorted(output.at().collect()) == [
                ("a", 2), ("b", -1), ("c", 1)
            ]
            with pytest.raises(NotReadableError, match=r"time \(0, 1\) was compacted away"):
                counts.at((0, 1))
            try:
                counts.save_as_table("stored_of_structs", by="w")
                saved = spark.table("stored_of_structs").collect()
                assert sorted(saved) == [("a", 2), ("b", -1), ("c", 1)]
            finally:
                spark.sql("DROP TABLE IF EXISTS stored_of_structs")


# Pairs have joins: times at which no update came.


def history(spark, rows, columns, kind="struct<i: int, j: int>"):
    return DiffFrame(spark.createDataFrame(rows, f"{columns}, time {kind}, diff int"))


def test_what_two_changes_make_together_comes_at_the_join_of_their_times(spark):
    words = history(spark, [("a", (0, 2), 1), ("a", (1, 0), 1)], "w string")
    rows = {tuple(row) for row in words.count().to_df().collect()}
    assert rows == {
        ("a", 1, (0, 2), 1), ("a", 1, (1, 0), 1), ("a", 1, (1, 2), -2), ("a", 2, (1, 2), 1)
    }
    assert words.count().at((0, 1)).collect() == []
    assert words.distinct().at((1, 2)).collect() == [("a",)]
    assert [row.n for row in words.agg(F.count("*").alias("n")).at().collect()] == [2]


def test_three_changes_of_which_no_two_meet_where_all_do(spark):
    rows = [(1, (1, 1, 0), 1), (2, (2, 0, 0), 1), (3, (0, 2, 0), 1), (4, (0, 0, 1), 1)]
    frame = history(spark, rows, "v int", "struct<i: int, j: int, k: int>")
    least = frame.groupBy().agg(F.collect_list("v").alias("all"))
    expected_at = {(2, 2, 1): [1, 2, 3, 4], (2, 2, 0): [1, 2, 3], (1, 2, 1): [1, 3, 4]}
    for time, expected in expected_at.items():
        ((values,),) = least.at(time).collect()
        assert sorted(values) == expected


@examples(2)
@given(rows=st.lists(st.tuples(
    st.integers(0, 4), st.integers(0, 4), st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from([1, 1, 1, -1]),
), max_size=14))
def test_graphs(spark, rows):
    # Removals follow the insertion of their edge in both fields.
    rows = [row for row in rows if row[3] > 0]
    rows += [(a, b, (i + 1, j + 1), -1) for a, b, (i, j), _ in rows[::3]]
    edges = history(spark, rows, "src long, dst long")
    roots = spark.createDataFrame([(0,)], "node long")
    reached = graphs.bfs(edges, roots)
    updates = [(tuple(r[:-2]), tuple(r[-2]), r[-1]) for r in reached.to_df().collect()]
    for time in product(range(5), repeat=2):
        now_there = accumulated([((a, b), t, d) for a, b, t, d in rows], time)
        there = {edge for edge, n in now_there.items() if n > 0}
        distances, now, step = {0: 0}, {0}, 0
        while now:
            step += 1
            now = {b for a, b in there if a in now} - set(distances)
            distances.update(dict.fromkeys(now, step))
        assert accumulated(updates, time) == Counter(dict.fromkeys(distances.items(), 1)), time


def test_a_loop_of_several_variables(spark):
    edges = history(spark, [(1, 2, (0, 1), 1), (2, 3, (1, 0), 1), (3, 4, (2, 2), 1)],
                    "src int, dst int")
    start = edges.where("src = 1").select(F.col("src").alias("node")).distinct()

    def beyond(nodes):
        return nodes.toDF("src").join(edges, "src").select(F.col("dst").alias("node"))

    with Loop() as loop:
        even, odd = loop.variable(start), loop.variable(start.where(F.lit(False)))
        even.set(beyond(odd).union(start).distinct())
        at_odd = odd.set(beyond(even).distinct())
    output = at_odd.leave()
    for time, expected in {(0, 0): [], (0, 1): [2], (2, 2): [2, 4]}.items():
        assert sorted(row.node for row in output.at(time).collect()) == expected
    with pytest.raises(NotReadableError, match="this one is in no loop"):
        output.leave()
    with pytest.raises(NotReadableError, match="changes in each iteration"):
        at_odd.at((0, 0))


def test_plain_tables_beside_them(spark):
    orders = history(spark, [("Rome", (0, 3), 1), ("Oslo", (1, 0), 1)], "city string")
    countries = spark.createDataFrame([("Rome", "Italy")], "city string, country string")
    assert orders.join(countries, "city").at((0, 3)).collect() == [("Rome", "Italy")]
    assert orders.join(countries, "city").at((5, 2)).collect() == []
    assert orders.join(countries.select("city"), "city", "left_anti").at((5, 2)).collect() == [
        ("Oslo",)
    ]


def test_names_of_columns_like_those_of_fields(spark):
    rows = [(1, 2, (0, 0), 1), (1, 2, (0, 1), -1)]
    frame = DiffFrame(spark.createDataFrame(
        rows, "time_b int, Time_B_1 int, `when` struct<a: int, b: int>, n int"
    ), "WHEN", "N")
    assert frame.columns == ["time_b", "Time_B_1"]
    assert frame.to_df().columns == ["time_b", "Time_B_1", "when", "n"]
    assert [len(frame.at((0, j)).collect()) for j in (0, 1)] == [1, 0]
    assert repr(frame) == "DiffFrame[time_b int, Time_B_1 int; when struct<a:int,b:int>]"
    joined = frame.alias("l").join(frame.alias("r"), F.col("l.time_b") == F.col("r.time_b"))
    assert joined.at((0, 0)).columns == ["time_b", "Time_B_1", "time_b", "Time_B_1"]
    assert joined.to_df().count() == 2


# Refusals.


@pytest.mark.parametrize("kind", ["struct<a: int, b: string>", "struct<a: int>", "struct<>",
                                  "struct<a: date, b: int>"])
def test_structs_that_are_no_times(spark, kind):
    with pytest.raises(SchemaError, match="two or more fields, all of them integers"):
        DiffFrame(spark.createDataFrame([], f"k int, time {kind}, diff int"))


@pytest.mark.parametrize(
    "time, message",
    [(None, "no time"), ((None, 0), "no time"), ((0, None), "the field 'j' of it is null"),
     ((0, -1), "-1 in the field 'j' of its time, of type struct<i:int,j:int>: all fields but")],
)
def test_rows_with_a_time_that_is_none(spark, time, message):
    with pytest.raises(InvalidTimeError, match=message):
        history(spark, [(1, time, 1), (1, (0, 0), 1)], "k int").count().at((1, 1))


def test_negative_first_fields_are_times_like_others(spark):
    frame = history(spark, [(1, (-7, 2), 1)], "k int").count()
    assert frame.at((-7, 2)).collect() == [(1, 1)] and frame.at((-8, 2)).collect() == []
    assert frame.at((0, -1)).collect() == []


def test_what_is_asked_at_times_of_another_shape(spark):
    frame = history(spark, [(1, (0, 0), 1)], "k int")
    for time in (0, (0,), (0, 0, 0), "now", (0, "a")):
        with pytest.raises(InvalidTimeError, match=r"for each field, such as \(3, 0\)"):
            frame.at(time)


def test_what_needs_times_one_after_the_other(spark):
    frame = history(spark, [(1, (0, 0), 1)], "k int")
    plain = DiffFrame(spark.createDataFrame([(1, 0, 1)], "k int, time int, diff int"))
    with pytest.raises(NotReadableError, match="times that come one after the other"):
        frame.plot_history()
    for left, right in ((frame, plain), (plain, frame)):
        with pytest.raises(SchemaError, match="times of different types"):
            left.union(right)
    other = history(spark, [(1, (0, 0), 1)], "k int", "struct<i: int, k: int>")
    with pytest.raises(SchemaError, match="times of different types"):
        frame.join(other, "k")
    with pytest.raises(SchemaError, match="two or more fields, all of them integers"):
        Dataflow(spark, time_type="struct<i: int, j: string>")


def test_fields_of_times_may_have_any_names(spark, tmp_path):
    """A reader of a store gets the fields from the type's text alone."""
    times = "struct<`a,b:int`: int, `c:d`: smallint, `e>`: bigint>"

    def program(flow):
        flow.input("words", "w string")[0].keep("words")

    path = str(tmp_path / "store")
    with Dataflow.open(path, program, spark=spark, time_type=times) as flow:
        flow.session("words").update([("a", (0, 1, 2), 1)])
        flow.advance_to((1, 0, 0))
        wanted = flow["words"].to_df().schema
    with StateReader(path, spark=spark) as reader:
        stored = reader["words"].to_df()
        assert stored.schema["time"].dataType == wanted["time"].dataType
        assert [tuple(row.time) for row in stored.collect()] == [(0, 1, 2)]
