"""Struct times in columns: reads of kept updates with such times.

An arrangement stores the first field of each time as its time, and the others in columns. For every
readable ``t``, and ``s`` that is no later in any field::

    accumulation at t       =  the updates that are no later than t in any field

    changes from s until t  =  these updates, without the ones no later than s in any field
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import TimeRegressionError
from pyspark_diff.operators.loop import is_beyond
from pyspark_diff.spark.frames import column
from pyspark_diff.times import Antichain, Coordinate, less_equal


@dataclass(frozen=True)
class StructColumns:
    """The columns of updates with struct times.

    Parameters
    ----------
    kind : StructType
        The type of times.
    records : sequence of str
        Columns of the records.
    fields : sequence of str
        Columns of all fields of times, in order.
    time, diff : str
        The user's names of time and diff.
    """

    kind: T.StructType
    records: Sequence[str]
    fields: Sequence[str]
    time: str
    diff: str

    def complete(self, updates: DataFrame, frontier: Antichain) -> DataFrame:
        """The updates at complete times. The join of two complete times may be incomplete."""
        return updates.where(~is_beyond(frontier, [column(name) for name in self.fields]))

    def whole(self, updates: DataFrame) -> DataFrame:
        """The updates with times as structs."""
        pairs = zip(self.kind.fields, self.fields)
        parts = [column(name).cast(field.dataType).alias(field.name) for field, name in pairs]
        return updates.select(
            *map(column, self.records), F.struct(*parts).alias(self.time), column(self.diff)
        )

    def until(self, updates: DataFrame, time: Coordinate) -> DataFrame:
        """The updates no later than ``time`` in all fields but the first, without these fields."""
        for name, part in zip(self.fields[1:], time[1:]):
            updates = updates.where(column(name) <= part)
        return updates.drop(*self.fields[1:])

    def changed(self, updates: DataFrame, first: Coordinate, last: Coordinate) -> DataFrame:
        """The updates between two times: their sum is the difference of the accumulations.

        Raises
        ------
        TimeRegressionError
            If the first is later in some field.
        """
        if not less_equal(first, last):
            raise TimeRegressionError(
                f"changes since {first!r} until {last!r} run backwards: give a first time that "
                "is no later than the second in any field"
            )
        return self.whole(updates.where(self._by(last) & ~self._by(first)))

    def _by(self, time: Coordinate) -> Column:
        return reduce(and_, (column(name) <= part for name, part in zip(self.fields, time)))
