"""Changes of a Delta table that records none: the rows of the files that its commits exchanged.

    rows at version w  =  rows at version v  +  rows of added files  -  rows of removed files
        over the commits v+1 .. w, without compactions

A file is a path and a deletion vector. A rewritten file has rows that did not change, in both sums.
So this costs the changed files, where a change feed costs the changed rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from pyspark_diff.spark.delta_commits import actions_of
from pyspark_diff.spark.jvm import delta_log, delta_rows, delta_schema

#: The fields of a file that a reader needs.
_FIELDS = (
    "path", "partitionValues", "size", "deletionVector", "baseRowId", "defaultRowCommitVersion",
)
#: A column whose values Spark pads when it reads the whole table.
_FIXED_WIDTH = re.compile(r"\bchar\(")
#: The number of commits that one reading compares.
_COMMITS_MAX = 10_000


class ChangedFiles(NamedTuple):
    """Rows of the files that commits added and removed, in the columns of the table."""

    came: DataFrame
    went: DataFrame


def compares_files(spark: SparkSession, name: str) -> bool:
    """Whether a session can read single files of a table."""
    return delta_log(spark, name) is not None


def changed_files(spark: SparkSession, name: str, first: int, last: int) -> ChangedFiles | None:
    """The rows of files that some commits of a table exchanged.

    Parameters
    ----------
    spark : SparkSession
    name : str
        Of the table, as SQL names it.
    first, last : int
        The commits, both included. The last one is the newest of the table, or has its columns.

    Returns
    -------
    ChangedFiles or None
        None if this session cannot read single files of a table (Spark Connect, or another
        implementation of Delta), or the log does not describe the removed files.
    """
    log = delta_log(spark, name)
    if log is None or last - first >= _COMMITS_MAX:
        return None
    paths = [f"{log.folder}/{version:020d}.json" for version in range(first, last + 1)]
    lines = spark.read.text(paths)
    actions = actions_of(line for (line,) in lines.collect())
    files = exchanged(actions)
    if files is None or _FIXED_WIDTH.search(delta_schema(log, last)):
        return None
    return ChangedFiles(*(delta_rows(log, last, texts, spark) for texts in files))


def exchanged(actions: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]] | None:
    """The added and the removed files, each as an action of Delta that adds it.

    Parameters
    ----------
    actions : iterable of mapping
        Of several commits, in any order.

    Returns
    -------
    tuple of list of str, or None
        None if a file lacks its partition values, or is added twice.

    Examples
    --------
    >>> old = {"path": "a", "partitionValues": {}, "size": 1, "dataChange": True}
    >>> new = {**old, "path": "b"}
    >>> came, went = exchanged([{"remove": old}, {"add": new}])
    >>> [json.loads(text)["add"]["path"] for text in came + went]
    ['b', 'a']
    >>> exchanged([{"add": old}, {"remove": old}])
    ([], [])
    >>> exchanged([{"remove": {**old, "dataChange": False}}])
    ([], [])
    """
    counts: dict[str, int] = {}
    texts: dict[str, str] = {}
    for action in actions:
        for kind, sign in (("add", 1), ("remove", -1)):
            file = action.get(kind)
            if file is None or not file.get("dataChange", True):
                continue
            key = json.dumps([file["path"], file.get("deletionVector")], sort_keys=True)
            counts[key] = counts.get(key, 0) + sign
            if file.get("partitionValues") is None:
                return None
            texts[key] = _as_added(file)
    if any(abs(count) > 1 for count in counts.values()):
        return None
    return (
        [texts[key] for key, count in counts.items() if count > 0],
        [texts[key] for key, count in counts.items() if count < 0],
    )


def _as_added(file: Mapping[str, Any]) -> str:
    fields = {name: file[name] for name in _FIELDS if file.get(name) is not None}
    return json.dumps({"add": {"size": 0, **fields, "modificationTime": 0, "dataChange": True}})
