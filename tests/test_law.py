"""The one law: at every complete time the output is the batch answer, however the input was cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from programs import Run, programs, schedules

EXAMPLES = settings().max_examples


def examples(share: float) -> settings:
    """A share of the run's examples, since some cost a hundred times what others do."""
    return settings(max_examples=max(1, round(EXAMPLES * share)))


@examples(3)
@given(data=st.data(), buckets=st.integers(1, 3))
def test_steps_on_the_driver(spark, data, buckets):
    program = data.draw(programs())
    schedule = data.draw(schedules(program.inputs))
    with Run(spark, program, runner="local", buckets=buckets) as run:
        for actions in schedule:
            run.step(actions)
        run.finish()
