"""Random programs in three physical forms, each compared with an oracle at every time.

    Step by step, all at once, and in a store that is closed or forgotten and opened again.
    At each complete time each output equals the oracle's, computed from the updates up to then.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from damaged_stores import Wrong
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from programs import Actions, Run, programs, schedules

#: For each form, the function that changes a schedule, and whether the run has a store.
FORMS: dict[str, tuple[Callable[[Sequence[Actions]], Sequence[Actions]], bool]] = {
    "step by step": (lambda schedule: schedule, False),
    "all at once": (lambda schedule: [sum(schedule, ())], False),
    "split and opened again": (lambda schedule: schedule, True),
}


def run(spark: Any, folder: str, count: int, first: int = 0) -> Counter[str]:
    """Run random programs. Returns the numbers of runs of each form, of programs and of steps."""
    done: Counter[str] = Counter()

    @seed(first)
    @settings(
        max_examples=count, database=None, deadline=None, print_blob=True, derandomize=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data(), buckets=st.integers(1, 3), memory_rows=st.sampled_from([0, 1, 4096]))
    def check_program(data: Any, buckets: int, memory_rows: int) -> None:
        program = data.draw(programs())
        schedule = data.draw(schedules(program.inputs))
        reopened = data.draw(st.sets(st.integers(1, len(schedule)), min_size=1))
        killed = data.draw(st.booleans())
        for name, (form, stored) in FORMS.items():
            with tempfile.TemporaryDirectory(dir=folder) as store, Run(
                spark, program, runner="local", buckets=buckets, memory_rows=memory_rows,
                store=f"{store}/store" if stored else None,
                reopened=reopened if stored else (), killed=killed,
            ) as program_run:
                for actions in form(schedule):
                    program_run.step(actions)
                    done["steps"] += 1
                program_run.finish()
            done[name] += 1
        done["programs"] += 1

    try:
        check_program()
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        raise Wrong(f"seed {first}, {done} done: {error!r} {notes}") from error
    return done
