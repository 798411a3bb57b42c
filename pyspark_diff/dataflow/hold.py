"""Read holds: promises of a dataflow to keep the history of a collection from a time on.

While a hold at ``t`` is not released, the collection can be read at every complete time from ``t``
on: compaction does not advance times beyond it.
"""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import types as T

from pyspark_diff.dataflow.times import frontier_of, one_of, told
from pyspark_diff.errors import ClosedError, TimeRegressionError
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.times import Antichain


class Hold:
    """Keeps the history of one collection. Made by `DiffFrame.hold`; it holds state, a frontier.

    Use it as a context manager, or release it: history is kept as long as it stands.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark) as flow:
    ...     words, words_in = flow.input("words", "word string")
    ...     counts = words.count().keep()
    ...     hold = counts.hold(0)
    ...     for time in range(3):
    ...         words_in.insert([("a",)])
    ...         _ = flow.advance_to(time + 1)
    ...     [counts.at(time).collect()[0]["count"] for time in range(3)]
    [1, 2, 3]
    """

    def __init__(
        self, time_type: TimeType, at: Antichain, times: T.StructType | None = None
    ):
        self._time_type, self._times = time_type, times
        #: From which on history is kept; empty when released.
        self._frontier = at

    def time(self) -> Any:
        """The time from which on history is kept.

        Raises
        ------
        InvalidTimeError
            If times are structs, and it is kept from several on.
        """
        at = self._standing()
        if self._times is not None:
            return one_of(at)
        return self._time_type.decode(cast(int, at.bound))

    def advance_to(self, time: Any) -> None:
        """Let go of what lies before a later time; where times are structs, of what is not beyond
        one of a list.

        Raises
        ------
        TimeRegressionError
            If it is earlier than the hold's time: that history may be gone.
        """
        if self._times is not None:
            to = frontier_of(time, self._times)
        else:
            to = Antichain([self._time_type.encode(time)])
        now = self._standing()
        if not now.precedes(to):
            raise TimeRegressionError(
                f"a hold at {told(now, self._time_type)} cannot go back to {time!r}: what lies "
                "before may have been compacted away"
            )
        self._frontier = to

    def release(self) -> None:
        """Let all history go, from the next step on. A second call does nothing."""
        self._frontier = Antichain()

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        at = self._frontier
        return "Hold(released)" if at.is_empty else f"Hold({told(at, self._time_type)})"

    def _standing(self) -> Antichain:
        if self._frontier.is_empty:
            raise ClosedError("this hold was released; take a new one with DiffFrame.hold")
        return self._frontier
