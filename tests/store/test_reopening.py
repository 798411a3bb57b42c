"""The law over applications: a reopened dataflow returns the results of one that never closed."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import Run, pool, programs, schedules
from test_law import buckets, examples, memory_rows


def check_reopening(spark, data, most=4, lags=False, **options):
    """Close or abandon the dataflow of a random program between steps, and open it again."""
    program = data.draw(programs(most=most))
    schedule = data.draw(schedules(program.inputs, most=5, lags=lags, discards=lags))
    numbers = range(len(program.inputs))
    kinds = [data.draw(st.sampled_from(["plain", "plain", "keyed", "constant"]))
             for _ in numbers]
    if lags or set(kinds) == {"constant"}:
        kinds = ["plain"] * len(kinds)
    constants = {
        i: data.draw(st.lists(st.sampled_from(data.draw(pool(columns))), max_size=4))
        for i, columns in enumerate(program.inputs) if kinds[i] == "constant"
    }
    late = data.draw(st.lists(
        st.sampled_from([0, 0, 0, 1, 2]),
        min_size=len(program.outputs), max_size=len(program.outputs),
    ))
    reopened = data.draw(st.sets(st.integers(1, 5), min_size=1))
    keyed = [i for i in numbers if kinds[i] == "keyed"]
    with tempfile.TemporaryDirectory() as folder, Run(
        spark, program, keyed=keyed, constants=constants, late=late, keeps=numbers,
        store=f"{folder}/store", reopened=reopened, killed=data.draw(st.booleans()), **options
    ) as run:
        run.take(schedule, ("may look at the times", "loop", "was not kept"))


@examples(0.75)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_reopened_on_the_driver(spark, data, buckets, memory_rows):
    check_reopening(spark, data, runner="local", buckets=buckets, memory_rows=memory_rows)


@pytest.mark.slow
@examples(0.3)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_reopened_in_spark(spark, data, buckets, memory_rows):
    check_reopening(spark, data, most=3, runner="spark", buckets=buckets, memory_rows=memory_rows)


@pytest.mark.slow
@examples(1)
@given(data=st.data(), buckets=buckets, memory_rows=memory_rows)
def test_reopened_while_inputs_lag(spark, data, buckets, memory_rows):
    check_reopening(
        spark, data, lags=True, runner="local", buckets=buckets, memory_rows=memory_rows
    )
