"""The progress of a running step, with and without the bridge.

Progress grows, never decreases, and is never ahead of the commit.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from weakref import ref

import pytest

from pyspark_diff import Antichain, Dataflow, Progress
from pyspark_diff.engine.live import NOTHING, Live, StepJobs
from pyspark_diff.spark.bridge import BRIDGE, bridge_of

PROGRAM = Path(__file__).parents[1] / "live_program.py"
NUMBERS = [
    name for name, kind in Progress.__annotations__.items() if kind in ("int", int)
]


in_bridge = pytest.mark.classic_only("the bridge is loaded into the JVM of Spark's context")


@pytest.fixture(params=[pytest.param("bridge", marks=in_bridge), "without"])
def bridged(spark, request):
    spark.conf.set(BRIDGE, str(request.param == "bridge").lower())
    yield request.param == "bridge"
    spark.conf.unset(BRIDGE)


def pause(row):
    time.sleep(0.02)
    return [(row.n, row.n + 1)]


def looked_at(flow):
    """The progress reports of a step in the background."""
    running = flow.step_async()
    looks = [flow.progress()]
    while not running.done():
        looks.append(flow.progress())
        time.sleep(0.01)
    running.wait()
    return [*looks, flow.progress()]


def test_it_moves_and_never_goes_back(spark, bridged):
    assert (bridge_of(spark) is not None) == bridged
    with Dataflow(spark, runner="spark") as flow:
        edges, edges_in = flow.input("edges", "n long")
        steps = edges.flat_map(pause, "n long, m long").count()
        steps.iterate(lambda v: v.where("m < n + 4").select(
            "n", (v["m"] + 1).alias("m"), "count").union(v).distinct(), name="rounds").keep()
        for time_, rows in ((1, 50), (2, 30)):
            edges_in.insert([(n,) for n in range(rows)])
            edges_in.advance_to(time_)
            looks = looked_at(flow)
            running = [look for look in looks if look.running and look.step == time_]
            assert len(set(running)) > 5
            for old, new in zip(running, running[1:]):
                back = [n for n in NUMBERS if getattr(new, n) < getattr(old, n)]
                assert not back and old.seconds <= new.seconds
            assert {look.frontier for look in running} == {Antichain([time_ - 1])}
            last = looks[-1]
            assert not last.running and last.frontier == Antichain([time_])
            assert last.jobs_done == last.jobs > 5 and last.operators_done == last.operators
            assert last.iterations and last.rows
            assert (last.tasks > 0) == (last.task_rows > 0) == (last.task_bytes > 0) == bridged
            assert last.tasks_done <= last.tasks
            names = {look.operator for look in running}
            assert "rounds" in names and len(names) > 1


@in_bridge
def test_jobs_say_what_they_are_for(spark):
    with Dataflow(spark, runner="spark") as flow:
        edges, edges_in = flow.input("edges", "n long")
        counts = edges.count()
        counts.select("n").iterate(lambda v: v.distinct(), name="round").keep()
        edges_in.insert([(1,)])
        edges_in.advance_to(1)
        flow.step()
        bridge = bridge_of(spark)
        operators = bridge.operators(flow._live._name)
        assert any(name.startswith("count") for name in operators)
        # Operators that run in the tasks of another job, here the distinct, have no job.
        assert any(name.startswith("arrange") for name in operators)
        assert not any(name.startswith("distinct") for name in operators)
        assert flow._live.frontier() == Antichain([1])
        name = flow._live._name
    assert bridge.counts(name) is None and not bridge.broken  # closed, so forgotten


@in_bridge
def test_a_dataflow_that_nobody_closed_is_forgotten(spark):
    """The next step of another dataflow removes it from the bridge."""
    names = []
    for _ in range(2):
        flow = Dataflow(spark, runner="spark", buckets=1)
        rows, rows_in = flow.input("rows", "n long")
        rows.count().keep()
        rows_in.insert([(1,)])
        rows_in.advance_to(1)
        flow.step()
        names.append(flow._live._name)
        if len(names) == 1:
            assert bridge_of(spark).counts(names[0]) is not None
        reference = ref(flow)
        del flow, rows, rows_in
        gc.collect()
        assert reference() is None
    assert bridge_of(spark).counts(names[0]) is None
    live = Live(spark)
    live.close()
    assert bridge_of(spark).counts(names[1]) is None and not bridge_of(spark).broken


def test_steps_are_told_apart():
    """The counts of a step do not include the jobs of the next step."""

    class Counting:
        jobs = 0

        def counts(self, dataflow):
            return replace(NOTHING, jobs=self.jobs, jobs_done=self.jobs)

    bridge = Counting()
    first, second = StepJobs(lambda: Antichain([0])), StepJobs(lambda: Antichain([1]))
    first.begin(bridge, "flow")
    bridge.jobs = 3
    first.end()
    second.begin(bridge, "flow")
    bridge.jobs = 5
    assert (first.counts().jobs, second.counts().jobs) == (3, 2)


@in_bridge
def test_a_bridge_that_breaks_harms_nothing(spark, monkeypatch, caplog):
    with Dataflow(spark, runner="spark") as flow:
        rows, rows_in = flow.input("rows", "n long")
        counts = rows.count().keep()
        rows_in.insert([(1,)])
        rows_in.advance_to(1)
        flow.step()
        bridge, before = bridge_of(spark), flow.progress()

        class Gone:
            def __getattr__(self, name):
                raise RuntimeError("gone")

        monkeypatch.setattr(bridge, "_remote", Gone())
        monkeypatch.setattr(bridge, "_broken", False)
        assert flow.progress() == before
        assert bridge.broken and len(caplog.records) == 1
        rows_in.insert([(1,)])
        rows_in.advance_to(2)
        assert flow.step()
        after = flow.progress()
        assert after.jobs == after.jobs_done > 0 and after.tasks == 0
        assert counts.at().first()["count"] == 2 and len(caplog.records) == 1
        monkeypatch.undo()


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(8)]
)
def test_what_is_said_to_be_complete_was_handed_over(tmp_path, seed):
    """The reports before a kill at a random moment are true."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(tmp_path)], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,
    ) as program:
        try:
            assert program.stdout.readline().strip() == b"ready"
            time.sleep(random.Random(seed).uniform(0.2, 2.0))
        finally:
            os.killpg(program.pid, signal.SIGKILL)
    said = [int(line) for line in (tmp_path / "said").read_text().splitlines()]
    assert said == sorted(said) and said[-1] >= 2
    diffs: dict[int, dict[int, int]] = {}
    for line in (tmp_path / "given").read_text().splitlines():
        at, n, diff = map(int, line.split())
        changes = diffs.setdefault(at, {})
        changes[n] = changes.get(n, 0) + diff
    # At each time both groups grow by two: from 2 t to 2 (t + 1) rows.
    for at in range(said[-1]):
        gone = {2 * at: -2} if at else {}
        assert diffs[at] == {2 * (at + 1): 2, **gone}, f"time {at} was said to be complete"
