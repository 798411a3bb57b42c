"""Loops that fall for ever: what they keep the least of becomes less and less.

A loop keeps, of each record without one column, the least sum of numbers from outside on a way to
it, from zero on; ``d_i`` is that after iteration ``i``, each sum being of doubles, added up one by
one. A way goes from key to key, of which there are ``n``, and ``w`` is the largest number. With no
cycle of less than zero, a way of ``i`` numbers is, but for what is lost by rounding, no less than
the same one without its cycles, which has ``n`` numbers at most::

    i >= j >= n,  no cycle of less than zero   ⟹   d_i >= d_j - 2 * i * i * w * 2**-52

as adding ``i`` numbers that are ``w`` at most loses ``i * i * w * 2**-53`` at most, and a little of
that. So a value that falls further tells of a cycle, and rounding alone never does.
Source: Higham, "Accuracy and Stability of Numerical Algorithms", chapter 4.
"""

from __future__ import annotations

from typing import Any, Iterable

import numpy as np
import pyarrow as pa

from pyspark_diff.engine.oscillation import HELD_ROWS
from pyspark_diff.kernels import buffers
from pyspark_diff.kernels.updates import Updates
from pyspark_diff.spark.schema import Schema

#: What is lost by rounding, with room for what is lost where this itself is computed.
_LOST = 2.0**-50
#: Sums that are no larger have room.
_LARGE = 1e300


def largest_of(columns: Iterable[pa.Array]) -> float:
    """The largest absolute value of some columns of doubles; infinite ones lead to no number."""
    most = 0.0
    for column in columns:
        values = np.abs(buffers.fixed(column.drop_null()).astype(np.float64))
        most = max(most, values[np.isfinite(values)].max(initial=0.0))
    return most


class Descent:
    """Looks for a value that falls further than by rounding, in one run of a loop. It holds state.

    Parameters
    ----------
    column : str
        What the loop keeps the least of.
    largest : float
        The largest of the numbers that it adds up.
    iteration : int
        The first that it is given.
    """

    def __init__(self, column: str, largest: float, iteration: int):
        self._column, self._largest = column, largest
        #: The first iteration of what is held.
        self.since = iteration
        #: By the hash of a record without the value, and its time: that record, and its value.
        self._first: dict[tuple[int, int], tuple[list[Any], float]] = {}

    def takes(self, iteration: int, schema: Schema, updates: Updates) -> bool:
        """Take in what goes round after one more iteration, and tell whether something has fallen.

        Parameters
        ----------
        iteration : int
        schema : Schema
            Of the variable.
        updates : Updates
            Consolidated.
        """
        # Of the first time all before it is as it was, and what comes in is what is there then.
        times = updates.times()
        there = np.flatnonzero((times == times.min()) & (updates.diffs() > 0))
        there = there[:HELD_ROWS]  # any will do, and so many are looked at one by one
        if not there.size:
            return False
        when = int(times[there[0]])
        records = dict(zip(schema.names, schema.layout().decode(updates.take(there))))
        values = records.pop(self._column).to_pylist()
        others = list(records.values())
        ones = np.ones(there.size, np.int64)
        keys = schema.only(records).layout().encode(others, 0 * ones, ones).key64.tolist()
        if len(self._first) + there.size > HELD_ROWS:
            self._first, self.since = {}, iteration
        lost = _LOST * iteration * iteration * self._largest
        for row, (key, value) in enumerate(zip(keys, values)):
            record = [column[row].as_py() for column in others]
            known, first = self._first.setdefault((key, when), (record, value))
            if known == record and np.isfinite([first, value]).all() and first - value > lost:
                return iteration * self._largest < _LARGE
        return False
