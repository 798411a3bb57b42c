"""Iceberg tables: the snapshots of a table, and the ids by which it knows its columns.

    a column is the same as before  <=>  its id and the ids of its fields are the same

Iceberg draws a new id when a column is added, and a renamed column keeps its id. SQL has no
statement for these ids. The metadata of a table has them, and its snapshots in the same state.

Files that other programs wrote have no ids. The table's name mapping, a property, assigns their
columns to ids by name. A new mapping changes rows without a snapshot.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.jvm_tables import iceberg_metadata
from pyspark_diff.spark.schema import quoted

#: The property with the names of columns in files that have no ids.
NAME_MAPPING = "schema.name-mapping.default"
#: Marks that have a meaning in the path of files that Spark reads.
_MARKS = re.compile(r"[][{}*?\\]")


#: The parts of a name in SQL, with their backticks.
_PARTS = re.compile(r"(?:`(?:[^`]|``)*`|[^`.])+")
_T = TypeVar("_T")


@dataclass(frozen=True)
class IcebergTable:
    """A table in one state of its metadata.

    Parameters
    ----------
    parents : mapping of int to int or None
        The snapshots that have not expired, and their parents, which may have expired.
    last : int or None
        The snapshot of the branch ``main``; None if nothing was ever written to it.
    delete_files : bool
        Whether any snapshot has delete files.
    ids : mapping of str to int
        The ids of all columns and fields of now, by their names with dots between them.
    last_ids : mapping of str to int
        The ids of those of the last snapshot; those of now if there is none.
    file_names : mapping of str to list of str, optional
        The columns and fields that have other names than their own in files without ids, and these
        names; None if the table has no name mapping, so that such files are read by position.
    """

    parents: Mapping[int, int | None]
    last: int | None
    delete_files: bool
    ids: Mapping[str, int]
    last_ids: Mapping[str, int]
    file_names: Mapping[str, list[str]] | None = None

    def ancestors(self, number: int) -> Iterator[int]:
        """The ancestors of a snapshot, the nearest first, up to the first that has expired."""
        parent = self.parents.get(number)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)


def iceberg_table(spark: SparkSession, name: str) -> IcebergTable:
    """The state of a table that Spark has refreshed.

    Raises
    ------
    ValueError
        If a session of Spark Connect cannot read the file of the table's metadata.
    """
    text = iceberg_metadata(spark, name)
    metadata = json.loads(_metadata_file(spark, name) if text is None else text)
    snapshots = {entry["snapshot-id"]: entry for entry in metadata.get("snapshots") or ()}
    main = (metadata.get("refs") or {}).get("main") or {}
    last = main.get("snapshot-id", metadata.get("current-snapshot-id"))
    schemas = {
        schema.get("schema-id", 0): schema
        for schema in metadata.get("schemas") or [metadata["schema"]]
    }
    current = metadata.get("current-schema-id", 0)
    # Writers of earlier versions do not say which schema a snapshot has.
    then = snapshots.get(last, {}).get("schema-id", current)
    return IcebergTable(
        {number: entry.get("parent-snapshot-id") for number, entry in snapshots.items()},
        last if last in snapshots else None,  # -1 stands for no snapshot
        any(entry.get("summary", {}).get("total-delete-files", "0") != "0"
            for entry in snapshots.values()),
        dict(_ids_in(schemas[current])), dict(_ids_in(schemas[then])),
        _file_names((metadata.get("properties") or {}).get(NAME_MAPPING), schemas[current]),
    )


def of_columns(ids: Mapping[str, _T], names: Collection[str]) -> dict[str, _T]:
    """The ids, or other values, of some columns and of all fields in them.

    Examples
    --------
    >>> of_columns({"a": 1, "a.b": 2, "`a.b`": 3, "ab": 4}, ["a"])
    {'a': 1, 'a.b': 2}
    """
    paths = tuple(map(_path, names))
    return {
        path: number for path, number in ids.items()
        if path in paths or path.startswith(tuple(f"{name}." for name in paths))
    }


def renamed_columns(
    was: Mapping[str, int], now: Mapping[str, int], old: Collection[str], new: Collection[str]
) -> dict[str, str]:
    """The new names of columns that have their ids and other names.

    Examples
    --------
    >>> renamed_columns({"a": 1, "b": 2}, {"A": 1, "b": 3}, ["a", "b"], ["A", "b"])
    {'a': 'A'}
    """
    names = {now.get(_path(name)): name for name in new}
    return {
        name: names[was[_path(name)]] for name in old
        if name not in new and was.get(_path(name), -1) in names
    }


def other_columns(was: Mapping[str, int], now: Mapping[str, int]) -> str:
    """The columns that have their names and other ids, in words; empty if there are none.

    Examples
    --------
    >>> other_columns({"a": 1, "s": 2, "s.x": 3}, {"a": 1, "s": 2, "s.x": 7})
    's.x was dropped and added again'
    >>> other_columns({"a": 1, "b": 2}, {"a": 2, "b": 1})
    'a is the column that was b, b is the column that was a'
    """
    names = {number: name for name, number in was.items()}
    other = [name for name in was if name in now and was[name] != now[name]]
    return ", ".join(
        f"{name} is the column that was {names[now[name]]}" if now[name] in names
        else f"{name} was dropped and added again"
        # The fields of another column are other ones too.
        for name in other if not any(name.startswith(f"{above}.") for above in other)
    )


def _ids_in(kind: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Each field of a type in the JSON of Iceberg with its id, the outer ones first.

    Examples
    --------
    >>> inner = {"type": "list", "element-id": 2, "element": "int"}
    >>> dict(_ids_in({"type": "struct", "fields": [{"id": 1, "name": "a.b", "type": inner}]}))
    {'`a.b`': 1, '`a.b`.element': 2}
    """
    if isinstance(kind, str):
        return
    parts = [(field["id"], field["name"], field["type"]) for field in kind.get("fields", ())]
    parts += [(kind[f"{part}-id"], part, kind[part])
              for part in ("element", "key", "value") if part in kind]
    for number, name, inner in parts:
        below = f"{path}.{_path(name)}" if path else _path(name)
        yield below, number
        yield from _ids_in(inner, below)


def _file_names(mapping: str | None, schema: Any) -> dict[str, list[str]] | None:
    """The columns of a schema that have other names than their own in a name mapping.

    Examples
    --------
    >>> schema = {"fields": [{"id": 1, "name": "a", "type": "int"},
    ...                      {"id": 2, "name": "b", "type": "int"}]}
    >>> _file_names('[{"field-id": 1, "names": ["a"]}, {"field-id": 2, "names": ["x"]}]', schema)
    {'b': ['x']}
    """
    if mapping is None:
        return None
    names: dict[int, list[str]] = {}
    entries = json.loads(mapping)
    while entries:
        entry = entries.pop()
        names[entry.get("field-id", -1)] = sorted(entry.get("names") or ())
        entries += entry.get("fields") or ()
    own = {number: path for path, number in _ids_in(schema)}
    return {
        path: names.get(number, []) for number, path in own.items()
        if [_path(name) for name in names.get(number, [])] != [_PARTS.findall(path)[-1]]
    }


def _path(name: str) -> str:
    return quoted(name) if "." in name or "`" in name else name


def _metadata_file(spark: SparkSession, table: str) -> bytes:
    """The metadata of a table as JSON, from its file."""
    # The entry of the current file is the last one.
    file = spark.sql(f"SELECT file FROM {table}.metadata_log_entries").collect()[-1].file
    try:
        path = _MARKS.sub(r"\\\g<0>", file)
        (row,) = spark.read.format("binaryFile").load(path).select("content").collect()
    except Exception as error:  # file systems raise various errors
        raise ValueError(
            f"Spark cannot read the metadata file {file} ({in_words(error)})"
        ) from error
    content = bytes(row.content)
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
