"""Which Parquet files Spark would read for a frame, and what it would do with their rows.

    rows of the frame  =  [outputs(row) for row in the rows of the files if condition(row)]

for frames that are nothing but that: column choice over a scan of files whose list Spark has made
already. There is no plan of this kind for anything else, such as tables in buckets or partitions,
caches, formats of other libraries, and readings that are told to let errors pass.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.spark.jvm import items_of, kind_of, leaves_of, optimised_plan

#: How Spark shows a file of a scan; the path is the file system's own name for it.
_FILE = re.compile(
    r"FileStatus\{path=file:(?://)?(/.*?); isDirectory=false; length=(\d+); .*?"
    r"modification_time=(\d+);"
)
#: Options of a reader that say which files are read, or nothing of what is in them; rows with old
#: dates, which the last two are about, are told by the files themselves.
_OPTIONS = frozenset({
    "path", "paths", "basepath", "mergeschema", "modifiedafter", "modifiedbefore", "pathglobfilter",
    "recursivefilelookup", "serialization.format", "datetimerebasemode", "int96rebasemode",
})
#: Settings of a session under which Spark reads otherwise.
_SETTINGS = (
    "spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.fieldId.read.enabled",
)


@dataclass(frozen=True)
class ScannedFile:
    """A file as it was when Spark listed it.

    Parameters
    ----------
    path : str
        On this machine.
    size : int
        Bytes.
    modified : int
        Milliseconds.
    """

    path: str
    size: int
    modified: int


@dataclass(frozen=True)
class ParquetPlan:
    """What Spark would read for a frame.

    Parameters
    ----------
    files : tuple of ScannedFile
    struct : StructType
        The columns that the files are said to have.
    outputs : tuple of str, or None
        The columns of the frame, as Spark's own JSON of its expressions; None where they are those
        of the files.
    condition : str or None
        Rows for which it is not true are left out.
    """

    files: tuple[ScannedFile, ...]
    struct: T.StructType
    outputs: tuple[str, ...] | None
    condition: str | None


class Declined(Exception):
    """Spark has to read the Parquet files of a frame, for this reason."""


def parquet_plan(frame: DataFrame) -> ParquetPlan | None:
    """The plan of a frame; None if it reads no Parquet files, or over Connect.

    Nothing is run, and no file is read.

    Raises
    ------
    Declined
        If the frame is more than columns and a condition over Parquet files.
    """
    # Asked before Spark has to plan: most of the other frames are told from it.
    if list(map(kind_of, leaves_of(frame))) != ["LogicalRelation"]:
        return None
    plan = optimised_plan(frame)
    if plan is None:
        return None
    outputs = condition = None
    if kind_of(plan) == "Project":
        outputs = tuple(one.toJSON() for one in items_of(plan.projectList()))
        plan = plan.child()
    if kind_of(plan) == "Filter":
        condition = plan.condition().toJSON()
        plan = plan.child()
    if kind_of(plan) != "LogicalRelation":
        if not _is_parquet(leaves_of(frame)[0].relation()):
            return None
        raise Declined(f"the frame has the operator {kind_of(plan)}")
    relation = plan.relation()
    if plan.isStreaming() or not _is_parquet(relation):
        return None
    _check_plain(relation)
    for name in _SETTINGS:
        if frame.sparkSession.conf.get(name, "false") != "false":
            raise Declined(f"the setting {name} is not false")
    files = _files(relation.location())
    struct = T.StructType.fromJson(json.loads(relation.dataSchema().json()))
    return ParquetPlan(files, struct, outputs, condition)


def _is_parquet(relation: Any) -> bool:
    return (
        kind_of(relation) == "HadoopFsRelation"
        and relation.fileFormat().getClass().getName()
        == "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
    )


def _check_plain(relation: Any) -> None:
    """Decline a relation that is more than a list of Parquet files."""
    if kind_of(relation.location()) != "InMemoryFileIndex":
        raise Declined(f"the files have the index {kind_of(relation.location())}")
    if not relation.bucketSpec().isEmpty() or not relation.partitionSchema().isEmpty():
        raise Declined("the table has buckets or partitions")
    names = filter(None, relation.options().keys().mkString("\n").lower().split("\n"))
    others = sorted(set(names) - _OPTIONS)
    if others:
        raise Declined(f"the reader has the options {', '.join(others)}")


def _files(location: Any) -> tuple[ScannedFile, ...]:
    """The files of a scan, asked for at once: there may be thousands."""
    empty = location.partitionSchema().toSeq()
    found: list[ScannedFile] = []
    for directory in items_of(location.listFiles(empty, empty)):
        files = directory.files()
        told = [
            ScannedFile(path, int(size), int(modified))
            for path, size, modified in _FILE.findall(files.mkString("\n"))
        ]
        if len(told) != files.size():
            raise Declined("a file is not on a local disk, or its path has an unknown form")
        found += told
    return tuple(found)
