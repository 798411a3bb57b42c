"""Tables that keep their versions: what was done to rows from one to another, and where that ends.

    the table at version v  +  the changes of v+1 .. w  =  the table at version w

What was done is a feed: the columns of the table, how a row was changed, and in which version.
Where there is no feed from v to w, the sum above would be wrong; so that is an error, or the
difference of whole tables where it is asked for.
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
    """A table of versions, each of which is the one before and what was done to its rows.

    Parameters
    ----------
    name : str
        As SQL names it.
    key : tuple of str
    on_gap : {"refuse", "snapshot"}
        What to do where it is not known what was done.
    """

    #: What such a table is, which function gives the source of one, and what means that a row came.
    kind: str
    function: str
    comes: Collection[str]
    #: The columns of a feed that say how a row was changed, and in which version.
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
        """All that the table had at an offset, where nothing was read before."""
        rows = self._snapshot(spark, offset)
        return Reading(offset, [Upserts(rows) if self.key else Inserts(rows)])

    def _changes_in(
        self, feed: DataFrame, *, versions: bool, added: tuple[str, str] | None = None
    ) -> list[Change]:
        """The changes that a feed has: the columns of the table, and two added ones.

        Parameters
        ----------
        feed : DataFrame
        versions : bool
            Whether it may be of more than one.
        added : tuple of str, optional
            The added columns, if they are not those of `self.feed`.
        """
        kind, version = added or self.feed
        held = few(feed)
        if held is not None:
            return self._changes_of(held, (kind, version))
        # Names that no collection may have.
        comes = column(kind).isin(*self.comes)
        rows = feed.select("*", comes.alias("__comes")).drop(kind)
        if self.key and versions:
            # Of each key the last version stands, and in it what comes.
            order = F.struct(column(version), F.col("__comes"))
            newest = F.max(order).over(Window.partitionBy(*map(column, self.key)))
            rows = rows.withColumn("__last", newest).where(order == F.col("__last")).drop("__last")
        rows = rows.drop(version)
        # Files that are gone are found now rather than by the step.
        rows.count()
        came, went = rows.where(F.col("__comes")), rows.where(~F.col("__comes"))
        return self._changed(came.drop("__comes"), went.drop("__comes"))

    def _changes_of(self, held: pa.Table, added: tuple[str, str] | None = None) -> list[Change]:
        """The changes that rows of a feed are, which are here."""
        kind, version = added or self.feed
        comes = pc.is_in(held[kind], pa.array(self.comes))
        if self.key and held.num_rows:
            layout = Schema(self._known()).layout(self.key)
            group, first = layout.groups([held[name] for name in self.key])
            order = np.lexsort((comes.to_numpy(), held[version].to_numpy()))
            last = np.zeros(first.size, np.int64)
            last[group[order]] = order  # of those of one group the last one stays
            held, comes = held.take(last), comes.take(pa.array(last))
        held = held.drop_columns([kind, version])
        return self._changed(held.filter(comes), held.filter(pc.invert(comes)))

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
        """What to give where it is not known what was done.

        Parameters
        ----------
        spark : SparkSession
        now : object
            The offset to which it is to be read.
        what : str
            What became of the table, for a message.
        cause : Exception, optional
        help : str
            A sentence that says what to do, if there is more to be done.
        """
        if self._on_gap == "snapshot":
            return Reading(now, [Whole(self._snapshot(spark, now))])
        told = "" if cause is None else f" ({condition(cause)})"
        raise SourceError(
            f"{self.kind} {self._name} {what}{told}. Nothing of it was taken. "
            f"{help and help + '; and '}{self.function}(..., on_gap='snapshot') reads it as it is "
            "now, and compares it with what was read before"
        ) from cause

    def _called(self) -> str:
        return f"{self.kind} {self._name}"

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"{self.function}({self._name!r}{key})"


def condition(error: Exception) -> str:
    """What went wrong, in a word where Spark has one."""
    found = error.getCondition() if isinstance(error, PySparkException) else None
    found = found or next(iter(re.findall(r"\[([A-Z_.]{5,})\]", str(error))), None)
    return found or f"{type(error).__name__}: {in_words(error)}".splitlines()[0]
