"""Snapshots: a table that is read as a whole each time, and compared with what it was.

    changes = the table now  -  the table when it was read last

By a key, that is found in the arrangement of the input; without one, each row counts as often as
it is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import Offset, Reading, Source, Whole
from pyspark_diff.sources.tables import Table, TableSource, frame_of, told
from pyspark_diff.spark.schema import as_keys


def snapshots(table: Table, *, key: str | Sequence[str] = ()) -> Source:
    """A table of which only its present state is known.

    Reading it costs what the table costs, whatever has changed; what comes after that costs what
    has changed. Each `Dataflow.catch_up` reads it.

    Parameters
    ----------
    table : str, DataFrame, or callable
        Name of a table, a frame that is evaluated anew each time, or what gives the frame to read.
    key : str or list of str
        Columns of a key, if no two rows have the same. Comparing is cheaper then.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> rows = [("tea",), ("tea",), ("milk",)]
    >>> table = lambda: spark.createDataFrame(rows, "item string")
    >>> with Dataflow(spark, keep_history=True) as flow:
    ...     items = flow.source("items", snapshots(table))
    ...     kept = items.keep()
    ...     _ = flow.catch_up()
    ...     rows = [("tea",), ("salt",)]
    ...     _ = flow.catch_up()
    ...     sorted(tuple(row) for row in kept.changes(0, 1).collect())
    [('milk', 1, -1), ('salt', 1, 1), ('tea', 1, -1)]
    """
    return _Snapshots(table, as_keys(key))


class _Snapshots(TableSource):
    def __init__(self, table: Table, key: tuple[str, ...]):
        self._table, self.key = table, key
        self.is_whole = not key

    def _columns_now(self, spark: SparkSession) -> T.StructType:
        return frame_of(self._table, spark).schema

    def _called(self) -> str:
        return told(self._table)

    def read(self, spark: SparkSession, offset: Offset) -> Reading:
        number = 1 if offset is None else offset["reading"] + 1
        return Reading(
            {"reading": number}, [Whole(self._narrowed(frame_of(self._table, spark)))]
        )

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"snapshots({told(self._table)}{key})"
