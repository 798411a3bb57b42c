"""What is known of a dataflow's Spark jobs while a step runs.

    no Spark job in a step   ⟹  nothing is asked or told: it costs nothing
    no bridge, or a broken one  ⟹  jobs are counted here, and nothing is known of their tasks
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

from pyspark.sql import SparkSession

from pyspark_diff.spark.bridge import Bridge, JobCounts, JobLabel, bridge_of, labelled
from pyspark_diff.times import Antichain

_numbers = itertools.count(1)

NOTHING = JobCounts(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
_NAMES = [field.name for field in fields(JobCounts) if field.name != "running"]


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
        self._lower = Antichain()
        self._told = False
        self._jobs = self._jobs_done = 0
        self._base: JobCounts | None = None
        self._last = NOTHING

    def begin(self, lower: Antichain) -> None:
        """A step begins; Spark is told of it when it has its first job."""
        self._lower, self._told = lower, False
        self._jobs = self._jobs_done = 0
        self._base, self._last = None, NOTHING

    @contextmanager
    def job(self, label: Callable[[str], JobLabel]) -> Iterator[None]:
        """Around a Spark job of the step.

        Parameters
        ----------
        label : callable
            Says what it is for, given the name of the dataflow.
        """
        if not self._told:
            self._told = True
            self._begin()
        self._jobs += 1
        try:
            if self._bridge is None:
                yield
            else:
                with labelled(self._spark, label(self._name)):
                    yield
        finally:
            self._jobs_done += 1

    def _begin(self) -> None:
        bridge = bridge_of(self._spark)
        if bridge is not self._bridge:
            self._forget()
            self._bridge = bridge
            if bridge is not None:
                bridge.register(self._name)
        if bridge is not None:
            self._base = bridge.counts(self._name)
            bridge.begin(self._name, self._lower)

    def end(self, frontier: Antichain) -> None:
        """The step is over, committed or not; updates may yet come beyond a frontier."""
        if self._told and self._bridge is not None:
            self._bridge.end(self._name, frontier)

    def counts(self) -> JobCounts:
        """What Spark has done for the step."""
        found = replace(NOTHING, jobs=self._jobs, jobs_done=self._jobs_done)
        bridge, base, last = self._bridge, self._base, self._last
        now = None if bridge is None or base is None else bridge.counts(self._name)
        if now is not None and base is not None:
            since = {name: getattr(now, name) - getattr(base, name) for name in _NAMES}
            found = replace(now, **since)
        # A bridge that breaks takes nothing back.
        most = {name: max(getattr(found, name), getattr(last, name)) for name in _NAMES}
        self._last = found = replace(found, **most)
        return found

    def frontier(self) -> Antichain | None:
        """What the bridge holds to be complete; None where there is none, or it knows nothing."""
        return None if self._bridge is None else self._bridge.frontier(self._name)

    def close(self) -> None:
        """The dataflow is closed."""
        self._forget()
        self._bridge = None

    def _forget(self) -> None:
        if self._bridge is not None:
            self._bridge.forget(self._name)
