"""The commits of a Delta table, and the first one by which another writer changed its rows.

    rows at version w  =  rows of the last own commit
        if each later commit up to w is maintenance, a compaction, or restores such a version

Only the commits since the last own one are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

#: The entry of a commit for the text of its writer.
METADATA = "userMetadata"
#: Operations of Delta that change no row. Some change columns, which the sink compares itself.
MAINTENANCE = frozenset({
    "ADD COLUMN", "ADD COLUMNS", "ADD CONSTRAINT", "ADD FEATURE", "CHANGE COLUMN",
    "CHANGE COLUMNS", "CLUSTER BY", "COMPUTE STATS", "DOMAIN METADATA CLEANUP", "DROP CONSTRAINT",
    "DROP FEATURE", "Deletion Vector Tombstones", "OPTIMIZE", "OPTIMIZE CHECKPOINT",
    "REMOVE COLUMN MAPPING", "REORG", "REORG TABLE UPGRADE UNIFORM", "ROW TRACKING BACKFILL",
    "ROW TRACKING UNBACKFILL", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL",
    "VACUUM END", "VACUUM START",
})
_COLUMNS = "version", "timestamp", "operation", "operationParameters", METADATA, "operationMetrics"


class DeltaCommit(NamedTuple):
    """One entry of the history of a table."""

    version: int
    timestamp: str
    operation: str
    parameters: Mapping[str, Any]
    metadata: str | None
    metrics: Mapping[str, Any] = MappingProxyType({})

    @property
    def entries(self) -> Mapping[str, Any]:
        """The metadata of a sink of this library; empty if another writer made the commit."""
        try:
            entries = json.loads(self.metadata or "")
        except ValueError:
            return {}
        return entries if isinstance(entries, dict) and "sink" in entries else {}


#: Returns the actions of a version of a table.
Actions = Callable[[int], Sequence[Mapping[str, Any]]]


class Intruder(NamedTuple):
    """A commit of another writer, and the version that has the own rows and columns."""

    commit: DeltaCommit
    intact: int | None


def commits_by_spark(spark: SparkSession, name: str) -> Iterator[DeltaCommit]:
    """The commits of a table from the newest one backwards, as far as its log has them."""
    count, read = 1, 0
    while True:
        frame = spark.sql(f"DESCRIBE HISTORY {name} LIMIT {count}")
        rows = frame.select(*_COLUMNS).collect()
        for row in rows[read:]:
            yield DeltaCommit(
                int(row.version), str(row.timestamp), row.operation, row.operationParameters or {},
                row[METADATA], row.operationMetrics or {},
            )
        if len(rows) < count:
            return
        # Most callers need the first one only.
        count, read = count * 8, len(rows)


def actions_by_spark(spark: SparkSession, name: str) -> Actions:
    """A reader of the log of a table."""
    def read(version: int) -> Sequence[Mapping[str, Any]]:
        (row,) = spark.sql(f"DESCRIBE DETAIL {name}").select("location").collect()
        path = f"{row.location}/_delta_log/{version:020d}.json"
        return actions_of(line for (line,) in spark.read.text(path).collect())

    return read


def actions_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The actions in the lines of a commit."""
    return [json.loads(line) for line in lines if line.strip()]


def commit_info(actions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The description of a commit; empty if its writer has not left one."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def mark_of_commit(info: Mapping[str, Any]) -> str | None:
    """A text that differs between two commits with one number; None if nothing describes it."""
    return f"{info.get('timestamp')} {info.get('txnId')}" if info else None


def since(commits: Iterable[DeltaCommit], version: int) -> list[DeltaCommit] | None:
    """The commits from a version on, the oldest first; None if the log no longer has that one."""
    listed: list[DeltaCommit] = []
    for commit in commits:
        listed.append(commit)
        if commit.version <= version:
            return listed[::-1]
    return None


def since_own(commits: Iterable[DeltaCommit], sink: str) -> list[DeltaCommit] | None:
    """The commits from the version on that a sink had checked before its last write.

    Parameters
    ----------
    commits : iterable of DeltaCommit
        The newest first.

    Returns
    -------
    list of DeltaCommit or None
        The oldest first; None if the log no longer has the last commit of the sink.
    """
    listed: list[DeltaCommit] = []
    begin = None
    for commit in commits:
        listed.append(commit)
        if begin is None and commit.entries.get("sink") == sink:
            begin = int(commit.entries.get("after", commit.version))
        if begin is not None and commit.version <= begin:
            return listed[::-1]
    return None


def compaction_check(
    spark: SparkSession, name: str, actions: Actions
) -> Callable[[int], bool]:
    """A check whether a version only has the same rows in other files.

    Its writer has to state so of each file (the option ``dataChange`` is false), and the table has
    to have as many rows as before.
    """
    def is_compaction(version: int) -> bool:
        try:
            return states_no_change(actions(version)) and 1 == len({
                spark.read.option("versionAsOf", number).table(name).count()
                for number in (version - 1, version)
            })
        except (PySparkException, OSError, ValueError):  # Parts of the log or files are gone.
            return False

    return is_compaction


def states_no_change(actions: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the writer of a commit states that it changes no row.

    Examples
    --------
    >>> states_no_change([{"add": {"dataChange": False}}, {"remove": {"dataChange": False}}])
    True
    >>> states_no_change([{"add": {"dataChange": False}}, {"metaData": {}}])
    False
    >>> states_no_change([{"add": {}}])
    False
    """
    return not any(
        "metaData" in action or "cdc" in action or any(
            action[kind].get("dataChange", True) for kind in ("add", "remove") if kind in action
        ) for action in actions
    )


def intruder(
    commits: Sequence[DeltaCommit], is_own: Callable[[DeltaCommit], bool],
    is_compaction: Callable[[int], bool],
) -> Intruder | None:
    """The first commit by which another writer changed the rows; None if all rows are own ones.

    Parameters
    ----------
    commits : sequence of DeltaCommit
        The oldest first. The table had the own rows after the first one.
    is_compaction : callable
        Whether a version only has the same rows in other files.

    Examples
    --------
    >>> def commit(number, operation, **parameters):
    ...     return DeltaCommit(number, "", operation, parameters, None)
    >>> log = [commit(4, "MERGE"), commit(5, "OPTIMIZE"), commit(6, "DELETE")]
    >>> def is_own(commit):
    ...     return commit.version == 4
    >>> intruder(log, is_own, lambda version: False).commit.operation
    'DELETE'
    >>> restored = [*log, commit(7, "RESTORE", version=5)]
    >>> intruder(restored, is_own, lambda version: False) is None
    True
    >>> intruder(log, is_own, lambda version: version == 6) is None
    True
    """
    intact, culprit = [commits[0].version], None
    for commit in commits[1:]:
        if is_own(commit):
            # An own commit on top of rows of others does not make them own ones.
            intact = []
        elif commit.operation == "RESTORE":
            restored = str(commit.parameters.get("version"))
            culprit = None if restored in map(str, intact) else culprit or commit
        elif culprit is None and commit.operation not in MAINTENANCE:
            if not is_compaction(commit.version):
                culprit = commit
        if culprit is None:
            intact.append(commit.version)
    return None if culprit is None else Intruder(culprit, intact[0] if intact else None)
