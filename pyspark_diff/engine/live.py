"""The progress of a dataflow's Spark jobs while a step runs.

    no Spark job in a step   ⟹  no call of the bridge, so no cost
    no bridge, or a broken one  ⟹  jobs are counted here, and their tasks are unknown
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from weakref import finalize

from pyspark.sql import SparkSession

from pyspark_diff.spark.bridge import Bridge, JobCounts, JobLabel, bridge_of, labelled
from pyspark_diff.times import Antichain

_numbers = itertools.count(1)

#: Dataflows that were collected without being closed. A collection may happen during a call of the
#: JVM, so a later call of another dataflow reports it.
_gone: deque[tuple[Bridge, str]] = deque()

NOTHING = JobCounts(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
_NAMES = [field.name for field in fields(JobCounts) if field.name != "running"]


class StepJobs:
    """The jobs of one step. It holds state; reported counts never fall."""

    def __init__(self, lower: Callable[[], Antichain]):
        self.lower = lower
        self.jobs = self.jobs_done = 0
        self.announced = False
        self._lock = threading.Lock()
        self._last = NOTHING
        self._of_spark: Callable[[], JobCounts | None] = lambda: None

    def begin(self, bridge: Bridge, dataflow: str) -> None:
        """Count with a bridge, from its present counts on."""
        base = bridge.counts(dataflow)

        def since() -> JobCounts | None:
            now = bridge.counts(dataflow)
            if now is None or base is None:
                return None
            return replace(now, **{n: getattr(now, n) - getattr(base, n) for n in _NAMES})

        self._of_spark = since

    def end(self) -> None:
        """Stop counting, since later counts belong to another step."""
        self.counts()
        self._of_spark = lambda: None

    def counts(self) -> JobCounts:
        """The counts of Spark's work for the step."""
        own = replace(NOTHING, jobs=self.jobs, jobs_done=self.jobs_done)
        counts = self._of_spark() or own
        with self._lock:
            # A broken bridge or a slower thread may report less than an earlier report.
            most = {n: max(getattr(counts, n), getattr(self._last, n)) for n in _NAMES}
            self._last = counts = replace(counts, **most)
        return counts


class Live:
    """The jobs of one dataflow, step by step."""

    def __init__(self, spark: SparkSession):
        self._spark = spark
        #: A name of the dataflow that is unique among all drivers of this Spark.
        self._name = f"dataflow-{os.getpid()}-{next(_numbers)}"
        self._bridge: Bridge | None = None
        self._gone: finalize[..., Live] | None = None
        #: The last step that began, and the last step that ended.
        self.step = self.before = StepJobs(Antichain)

    def begin(self, lower: Callable[[], Antichain]) -> None:
        """Begin a step; its first job reports the step and its lower frontier to the bridge."""
        self.step = StepJobs(lower)

    @contextmanager
    def job(self, label: Callable[[str], JobLabel]) -> Iterator[None]:
        """A context around a Spark job of the step.

        Parameters
        ----------
        label : callable
            Returns the label of the job for the name of the dataflow.
        """
        step = self.step
        if not step.announced:
            step.announced = True
            self._begin()
        step.jobs += 1
        try:
            if self._bridge is None:
                yield
            else:
                with labelled(self._spark, label(self._name)):
                    yield
        finally:
            step.jobs_done += 1

    def _begin(self) -> None:
        _forget_gone()
        bridge = bridge_of(self._spark)
        self.before.end()
        if bridge is not self._bridge:
            self._forget()
            self._bridge = bridge
            if bridge is not None:
                bridge.register(self._name)
                self._gone = finalize(self, _gone.append, (bridge, self._name))
        if bridge is not None:
            self.step.begin(bridge, self._name)
            bridge.begin(self._name, self.step.lower())

    def end(self, frontier: Callable[[], Antichain]) -> None:
        """End the step, committed or not, with the frontier of later updates."""
        if self.step.announced and self._bridge is not None:
            self._bridge.end(self._name, frontier())
        self.before = self.step

    def frontier(self) -> Antichain | None:
        """The bridge's frontier of complete times; None without a bridge, or if it has none."""
        return None if self._bridge is None else self._bridge.frontier(self._name)

    def close(self) -> None:
        """Remove the dataflow from the bridge."""
        self._forget()
        self._bridge = None

    def _forget(self) -> None:
        _forget_gone()
        if self._gone is not None:
            self._gone.detach()
            self._gone = None
        if self._bridge is not None:
            self._bridge.forget(self._name)


def _forget_gone() -> None:
    with suppress(IndexError):
        while True:
            bridge, name = _gone.popleft()
            bridge.forget(name)
