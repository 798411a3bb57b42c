"""The target table of a view: its creation, and the check for writes of others.

    each version of the table after the last recorded one  =  a commit of the view, or maintenance

A commit of the view has the name of its sink in its userMetadata. Maintenance changes no rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.dataflow.sink import Epoch, Sink
from pyspark_diff.errors import SinkError
from pyspark_diff.spark.delta import delta_table
from pyspark_diff.spark.delta_commits import (
    Actions,
    DeltaCommit,
    actions_by_spark,
    commit_info,
    commits_by_spark,
    compaction_check,
    intruder,
    mark_of_commit,
    since,
)
from pyspark_diff.spark.delta_files import delta_files
from pyspark_diff.spark.frames import sql_text
from pyspark_diff.spark.schema import quoted

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
        + (f" COMMENT {sql_text(text)}" if (text := field.metadata.get("comment")) else "")
        for field in schema.fields
    )
    properties = dict(PROPERTIES)
    if any(set(" ,;{}()\n\t=") & set(field.name) for field in schema.fields):
        properties["delta.columnMapping.mode"] = "name"
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    remark = f" COMMENT {sql_text(comment)}" if comment else ""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING delta{remark} "
        f"TBLPROPERTIES ({listed})"
    )


def mark_of(spark: SparkSession, name: str) -> dict[str, Any] | None:
    """The id of a target, its last version and the mark of this commit; None if there is no table.
    """
    files = delta_files(spark, name)
    commit = None if files is None else files.mark(files.version)
    if files is not None and commit is not None:
        return {"id": files.id, "version": files.version, "commit": commit}
    table = delta_table(spark, name)
    if table is None:
        return None
    last = next(commits_by_spark(spark, name))
    return {"id": table.id, "version": last.version, "timestamp": last.timestamp}


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
    mark : mapping or None
        The id, the version and the last commit of the table after the last recorded write.
    sink : str
        The end of the name of the sink, with which its commits are marked.

    Raises
    ------
    SinkError
    """
    if mark is None:
        return
    files = delta_files(spark, name)
    table = files or delta_table(spark, name)
    if table is None:
        raise _changed(name, "is gone")
    if table.id != mark["id"]:
        raise _changed(name, "was replaced by another table of this name")
    newest: Iterable[DeltaCommit] = files.commits() if files else commits_by_spark(spark, name)
    actions = files.actions if files else actions_by_spark(spark, name)
    commits = since(newest, mark["version"])
    if commits is None:
        raise _changed(
            name, f"has a log without version {mark['version']}, so that writes of others cannot "
            "be excluded"
        )
    first, last = commits[0], commits[-1]
    if last.version < mark["version"]:
        raise _changed(
            name, f"is at version {last.version} and was at version {mark['version']}: an "
            "older state of its files was brought back"
        )
    if not _is_marked(spark, name, first.version, mark, actions):
        raise _changed(
            name, f"has another version {first.version} than was written: an older state "
            "of its files was brought back, and written to"
        )
    foreign = intruder(
        commits, lambda commit: str(commit.entries.get("sink")).endswith(f"/{sink}"),
        compaction_check(spark, name, actions),
    )
    if foreign is not None:
        operation, version = foreign.commit.operation, foreign.commit.version
        verb = "was restored to an earlier version" if operation == "RESTORE" else (
            "was written by others"
        )
        raise _changed(name, f"{verb}, {operation} in version {version}")


def _is_marked(
    spark: SparkSession, name: str, version: int, mark: Mapping[str, Any], actions: Actions
) -> bool:
    """Whether a version of the target is the commit of a mark."""
    if "commit" in mark:
        try:
            return mark_of_commit(commit_info(actions(version))) == mark["commit"]
        except (PySparkException, OSError, ValueError):  # The log has lost this version.
            return False
    # Only the history of Spark has the time with which such a mark was recorded.
    times = (
        commit.timestamp for commit in commits_by_spark(spark, name) if commit.version <= version
    )
    return next(times, None) == mark["timestamp"]


def _changed(name: str, event: str) -> SinkError:
    return SinkError(
        f"target {name} {event}. The refresh stopped before it wrote anything, because the target "
        "no longer has the rows of the view. Call rebuild(), which reads all sources and "
        "overwrites it; or name another target"
    )


class GuardedSink(Sink):
    """A sink that checks its table before it writes, and records the version after it.

    Parameters
    ----------
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
        table = epoch.few_changes()
        rows = epoch.changes.count() if table is None else table.num_rows
        self._sink.write(epoch)
        mark = mark_of(epoch.spark, self._table)
        if mark is not None:
            self._wrote(mark, Written(rows, time.perf_counter() - began))

    def __repr__(self) -> str:
        return repr(self._sink)
