"""The law: at every complete time the output is the batch answer, however the input was cut."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Op, Program, accumulate, evaluate, normal, total
from program_ops import ddl
from programs import Run, build, formed, pool, programs, schedules, whole_histories

from pyspark_diff import Dataflow, DiffFrame, NegativeMultiplicityError, NotReadableError
from pyspark_diff.spark.schema import Schema

EXAMPLES = settings().max_examples
RUNNERS = ["local", "spark"]
#: On the driver keys are looked for in more than four files of a batch at once.
buckets = st.sampled_from([1, 2, 3, 7])
memory_rows = st.sampled_from([0, 1, 4096])

every_runner = pytest.mark.parametrize("runner", RUNNERS)


def examples(share: float) -> settings:
    """A share of the run's examples: some tests cost a hundred times more than others."""
    return settings(max_examples=max(1, round(EXAMPLES * share)))


# Random programs, fed in random steps.


@examples(3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_steps_on_the_driver(spark, data, buckets, memory_rows):
    program = data.draw(programs())
    schedule = data.draw(schedules(program.inputs))
    with Run(spark, program, runner="local", buckets=buckets, memory_rows=memory_rows) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()


@examples(0.3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_steps_in_spark(spark, data, buckets, memory_rows):
    program = data.draw(programs(most=4))
    schedule = data.draw(schedules(program.inputs, most=3, frames=True))
    with Run(spark, program, runner="spark", buckets=buckets, memory_rows=memory_rows) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()


@examples(0.3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_steps_that_change_the_runner(spark, data, buckets, memory_rows):
    program = data.draw(programs(most=4))
    schedule = data.draw(schedules(program.inputs, most=4, frames=True))
    with Run(spark, program, buckets=buckets, memory_rows=memory_rows) as run:
        for actions in schedule:
            run.flow.runner = data.draw(st.sampled_from(["auto", "auto", *RUNNERS]))
            run.flow.local_rows = data.draw(st.sampled_from([0, 2, 5]))
            run.step(actions)
        run.finish()


@examples(0.3)
@given(data=st.data())
def test_whole_history(spark, data):
    program = data.draw(programs(most=4, whole=True))
    histories = data.draw(whole_histories(program.inputs))
    frames = []
    for history, columns in zip(histories, program.inputs):
        rows = [(*record, time, diff) for record, time, diff in history]
        columns = (*columns, ("time", "bigint"), ("diff", "bigint"))
        # Rows that are local are read at once, others by Spark.
        form = data.draw(st.sampled_from(["arrow", "frame"]))
        source = formed(spark, form, rows, columns)
        if form != "frame":
            source = spark.createDataFrame(source, ddl(columns))
        frames.append(DiffFrame(source))
    nodes = build(program, frames)
    times = sorted({0, *(time for history in histories for _, time, _ in history)})
    for node in program.outputs:
        rows = [(row[:-2], row[-2], row[-1]) for row in nodes[node].to_df().collect()]
        keys = [(normal(record), time) for record, time, _ in rows]
        assert len(set(keys)) == len(keys) and all(diff for _, _, diff in rows)
        assert {time for _, time, _ in rows} <= set(times)
        for time in times:
            now = [accumulate(history, time) for history in histories]
            expected = evaluate(program, now)[node]
            assert accumulate(rows, time) == expected
        check_snapshot(nodes[node], data.draw(st.sampled_from(times)), program, node, histories)


def check_snapshot(frame, time, program, node, histories):
    """A snapshot is the oracle's multiset, or a refusal if that has negative counts."""
    now = [accumulate(history, 2**63 if time is None else time) for history in histories]
    expected = evaluate(program, now)[node]
    if min(expected.values(), default=0) < 0:
        with pytest.raises(NegativeMultiplicityError):
            frame.at(time)
    snapshot = frame.at(time, allow_negative=min(expected.values(), default=0) < 0)
    assert Counter(normal(tuple(row)) for row in snapshot.collect()) == +expected


# Inputs of other kinds.


def check_other_inputs(spark, data, **options):
    """Inputs with a key and constants, with outputs that are added late."""
    program = data.draw(programs(most=4))
    schedule = data.draw(schedules(program.inputs, most=4))
    numbers = range(len(program.inputs))
    kinds = data.draw(st.tuples(*(st.sampled_from(["plain", "keyed", "constant"])
                                  for _ in numbers)))
    constants = {
        i: data.draw(st.lists(st.sampled_from(data.draw(pool(columns))), max_size=4))
        for i, columns in enumerate(program.inputs) if kinds[i] == "constant"
    }
    late = data.draw(st.lists(
        st.sampled_from([0, 0, 1, 2]),
        min_size=len(program.outputs), max_size=len(program.outputs),
    ))
    keyed = [i for i in numbers if kinds[i] == "keyed"]
    with Run(
        spark, program, keyed=keyed, constants=constants, late=late, keeps=numbers, **options
    ) as run:
        run.take(schedule)


@examples(2)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_inputs_of_other_kinds_on_the_driver(spark, data, buckets, memory_rows):
    check_other_inputs(spark, data, runner="local", buckets=buckets, memory_rows=memory_rows)


@examples(0.3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_inputs_of_other_kinds_in_spark(spark, data, buckets, memory_rows):
    check_other_inputs(spark, data, runner="spark", buckets=buckets, memory_rows=memory_rows)


# Kept collections.


@examples(0.5)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_latest_time_can_be_read(spark, data, buckets, memory_rows):
    program = data.draw(programs(most=3))
    schedule = data.draw(schedules(program.inputs))
    with Run(
        spark, program, kept=True, runner="local", buckets=buckets, memory_rows=memory_rows,
    ) as run:
        for actions in schedule:
            before = [output.probe.time() for output in run.outputs]
            run.step(actions)
            for output, frontier in zip(run.outputs, before):
                upper = output.probe.time()
                if upper == frontier:
                    continue
                if upper is None:
                    # The latest complete time stays readable, and all later times are.
                    readable = run.times(None)
                    readable = [None, *(t for t in readable if t >= frontier - 1)]
                else:
                    readable = [upper - 1]
                    with pytest.raises(NotReadableError):
                        output.frame.at(upper)
                    # A join that waits for its other input holds the arrangement that it shares.
                    if upper > 1:
                        with suppress(NotReadableError):
                            check_snapshot(
                                output.frame, upper - 2, program, output.node, run.history)
                time = data.draw(st.sampled_from(readable))
                check_snapshot(output.frame, time, program, output.node, run.history)


@pytest.mark.parametrize("joined", [False, True])
def test_a_join_that_waits_keeps_earlier_times_readable(spark, joined):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        left, left_in = flow.input("left", "k long")
        right, right_in = flow.input("right", "k long")
        if joined:
            right.join(left, ["k"]).keep("joined")
        output = left.keep("kept")
        left_in.insert([(0,)])
        left_in.advance_to(1)
        right_in.advance_to(1)
        flow.step()
        left_in.advance_to(3)
        flow.step()
        assert [tuple(row) for row in output.at(2).collect()] == [(0,)]
        if joined:
            assert [tuple(row) for row in output.at(1).collect()] == [(0,)]
        else:
            with pytest.raises(NotReadableError):
                output.at(1)


@examples(0.3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_all_times_can_be_read(spark, data, buckets, memory_rows):
    program = data.draw(programs(most=3))
    schedule = data.draw(schedules(program.inputs))
    with Run(
        spark, program, kept=True, keep_history=True, runner="local", buckets=buckets,
        memory_rows=memory_rows,
    ) as run:
        for actions in schedule:
            run.step(actions)
        for output in run.outputs:
            times = run.times(output.probe.time())
            rows = [(row[:-2], row[-2], row[-1]) for row in output.frame.to_df().collect()]
            for time in times:
                assert accumulate(rows, time) == run.expected(output.node, time)
            if times:
                time = data.draw(st.sampled_from(times))
                check_snapshot(output.frame, time, program, output.node, run.history)


# The same updates, cut in other ways.

K = (("k", "bigint"),)
KS = (("k", "int"), ("s", "string"))

#: Programs whose operators with state feed one another.
CHAINED = {
    "count of count": Program(
        (K,), (Op("count", (0,)), Op("drop", (1,), ("k",)), Op("count", (2,))), (3,)
    ),
    "a plain table": Program(
        (K, K), (Op("plain", (0,), (2,)), Op("subtract", (2, 1)), Op("count", (2,))), (3, 4)
    ),
    "distinct of a difference": Program(
        (K, K), (Op("negate", (1,)), Op("concat", (0, 2)), Op("distinct", (3,))), (4,)
    ),
    "shared": Program(
        (KS, KS),
        (
            Op("union", (0, 1)),
            Op("count", (2,)),
            Op("distinct", (2,)),
            Op("drop", (3,), ("count",)),
            Op("negate", (5,)),
            Op("concat", (4, 6, 1)),
            Op("threshold", (7,), ("square",)),
            Op("count", (8,)),
        ),
        (4, 9),
    ),
    "different columns": Program(
        (KS,),
        (
            Op("count", (0,)),
            Op("pick", (1,), ("count",)),
            Op("count", (2,)),
            Op("drop", (1,), ("count",)),
            Op("distinct", (4,)),
            Op("inspect", (1,)),
            Op("rename", (6,), ("s", "word")),
            Op("pick", (7,), ("word",)),
            Op("count", (8,)),
        ),
        (3, 5, 9),
    ),
    "nothing left": Program(
        (KS,), (Op("distinct", (0,)), Op("drop", (1,), ("k", "s")), Op("count", (2,))), (3,)
    ),
}
LAST = 5
#: Updates of up to two inputs, with more than one of a record at a time, and some that cancel.
UPDATES = {
    K: [
        [((1,), 0, 1), ((2,), 0, 2), ((1,), 1, 1), ((2,), 1, -2), ((3,), 2, -1), ((3,), 3, 2),
         ((1,), 3, -2), ((2,), 4, 1), ((2,), 4, -1), ((1,), 5, 3), ((3,), 5, 0)],
        [((1,), 0, 1), ((1,), 2, -1), ((2,), 2, -1), ((2,), 3, 2), ((3,), 5, 1)],
    ],
    KS: [
        [((1, "a"), 0, 1), ((1, "b"), 0, 1), ((1, "a"), 2, 1), ((None, None), 2, 2),
         ((1, "b"), 3, -1), ((None, None), 4, -3), ((None, "a"), 5, 1), ((1, "b"), 5, 1)],
        [((1, "a"), 1, -1), ((1, "b"), 1, 1), ((None, None), 3, 1), ((1, "a"), 5, -1)],
    ],
}


def stepwise(spark, program, cuts, **options):
    """The consolidated output updates when inputs are released up to these times, a step each."""
    histories = [UPDATES[columns][i] for i, columns in enumerate(program.inputs)]
    with Run(spark, program, **options) as run:
        for cut in cuts:
            actions = []
            for number, (history, to) in enumerate(zip(histories, cut)):
                now = run.sessions[number].time()
                rows = [(r, time - now, diff) for r, time, diff in history if now <= time < to]
                actions += [(number, "update", ("rows", rows)), (number, "advance", to - now)]
                actions.append((number, "flush", None))
            run.step(tuple(actions))
        run.finish()
        return [
            total(((normal(record), time), diff) for record, time, diff in output.updates)
            for output in run.outputs
        ]


@pytest.mark.parametrize("name", CHAINED)
def test_every_cut_gives_the_same_updates(spark, name):
    program = CHAINED[name]
    one_step = stepwise(spark, program, [(LAST + 1, LAST + 1)], runner="local", buckets=2)
    for count in range(LAST + 1):
        for inner in combinations(range(1, LAST + 1), count):
            cuts = [(to, to) for to in (*inner, LAST + 1)]
            assert stepwise(spark, program, cuts, runner="local", buckets=2) == one_step


@pytest.mark.parametrize(
    ("runner", "name"), [("local", "shared"), ("spark", "distinct of a difference")]
)
def test_inputs_at_different_times_give_the_same_updates(spark, runner, name):
    program = CHAINED[name]
    one_step = stepwise(spark, program, [(LAST + 1, LAST + 1)], runner="local", buckets=2)
    for cuts in [
        [(2, 1), (3, 1), (3, 4), (6, 4), (6, 6)],
        *([[(6, 0), (6, 6)], [(0, 6), (3, 6), (6, 6)]] if runner == "local" else []),
    ]:
        assert stepwise(spark, program, cuts, runner=runner, buckets=2) == one_step


# Records whose hashes collide.


@contextmanager
def one_bit_hash():
    """Only one bit of the hash is used, wherever the record is not one whole number."""
    whole = Schema.layout

    def narrowed(schema, names=None):
        return replace(whole(schema, names), hash_mask=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Schema, "layout", narrowed)
        yield


@examples(0.8)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_colliding_hashes(spark, data, buckets, memory_rows):
    program = data.draw(programs())
    schedule = data.draw(schedules(program.inputs, most=8))
    with one_bit_hash(), Run(
        spark, program, runner="local", buckets=buckets, memory_rows=memory_rows,
    ) as run:
        for actions in schedule:
            run.step(actions)
        wanted = run.flow._state.graph.wanted
        assert all(n.layout(wanted[n]).hash_mask == 1 for n in run.flow._state.traces)
        run.finish()


@pytest.mark.parametrize(("runner", "name"), [("local", "shared"), ("spark", "nothing left")])
def test_colliding_hashes_over_many_steps_and_merges(spark, runner, name):
    program = CHAINED[name]
    cuts = [(to, to) for to in range(1, LAST + 2)]
    expected = stepwise(spark, program, cuts, runner="local", buckets=1)
    with one_bit_hash():
        assert stepwise(spark, program, cuts, runner=runner, buckets=1, memory_rows=0) == expected


# Programs that were wrong once.

EMPTY = Op("where", (0,), ("null", "k", 1))
LATE = (0, "update", ("rows", [((1,), 1, 1), ((1,), 3, 1), ((1,), 7, 1)]))


def move(*by):
    """Each input moves ahead by so much, and is flushed."""
    return tuple((i, what, to) for i, to in enumerate(by) for what in ("advance", "flush"))


#: For each past error, a program and its actions before each step.
REGRESSIONS = {
    "updates that wait for their time were taken for late ones": (
        Program((K,), (Op("count", (0,)),), (1,)),
        ((LATE, *move(5)), move(5)),
    ),
    "updates that were taken came again behind another input": (
        Program((K, K), (Op("union", (0, 1)), Op("count", (2,))), (3,)),
        ((LATE, *move(5, 2)), move(5, 0), move(5, 13)),
    ),
    "updates were shown before their time, and again at it": (
        Program((K,), (Op("negate", (0,)),), (1,)),
        ((LATE, *move(5)), move(5)),
    ),
    "a step that changes nothing in a record without columns": (
        Program((K,), (Op("distinct", (0,)), Op("drop", (1,), ("k",)), Op("count", (2,))), (3,)),
        (((0, "update", ("rows", [((1,), 0, 1), ((1,), 2, 1)])), *move(1)), move(5)),
    ),
    "no row meets a condition": (
        Program((K,), (EMPTY, Op("count", (1,))), (1, 2)),
        (((0, "insert", ("rows", [(1,)])), *move(1)),),
    ),
    "an expression that is never null beside one that may be": (
        Program((K,), (Op("withColumn", (0,), ("k", "is null", "k")), Op("union", (1, 1))), (2,)),
        (
            ((0, "insert", ("rows", [(1,), (None,)])), (0, "insert", ("frame", [(1,)])),
             *move(1)),
            ((0, "update", ("rows", [((1,), 0, -1)])), *move(1)),
        ),
    ),
    "updates of several times cancel only behind the shuffle": (
        Program((K,), (Op("negate", (0,)), Op("concat", (0, 1)), Op("distinct", (2,))), (3,)),
        (((0, "update", ("rows", [((1,), 0, 1), ((1,), 1, 1)])), *move(2)),),
    ),
}


@every_runner
@pytest.mark.parametrize("wrong", REGRESSIONS)
def test_what_was_wrong_once(spark, runner, wrong):
    program, schedule = REGRESSIONS[wrong]
    with Run(spark, program, runner=runner, buckets=1) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()
