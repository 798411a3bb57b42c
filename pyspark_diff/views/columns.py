"""The columns of the sources that have changed since the last refresh of a group of views.

    a renamed column  =  a column with the same name in the files and another name in the table

The state has each column under the name of its first reading.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_diff.engine.fingerprint import fingerprints
from pyspark_diff.engine.program import written
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.sources import delta
from pyspark_diff.sources.tables import TableSource
from pyspark_diff.views.program import table_of
from pyspark_diff.views.record import Record


@dataclass(frozen=True)
class ColumnChanges:
    """The changes of the columns that the state of some views has.

    Parameters
    ----------
    renamed : mapping of str to mapping of str to str
        For each source with renamed columns, their names in the state by their present names.
    others : mapping of str to str
        The other changes of each source, in words: its rows are read again.
    """

    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)

    def renames(self) -> list[str]:
        """The renamed columns in words."""
        return [
            f"column {old} of {name} was renamed to {new}"
            for name, pairs in self.renamed.items() for new, old in pairs.items()
        ]


def column_changes(
    spark: SparkSession, record: Record, sources: Iterable[str],
    used: Mapping[str, Collection[str]],
) -> ColumnChanges:
    """Compare the columns of some Delta tables with those of the record.

    Parameters
    ----------
    used : mapping of str to collection of str
        The present columns of each source that the queries use.
    """
    renamed: dict[str, dict[str, str]] = {}
    others: dict[str, str] = {}
    for name in sources:
        if name not in record.columns or name not in record.offsets:
            continue
        columns = T.StructType.fromJson(json.loads(record.columns[name]))
        source = delta(table_of(name)).after(record.offsets[name])
        assert isinstance(source, TableSource)
        new_names, words = source.compared(columns, spark)
        old = {new: name for name, new in new_names.items()}
        added = sorted({old.get(item, item) for item in used.get(name, ())} - {*columns.names})
        texts = [words] if words else []
        texts += [f"{item} was added, and the query uses it" for item in added]
        if texts:
            others[name] = ", ".join(texts)
        elif old:
            renamed[name] = old
    return ColumnChanges(renamed, others)


def recorded_columns(columns: Mapping[str, T.StructType]) -> dict[str, str]:
    """The columns of sources as a record has them."""
    return {name: struct.json() for name, struct in columns.items()}


def digests(frames: Mapping[str, DiffFrame], base: Mapping[str, str]) -> dict[str, str]:
    """A text for the collection of each view, which differs for different programs.

    Parameters
    ----------
    base : mapping of str to str
        The settings of the session that are not part of the digests.
    """
    nodes = {target: frame._collection.node for target, frame in frames.items()}
    prints = fingerprints(written(nodes.values()), rows=True, base=base)
    return {target: prints[node].digest for target, node in nodes.items()}
