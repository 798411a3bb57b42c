"""Snapshots: each reading reads the whole table and compares it with the previous reading.

    changes = the table now  -  the table at the previous reading

With a key, the arrangement of the input has the previous rows. Without a key, rows are compared
with their multiplicities.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import Offset, Reading, Source, Whole
from pyspark_diff.sources.tables import Table, TableSource, frame_of, table_text
from pyspark_diff.spark.schema import as_keys


def snapshots(table: Table, *, key: str | Sequence[str] = ()) -> Source:
    """A table without a record of its changes.

    Each `Dataflow.catch_up` reads the whole table, even if few rows have changed. The cost of the
    step after the reading is the size of the change.

    Parameters
    ----------
    table : str, DataFrame, or callable
        Name of a table, a frame that each reading evaluates anew, or a function that returns one.
    key : str or list of str
        Columns of a unique key. With a key the comparison is cheaper.

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
        return table_text(self._table)

    def read(self, spark: SparkSession, offset: Offset) -> Reading:
        number = 1 if offset is None else offset["reading"] + 1
        return Reading(
            {"reading": number}, [Whole(self._narrowed(frame_of(self._table, spark)))]
        )

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"snapshots({table_text(self._table)}{key})"
