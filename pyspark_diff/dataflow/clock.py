"""The clock: an input without a feed; its one record is the time itself.

With an interval ``every`` between ticks, from the clock's first time on::

    clock at t  =  { the last tick that is not after t }

The clock advances with the frontiers of the other inputs, so it delays no output. Its updates do
not depend on the number of advances. When all other inputs are complete, the clock stops.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_diff.dataflow.input_session import BaseSession, Discard
from pyspark_diff.engine.state import Arrival
from pyspark_diff.errors import InvalidTimeError
from pyspark_diff.kernels.layout import from_int64
from pyspark_diff.operators.due import Clock
from pyspark_diff.runners.feed import UpdateRows
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.times import Antichain

#: The greatest number of ticks of an advance; more are a mistake in a time or an interval.
MOST_TICKS = 10_000_000


class ClockSession(BaseSession):
    """Feeds a clock with its ticks. It holds state: its frontier.

    Parameters
    ----------
    every : int
        The interval between ticks, in the encoding of times.
    spark, time, diff, start, discard
        See `BaseSession`.
    """

    def __init__(
        self, node: Clock, spark: SparkSession, time: str, diff: str, start: int, discard: Discard
    ):
        super().__init__(node, spark, time, diff, start, discard)
        self._every = node.interval
        #: Whether the first record has entered.
        self._begun = False

    def _go_on_after(self, begun: bool) -> None:
        """Continue from a state, which has a tick or none."""
        self._begun = begun

    def _hand_over(self, to: Antichain | None = None) -> None:
        now = self._content.capability
        begin, end = now.bound, None if to is None else to.bound
        if begin is not None and end is not None and begin < end:
            source = self._ticks(begin, end)
            with self._lock:
                if source is not None:
                    self._add(waiting=[Arrival(*source)])
                self._begun = True
        super()._hand_over(to)

    def _ticks(self, begin: int, end: int) -> tuple[UpdateRows, int] | None:
        """The updates at times of an interval, and the last time among them."""
        length = self._every
        first = -(-begin // length)
        count = -(-end // length) - first
        if count > MOST_TICKS:
            decode = self._node.time_type.decode
            raise InvalidTimeError(
                f"the clock {self.name!r} would tick {count} times from {decode(begin)!r} to "
                f"{decode(end)!r}. Use a longer interval or a later start: "
                "flow.clock(every, start=...)"
            )
        ticks = np.arange(first, first + count) * length
        came, went = ticks, ticks
        if not self._begun and (not count or ticks[0] > begin):
            came = np.append(begin, ticks)  # the first record is the last tick before the start
        elif not self._begun:
            went = ticks[1:]
        if not came.size:
            return None
        shown = np.concatenate([came // length, went // length - 1]) * length
        times = np.concatenate([came, went])
        diffs = np.repeat([1, -1], [came.size, went.size])
        kind = self._node.time_type.arrow
        table = pa.table(
            [from_int64(pa.array(shown), kind), from_int64(pa.array(times), kind),
             pa.array(diffs)],
            names=[*self._node.schema.names, TIME, DIFF],
        )
        rows = UpdateRows(self._node.schema, table=table, rows=table.num_rows)
        return rows, int(times.max())
