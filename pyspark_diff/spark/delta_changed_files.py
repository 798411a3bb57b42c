"""Changes of a Delta table that records none: the rows of the files that its commits exchanged.

    rows at version w  =  rows at version v  +  rows of added files  -  rows of removed files
        over the commits v+1 .. w, without compactions

A file is a path and a deletion vector. A rewritten file has rows that did not change, in both sums.
So this costs the changed files, where a change feed costs the changed rows.

A writer may add a file that the table already has, with other tags or statistics. Its rows are in
the table once. Statements of Delta add new files only; for other writers, the files of version v
are looked up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from pyspark_diff import thresholds
from pyspark_diff.spark.delta_commits import actions_of
from pyspark_diff.spark.frames import literal_path
from pyspark_diff.spark.jvm_tables import (
    delta_files_of,
    delta_id,
    delta_log,
    delta_rows,
    delta_schema,
)

#: The fields of a file that a reader needs.
_FIELDS = (
    "path", "partitionValues", "size", "deletionVector", "baseRowId", "defaultRowCommitVersion",
)
#: A column whose values Spark pads when it reads the whole table.
_FIXED_WIDTH = re.compile(r"\bchar\(")
#: The path of a file, and its deletion vector.
FileKey = tuple[str, "tuple[Any, ...] | None"]
#: Statements by which Delta itself adds no file that a table has.
_NEW_FILES = frozenset({
    "CREATE TABLE AS SELECT", "DELETE", "MERGE", "RESTORE", "STREAMING UPDATE", "TRUNCATE",
    "UPDATE", "WRITE",
})
#: Settings with which Spark reads no rows from files that it cannot read.
_INCOMPLETE = "spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"


class ChangedFiles(NamedTuple):
    """Rows of the files that commits added and removed, in the columns of the table."""

    came: DataFrame
    went: DataFrame


def compares_files(spark: SparkSession, name: str) -> bool:
    """Whether a session can read single files of a table."""
    return delta_log(spark, name) is not None


def changed_files(
    spark: SparkSession, name: str, first: int, last: int, table_id: str | None = None
) -> ChangedFiles | None:
    """The rows of files that some commits of a table exchanged.

    Parameters
    ----------
    name : str
        The name of the table in SQL.
    first, last : int
        The commits, both included. The last one is the newest of the table, or has its columns.
    table_id : str, optional
        The id of the table, to detect that its name refers to a table of another catalog.

    Returns
    -------
    ChangedFiles or None
        None if this session cannot read single files of a table (Spark Connect, or another
        implementation of Delta), or the log does not describe the removed files.

    Raises
    ------
    ValueError
        If a setting makes Spark leave out files that it cannot read.
    """
    log = delta_log(spark, name)
    if log is None or last - first >= thresholds.current.changed_files_commits_max:
        return None
    if table_id is not None and delta_id(log, last) != table_id:
        return None
    check_complete(spark)
    names = [f"{version:020d}.json" for version in range(first, last + 1)]
    paths = [literal_path(f"{log.folder}/{file}") for file in names]
    lines = spark.read.text(paths).select("_metadata.file_name", "value").collect()
    commits: dict[str, list[str]] = {}
    for file, line in lines:
        commits.setdefault(file, []).append(line)
    actions = [actions_of(commits[file]) for file in sorted(commits)]
    unsure = unsure_files(actions)
    live = {} if not unsure else {
        file_key(file): file["partitionValues"]
        for file in delta_files_of(log, first - 1, {path for path, _ in unsure}, spark)
    }
    files = exchanged(actions, live)
    if files is None or _FIXED_WIDTH.search(delta_schema(log, last)):
        return None
    return ChangedFiles(*(delta_rows(log, last, texts, spark) for texts in files))


def check_complete(spark: SparkSession) -> None:
    """Refuse settings by which changes in missing files would be lost.

    Raises
    ------
    ValueError
    """
    for setting in _INCOMPLETE:
        if (spark.conf.get(setting) or "").lower() == "true":
            raise ValueError(f"{setting} is true, which hides missing changes: set it to false")


def file_key(file: Mapping[str, Any]) -> FileKey:
    """The identity of a file in an action."""
    vector = file.get("deletionVector")
    return file["path"], None if vector is None else tuple(
        vector.get(name) for name in ("storageType", "pathOrInlineDv", "offset")
    )


def unsure_files(commits: Iterable[Iterable[Mapping[str, Any]]]) -> set[FileKey]:
    """Added files that the table may already have had.

    Parameters
    ----------
    commits : iterable of iterable of mapping
        The actions of each commit.

    Examples
    --------
    >>> add = {"add": {"path": "a", "dataChange": True}}
    >>> by_delta = {"engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0", "operation": "WRITE"}
    >>> unsure_files([[{"commitInfo": by_delta}, add]])
    set()
    >>> unsure_files([[add]])
    {('a', None)}
    """
    unsure, known = set(), set()
    for actions in map(list, commits):
        infos = [action["commitInfo"] for action in actions if action.get("commitInfo")]
        new = any(
            "Delta-Lake/" in (info.get("engineInfo") or "") and info.get("operation") in _NEW_FILES
            for info in infos
        )
        for action in actions:
            file = action.get("add") or action.get("remove")
            if file is None or file_key(file) in known:
                continue
            known.add(file_key(file))
            if not new and action.get("add") and file.get("dataChange", True):
                unsure.add(file_key(file))
    return unsure


def exchanged(
    commits: Iterable[Iterable[Mapping[str, Any]]],
    live: Mapping[FileKey, Mapping[str, Any]] = {},
) -> tuple[list[str], list[str]] | None:
    """The added and the removed files, each as an action of Delta that adds it.

    Parameters
    ----------
    commits : iterable of iterable of mapping
        The actions of each commit, the oldest first.
    live : mapping
        Files that the table had before, with their partition values: at least the `unsure_files`.

    Returns
    -------
    tuple of list of str, or None
        None if a file lacks its partition values or size, is added twice, or gets other partition
        values.

    Examples
    --------
    >>> old = {"path": "a", "partitionValues": {}, "size": 1, "dataChange": True}
    >>> new = {**old, "path": "b"}
    >>> came, went = exchanged([[{"remove": old}, {"add": new}]])
    >>> [json.loads(text)["add"]["path"] for text in came + went]
    ['b', 'a']
    >>> exchanged([[{"add": old}], [{"remove": old}]])
    ([], [])
    >>> exchanged([[{"remove": {**old, "dataChange": False}}]])
    ([], [])
    >>> exchanged([[{"add": {**old, "tags": {}}}]], {("a", None): {}})
    ([], [])
    """
    counts: dict[FileKey, int] = {}
    texts: dict[FileKey, str] = {}
    present: dict[FileKey, bool] = {}
    values: dict[FileKey, Mapping[str, Any]] = dict(live)
    for actions in commits:
        for action in actions:
            adds = action.get("add") is not None
            file = action["add"] if adds else action.get("remove")
            if file is None:
                continue
            key = file_key(file)
            was, present[key] = present.get(key, key in live if adds else True), adds
            if not file.get("dataChange", True):
                continue
            if file.get("partitionValues") is None or file.get("size") is None:
                return None
            if was and values.setdefault(key, file["partitionValues"]) != file["partitionValues"]:
                return None
            values[key] = file["partitionValues"]
            counts[key] = counts.get(key, 0) + adds - was
            texts[key] = _as_added(file)
    if any(abs(count) > 1 for count in counts.values()):
        return None
    return (
        [texts[key] for key, count in counts.items() if count > 0],
        [texts[key] for key, count in counts.items() if count < 0],
    )


def _as_added(file: Mapping[str, Any]) -> str:
    fields = {name: file[name] for name in _FIELDS if file.get(name) is not None}
    return json.dumps({"add": {**fields, "modificationTime": 0, "dataChange": True}})
