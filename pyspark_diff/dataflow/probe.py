"""Probes: handles that report the frontier of a collection.

``less_than(t)`` is true while updates at a time before ``t`` may still appear in the collection;
the empty frontier means that it is complete.
"""

from __future__ import annotations

from typing import Any, Callable

from pyspark.sql import types as T

from pyspark_diff.dataflow.times import coordinate, single_time
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.times import Antichain, Time


class Probe:
    """Reports the frontier of a collection. `DiffFrame.probe` returns it.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark) as flow:
    ...     words, session = flow.input("words", "word string")
    ...     probe = words.count().probe()
    ...     session.insert([("a",)])
    ...     session.advance_to(1)
    ...     session.flush()
    ...     before = probe.less_than(1)
    ...     flow.step_while(lambda: probe.less_than(session.time()))
    ...     before, probe.less_than(1), probe.frontier()
    (True, False, Antichain([1]))
    """

    def __init__(
        self, time_type: TimeType, read: Callable[[], Antichain],
        times: T.StructType | None = None,
    ):
        self._time_type = time_type
        self._times = times
        self._read = read

    def _encode(self, time: Any) -> Time:
        if self._times is not None:
            return coordinate(time, self._times)
        return self._time_type.encode(time)

    def __repr__(self) -> str:
        at = self._read()
        if at.is_empty:
            return "Probe(complete)"
        return f"Probe(at {list(at) if len(at.elements) > 1 else self.time()!r})"

    def less_than(self, time: Any) -> bool:
        """Whether updates at times before ``time`` may still appear."""
        return self._read().less_than(self._encode(time))

    def less_equal(self, time: Any) -> bool:
        """Whether updates at times up to and including ``time`` may still appear."""
        return self._read().less_equal(self._encode(time))

    def done(self) -> bool:
        """Whether the collection is complete."""
        return self._read().is_empty

    def frontier(self) -> Antichain:
        """The least times that may still appear, as encoded integers, or tuples of them; empty when
        complete."""
        return self._read()

    def time(self) -> Any:
        """The only time of the frontier in the user's type, or None when complete.

        Raises
        ------
        InvalidTimeError
            If times are structs and the frontier has several.
        """
        if self._times is not None:
            return single_time(self._read())
        at = self._read().bound
        return None if at is None else self._time_type.decode(at)
