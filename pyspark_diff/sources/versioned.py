"""Tables with versions: the changes between two versions, and gaps in their record.

    the table at version v  +  the changes of v+1 .. w  =  the table at version w

A feed of changes has the columns of the table, the kind of each change, and its version. Without a
feed from v to w the sum would be wrong. The reading then raises an error, or on request returns the
difference of whole tables.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pyspark_diff.dataflow.source import (
    Change,
    Deletes,
    Inserts,
    Offset,
    Reading,
    Removes,
    Upserts,
    Whole,
)
from pyspark_diff.errors import SourceError
from pyspark_diff.sources.tables import TableSource
from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.delta_files import KIND, VERSION
from pyspark_diff.spark.frames import column, few
from pyspark_diff.spark.schema import Schema


class VersionedSource(TableSource):
    """A table with versions and a feed of the changes between them.

    Parameters
    ----------
    name : str
        The name in SQL.
    on_gap : {"refuse", "snapshot"}
        The reaction to a gap in the record of changes.
    """

    #: The kind of table, the function that returns the source, and the kinds of inserting changes.
    kind: str
    function: str
    comes: Collection[str]
    #: The columns of a feed with the kind of a change and with its version.
    feed = KIND, VERSION

    def __init__(self, name: str, key: tuple[str, ...], on_gap: str):
        if on_gap not in ("refuse", "snapshot"):
            raise ValueError(f"on_gap is 'refuse' or 'snapshot', not {on_gap!r}")
        self._name, self.key, self._on_gap = name, key, on_gap
        self.is_whole = on_gap == "snapshot" and not key

    @abstractmethod
    def _snapshot(self, spark: SparkSession, offset: Offset) -> DataFrame:
        """The rows of the table at an offset, in the columns of the source.

        Raises
        ------
        SourceError
            If the table lacked one of these columns.
        """

    def _first(self, spark: SparkSession, offset: Offset) -> Reading:
        """The first reading: all rows of the table at an offset."""
        rows = self._snapshot(spark, offset)
        return Reading(offset, [Upserts(rows) if self.key else Inserts(rows)])

    def _changes_in(
        self, feed: DataFrame, *, versions: bool, added: tuple[str, str] | None = None
    ) -> list[Change]:
        """The changes of a feed, which has the columns of the table and two added ones.

        Parameters
        ----------
        versions : bool
            Whether the feed may have several versions.
        added : tuple of str, optional
            The added columns; by default `self.feed`.
        """
        kind, version = added or self.feed
        rows_here = few(feed)
        if rows_here is not None:
            return self._changes_of(rows_here, (kind, version))
        # Names with two underscores, which no collection may have.
        comes = column(kind).isin(*self.comes)
        rows = feed.select("*", comes.alias("__comes")).drop(kind)
        if self.key and versions:
            # The last version of a key wins, and in a version the inserted row.
            order = F.struct(column(version), F.col("__comes"))
            newest = F.max(order).over(Window.partitionBy(*map(column, self.key)))
            rows = rows.withColumn("__last", newest).where(order == F.col("__last")).drop("__last")
        rows = rows.drop(version)
        # A missing file must raise here rather than in the step.
        rows.count()
        came, went = rows.where(F.col("__comes")), rows.where(~F.col("__comes"))
        return self._changed(came.drop("__comes"), went.drop("__comes"))

    def _changes_of(self, feed: pa.Table, added: tuple[str, str] | None = None) -> list[Change]:
        """The changes of a feed on the driver."""
        kind, version = added or self.feed
        comes = pc.is_in(feed[kind], pa.array(self.comes))
        if self.key and feed.num_rows:
            layout = Schema(self._known()).layout(self.key)
            group, first = layout.groups([feed[name] for name in self.key])
            order = np.lexsort((comes.to_numpy(), feed[version].to_numpy()))
            last = np.zeros(first.size, np.int64)
            last[group[order]] = order  # the last assignment to a group wins
            feed, comes = feed.take(last), comes.take(pa.array(last))
        feed = feed.drop_columns([kind, version])
        return self._changed(feed.filter(comes), feed.filter(pc.invert(comes)))

    def _changed(self, came: DataFrame | pa.Table, went: DataFrame | pa.Table) -> list[Change]:
        if not self.key:
            return [Removes(went), Inserts(came)]
        keys = (
            went.select(*map(column, self.key)) if isinstance(went, DataFrame)
            else went.select(list(self.key))
        )
        return [Deletes(keys), Upserts(came)]

    def _gap(
        self, spark: SparkSession, now: Offset, what: str, cause: Exception | None = None,
        help: str = "",
    ) -> Reading:
        """The reading after a gap in the record of changes.

        Parameters
        ----------
        now : object
            The offset after the reading.
        what : str
            The event that caused the gap, for a message.
        help : str
            A further remedy, as a sentence.
        """
        if self._on_gap == "snapshot":
            return Reading(now, [Whole(self._snapshot(spark, now))])
        reason = "" if cause is None else f" ({condition(cause)})"
        raise SourceError(
            f"{self.kind} {self._name} {what}{reason}. Nothing of it was taken. "
            f"{help and help + '; and '}{self.function}(..., on_gap='snapshot') reads the whole "
            "present table, and compares it with the rows that were read before"
        ) from cause

    def _called(self) -> str:
        return f"{self.kind} {self._name}"

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"{self.function}({self._name!r}{key})"


def condition(error: Exception) -> str:
    """The cause of an error: Spark's condition if there is one, else its first line."""
    name = error.getCondition() if isinstance(error, PySparkException) else None
    name = name or next(iter(re.findall(r"\[([A-Z_.]{5,})\]", str(error))), None)
    return name or f"{type(error).__name__}: {in_words(error)}".splitlines()[0]
