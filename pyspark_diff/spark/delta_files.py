"""Delta tables whose files are on this machine, read and merged into without Spark.

    changes(f, l)  =  the rows of the change data feed of versions f to l

A statement of Spark over a Delta table takes a second or more, even for few rows. The library
``deltalake``, if installed, takes some hundredths for the same files. The functions use it only for
operations that are known to have Spark's result. For all others they return None, and Spark does
the work.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.fallbacks import DELTALAKE, fall_back
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.updates import concat
from pyspark_diff.spark.delta_commits import (
    METADATA,
    DeltaCommit,
    actions_of,
    commit_info,
    mark_of_commit,
)
from pyspark_diff.spark.jvm_tables import folder_of
from pyspark_diff.spark.parquet_footer import fallback_reason
from pyspark_diff.spark.schema import Schema, quoted

_Found = TypeVar("_Found")

_logger = logging.getLogger("pyspark_diff")

#: The oldest supported version of deltalake. Earlier ones of 1.6 refuse the merge of a file with
#: more than 8,192 rows, as if several updates had the same key.
_LIBRARY_MIN = 1, 6, 6
#: The columns for the kind of a row's change, and for the version that made it.
KIND, VERSION = "_change_type", "_commit_version"
#: Features of a table that are known here: those for readers, and those for writers.
_READ = frozenset({"deletionVectors", "timestampNtz", "vacuumProtocolCheck"})
_WRITTEN = _READ | {"appendOnly", "changeDataFeed", "invariants"}
#: Features of readers with which the folder of a table still has its log.
_LOGGED = _READ | {
    "columnMapping", "typeWidening", "typeWidening-preview", "v2Checkpoint", "variantType",
    "variantType-preview", "variantShredding", "variantShredding-preview",
}
#: Features and properties of tables that may have their newest commits, or all, elsewhere.
_ELSEWHERE = ("redirect", "coordinatedCommits", "catalogManaged", "catalogOwned")
#: Properties of tables that have no effect on merges.
_PROPERTIES = frozenset(
    f"delta.{name}" for name in (
        "checkpointInterval", "deletedFileRetentionDuration", "enableChangeDataFeed",
        "enableDeletionVectors", "logRetentionDuration",
    )
)
#: Types for which both libraries write the same files and compare keys in the same way. Sinks write
#: one NaN and no negative zero.
_MERGED = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType, T.StringType,
    T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType, T.FloatType, T.DoubleType,
)
#: Types of partition columns whose text in the log has one meaning, in every time zone.
_PARTITIONS = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.StringType, T.DateType,
)
#: The metadata of a column whose values Spark pads, by its type in SQL.
_CHAR, _FIXED_WIDTH = "__CHAR_VARCHAR_TYPE_STRING", re.compile(r"\bchar\(")
#: Python's own errors for missing or damaged files, missing columns, and operations that the
#: library lacks.
_FAILURES = (OSError, ValueError, KeyError, RuntimeError)


class DeltaFiles:
    """A version of a Delta table: the last one at the time of construction."""

    def __init__(self, folder: Path, table: Any):
        self._folder, self._table = folder, table
        metadata, protocol = table.metadata(), table.protocol()
        self.id = str(metadata.id)
        self.version = int(table.version())
        self.properties: Mapping[str, str] = metadata.configuration
        self.struct = T.StructType.fromJson(json.loads(table.schema().to_json()))
        self._is_plain = self.properties.get("delta.columnMapping.mode", "none") == "none"
        self.partitions = list(metadata.partition_columns)
        self._reader = frozenset(protocol.reader_features or ())
        self._writer = frozenset(protocol.writer_features or ())
        # The features of versions up to 4 appear in properties and columns.
        self._writes = protocol.min_writer_version <= 4 or self._writer

    def log_reason(self) -> str | None:
        """Why the log in the folder may not be the log of the table; None if it is."""
        names = self._reader | self._writer | {
            name.removeprefix("delta.") for name in self.properties
        }
        elsewhere = sorted(name for name in names if name.startswith(_ELSEWHERE))
        features = elsewhere or sorted(self._reader - _LOGGED)
        if not features:
            return None
        return f"its log may be elsewhere, as the table has {', '.join(features)}"

    def changes(self, names: Sequence[str], first: int, most: int) -> pa.Table | None:
        """The changed rows since a version: the columns, `KIND` and `VERSION`.

        Parameters
        ----------
        names : sequence of str
            Columns.
        first : int
            The first of these versions.
        most : int
            The largest number of rows.

        Returns
        -------
        pyarrow.Table or None
            None if Spark has to read them: there are more rows, a version has no record of its
            changes, or the table had changes other than insertions and removals of rows.
        """
        columns = Schema(T.StructType([self.struct[name] for name in names])).arrow()

        def read() -> pa.Table:
            self._refuse(self._changes_reason(columns, first))
            # deltalake reads unquoted names as SQL.
            wanted = [*map(quoted, names), KIND, VERSION]
            reader = pa.RecordBatchReader.from_stream(self._table.load_cdf(
                starting_version=first, ending_version=self.version, columns=wanted,
            ))
            rows = pa.Table.from_batches(_up_to(most + 1, reader), reader.schema)
            if rows.num_rows > most:
                self._refuse(f"more than {most} rows changed")
            kinds = [*columns.types, pa.string(), pa.int64()]
            return pa.table({
                name: rows[name].cast(kind) for name, kind in zip([*names, KIND, VERSION], kinds)
            })

        return self._or_none("delta", read)

    def _changes_reason(self, columns: pa.Schema, first: int) -> str | None:
        """Why Spark has to read the changes of the versions since one; None if there is no reason.

        A change feed has files of changes, or whole files of rows.
        """
        if not (self._is_plain and self._reader <= _READ):
            return "the table has column mapping, or a feature that is unknown here"
        for field in map(self.struct.__getitem__, columns.names):
            if _FIXED_WIDTH.search(field.metadata.get(_CHAR, "")):
                return f"Spark pads the values of column {field.name!r}, which has type CHAR"
            kind = field.dataType
            if field.name in self.partitions and not isinstance(kind, _PARTITIONS):
                return f"partition column {field.name!r} is of type {kind.simpleString()}"
        stored = tuple(
            (field.name, field.type) for field in columns if field.name not in self.partitions
        )
        for version in range(first, self.version + 1):
            actions = self.actions(version)
            if any("metaData" in action or "protocol" in action for action in actions):
                return f"version {version} changed the schema, the properties or the protocol"
            files = [action["cdc"] for action in actions if "cdc" in action] or [
                file for action in actions for name, file in action.items()
                if name in ("add", "remove") and file.get("dataChange", True)
            ]
            # The rows that a deletion vector removes are recorded elsewhere.
            if any(file.get("deletionVector") for file in files):
                return f"version {version} has deletion vectors and no files of changes"
            for file in files:
                reason = self._file_reason(unquote(file["path"]), file.get("size") or 0, stored)
                if reason is not None:
                    return reason
        return None

    def _file_reason(
        self, path: str, size: int, columns: tuple[tuple[str, pa.DataType], ...]
    ) -> str | None:
        """Why Spark has to read some columns of a file of the table; None if there is no reason."""
        if "://" in path or path.startswith(("/", "file:")):
            return "a file is outside the folder of the table"
        return fallback_reason(str(self._folder / path), size, columns)

    def actions(self, version: int) -> list[dict[str, Any]]:
        """The actions of a version. Its file may be gone (`OSError`)."""
        text = (self._folder / "_delta_log" / f"{version:020d}.json").read_text(encoding="utf-8")
        # JSON escapes the line feed, and no other end of a line.
        return actions_of(text.split("\n"))

    def commits(self) -> Iterator[DeltaCommit]:
        """The commits from this version backwards, as far as the log has them."""
        for version in range(self.version, -1, -1):
            try:
                info = commit_info(self.actions(version))
            except (OSError, ValueError):
                return
            yield DeltaCommit(
                version, str(info.get("timestamp")), str(info.get("operation")),
                info.get("operationParameters") or {}, info.get(METADATA),
                info.get("operationMetrics") or {},
            )

    def mark(self, version: int) -> str | None:
        """A mark that distinguishes a commit from another one with its number; None if the log has
        lost it."""
        try:
            return mark_of_commit(commit_info(self.actions(version)))
        except (OSError, ValueError):
            return None

    def row_count(self) -> int | None:
        """The number of rows; None if the log does not have it."""
        if "deletionVectors" in self._reader:
            return None
        counts = pa.table(self._table.get_add_actions(flatten=True))["num_records"]
        return None if counts.null_count else sum(counts.to_pylist())

    def is_repartitioned(self, version: int) -> bool:
        """Whether a commit since a version has other partition columns, as far as the log has them.
        """
        try:
            metadata = [
                action["metaData"] for number in range(version + 1, self.version + 1)
                for action in self.actions(number) if "metaData" in action
            ]
        except (OSError, ValueError):
            return False
        return any(entry.get("partitionColumns", []) != self.partitions for entry in metadata)

    def can_be_merged_into(self) -> bool:
        """Whether `merge` has the same result as a merge by Spark, also for the rows that it
        copies."""
        def check() -> bool:
            self._refuse(self._merge_reason())
            return True

        return self._or_none("delta_merge", check) or False

    def _merge_reason(self) -> str | None:
        """Why Spark has to merge rows; None if there is no reason."""
        if not (self._is_plain and self._writes and self._writer <= _WRITTEN
                and self._reader <= _READ):
            return "the table has column mapping, or a feature that is unknown here"
        if self.partitions:
            return "the table is partitioned"
        for field in self.struct.fields:
            rules = sorted(set(field.metadata) - {"comment"})
            if rules:
                return f"column {field.name!r} has rules of its own: {', '.join(rules)}"
            if not isinstance(field.dataType, _MERGED):
                return f"column {field.name!r} is of type {field.dataType.simpleString()}"
        others = sorted(
            name for name in self.properties
            if name.startswith("delta.") and name not in _PROPERTIES
        )
        if others:
            return f"the table has properties that are unknown here: {', '.join(others)}"
        arrow = Schema(self.struct).arrow()
        columns = tuple(zip(arrow.names, arrow.types))
        files = pa.table(self._table.get_add_actions(flatten=True)).select(["path", "size_bytes"])
        for path, size in zip(*(column.to_pylist() for column in files.columns)):
            reason = self._file_reason(path, size, columns)
            if reason is not None:
                return reason
        return None

    def _refuse(self, reason: str | None) -> None:
        """End the work of `_or_none` if there is a reason."""
        if reason is not None:
            raise _Refused(reason)

    def _or_none(self, operator: str, ask: Callable[[], _Found]) -> _Found | None:
        """The result of some work; None if Spark has to do it, which is recorded."""
        return _or_none(operator, str(self._folder), ask)

    def last_number(self, owner: str) -> int:
        """The number of a writer's last commit; -1 if it has none."""
        last = self._table.transaction_version(owner)
        return -1 if last is None else int(last)

    def among(self, rows: pa.Table, key: Sequence[str]) -> pa.Table | None:
        """The keys of some rows that the table has; None if Spark has to look them up."""
        layout = Schema(self.struct).layout(key)
        kinds = Schema(self.struct).arrow(key).types

        def keys(table: pa.Table, diff: int) -> Any:
            return layout.encode(
                [table[name].cast(kind) for name, kind in zip(key, kinds)], 0, diff
            )

        there = self._or_none(
            "delta_merge", lambda: pa.table(self._table.scan(columns=list(key)))
        )
        if there is None:
            return None
        # The weight exceeds the number of rows of a table, so that a sum determines both parts.
        many = 1 << 40
        sums = consolidate(concat([keys(there, 1), keys(rows, -many)])).updates
        diffs = sums.diffs()
        both = sums.take((diffs < 0) & (diffs > -many))
        return pa.table(layout.decode(both), names=list(key))

    def merge(
        self, rows: pa.Table, key: Sequence[str], kind: str, owner: str, number: int,
        metadata: Mapping[str, str] | None = None,
    ) -> bool:
        """Merge rows by a key, in one commit that has a writer's name and number. Without changes
        there is no commit.

        Parameters
        ----------
        rows : pyarrow.Table
            The columns of the table, each key once, and the kind of its change.
        kind : str
            The column that says "insert", "update" or "delete".
        metadata : mapping, optional
            Further entries of the commit.

        Returns
        -------
        bool
            Whether the merge was done. If it was done and the answer was lost, a later merge by
            Spark has no effect, as the number is the same.
        """
        from deltalake import ColumnProperties, WriterProperties
        from deltalake.transaction import CommitProperties, Transaction

        names = [name for name in rows.column_names if name != kind]
        # The source uses generated names; the table's names appear only as targets.
        source = rows.rename_columns(
            [f"_{names.index(name)}" if name != kind else "kind" for name in rows.column_names]
        )
        ours = {name: f"s._{i}" for i, name in enumerate(names)}
        # An equation does not match null, and it skips files by bounds, which may be rounded. With
        # both operators in one condition the library hashes by the equations alone.
        kinds = {field.name: field.dataType for field in self.struct.fields}
        null_safe = any(rows[name].null_count or _is_rounded(kinds[name]) for name in key)
        same = " AND ".join(
            f"(t.{quoted(name)} {'IS NOT DISTINCT FROM' if null_safe else '='} {ours[name]})"
            for name in key
        )
        values = {quoted(name): ours[name] for name in names if name not in key}
        # With rounded bounds, or bounds without NaN, readers would skip files that have matching
        # rows.
        bounds = not any(_is_rounded(field.dataType) for field in self.struct.fields)
        writer = WriterProperties(default_column_properties=ColumnProperties(
            statistics_enabled="CHUNK" if bounds else "NONE"
        ))
        now = int(time.time() * 1000)

        def ask() -> bool:
            merger = self._table.merge(
                source, same, source_alias="s", target_alias="t", streamed_exec=False,
                writer_properties=writer, commit_properties=CommitProperties(
                    app_transactions=[Transaction(owner, number, now)],
                    custom_metadata=dict(metadata or {}),
                ),
            ).when_matched_delete("s.kind = 'delete'")
            if values:
                merger = merger.when_matched_update(values, "s.kind <> 'delete'")
            merger.when_not_matched_insert(
                {quoted(name): ours[name] for name in names}, "s.kind <> 'delete'"
            ).execute()
            return True

        return self._or_none("delta_merge", ask) or False


def physical_names(kind: T.DataType, path: str = "") -> dict[str, str]:
    """The names of columns and fields in the files, if they differ from their names in the table.

    Delta draws the name at random when a column is added. A renamed column keeps it.

    Examples
    --------
    >>> name = {"delta.columnMapping.physicalName": "col-7"}
    >>> physical_names(T.StructType().add("id", "integer").add("note", "string", True, name))
    {'note': 'col-7'}
    """
    if isinstance(kind, T.ArrayType):
        return physical_names(kind.elementType, f"{path}.element")
    if isinstance(kind, T.MapType):
        return {
            **physical_names(kind.keyType, f"{path}.key"),
            **physical_names(kind.valueType, f"{path}.value"),
        }
    names: dict[str, str] = {}
    for field in kind.fields if isinstance(kind, T.StructType) else ():
        inner = f"{path}.{field.name}" if path else field.name
        name = (field.metadata or {}).get("delta.columnMapping.physicalName", field.name)
        if name != field.name:
            names[inner] = name
        names.update(physical_names(field.dataType, inner))
    return names


def delta_files(spark: SparkSession, name: str) -> DeltaFiles | None:
    """The files of a Delta table; None if Spark has to do the work."""
    location = urlparse(folder_of(spark, name, "delta") or "")
    if location.scheme != "file" or location.netloc:
        return None
    folder = unquote(location.path)
    reason = _library_reason()
    if reason is not None:
        fall_back("delta", DELTALAKE, f"{folder}: {reason}")
        return None
    import deltalake

    if "\\" in folder or "%2f" in folder.lower():
        fall_back("delta", DELTALAKE, f"{folder}: deltalake reads another path of this name")
        return None

    def opened() -> DeltaFiles:
        files = DeltaFiles(Path(folder), deltalake.DeltaTable(folder))
        files._refuse(files.log_reason())
        return files

    return _or_none("delta", folder, opened)


@lru_cache(maxsize=1)
def _library_reason() -> str | None:
    """The reason not to use the installed deltalake; None if it is used. An old version causes a
    warning."""
    try:
        import deltalake
    except ImportError:  # It is part of an extra.
        return "deltalake is not installed"
    version = str(deltalake.__version__)
    if tuple(map(int, re.findall(r"\d+", version)[:3])) >= _LIBRARY_MIN:
        return None
    oldest = ".".join(map(str, _LIBRARY_MIN))
    reason = f"deltalake {version} is older than {oldest}, whose merges were compared with Spark's"
    _logger.warning("%s. Spark reads and merges Delta tables. Upgrade deltalake", reason)
    return reason


class _Refused(Exception):
    """Spark has to do the work, for this reason."""


def _or_none(operator: str, path: str, ask: Callable[[], _Found]) -> _Found | None:
    """The result of some work; None if it fails, so that Spark does it or reports the fault.

    This is the only place where work on the files of a Delta table falls back to Spark.
    """
    try:
        return ask()
    except _Refused as refused:
        fall_back(operator, DELTALAKE, f"{path}: {refused}")
    except BaseException as error:
        if not _is_of_library(error):
            raise
        fall_back(operator, DELTALAKE, f"{path}: {type(error).__name__}: {error}")
    return None


def _is_of_library(error: BaseException) -> bool:
    """Whether an error comes from deltalake, from Arrow, or from reading a log.

    Any other error is a mistake of the caller, which a fallback to Spark would hide.
    """
    from deltalake.exceptions import DeltaError

    # Errors of Rust have no class of their own in Python: they are plain instances of `Exception`,
    # and a panic has a class that cannot be imported.
    return isinstance(error, (DeltaError, pa.ArrowException, *_FAILURES)) or (
        type(error) is Exception or type(error).__name__ == "PanicException"
    )


def _is_rounded(kind: T.DataType) -> bool:
    """Whether deltalake writes bounds of a column that differ from those of its values."""
    return isinstance(kind, (T.FloatType, T.DoubleType)) or (
        isinstance(kind, T.DecimalType) and kind.precision > 15
    )


def _up_to(rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first batches, until they have that many rows."""
    for batch in batches:
        yield batch
        rows -= batch.num_rows
        if rows <= 0:
            return
