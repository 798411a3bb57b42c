"""Delta tables, read on version by version.

    the table at version v  +  the changes of v+1 .. w  =  the table at version w

An offset is the id of the table and the version up to which it was read. If the log is readable,
the offset also has a fingerprint of that version, so that another version with its number is
detected. A reading takes only the recorded changes of later versions, so its cost is their size.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff import thresholds
from pyspark_diff.dataflow.source import Change, Offset, Reading, Source
from pyspark_diff.errors import FallbackError, SourceError
from pyspark_diff.fallbacks import FEED, fall_back
from pyspark_diff.sources.versioned import VersionedSource, condition
from pyspark_diff.spark.delta import (
    DeltaTable,
    delta_table,
    identifier,
    latest_version,
    refusal,
)
from pyspark_diff.spark.delta_changed_files import (
    changed_files,
    check_complete,
    compares_files,
)
from pyspark_diff.spark.delta_files import (
    KIND,
    VERSION,
    DeltaFiles,
    delta_files,
    physical_names,
)
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.jvm_tables import delta_schemas
from pyspark_diff.spark.schema import as_keys

_logger = logging.getLogger("pyspark_diff")

#: Whether Spark's own reader of changes is to be used.
CHANGES = "spark.databricks.delta.changelogV2.enabled"
_MAPPING = "delta.columnMapping.mode"
_RECORDED, _ROWS = "delta.enableChangeDataFeed", "delta.enableRowTracking"


def delta(
    table: str | PathLike[str], *, key: str | Sequence[str] = (),
    on_gap: Literal["refuse", "snapshot"] = "refuse",
) -> Source:
    """A Delta table: first all of its rows, then the changes since.

    A table should record its changes, by ``ALTER TABLE t SET TBLPROPERTIES
    (delta.enableChangeDataFeed = true)``; they are there from then on. With the setting
    ``spark.databricks.delta.changelogV2.enabled`` those of a table with row tracking
    (``delta.enableRowTracking``) are read by Spark's own ``changes``, and need no feed.

    If a version recorded no changes, a classic session compares the files that its commit added and
    removed, with all rows in them. Each step counts this as a fallback from the path
    "change feed". Spark Connect cannot read single files of a table, and refuses such a table.

    Nothing is ever written to the table. If its files are on this machine and the package
    ``deltalake`` is installed (``pip install pyspark-diff[delta]``), few changes are read without a
    Spark job, in hundredths of a second.

    Parameters
    ----------
    table : str or path
        Name or path.
    key : str or list of str
        Columns of a key, if no two rows have the same.
    on_gap : {"refuse", "snapshot"}
        What to do if the changes cannot be known any more: they were not recorded, and the removed
        files are gone; the table was replaced by another one, or set back. Refuse, or read the
        table as it is now and compare it with the rows that were read before, which costs as much
        as all of it.

    Raises
    ------
    SourceError
        By `Dataflow.catch_up`, if there is such a gap, or a column was dropped or has another type.
        Columns that the table gains are not read.

    Notes
    -----
    A column is known by its name in the files, so that one that column mapping renames is the same
    column. The input keeps its first name. A column that takes the name of another one is a gap.
    A ``key`` may have the old or the new name.

    A table is known by its id and its version. A table that was put back from a backup has the id
    of the one before. A version below the last one read is a gap. If the restored table has passed
    that version before the next reading, ``deltalake`` detects the gap in the log. Without
    ``deltalake`` nothing detects it: begin with another store after such a repair.

    Examples
    --------
    >>> orders = delta("shop.orders", key="id")
    >>> orders
    delta('shop.orders', key=['id'])
    """
    return _Delta(identifier(table), as_keys(key), on_gap)


class _Delta(VersionedSource):
    kind, function = "Delta table", "delta"
    comes = ("insert", "update_postimage")
    #: The renamed columns that the log has named.
    _logged: Mapping[str, str] = {}

    def _columns_now(self, spark: SparkSession) -> T.StructType:
        with self._known_features(spark):
            self._table(spark)
            return spark.read.table(self._name).schema

    def columns_in_log(self, spark: SparkSession) -> T.StructType:
        files = delta_files(spark, self._name)
        return spark.read.table(self._name).schema if files is None else files.struct

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        with self._known_features(spark):
            return self._read(spark, offset)

    @contextmanager
    def _known_features(self, spark: SparkSession) -> Iterator[None]:
        """Refuse a table that needs more than this version of Delta has."""
        try:
            yield
        except Exception as error:
            cause = error.__cause__ if isinstance(error, SourceError) else error
            refused = None if cause is None else refusal(spark, self._name, cause)
            if refused is None:
                raise
            reason, remedy = refused
            raise SourceError(
                f"Delta table {self._name} cannot be read by this session: {reason}. Nothing of it "
                f"was taken. {remedy}"
            ) from cause

    def _read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        if offset is None:
            # Should the table be replaced in between, then the next reading finds another id.
            begun = self._table(spark)
            self._check_recorded(spark, begun)
            version = latest_version(spark, self._name)
            return self._first(
                spark, self._offset(spark, begun, version, delta_files(spark, self._name))
            )
        begin = int(offset["version"])
        files = delta_files(spark, self._name)
        if files is not None:
            table: DeltaTable | DeltaFiles = files
            version, columns = files.version, files.struct
        else:
            # And here this one does.
            try:
                version = latest_version(spark, self._name)
            except AnalysisException:
                self._table(spark)  # It reports a table that is gone.
                raise
            table = self._table(spark)
            columns = spark.read.table(self._name).schema
        # In another table, or an older state, a name may be that of another column.
        is_later = table.id == offset["table"] and version >= begin
        self._follow_renames(
            spark, offset if is_later else None, columns.names, None if files is None else columns
        )
        self._log_renames()
        now = self._offset(spark, table, version, files)
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
        self._check_columns(self._under_old_names(columns))
        replaced = self._replacement(spark, offset, table, files, version)
        if replaced:
            return self._gap(spark, now, f"{replaced}: its change feed does not record this")
        if files is not None and _is_on(table.properties.get(_RECORDED)) and not self._new_names:
            most = thresholds.current.collect_frame_rows_max
            feed = files.changes(self._known().names, begin + 1, most)
            if feed is not None:
                return Reading(now, self._changes_of(feed))
        cause, recorded = None, self._is_recorded(spark, table)
        if recorded:
            try:
                return Reading(now, self._changes(spark, table, begin + 1, version))
            except Exception as error:  # also of a task that reads rows, which Spark does not name
                cause, recorded = error, condition(error) not in _NOT_RECORDED | _OTHER_COLUMNS
        if not recorded:
            try:
                reason = "does not record its changes"
                if cause is not None and condition(cause) in _OTHER_COLUMNS:
                    reason = "has a feed that Delta does not read across a change of its columns"
                changes = self._changes_by_files(spark, table, begin + 1, version, reason)
            except FallbackError:
                raise
            except Exception as error:  # files that are gone
                changes, cause = None, error
            if changes is not None:
                return Reading(now, changes)
        return self._gap(
            spark, now, f"cannot tell what has changed in versions {begin + 1} to {version}",
            cause, "" if recorded else self._to_record(),
        )

    def _changes_by_files(
        self, spark: SparkSession, table: DeltaTable | DeltaFiles, first: int, last: int,
        reason: str,
    ) -> list[Change] | None:
        """The changes of versions without a feed; None if their files do not have them."""
        files = changed_files(spark, self._name, first, last, table.id)
        if files is None:
            return None
        fall_back("delta", FEED, f"{self._name} {reason}; its changed files are compared")
        names = self._selected()
        # A table without a feed may have columns with the names of the feed.
        kinds, versions = "__kind", "__version"
        came, went = (
            rows.select(*names, F.lit(kind).alias(kinds), F.lit(last).alias(versions))
            for rows, kind in zip(files, ("insert", "delete"))
        )
        return self._changes_in(came.union(went), versions=False, added=(kinds, versions))

    def _changes(
        self, spark: SparkSession, table: DeltaTable | DeltaFiles, first: int, last: int
    ) -> list[Change]:
        check_complete(spark)
        reader = spark.read.options(startingVersion=first, endingVersion=last)
        if self._by_spark(spark, table):
            frame = reader.changes(self._name)
        else:
            frame = reader.option("readChangeFeed", "true").table(self._name)
        rows = frame.select(*self._selected(), column(KIND), column(VERSION))
        return self._changes_in(rows, versions=first < last)

    def _replacement(
        self, spark: SparkSession, offset: Offset, table: DeltaTable | DeltaFiles,
        files: DeltaFiles | None, version: int,
    ) -> str:
        """The columns that other columns of their names have replaced; empty if there are none.

        The schema is the same, so that only the names in the files, or the history, show it. They
        are in the log, which Spark reads too, unless this is Connect. Other
        partition columns also replace columns: files have no values of them, and the feed of Delta
        reads all files by the partition columns of the last version.
        """
        begun = offset.get("partitions", table.partitions)
        if begun != table.partitions or (
            files is not None and files.is_repartitioned(int(offset["version"]))
        ):
            return "has other partition columns"
        if files is not None and "columns" in offset:
            return _replaced(offset["columns"], self._physical(files.struct))
        if table.properties.get(_MAPPING, "none") == "none":
            return ""
        was, now = (
            self._physical_at(spark, offset), _schema(spark, self._name, version)
        )
        if was is not None and now is not None:
            return _replaced(was, self._physical(now))
        history = spark.sql(f"DESCRIBE HISTORY {self._name}").select("version", "operation")
        rows = history.where(column("version") > int(offset["version"])).collect()
        steps = [f"{row.operation} in version {row.version}" for row in rows
                 if row.operation in _REPLACES]
        known = ", ".join(self._known().names)
        return f"may have other columns of the names {known} ({', '.join(steps)})" if steps else ""

    def _snapshot(self, spark: SparkSession, offset: Offset) -> DataFrame:
        rows = spark.read.option("versionAsOf", offset["version"]).table(self._name)
        self._check_columns(self._under_old_names(rows.schema))
        return rows.select(*self._selected())

    def _selected(self) -> list[Column]:
        """The columns of the source in a frame with the present names."""
        return [
            column(self._new_names.get(name, name)).alias(name) for name in self._known().names
        ]

    def _physical(self, struct: T.StructType) -> dict[str, str]:
        known = self._known()
        return physical_names(T.StructType([
            field for field in self._under_old_names(struct).fields if field.name in known.names
        ]))

    def _physical_at(self, spark: SparkSession, offset: Offset) -> Mapping[str, str] | None:
        """The names in the files that the columns of the source had at an offset."""
        if "columns" in offset:
            return dict(offset["columns"])
        # Each offset after a rename has them, so the columns had their names here.
        struct = _schema(spark, self._name, int(offset["version"]))
        return None if struct is None else physical_names(T.StructType(
            [field for field in struct.fields if field.name in self._known().names]
        ))

    def _follow_renames(
        self, spark: SparkSession, offset: Offset, names: Sequence[str],
        mapped: T.StructType | None = None,
    ) -> None:
        present = {name.lower(): name for name in names}
        lost = [name for name in self._known().names if name not in names]
        self._new_names = {}
        was = self._physical_at(spark, offset) if lost and offset is not None else None
        if was is None:
            return
        if mapped is None:
            files = delta_files(spark, self._name)
            mapped = files.struct if files is not None else _schema(
                spark, self._name, latest_version(spark, self._name)
            )
        if mapped is not None:
            there = {_physical_name(field): field.name for field in mapped.fields}
            physical = {name: was.get(name, name) for name in lost}
            self._new_names = {
                name: there[inner] for name, inner in physical.items()
                # Another column may have the name in another case.
                if inner in there and present.get(name.lower(), there[inner]) == there[inner]
            }

    def _in_old_case(self, struct: T.StructType, spark: SparkSession) -> T.StructType:
        return struct  # `_follow_renames` finds the same column in another case

    def _log_renames(self) -> None:
        for name, new in self._new_names.items():
            if self._logged.get(name) != new:
                _logger.warning(
                    "column %s of %s was renamed to %s; this input still has it as %s",
                    name, self._called(), new, name,
                )
        self._logged = self._new_names

    def _offset(
        self, spark: SparkSession, table: DeltaTable | DeltaFiles, version: int,
        files: DeltaFiles | None,
    ) -> Offset:
        mark = None if files is None or files.id != table.id else files.mark(version)
        offset = {"table": table.id, "version": version, "partitions": table.partitions}
        if mark is not None:
            offset["commit"] = mark
        if files is not None and (files.id, files.version) == (table.id, version):
            offset["columns"] = self._physical(files.struct)
        elif table.properties.get(_MAPPING, "none") != "none":
            struct = _schema(spark, self._name, version)
            if struct is not None:
                offset["columns"] = self._physical(struct)
        return offset

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

    def _is_recorded(self, spark: SparkSession, table: DeltaTable | DeltaFiles) -> bool:
        return self._by_spark(spark, table) or _is_on(table.properties.get(_RECORDED))

    def _check_recorded(self, spark: SparkSession, table: DeltaTable) -> None:
        """Refuse a table at the first reading if later readings would fail."""
        if self._on_gap == "snapshot" or self._is_recorded(spark, table):
            return
        if not compares_files(spark, self._name):
            raise SourceError(
                f"Delta table {self._name} does not record its changes, and this session cannot "
                f"read its files one by one: {self._to_record()}. Or compare it as a whole each "
                "time, delta(..., on_gap='snapshot')"
            )

    def _to_record(self) -> str:
        return (
            f"ALTER TABLE {self._name} SET TBLPROPERTIES ({_RECORDED} = true) makes it record what "
            "changes from then on"
        )


def _physical_name(field: T.StructField) -> str:
    """The name of a column in the files."""
    return physical_names(T.StructType([field])).get(field.name, field.name)


def _schema(spark: SparkSession, name: str, version: int) -> T.StructType | None:
    """The columns of a version, with their names in the files as metadata; None over Connect, or
    if the log lacks the version."""
    schemas = delta_schemas(spark, name, (version,))
    return None if schemas is None else T.StructType.fromJson(json.loads(schemas[0]))


def _replaced(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The columns with other names in the files; empty if there are none."""
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return f"has other columns of the names {', '.join(sorted(names))}" if names else ""


def _is_on(value: str | None) -> bool:
    return (value or "").lower() == "true"


#: Operations that can put another column, or an older one, in the place of a column.
_REPLACES = frozenset({"DROP COLUMNS", "RENAME COLUMN", "REPLACE COLUMNS", "RESTORE"})
#: Delta reads a feed with one set of columns, and none that another commit renamed or widened.
_OTHER_COLUMNS = frozenset({
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE",
})
_NOT_RECORDED = frozenset({"DELTA_MISSING_CHANGE_DATA", "DELTA_CHANGELOG_REQUIRES_ROW_TRACKING"})
