"""The one law: at every complete time the output is the batch answer, however the input was cut."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from chispa import assert_df_equality
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import Op, Program, accumulate, evaluate, normal, total
from programs import Run, build, ddl, programs, schedules, whole_histories
from pyspark_diff import DiffFrame, NegativeMultiplicityError, NotReadableError

EXAMPLES = settings().max_examples
RUNNERS = ["local", "spark"]
buckets = st.integers(1, 3)

every_runner = pytest.mark.parametrize("runner", RUNNERS)


def examples(share: float) -> settings:
    """A share of the run's examples, since some cost a hundred times what others do."""
    return settings(max_examples=max(1, round(EXAMPLES * share)))


# Random programs, fed in random steps.


@examples(3)
@given(data=st.data(), buckets=buckets)
def test_steps_on_the_driver(spark, data, buckets):
    program = data.draw(programs())
    schedule = data.draw(schedules(program.inputs))
    with Run(spark, program, runner="local", buckets=buckets) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()


@examples(0.3)
@given(data=st.data(), buckets=buckets)
def test_steps_in_spark(spark, data, buckets):
    program = data.draw(programs(most=4))
    schedule = data.draw(schedules(program.inputs, most=3, frames=True))
    with Run(spark, program, runner="spark", buckets=buckets) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()


@examples(0.3)
@given(data=st.data(), buckets=buckets)
def test_steps_that_change_the_runner(spark, data, buckets):
    program = data.draw(programs(most=4))
    schedule = data.draw(schedules(program.inputs, most=4, frames=True))
    with Run(spark, program, buckets=buckets) as run:
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
    frames = [
        DiffFrame(spark.createDataFrame(
            [(*record, time, diff) for record, time, diff in history],
            f"{ddl(columns)}, time long, diff long",
        ))
        for history, columns in zip(histories, program.inputs)
    ]
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
    """What `at` gives is the oracle's multiset, or a refusal where that is none."""
    now = [accumulate(history, 2**63 if time is None else time) for history in histories]
    expected = evaluate(program, now)[node]
    if min(expected.values(), default=0) < 0:
        with pytest.raises(NegativeMultiplicityError):
            frame.at(time)
    found = frame.at(time, allow_negative=min(expected.values(), default=0) < 0)
    assert Counter(normal(tuple(row)) for row in found.collect()) == +expected


# Kept collections.


@examples(0.5)
@given(data=st.data(), buckets=buckets)
def test_latest_time_can_be_read(spark, data, buckets):
    program = data.draw(programs(most=3))
    schedule = data.draw(schedules(program.inputs))
    with Run(spark, program, kept=True, runner="local", buckets=buckets) as run:
        for actions in schedule:
            before = [output.probe.time() for output in run.outputs]
            run.step(actions)
            for output, frontier in zip(run.outputs, before):
                upper = output.probe.time()
                if upper == frontier:
                    continue
                if upper is None:
                    # What was the latest time stays readable, and all after it are.
                    readable = run.times(None)
                    readable = [None, *(t for t in readable if t >= frontier - 1)]
                else:
                    readable = [upper - 1]
                    for unreadable in (upper, *([upper - 2] if upper > 1 else [])):
                        with pytest.raises(NotReadableError):
                            output.frame.at(unreadable)
                time = data.draw(st.sampled_from(readable))
                check_snapshot(output.frame, time, program, output.node, run.history)


@examples(0.3)
@given(data=st.data(), buckets=buckets)
def test_all_times_can_be_read(spark, data, buckets):
    program = data.draw(programs(most=3))
    schedule = data.draw(schedules(program.inputs))
    with Run(
        spark, program, kept=True, keep_history=True, runner="local", buckets=buckets
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
