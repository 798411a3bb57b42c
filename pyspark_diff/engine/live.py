"""What is known of a dataflow's Spark jobs while a step runs.

    no Spark job in a step   ⟹  nothing is asked or told: it costs nothing
    no bridge, or a broken one  ⟹  jobs are counted here, and nothing is known of their tasks
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

#: Dataflows that nobody has closed, and that are no more. Their end may come in the middle of a
#: call of the JVM, so another one tells it.
_gone: deque[tuple[Bridge, str]] = deque()

NOTHING = JobCounts(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
_NAMES = [field.name for field in fields(JobCounts) if field.name != "running"]


class StepJobs:
    """The jobs of one step. It holds state; what is told of it never goes back."""

    def __init__(self, lower: Callable[[], Antichain]):
        self.lower = lower
        self.jobs = self.jobs_done = 0
        self.told = False
        self._lock = threading.Lock()
        self._last = NOTHING
        self._of_spark: Callable[[], JobCounts | None] = lambda: None

    def begin(self, bridge: Bridge, dataflow: str) -> None:
        """There is a bridge, which has counted up to now what was before."""
        base = bridge.counts(dataflow)

        def since() -> JobCounts | None:
            now = bridge.counts(dataflow)
            if now is None or base is None:
                return None
            return replace(now, **{n: getattr(now, n) - getattr(base, n) for n in _NAMES})

        self._of_spark = since

    def end(self) -> None:
        """Another step begins, and what is counted from now on is of that."""
        self.counts()
        self._of_spark = lambda: None

    def counts(self) -> JobCounts:
        """What Spark has done for the step."""
        own = replace(NOTHING, jobs=self.jobs, jobs_done=self.jobs_done)
        found = self._of_spark() or own
        with self._lock:
            # A bridge that breaks takes nothing back, nor does a thread that was overtaken.
            most = {n: max(getattr(found, n), getattr(self._last, n)) for n in _NAMES}
            self._last = found = replace(found, **most)
        return found


class Live:
    """The jobs of one dataflow, step by step.

    Parameters
    ----------
    spark : SparkSession
    """

    def __init__(self, spark: SparkSession):
        self._spark = spark
        #: Names the dataflow among all that use this Spark, also from other drivers of it.
        self._name = f"dataflow-{os.getpid()}-{next(_numbers)}"
        self._bridge: Bridge | None = None
        self._gone: finalize[..., Live] | None = None
        #: Of the last step that was begun, and of the last one that is over.
        self.step = self.before = StepJobs(Antichain)

    def begin(self, lower: Callable[[], Antichain]) -> None:
        """A step begins; Spark is told of it, and from where it goes on, when it has its first job.
        """
        self.step = StepJobs(lower)

    @contextmanager
    def job(self, label: Callable[[str], JobLabel]) -> Iterator[None]:
        """Around a Spark job of the step.

        Parameters
        ----------
        label : callable
            Says what it is for, given the name of the dataflow.
        """
        step = self.step
        if not step.told:
            step.told = True
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
        """The step is over, committed or not; updates may yet come beyond a frontier."""
        if self.step.told and self._bridge is not None:
            self._bridge.end(self._name, frontier())
        self.before = self.step

    def frontier(self) -> Antichain | None:
        """What the bridge holds to be complete; None where there is none, or it knows nothing."""
        return None if self._bridge is None else self._bridge.frontier(self._name)

    def close(self) -> None:
        """The dataflow is closed."""
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
