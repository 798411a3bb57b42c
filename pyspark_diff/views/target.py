"""The target table of a view: its creation, and the check for writes of others.

    each version of the table after the last recorded one  =  a commit of the view, or maintenance

A commit of the view has the name of its sink in its userMetadata. Maintenance changes no rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.sink import Epoch, Sink
from pyspark_diff.errors import SinkError
from pyspark_diff.sinks.delta import METADATA
from pyspark_diff.spark.delta import delta_table
from pyspark_diff.spark.frames import few
from pyspark_diff.spark.schema import quoted

#: Operations of Delta that change no row.
MAINTENANCE = frozenset({
    "ADD CONSTRAINT", "CLUSTER BY", "COMPUTE STATS", "DROP CONSTRAINT", "OPTIMIZE", "REORG",
    "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL", "VACUUM END", "VACUUM START",
})
#: The properties of a table that is created: a view may read it as its own source.
PROPERTIES = {"delta.enableChangeDataFeed": "true"}


class Written(NamedTuple):
    """The rows and seconds of one epoch in a target."""

    rows: int
    seconds: float


def create_target(
    spark: SparkSession, name: str, schema: T.StructType, comment: str | None
) -> None:
    """Create an empty target with the schema and the comment of a query, if there is none."""
    if delta_table(spark, name) is not None:
        return
    # A name of a type in DDL has the comments of its fields.
    columns = ", ".join(
        f"{quoted(field.name)} {field.dataType.simpleString()}"
        + (f" COMMENT {_literal(told)}" if (told := field.metadata.get("comment")) else "")
        for field in schema.fields
    )
    properties = dict(PROPERTIES)
    if any(set(" ,;{}()\n\t=") & set(field.name) for field in schema.fields):
        properties["delta.columnMapping.mode"] = "name"
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    told = f" COMMENT {_literal(comment)}" if comment else ""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING delta{told} "
        f"TBLPROPERTIES ({listed})"
    )


def mark_of(spark: SparkSession, name: str) -> dict[str, Any] | None:
    """The id of a target and its last version; None if there is no such table."""
    table = delta_table(spark, name)
    if table is None:
        return None
    (row,) = _history(spark, name, 1)
    return _mark(table.id, row)


def begin_target(spark: SparkSession, name: str) -> dict[str, Any]:
    """The mark of a target that no refresh has written yet.

    Raises
    ------
    SinkError
        If it has rows.
    """
    if not spark.read.table(name).isEmpty():
        raise SinkError(
            f"target {name} has rows, and no refresh of this store wrote them. Nothing was read. "
            "Name another target; or call rebuild(), which overwrites it"
        )
    mark = mark_of(spark, name)
    assert mark is not None  # it was just read
    return mark


def check_target(
    spark: SparkSession, name: str, mark: Mapping[str, Any] | None, sink: str
) -> None:
    """Refuse a target that others wrote, replaced or restored.

    Parameters
    ----------
    spark : SparkSession
    name : str
    mark : mapping or None
        The id and version of the table after the last recorded write.
    sink : str
        The end of the name of the sink, with which its commits are marked.

    Raises
    ------
    SinkError
    """
    if mark is None:
        return
    table = delta_table(spark, name)
    if table is None:
        raise _changed(name, "is gone")
    if table.id != mark["id"]:
        raise _changed(name, "was replaced by another table of this name")
    # The rows come from the newest version backwards, and most refreshes need the first one only.
    count = 1
    while True:
        rows = _history(spark, name, count)
        if rows[-1].version <= mark["version"] or len(rows) < count:
            break
        count *= 8
    if rows[0].version < mark["version"]:
        raise _changed(
            name, f"is at version {rows[0].version} and was at version {mark['version']}: an "
            "older state of its files was brought back"
        )
    for row in reversed(rows):
        if row.version < mark["version"]:
            continue
        if row.version == mark["version"]:
            if str(row.timestamp) != mark["timestamp"]:
                raise _changed(
                    name, f"has another version {row.version} than was written: an older state "
                    "of its files was brought back, and written to"
                )
        elif not _is_own(row, sink) and row.operation not in MAINTENANCE:
            verb = "was restored to an earlier version" if row.operation == "RESTORE" else (
                "was written by others"
            )
            raise _changed(name, f"{verb}, {row.operation} in version {row.version}")


def _changed(name: str, event: str) -> SinkError:
    return SinkError(
        f"target {name} {event}. The refresh stopped before it wrote anything, because the target "
        "no longer has the rows of the view. Call rebuild(), which reads all sources and "
        "overwrites it; or name another target"
    )


def _is_own(row: Row, sink: str) -> bool:
    try:
        return str(json.loads(row[METADATA])["sink"]).endswith(f"/{sink}")
    except (TypeError, ValueError, KeyError):
        return False


def _history(spark: SparkSession, name: str, count: int) -> list[Row]:
    frame = spark.sql(f"DESCRIBE HISTORY {name} LIMIT {count}")
    return frame.select("version", "timestamp", "operation", METADATA).collect()


def _mark(table: str, row: Row) -> dict[str, Any]:
    return {"id": table, "version": int(row.version), "timestamp": str(row.timestamp)}


class GuardedSink(Sink):
    """A sink that checks its table before it writes, and records the version after it.

    Parameters
    ----------
    sink : Sink
    table : str
    name : str
        The name of the sink in the dataflow.
    mark : callable
        Returns the recorded mark of the table.
    wrote : callable
        Takes the new mark and the rows and seconds of the epoch.
    """

    writes_snapshots = True

    def __init__(
        self, sink: Sink, table: str, name: str, mark: Callable[[], Mapping[str, Any] | None],
        wrote: Callable[[Mapping[str, Any], Written], None],
    ):
        self._sink, self._table, self._name = sink, table, name
        self._mark, self._wrote = mark, wrote

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        self._sink.check(schema, spark)

    def write(self, epoch: Epoch) -> None:
        check_target(epoch.spark, self._table, self._mark(), self._name)
        began = time.perf_counter()
        changes = epoch.changes
        held = few(changes)
        rows = changes.count() if held is None else held.num_rows
        self._sink.write(epoch)
        mark = mark_of(epoch.spark, self._table)
        if mark is not None:
            self._wrote(mark, Written(rows, time.perf_counter() - began))

    def __repr__(self) -> str:
        return repr(self._sink)


def _literal(text: str) -> str:
    quote = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quote}'"
