"""A few of the ends and failing calls of ci/nights.

    after any end of a job, its target has each change once when the next job has caught up
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import night_program
import pytest
from durability_program import Options, small_batches
from night_program import GATES

from pyspark_diff.dataflow.sink import Sinks
from pyspark_diff.dataflow.source import Sources


def run(spark, folder, gate, **options):
    """The messages of the failed runs of a gate."""
    with small_batches():
        tallies = list(GATES[gate](spark, Path(folder), Options(**options)))
    assert sum(tally.runs for tally in tallies) > 1
    return [message for tally in tallies for message in tally.wrong]


@pytest.mark.parametrize(
    ("gate", "options"),
    [
        ("kills", {"stride": 19}),
        ("calls", {"stride": 6}),
        pytest.param("sources", {}, marks=pytest.mark.slow),
        pytest.param("kills", {"seeds": 2}, marks=pytest.mark.slow),
        pytest.param("real", {"random": 3}, marks=pytest.mark.slow),
    ],
)
def test_a_gate(spark, tmp_path, gate, options):
    assert not run(spark, tmp_path, gate, **options)


def offsets_are_not_committed():
    return mock.patch.object(Sources, "go_on", lambda self, offsets, inputs: None)


def sinks_are_given_nothing_again():
    give = Sinks.give

    def once(self, state, store, arrangement):
        try:
            give(self, state, store, arrangement)
        except Exception:
            for due in state.given_to.values():
                due.done = True
            raise

    return mock.patch.object(Sinks, "give", once)


@pytest.mark.parametrize("bug, gate, options", [
    (offsets_are_not_committed, "kills", {"stride": 40}),
    (sinks_are_given_nothing_again, "calls", {"stride": 6}),
])
def test_seeded_bugs_are_found(spark, tmp_path, bug, gate, options):
    with bug():
        assert run(spark, tmp_path, gate, **options)


def test_the_gates_are_those_of_the_command():
    assert set(night_program.GATES) == {"kills", "calls", "sources", "real"}
