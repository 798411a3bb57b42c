"""Iceberg tables, read on snapshot by snapshot.

    the table at snapshot s  +  the changes of those from s to t  =  the table at snapshot t

if s is an ancestor of t. The number of a snapshot is drawn at random, so what has it among its
ancestors is of the same table, whatever became of that and of its name. So an offset is that
number, and nothing else; SQL does not tell the id of a table. Iceberg's ``create_changelog_view``
tells the changes. All that is asked is SQL.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.source import Change, Offset, Reading, Source
from pyspark_diff.errors import SourceError
from pyspark_diff.sources.tables import differences
from pyspark_diff.sources.versioned import VersionedSource, condition
from pyspark_diff.spark.delta_files import KIND, VERSION
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import as_keys, quoted, without_nullability

#: Which of the snapshots between two have changed a row: the first of them is 0.
ORDINAL = "_change_ordinal"
#: What a session needs.
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

    Parameters
    ----------
    table : str
        Name, in backticks where it has to be.
    key : str or list of str
        Columns of a key, if no two rows have the same.
    on_gap : {"refuse", "snapshot"}
        What to do if what has changed cannot be known: snapshots have expired; the table was set
        back to an earlier one, or replaced by another one; there are delete files. Refuse, or read
        the table as it is now and compare it with what was read before, which costs as much as all
        of it.

    Raises
    ------
    SourceError
        By `Dataflow.catch_up`, if there is such a gap, or a column was dropped, renamed or has
        another type. Columns that the table gains are not read.

    Notes
    -----
    A snapshot has the columns that the table had when it was written. A table that was altered is
    read when something was written to it after that; before, there is an error that says so.

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

    #: The name with its catalog and database, whichever are the session's later.
    _full = ""

    def columns(self, spark: SparkSession) -> T.StructType:
        self._full = _full_name(self._name, spark)
        self._snapshots(spark)  # it is there, and Iceberg's
        return super().columns(spark)

    def read(self, spark: SparkSession, offset: Offset) -> Reading | None:
        snapshots = self._snapshots(spark)
        now = {"snapshot": snapshots.last}
        if offset == now:
            return None
        if offset is None or offset["snapshot"] is None:
            return self._first(spark, now)  # there was nothing
        begin, end = int(offset["snapshot"]), snapshots.last
        if end is None or begin not in snapshots.before(end):
            return self._gap(spark, now, snapshots.told_without(begin))
        self._check_columns(self._columns_now(spark))
        try:
            return Reading(now, self._changes(spark, begin, end))
        except Exception as error:  # also what comes of moving rows, which is none of Spark's own
            return self._gap(
                spark, now, f"cannot tell what has changed from snapshot {begin} to {end}", error,
                self._to_copy() if snapshots.delete_files else "",
            )

    def _changes(self, spark: SparkSession, begin: int, end: int) -> list[Change]:
        view = f"changes_{secrets.token_hex(8)}"
        spark.sql(
            f"CALL {_parts(self._full)[0]}.system.create_changelog_view(table => "
            f"{_literal(self._full)}, changelog_view => '{view}', options => map("
            f"'start-snapshot-id', '{begin}', 'end-snapshot-id', '{end}'))"
        )
        rows = spark.table(view).select(
            *map(column, (*self._known().names, KIND)), column(ORDINAL).alias(VERSION)
        )
        changes: list[Change] = []
        try:
            changes = self._changes_in(rows, versions=True)
            return changes
        finally:
            # Of many rows a frame reads it yet; on Connect by its name.
            if not any(isinstance(change[0], DataFrame) for change in changes):
                spark.catalog.dropTempView(view)

    def _snapshot(self, spark: SparkSession, offset: Offset) -> DataFrame:
        number = offset["snapshot"]
        which = "WHERE false" if number is None else f"VERSION AS OF {number}"
        rows = spark.sql(f"SELECT * FROM {self._full} {which}")
        then, now = without_nullability(rows.schema), self._columns_now(spark)
        told = differences(self._known(), then)
        if told is not None and differences(self._known(), now) is None:
            told = differences(then, now) or told
            raise SourceError(
                f"{self.kind} {self._name} was altered after its last snapshot ({told}), which is "
                "read with the columns that it was written with. Nothing of it was taken. Write "
                f"something to it, if only INSERT INTO {self._full} SELECT * FROM {self._full} "
                "WHERE false, and there is a snapshot with these columns"
            )
        self._check_columns(then)
        return rows.select(*map(column, self._known().names))

    def _snapshots(self, spark: SparkSession) -> _Snapshots:
        try:
            # What others have done to it is seen from now on.
            spark.sql(f"REFRESH TABLE {self._full}")
        except AnalysisException as error:
            raise SourceError(
                f"there is no table {self._full} ({condition(error)}). {SETUP}"
            ) from error
        try:
            refs = spark.sql(f"SELECT snapshot_id FROM {self._full}.refs WHERE name = 'main'")
            found = spark.sql(
                "SELECT snapshot_id, parent_id, summary['total-delete-files'] AS delete_files "
                f"FROM {self._full}.snapshots"
            )
            last = next((row.snapshot_id for row in refs.collect()), None)
            rows = found.collect()
        except AnalysisException as error:
            raise SourceError(
                f"{self._full} is no Iceberg table, or this Spark session does not know it as one "
                f"({condition(error)}). {SETUP}"
            ) from error
        return _Snapshots(
            {row.snapshot_id: row.parent_id for row in rows}, last,
            any(row.delete_files not in (None, "0") for row in rows),
        )

    def _columns_now(self, spark: SparkSession) -> T.StructType:
        return without_nullability(spark.table(self._full).schema)

    def _to_copy(self) -> str:
        modes = ", ".join(f"'write.{what}.mode'='copy-on-write'"
                          for what in ("delete", "update", "merge"))
        return (
            "It has delete files, of which Iceberg does not tell what they have changed: ALTER "
            f"TABLE {self._full} SET TBLPROPERTIES ({modes}) makes no more of them, and CALL "
            f"{_parts(self._full)[0]}.system.rewrite_data_files(table => {_literal(self._full)}, "
            "options => map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')) does "
            "away with those that are there"
        )


@dataclass(frozen=True)
class _Snapshots:
    """The snapshots of a table that have not expired.

    Parameters
    ----------
    parents : mapping of int to int or None
        From which one each has come, which may have expired.
    last : int or None
        That which is the table; None if nothing was ever written to it.
    delete_files : bool
        Whether any has delete files.
    """

    parents: Mapping[int, int | None]
    last: int | None
    delete_files: bool

    def before(self, number: int) -> Iterator[int]:
        """Those from which one has come, the nearest first, as far as all after them are there."""
        parent = self.parents.get(number)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def told_without(self, begin: int) -> str:
        """Why the last one does not follow one."""
        if self.last is None:
            return f"has no snapshot, and was read up to snapshot {begin}: it was replaced"
        oldest = next(iter(deque(self.before(self.last), 1)), self.last)
        if begin in self.parents or oldest in self.parents:
            return (
                f"is at snapshot {self.last}, which does not follow {begin}, up to which it was "
                "read: it was set back or replaced"
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


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
