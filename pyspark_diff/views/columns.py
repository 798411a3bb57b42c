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

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query.dataflow import Dataflow
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
    present : mapping of str to list of str
        The present columns of each source.
    """

    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    present: Mapping[str, list[str]] = field(default_factory=dict)

    def kept_renames(self) -> dict[str, Mapping[str, str]]:
        """The renamed columns of the sources whose rows are not read again."""
        return {name: pairs for name, pairs in self.renamed.items() if name not in self.others}

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
    present: dict[str, list[str]] = {}
    for name in sources:
        source = delta(table_of(name)).after(record.offsets.get(name))
        assert isinstance(source, TableSource)
        now = source.columns_in_log(spark)
        present[name] = now.names
        if name not in record.columns or name not in record.offsets:
            continue
        columns = T.StructType.fromJson(json.loads(record.columns[name]))
        new_names, words = source.compared(columns, now, spark)
        old = {new: name for name, new in new_names.items()}
        added = sorted({old.get(item, item) for item in used.get(name, ())} - {*columns.names})
        texts = [words] if words else []
        texts += [f"{item} was added, and the query uses it" for item in added]
        if texts:
            others[name] = ", ".join(texts)
        if old:
            renamed[name] = old
    return ColumnChanges(renamed, others, present)


def recorded_columns(columns: Mapping[str, T.StructType]) -> dict[str, str]:
    """The columns of sources as a record has them."""
    return {name: struct.json() for name, struct in columns.items()}


def digests(flow: Dataflow, frames: Mapping[str, DiffFrame]) -> dict[str, str]:
    """A text for the collection of each view, which differs for different programs."""
    return {target: flow._digest(frame._collection.node) for target, frame in frames.items()}
