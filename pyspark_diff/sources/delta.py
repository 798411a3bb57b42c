"""Delta tables, read on version by version.

    the table at version v  +  the changes of v+1 .. w  =  the table at version w

An offset is the id of the table and the version up to which it was read, and where its log is at
hand what tells that version from another one of its number. What is recorded of the versions since
is read and nothing else, so it costs what has changed. Where that is not recorded, or is of another
table, the sum above would be wrong; so it is an error, or the difference of whole tables where that
is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import (
    Change,
    Deletes,
    Inserts,
    Offset,
    Reading,
    Removes,
    Source,
    Upserts,
    Whole,
)
from pyspark_diff.errors import SourceError
from pyspark_diff.sources.tables import as_keys
from pyspark_diff.spark.delta import DeltaTable, delta_table, identifier, latest_version
from pyspark_diff.spark.delta_files import KIND, VERSION, DeltaFiles, delta_files
from pyspark_diff.spark.frames import FEW_ROWS, column, few
from pyspark_diff.spark.schema import Schema, without_nullability

#: Whether Spark's own reader of changes is to be used.
CHANGES = "spark.databricks.delta.changelogV2.enabled"
_FEED, _ROWS = "delta.enableChangeDataFeed", "delta.enableRowTracking"
_COMES = ("insert", "update_postimage")


def delta(
    table: str | PathLike[str], *, key: str | Sequence[str] = (),
    on_gap: Literal["refuse", "snapshot"] = "refuse",
) -> Source:
    """A Delta table: first as it is, then what has changed since.

    The table must record its changes, by ``ALTER TABLE t SET TBLPROPERTIES
    (delta.enableChangeDataFeed = true)``; they are there from then on. With the setting
    ``spark.databricks.delta.changelogV2.enabled`` those of a table with row tracking
    (``delta.enableRowTracking``) are read by Spark's own ``changes``, and need no feed.

    Nothing is ever written to the table. Where its files are on this machine and the package
    ``deltalake`` is installed (``pip install pyspark-diff[delta]``), few changes are read without a
    Spark job, in hundredths of a second.

    Parameters
    ----------
    table : str or path
        Name or path.
    key : str or list of str
        Columns of a key, if no two rows have the same.
    on_gap : {"refuse", "snapshot"}
        What to do if what has changed cannot be known any more: the changes were not recorded, or
        vacuumed; the table was replaced by another one, or set back. Refuse, or read the table as
        it is now and compare it with what was read before, which costs as much as all of it.

    Raises
    ------
    SourceError
        By `Dataflow.catch_up`, if there is such a gap, or the columns are not what they were.

    Notes
    -----
    A table is known by its id and its version. One that was put back from a backup has the id of
    the one before: while its version is smaller than the one that was read last, that is a gap. If
    it has got to that version or beyond when it is read next, this is not noticed, and what is read
    on belongs to another past. So after such a repair begin anew, with another store.

    Examples
    --------
    >>> orders = delta("shop.orders", key="id")
    >>> orders
    delta('shop.orders', key=['id'])
    """
    if on_gap not in ("refuse", "snapshot"):
        raise ValueError(f"on_gap is 'refuse' or 'snapshot', not {on_gap!r}")
    return _Delta(identifier(table), as_keys(key), on_gap)


class _Delta(Source):
    def __init__(self, name: str, key: tuple[str, ...], on_gap: str):
        self._name, self.key, self._on_gap = name, key, on_gap
        self.is_whole = on_gap == "snapshot" and not key
        self._columns: T.StructType | None = None

    def columns(self, spark: SparkSession) -> T.StructType:
        self._table(spark)
        self._columns = without_nullability(spark.read.table(self._name).schema)
        return self._columns

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        if offset is None:
            # Should the table be replaced in between, then the next reading finds another id.
            begun = self._table(spark)
            self._check_recorded(spark, begun)
            version = latest_version(spark, self._name)
            rows = self._snapshot(spark, version)
            first: Change = Upserts(rows) if self.key else Inserts(rows)
            return Reading(_offset(begun.id, version, delta_files(spark, self._name)), [first])
        begin = int(offset["version"])
        files = delta_files(spark, self._name)
        if files is not None:
            table: DeltaTable | DeltaFiles = files
            version, columns = files.version, files.struct
        else:
            # And here this one does.
            version = latest_version(spark, self._name)
            table = self._table(spark)
            columns = spark.read.table(self._name).schema
        now = _offset(table.id, version, files)
        if table.id != offset["table"]:
            return self._gap(spark, now, "was replaced by another table of this name since")
        if version < begin:
            return self._gap(
                spark, now, f"is at version {version} and was read up to {begin}: it was set back"
            )
        mark = offset.get("commit") if files is None else files.mark(begin)
        if mark is not None and offset.get("commit", mark) != mark:
            return self._gap(
                spark, now, f"has another version {begin} than was read: an older state of its "
                "files was brought back, and went on from there"
            )
        if version == begin:
            return None
        self._check_columns(columns)
        if files is not None and _is_on(table.properties.get(_FEED)):
            assert self._columns is not None  # a source is asked for its columns first
            held = files.changes(self._columns.names, begin + 1, FEW_ROWS)
            if held is not None:
                return Reading(now, self._changes_of(held))
        try:
            return Reading(now, self._changes(spark, table, begin + 1, version))
        except Exception as error:  # also what comes of moving rows, which is none of Spark's own
            return self._gap(
                spark, now, f"cannot tell what has changed in versions {begin + 1} to {version}",
                error,
            )

    def _changes(
        self, spark: SparkSession, table: DeltaTable | DeltaFiles, first: int, last: int
    ) -> list[Change]:
        reader = spark.read.options(startingVersion=first, endingVersion=last)
        if self._by_spark(spark, table):
            frame = reader.changes(self._name)
        else:
            frame = reader.option("readChangeFeed", "true").table(self._name)
        assert self._columns is not None  # a source is asked for its columns first
        rows = frame.select(*map(column, (*self._columns.names, KIND, VERSION)))
        held = few(rows)
        if held is not None:
            return self._changes_of(held)
        # Names that no collection may have.
        comes = column(KIND).isin(*_COMES)
        rows = rows.select("*", comes.alias("__comes")).drop(KIND)
        if self.key and first < last:
            # Of each key the last version stands, and in it what comes.
            order = F.struct(column(VERSION), F.col("__comes"))
            newest = F.max(order).over(Window.partitionBy(*map(column, self.key)))
            rows = rows.withColumn("__last", newest).where(order == F.col("__last")).drop("__last")
        rows = rows.drop(VERSION)
        # Files that are gone are found now rather than by the step.
        rows.count()
        came, went = rows.where(F.col("__comes")), rows.where(~F.col("__comes"))
        return self._changed(came.drop("__comes"), went.drop("__comes"))

    def _changes_of(self, held: pa.Table) -> list[Change]:
        """The changes that rows of a feed are, which are here."""
        comes = pc.is_in(held[KIND], pa.array(_COMES))
        if self.key and held.num_rows:
            assert self._columns is not None  # they were selected
            layout = Schema(self._columns).layout(self.key)
            group, first = layout.groups([held[name] for name in self.key])
            order = np.lexsort((comes.to_numpy(), held[VERSION].to_numpy()))
            last = np.zeros(first.size, np.int64)
            last[group[order]] = order  # of those of one group the last one stays
            held, comes = held.take(last), comes.take(pa.array(last))
        held = held.drop_columns([KIND, VERSION])
        return self._changed(held.filter(comes), held.filter(pc.invert(comes)))

    def _changed(
        self, came: DataFrame | pa.Table, went: DataFrame | pa.Table
    ) -> list[Change]:
        if not self.key:
            return [Removes(went), Inserts(came)]
        return [Deletes(went.select(list(self.key))), Upserts(came)]

    def _snapshot(self, spark: SparkSession, version: int) -> DataFrame:
        rows = spark.read.option("versionAsOf", version).table(self._name)
        self._check_columns(rows.schema)
        return rows

    def _gap(
        self, spark: SparkSession, now: Offset, what: str, cause: Exception | None = None
    ) -> Reading:
        if self._on_gap == "snapshot":
            return Reading(now, [Whole(self._snapshot(spark, now["version"]))])
        told = "" if cause is None else f" ({_condition(cause)})"
        help = f"{self._to_record()}; and " if _condition(cause) in _NOT_RECORDED else ""
        raise SourceError(
            f"Delta table {self._name} {what}{told}. Nothing of it was taken. {help}"
            "delta(..., on_gap='snapshot') reads it as it is now, and compares it with what was "
            "read before"
        ) from cause

    def _table(self, spark: SparkSession) -> DeltaTable:
        try:
            table = delta_table(spark, self._name)
        except ValueError as error:
            raise SourceError(str(error)) from error
        if table is None:
            raise SourceError(
                f"there is no Delta table {self._name}; give the name of one or its path, which "
                "has a slash"
            )
        return table

    def _by_spark(self, spark: SparkSession, table: DeltaTable | DeltaFiles) -> bool:
        return _is_on(spark.conf.get(CHANGES, "false")) and _is_on(table.properties.get(_ROWS))

    def _check_recorded(self, spark: SparkSession, table: DeltaTable) -> None:
        """Refuse at once what could not be read on."""
        if self._on_gap == "snapshot" or self._by_spark(spark, table):
            return
        if not _is_on(table.properties.get(_FEED)):
            raise SourceError(
                f"Delta table {self._name} does not record what changes: {self._to_record()}; or "
                "delta(..., on_gap='snapshot') compares it as a whole each time"
            )

    def _to_record(self) -> str:
        return (
            f"ALTER TABLE {self._name} SET TBLPROPERTIES ({_FEED} = true) makes it record what "
            "changes from then on"
        )

    def _check_columns(self, now: T.StructType) -> None:
        assert self._columns is not None  # a source is asked for its columns first
        then = Schema(self._columns)
        if then.same_types(Schema(without_nullability(now))):
            return
        old, new = ({field.name: field.dataType.simpleString() for field in schema.fields}
                    for schema in (self._columns, without_nullability(now)))
        told = [f"{name} came" for name in new if name not in old]
        told += [f"{name} went" for name in old if name not in new]
        told += [f"{name} was {old[name]} and is {new[name]}"
                 for name in old if name in new and old[name] != new[name]]
        raise SourceError(
            f"the columns of Delta table {self._name} are not what they were: "
            f"{', '.join(told) or 'they are in another order'}. Nothing of it was taken. Bring "
            "them back; or open the dataflow anew, with on_change='rebuild' if it has a store, "
            "and all is read again with the new columns"
        )

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"delta({self._name!r}{key})"


def _offset(table: str, version: int, files: DeltaFiles | None) -> Offset:
    mark = None if files is None or files.id != table else files.mark(version)
    return {"table": table, "version": version, **({} if mark is None else {"commit": mark})}


def _is_on(value: str | None) -> bool:
    return (value or "").lower() == "true"


def _condition(error: Exception | None) -> str:
    """What went wrong, in a word where Spark has one."""
    found = error.getCondition() if isinstance(error, PySparkException) else None
    found = found or next(iter(re.findall(r"\[([A-Z_.]{5,})\]", str(error))), None)
    return found or f"{type(error).__name__}: {error}".splitlines()[0]


_NOT_RECORDED = frozenset({"DELTA_MISSING_CHANGE_DATA", "DELTA_CHANGELOG_REQUIRES_ROW_TRACKING"})
