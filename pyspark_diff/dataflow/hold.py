"""Read holds: promises of a dataflow to keep the history of a collection from a time on.

While a hold at ``t`` is not released, the collection can be read at every complete time from ``t``
on: compaction does not advance times beyond it.
"""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import types as T

from pyspark_diff.dataflow.times import frontier_of, single_time, frontier_text
from pyspark_diff.errors import ClosedError, TimeRegressionError
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.times import Antichain


class Hold:
    """Keeps the history of a collection. `DiffFrame.hold` returns it; it holds state, a frontier.

    Use it as a context manager, or release it: until then the dataflow keeps the history.

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
        #: The frontier from which on history is kept; empty after `release`.
        self._frontier = at

    def time(self) -> Any:
        """The time from which on history is kept.

        Raises
        ------
        InvalidTimeError
            If times are structs and the hold has several.
        """
        at = self._held_frontier()
        if self._times is not None:
            return single_time(at)
        return self._time_type.decode(cast(int, at.bound))

    def advance_to(self, time: Any) -> None:
        """Release the history before a later time. If times are structs, a list of times is
        accepted, and the history that is not beyond any of them is released.

        Raises
        ------
        TimeRegressionError
            If ``time`` is before the hold's time: compaction may have removed that history.
        """
        if self._times is not None:
            to = frontier_of(time, self._times)
        else:
            to = Antichain([self._time_type.encode(time)])
        now = self._held_frontier()
        if not now.precedes(to):
            raise TimeRegressionError(
                f"a hold at {frontier_text(now, self._time_type)} cannot go back to {time!r}: "
                "earlier history may have been compacted away"
            )
        self._frontier = to

    def release(self) -> None:
        """Release all history; the next step may compact it. A second call does nothing."""
        self._frontier = Antichain()

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        at = self._frontier
        return "Hold(released)" if at.is_empty else f"Hold({frontier_text(at, self._time_type)})"

    def _held_frontier(self) -> Antichain:
        if self._frontier.is_empty:
            raise ClosedError("this hold was released; take a new one with DiffFrame.hold")
        return self._frontier
