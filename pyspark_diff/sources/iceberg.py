"""Iceberg tables, read on snapshot by snapshot.

    the table at snapshot s  +  the changes from s to t  =  the table at snapshot t

if s is an ancestor of t, and each column is the same in both. Iceberg draws the number of a
snapshot at random, so a table with this number among its ancestors is the same table, under any
name. The offset is this number, the ids of the columns, and their names in files without ids. The
metadata table ``changes`` returns the rows of files that came and went, with the columns of now. If
another column has taken the name of one, the rows that went have its values, and the sum would be
wrong.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal

from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import Change, Offset, Reading, Source
from pyspark_diff.errors import SourceError
from pyspark_diff.sources.tables import differences
from pyspark_diff.sources.versioned import VersionedSource, condition
from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.data_types import contains, without_nullability
from pyspark_diff.spark.delta_files import KIND
from pyspark_diff.spark.frames import column, sql_text
from pyspark_diff.spark.iceberg import (
    NAME_MAPPING,
    IcebergTable,
    iceberg_table,
    of_columns,
    other_columns,
    renamed_columns,
)
from pyspark_diff.spark.schema import as_keys, quoted
from pyspark_diff.spark.values import OPAQUE

#: The column of the changes with the place of a snapshot among those that are read.
_ORDINAL = "_change_ordinal"

#: Names of Iceberg's own columns. Spark reads no table that has a column with such a name.
RESERVED = frozenset({
    "_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id",
    "_spec_id",
})

#: The configuration that a session needs.
SETUP = (
    "start Spark with --packages org.apache.iceberg:iceberg-spark-runtime-<Spark's version>_2.13:"
    "<Iceberg's version> and spark.sql.catalog.<name>=org.apache.iceberg.spark.SparkCatalog, and "
    "name the table <name>.<database>.<table>"
)


def iceberg(
    table: str, *, key: str | Sequence[str] = (),
    on_gap: Literal["refuse", "snapshot"] = "refuse",
) -> Source:
    """An Iceberg table: first all of its rows, then the changes since.

    Each reading goes to the last snapshot of the branch ``main``. Nothing is ever written to the
    table. Iceberg does not report changes if rows are deleted by delete files (``merge-on-read``).
    ``copy-on-write``, its default, has none.

    Each reading compares the ids of the columns and of their fields in the table's metadata with
    those that were read. So a column that was dropped and added again under its name is noticed.

    Parameters
    ----------
    table : str
        Name, in backticks where it has to be.
    key : str or list of str
        Columns of a key, if no two rows have the same.
    on_gap : {"refuse", "snapshot"}
        The reaction to unknown changes: snapshots have expired; the table was set back to an
        earlier one, or replaced by another one; another column has the name of one that was read;
        files without ids have other names of columns; there are delete files. Refuse, or read the
        table as it is now and compare it with the rows that were read before, which costs as much
        as all of it.

    Raises
    ------
    SourceError
        By `Dataflow.catch_up`, if there is such a gap, or a column was dropped, renamed or has
        another type. Columns that the table gains are not read.

    Notes
    -----
    A snapshot has the columns that the table had when it was written. A table that was altered is
    read when something was written to it after that; before, there is an error that says so.

    A session of Spark Connect reads the metadata file of the table for the ids of its columns. Its
    server needs access to this file, which a catalog with credentials of its own may not grant.

    Iceberg's runtime is made for one version of Spark: that for Spark 4.1 does not run with 4.2.

    Examples
    --------
    >>> orders = iceberg("lake.shop.orders", key="id")
    >>> orders
    iceberg('lake.shop.orders', key=['id'])
    """
    return _Iceberg(table, as_keys(key), on_gap)


class _Iceberg(VersionedSource):
    kind, function = "Iceberg table", "iceberg"
    comes = ("INSERT",)
    feed = "__kind", "__version"
    # A column that is added again has another id, and no type can be made narrower.
    undo = "Rename a renamed column back"

    #: The name with its catalog and database, whichever are the session's later.
    _full = ""

    def columns(self, spark: SparkSession) -> T.StructType:
        self._full = _full_name(self._name, spark)
        self._table(spark)  # it is there, and Iceberg's
        return super().columns(spark)

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        table, known = self._table(spark), self._known().names
        end = table.last
        names = None if table.file_names is None else of_columns(table.file_names, known)
        now = {"snapshot": end, "columns": of_columns(table.ids, known), "names": names}
        if offset is None:
            return self._first(spark, now)
        begin, was = offset["snapshot"], offset.get("columns", {})
        if begin not in (None, end) and (end is None or begin not in table.ancestors(end)):
            return self._gap(spark, now, _not_followed(table, begin))
        columns = self._columns_now(spark)
        self._check_columns(columns, renamed_columns(was, table.ids, known, columns.names))
        if begin is None and end is not None:
            return self._first(spark, now)  # the table had no rows
        other = other_columns(was, table.ids)
        if other:
            return self._gap(spark, now, f"has other columns than were read: {other}")
        mapped = offset.get("names", names)  # offsets of earlier versions have none
        if begin is not None and _is_mapped_anew(mapped, names, begin == end):
            return self._gap(
                spark, now, f"has another {NAME_MAPPING}, so files that other programs wrote may "
                "have other rows"
            )
        if end is None or begin == end:
            return None
        try:
            changes = self._changes(spark, begin, end)
        except Exception as error:  # includes errors of the transfer of rows, not only Spark's
            return self._gap(
                spark, now, f"cannot tell what has changed from snapshot {begin} to {end}", error,
                self._to_copy() if table.delete_files else "",
            )
        after = self._table(spark, refresh=False)
        if (after.ids, after.file_names) != (table.ids, table.file_names):
            raise SourceError(
                f"{self.kind} {self._name} was altered while it was read. Nothing of it was taken. "
                "Call catch_up() again"
            )
        return Reading(now, changes)

    def _changes(self, spark: SparkSession, begin: int, end: int) -> list[Change]:
        """The net changes, since a rewritten file has all of its rows as deleted and inserted."""
        reader = spark.read.options(**{"start-snapshot-id": begin, "end-snapshot-id": end})
        rows, known = reader.table(f"{self._full}.changes"), self._known()
        columns, (kind, version) = list(map(column, known.names)), self.feed
        if contains(known, OPAQUE):  # Spark does not group by variants.
            feed = rows.select(*columns, column(KIND).alias(kind), F.col(_ORDINAL).alias(version))
            return self._changes_in(feed, versions=True)
        sign = F.when(column(KIND).isin(*self.comes), 1).otherwise(-1)
        signs = rows.groupBy(*columns).agg(F.sum(sign).alias("__net"))
        net = F.col("__net")
        copies = F.explode(F.array_repeat(F.lit(0), F.abs(net).cast("int")))
        changes = signs.where(net != 0).select(
            "*", F.when(net > 0, self.comes[0]).otherwise("DELETE").alias(kind),
            copies.alias(version),
        )
        return self._changes_in(changes.drop("__net"), versions=False)

    def _snapshot(self, spark: SparkSession, offset: Offset) -> DataFrame:
        number, known = offset["snapshot"], self._known()
        which = "WHERE false" if number is None else f"VERSION AS OF {number}"
        rows = spark.sql(f"SELECT * FROM {self._full} {which}")
        then, now = without_nullability(rows.schema), self._columns_now(spark)
        table = self._table(spark, refresh=False)
        self._check_columns(now)
        altered = differences(known, then)
        if altered is not None:
            renamed = renamed_columns(table.last_ids, table.ids, then.names, now.names)
            altered = differences(then, now, renamed) or altered
        altered = altered or other_columns(of_columns(table.last_ids, known.names), table.ids)
        if altered:
            raise SourceError(
                f"{self.kind} {self._name} was altered after its last snapshot ({altered}), which "
                "is read with the columns that it was written with. Nothing of it was taken. Write "
                f"something to it, if only INSERT INTO {self._full} SELECT * FROM {self._full} "
                "WHERE false, and there is a snapshot with these columns"
            )
        return rows.select(*map(column, known.names))

    def _table(self, spark: SparkSession, refresh: bool = True) -> IcebergTable:
        """The state of the table.

        Parameters
        ----------
        refresh : bool
            Whether to look for commits of others.
        """
        if refresh:
            try:
                spark.sql(f"REFRESH TABLE {self._full}")
                spark.table(self._full).schema
            except UnsupportedOperationException as error:
                raise SourceError(
                    f"Spark cannot read {self.kind} {self._name} ({in_words(error)}). Nothing of "
                    "it was taken. Drop the column of this type, or write its values as another "
                    "type"
                ) from error
            except AnalysisException as error:
                raise SourceError(
                    f"there is no table {self._full} ({condition(error)}). {SETUP}"
                ) from error
        try:
            spark.table(f"{self._full}.refs").schema  # a table of Iceberg's metadata
        except AnalysisException as error:
            raise SourceError(
                f"{self._full} is no Iceberg table, or this Spark session does not know it as one "
                f"({condition(error)}). A source reads no branch, tag or metadata table. {SETUP}"
            ) from error
        catalog, *parts = map(_unquoted, _parts(self._full))
        cached = f"spark.sql.catalog.{catalog}.cache-enabled"
        if any("." in part for part in parts) and spark.conf.get(cached, "true") != "false":
            raise SourceError(
                f"{self._full} has a dot in a part of its name, and Iceberg's cache does not "
                f"refresh the table's metadata then. Start Spark with {cached}=false, or give the "
                "table a name without a dot"
            )
        try:
            return iceberg_table(spark, self._full)
        except ValueError as error:
            raise SourceError(
                f"the columns of {self.kind} {self._name} cannot be compared with those that were "
                f"read. {error}. Give the server of Spark Connect access to this file, use a "
                f"classic session, or read the whole table each time with snapshots({self._name!r})"
            ) from error

    def _columns_now(self, spark: SparkSession) -> T.StructType:
        columns = without_nullability(spark.table(self._full).schema)
        reserved = sorted(RESERVED.intersection(columns.names))
        if reserved:
            raise SourceError(
                f"{self.kind} {self._name} has columns with names that Iceberg reserves: "
                f"{', '.join(reserved)}. Spark cannot read such a table. Rename them by ALTER "
                f"TABLE {self._full} RENAME COLUMN {reserved[0]} TO another name"
            )
        return columns

    def _to_copy(self) -> str:
        modes = ", ".join(f"'write.{what}.mode'='copy-on-write'"
                          for what in ("delete", "update", "merge"))
        return (
            "It has delete files, of which Iceberg does not tell what they have changed: ALTER "
            f"TABLE {self._full} SET TBLPROPERTIES ({modes}) makes no more of them, and CALL "
            f"{_parts(self._full)[0]}.system.rewrite_data_files(table => {sql_text(self._full)}, "
            "options => map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')) does "
            "away with those that are there"
        )


def _is_mapped_anew(
    was: dict[str, list[str]] | None, now: dict[str, list[str]] | None, is_same_snapshot: bool
) -> bool:
    """Whether a name mapping may have changed the rows of files that were read before.

    The procedure `add_files` sets a mapping with the names of now, and writes a snapshot.

    Examples
    --------
    >>> _is_mapped_anew(None, {}, False), _is_mapped_anew(None, {}, True)
    (False, True)
    >>> _is_mapped_anew({}, {}, True), _is_mapped_anew({}, {"a": ["b"]}, False)
    (False, True)
    """
    return was != now and (was is not None or bool(now) or is_same_snapshot)


def _not_followed(table: IcebergTable, begin: int) -> str:
    """Why the last snapshot of a table does not follow another one."""
    if table.last is None:
        return f"has no snapshot, and was read up to snapshot {begin}: it was replaced"
    oldest = next(iter(deque(table.ancestors(table.last), 1)), table.last)
    if begin in table.parents or oldest in table.parents:
        return (
            f"is at snapshot {table.last}, which does not follow {begin}, up to which it was read: "
            "it was set back or replaced"
        )
    return (
        f"does not have all snapshots any more that followed {begin}, up to which it was read: "
        "they have expired"
    )


def _full_name(name: str, spark: SparkSession) -> str:
    """A table by its catalog, its database and its name."""
    parts = _parts(name)
    catalog = _unquoted(parts[0])
    if len(parts) > 1 and (
        catalog == "spark_catalog" or spark.conf.get(f"spark.sql.catalog.{catalog}", None)
    ):
        return name
    if len(parts) == 1:
        name = f"{spark.catalog.currentDatabase()}.{name}"
    return f"{quoted(spark.catalog.currentCatalog())}.{name}"


def _parts(name: str) -> list[str]:
    """The parts of a name, with their backticks.

    Examples
    --------
    >>> _parts("lake.`a.b`.t")
    ['lake', '`a.b`', 't']
    """
    return re.findall(r"(?:`(?:[^`]|``)*`|[^`.])+", name)


def _unquoted(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part
