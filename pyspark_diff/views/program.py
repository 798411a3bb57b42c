"""The program of a group of views: one dataflow, in which a view reads a view before its target.

The name of a target in a query is the kept collection of its view, so a change passes through all
views in one step, and arrangements of common parts are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_diff.dataflow.source import Source
from pyspark_diff.errors import SchemaError, SourceError, UnsupportedQueryError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query.dataflow import Dataflow
from pyspark_diff.query.form import Relation
from pyspark_diff.query.plan_reader import QueryForm
from pyspark_diff.query.pruning import used_columns
from pyspark_diff.query.recursion import mutual_recursion
from pyspark_diff.sinks.delta import delta_merge
from pyspark_diff.sinks.delta_history import delta_history
from pyspark_diff.sources import delta, iceberg, snapshots
from pyspark_diff.sources.tables import TableSource
from pyspark_diff.spark.delta import delta_table, identifier
from pyspark_diff.spark.delta_changed_files import compares_files
from pyspark_diff.spark.delta_files import delta_files
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import Schema
from pyspark_diff.views.keys import unique_key
from pyspark_diff.views.target import GuardedSink, Written

_FEED = "delta.enableChangeDataFeed"
#: The hidden column of a target whose query may return equal rows: their number, from 1 on.
ROW_COPY = "_row_copy"


@dataclass(frozen=True)
class View:
    """A query and its target.

    Parameters
    ----------
    target : str
        A Delta table as SQL names it.
    comment : str or None
        Of a target that is created.
    history : {"scd2"} or None
        Whether the target keeps closed rows, as of `delta_history`.
    """

    target: str
    query: str
    comment: str | None = None
    history: str | None = None


@dataclass
class Wiring:
    """The settings and callbacks of the program of a group of views. It holds state.

    Parameters
    ----------
    policy : {"strict", "incremental", "auto"}
    names : mapping of str to str
        The name under which a query reads a target, by the target.
    replace : bool
        Whether targets with rows are overwritten by the first epoch.
    marks : callable
        Returns the recorded mark of a target.
    wrote : callable
        Takes a target, its new mark, and the rows and seconds of an epoch.
    used : mapping of str to set of str
        The columns of each source that the queries use. A source that is not in it is read with all
        columns.
    renamed : mapping of str to mapping of str to str
        For each source with renamed columns, their names in the state by their present names.
    frames : dict of str to DiffFrame
        Filled by the program: the collection of each target.
    whole : dict of str to str
        Filled by the program: the sources that every refresh reads whole, with the reason.
    """

    policy: str
    names: Mapping[str, str]
    replace: bool
    marks: Callable[[str], Mapping[str, Any] | None]
    wrote: Callable[[str, Mapping[str, Any], Written], None]
    used: Mapping[str, Collection[str]] = field(default_factory=dict)
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    frames: dict[str, DiffFrame] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)


class ViewDataflow(Dataflow):
    """A dataflow whose sources follow the policy of its views. It holds state."""

    wiring: Wiring

    def _source_of(self, name: str, provider: str) -> Source:
        reason = whole_reason(self.spark, name, provider)
        if reason and self.wiring.policy == "strict":
            raise SourceError(
                f"source {name} can be read only as a whole: {reason}. policy='strict' refuses "
                "that. " + (f"Run ALTER TABLE {name} SET TBLPROPERTIES ({_FEED} = true); or use "
                            if provider == "delta" else "Use ") + "policy='incremental'"
            )
        if reason:
            self.wiring.whole[name] = reason
        if provider == "delta":
            source = delta(table_of(name), on_gap="snapshot" if reason else "refuse")
        else:
            source = iceberg(name) if provider == "iceberg" else snapshots(name)
        assert isinstance(source, TableSource)  # each of these functions returns one
        used = self.wiring.used.get(name)
        return source if used is None else source.reading(used)

    def _renames(self) -> Mapping[str, Mapping[str, str]]:
        # A new state has the present names.
        return self.wiring.renamed if self._sources.stored else {}

    def view(self, view: View) -> tuple[DiffFrame, QueryForm, tuple[str, ...]]:
        """The collection of a view, its query in relational form, and its key."""
        frame, read = self._of_text(view.query, None, {})
        names = dict(read.columns)
        key = unique_key(read.relation)
        if key is not None and key <= names.keys() and _compares(frame, names, key):
            # With an empty key there is at most one row. All columns identify it then.
            named = tuple(name for old, name in read.columns if old in key or not key)
            return frame, read, named
        if ROW_COPY in (name.lower() for name in frame.columns):
            raise UnsupportedQueryError(
                f"the query of {view.target} has no unique key and a column {ROW_COPY!r}, which "
                "numbers equal rows in its target. Rename the column"
            )
        columns = frame.columns
        count = "_rows"
        while count in columns:
            count += "_"
        counted = frame.groupBy(*map(column, columns)).agg(F.count(F.lit(1)).alias(count))
        numbers = F.explode(F.sequence(F.lit(1).cast("long"), column(count)))
        return (
            counted.select(*map(column, columns), numbers.alias(ROW_COPY)), read,
            (*columns, ROW_COPY),
        )


class ReadingDataflow(Dataflow):
    """A dataflow that lists the sources of the queries in it, and the columns they use.

    It holds state.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.providers: dict[str, str] = {}
        self.used: dict[str, set[str]] = {}
        self._tables_read: set[str] = set()

    def read(self, query: str) -> set[str]:
        """Add the sources of a query, and return the names of its tables."""
        self._tables_read = set()
        if mutual_recursion(query) is None:
            self._add(self._read_query(query, None, {})[0])
        else:
            self._of_text(query, None, {})  # it reads each definition
        return self._tables_read

    def _add(self, read: QueryForm) -> None:
        self.providers.update(read.sources)
        self._tables_read |= read.tables
        for name, columns in used_columns(read.relation, [old for old, _ in read.columns]).items():
            self.used.setdefault(name, set()).update(columns)

    def _built(
        self, read: QueryForm, named: dict[str, DiffFrame],
        frames: dict[int, tuple[Relation, DiffFrame]] | None = None,
    ) -> DiffFrame:
        self._add(read)
        return super()._built(read, named, frames)


def _compares(frame: DiffFrame, names: Mapping[str, str], key: frozenset[str]) -> bool:
    """Whether the values of a key can be compared by a merge."""
    try:
        Schema(frame.schema).check_compared(
            [names[name] for name in key] or frame.columns, "join"
        )
    except Exception:
        return False
    return True


def table_of(name: str) -> str:
    """A table of the catalog, or the path of one, as the source takes it."""
    return name.removeprefix("file:") if name.startswith("file:") else name


def whole_reason(spark: SparkSession, name: str, provider: str) -> str:
    """Why every refresh reads all rows of a source; empty if it reads the changes."""
    if provider == "iceberg":
        return ""
    if provider != "delta":
        return f"a table of {provider} does not record its changes"
    if compares_files(spark, identifier_of(name)) or _has_feed(spark, name):
        return ""
    return f"it does not record its changes ({_FEED} is not set)"


def file_reason(spark: SparkSession, name: str, provider: str) -> str:
    """Why a refresh compares the changed files of a source; empty if it reads a feed, or all rows.
    """
    if provider != "delta" or _has_feed(spark, name):
        return ""
    return "" if whole_reason(spark, name, provider) else f"{_FEED} is not set"


def _has_feed(spark: SparkSession, name: str) -> bool:
    table = delta_files(spark, identifier_of(name)) or delta_table(spark, identifier_of(name))
    return table is not None and (table.properties.get(_FEED) or "").lower() == "true"


def identifier_of(name: str) -> str:
    """A table of the catalog, or the path of one, as SQL names it."""
    return identifier(table_of(name))


def program_of(views: Sequence[View], sink_name: Callable[[View], str],
               wiring: Wiring) -> Callable[[ViewDataflow], None]:
    """The program of views, each after the views that it reads."""
    def program(flow: ViewDataflow) -> None:
        flow.wiring = wiring
        for view in views:
            frame, _, key = flow.view(view)
            wiring.frames[view.target] = collection = frame.keep(wiring.names[view.target])
            name = sink_name(view)
            make = delta_history if view.history else delta_merge
            sink = GuardedSink(
                make(view.target, key=key, replace=wiring.replace), view.target, name,
                partial(wiring.marks, view.target), partial(wiring.wrote, view.target),
            )
            collection.sink(name, sink)

    return program


def check_views(views: Sequence[View]) -> None:
    """Refuse views that have no target or no query of their own."""
    for view in views:
        if not isinstance(view.query, str) or not view.query.strip():
            raise SchemaError(
                f"the query of view {view.target!r} is {view.query!r}; pass a SELECT as text"
            )
        if view.history not in (None, "scd2"):
            raise SchemaError(
                f"view {view.target!r} has history={view.history!r}; pass 'scd2', or leave it out"
            )
    targets = [identifier(view.target) for view in views]
    for target in targets:
        if targets.count(target) > 1:
            raise SchemaError(f"two views have the target {target}; give each its own")
