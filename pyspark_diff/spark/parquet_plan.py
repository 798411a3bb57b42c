"""The Parquet files that Spark would read for a frame, and its outputs and condition over their
rows.

    rows of the frame  =  [outputs(row) for row in the rows of the files if condition(row)]

if the frame is only that: columns and a condition over a scan of files that Spark has listed
already. All other frames have no plan of this kind, such as tables with buckets or partitions,
caches, formats of other libraries, and reads that ignore errors.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_diff.spark.jvm import items_of, kind_of, leaves_of, optimised_plan

#: Spark's text of a file of a scan, with the path of the file system.
_FILE = re.compile(
    r"FileStatus\{path=file:(?://)?(/.*?); isDirectory=false; length=(\d+); .*?"
    r"modification_time=(\d+);"
)
#: Options of a reader that choose files, or have no effect on their rows. The last two are for old
#: dates, which the files mark themselves.
_OPTIONS = frozenset({
    "path", "paths", "basepath", "mergeschema", "modifiedafter", "modifiedbefore", "pathglobfilter",
    "recursivefilelookup", "serialization.format", "datetimerebasemode", "int96rebasemode",
})
#: Settings of a session that change Spark's reads.
_SETTINGS = (
    "spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.fieldId.read.enabled",
)


@dataclass(frozen=True)
class ScannedFile:
    """A file in its state when Spark listed it.

    Parameters
    ----------
    path : str
        The path on this machine.
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
    """The reads of Spark for a frame.

    Parameters
    ----------
    struct : StructType
        The declared columns of the files.
    outputs : tuple of str, or None
        The columns of the frame, as Spark's JSON of their expressions; None for the columns of the
        files.
    condition : str or None
        The frame has only the rows for which it is true.
    """

    files: tuple[ScannedFile, ...]
    struct: T.StructType
    outputs: tuple[str, ...] | None
    condition: str | None


class Declined(Exception):
    """Spark has to read the Parquet files of a frame, for this reason."""


def parquet_plan(frame: DataFrame) -> ParquetPlan | None:
    """The plan of a frame; None if it reads no Parquet files, or over Connect.

    The function runs no job and reads no file.

    Raises
    ------
    Declined
        If the frame is more than columns and a condition over Parquet files.
    """
    # This test comes before Spark has to plan, and excludes most other frames.
    if list(map(kind_of, leaves_of(frame))) != ["LogicalRelation"]:
        return None
    plan = optimised_plan(frame)
    if plan is None:
        return None
    outputs = condition = None
    if kind_of(plan) == "Project":
        outputs = tuple(column.toJSON() for column in items_of(plan.projectList()))
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
    """The files of a scan, from one call of the JVM, as there may be thousands."""
    empty = location.partitionSchema().toSeq()
    scanned: list[ScannedFile] = []
    for directory in items_of(location.listFiles(empty, empty)):
        files = directory.files()
        listed = [
            ScannedFile(path, int(size), int(modified))
            for path, size, modified in _FILE.findall(files.mkString("\n"))
        ]
        if len(listed) != files.size():
            raise Declined("a file is not on a local disk, or its path has an unknown form")
        scanned += listed
    return tuple(scanned)
