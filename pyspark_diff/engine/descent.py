"""Loops that decrease without end: their least values never stop falling.

A loop keeps, for each record without one column, the least sum of outside numbers on a path to the
record, from zero on. Each sum adds doubles one by one. ``d_i`` is the value after iteration ``i``.
A path goes from key to key; there are ``n`` keys, and ``w`` is the largest number. If no cycle is
negative, the sum of a path with ``i`` numbers is no less than the sum without the path's cycles,
except for rounding. A path without cycles has at most ``n`` numbers::

    i >= j >= n,  no negative cycle   ⟹   d_i >= d_j - 2 * i * i * w * 2**-52

since the rounding error of adding ``i`` numbers up to ``w`` is ``i * i * w * 2**-53``, and little
more. So a value that falls further proves a negative cycle; rounding alone never causes it.
"""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.spark.schema import Schema

#: The factor of the rounding error, with room for the error of its own computation.
_LOST = 2.0**-50
#: Sums up to this bound cannot overflow.
_LARGE = 1e300


def largest_of(columns: Iterable[pa.Array]) -> float:
    """The largest finite absolute value in some columns of doubles; infinity is no number here."""
    most = 0.0
    for column in columns:
        values = np.abs(buffers.fixed(column.drop_null()).astype(np.float64))
        most = max(most, values[np.isfinite(values)].max(initial=0.0))
    return most


class Descent:
    """Searches for a value that falls further than rounding allows, in one run of a loop.

    It holds state.

    Parameters
    ----------
    column : str
        The column with the least value.
    largest : float
        The largest number that the loop adds.
    iteration : int
        The first iteration.
    """

    def __init__(self, column: str, largest: float, iteration: int):
        self._column, self._largest = column, largest
        #: The iteration of the first values.
        self.since = iteration
        #: The first record without the column, and its value, by the record's hash and time.
        self._first: dict[tuple[int, int], tuple[list[Any], float]] = {}

    def takes(self, iteration: int, schema: Schema, updates: UpdateChunk) -> bool:
        """Add the feedback after one more iteration; returns whether a value has fallen too far.

        Parameters
        ----------
        schema : Schema
            The schema of the variable.
        updates : UpdateChunk
            Consolidated feedback.
        """
        # At the first time there are no earlier updates, so insertions are the present records.
        times = updates.times()
        there = np.flatnonzero((times == times.min()) & (updates.diffs() > 0))
        # Any records serve, and each of them costs a look-up.
        there = there[:thresholds.current.watch_rows_max]
        if not there.size:
            return False
        when = int(times[there[0]])
        records = dict(zip(schema.names, schema.layout().decode(updates.take(there))))
        values = records.pop(self._column).to_pylist()
        others = list(records.values())
        ones = np.ones(there.size, np.int64)
        keys = schema.only(records).layout().encode(others, 0 * ones, ones).key64.tolist()
        if len(self._first) + there.size > thresholds.current.watch_rows_max:
            self._first, self.since = {}, iteration
        lost = _LOST * iteration * iteration * self._largest
        for row, (key, value) in enumerate(zip(keys, values)):
            record = [column[row].as_py() for column in others]
            known, first = self._first.setdefault((key, when), (record, value))
            if known == record and np.isfinite([first, value]).all() and first - value > lost:
                return iteration * self._largest < _LARGE
        return False
