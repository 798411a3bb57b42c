"""The relations of a frame of Spark Connect as texts of SQL: select lists and their columns.

    the rows of a common table expression  =  the rows of a relation, its columns under new names
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.query import refusals
from pyspark_diff.query.frame_columns import FrameColumns, Item, RelationText, Surroundings
from pyspark_diff.query.refusals import Refusal, RefusedPart
from pyspark_diff.query.text_calls import AGGREGATES
from pyspark_diff.query.text_expressions import quoted
from pyspark_diff.query.text_names import ScopeColumn, TextNames
from pyspark_diff.spark.remote_plans import frame_of_relation
from pyspark_diff.spark.sent import messages_in

#: Relations without effect on the rows of a collection.
_TRANSPARENT = frozenset({
    "hint", "repartition", "repartition_by_expression", "collect_metrics",
})
_CONSTANT = frozenset({
    "range", "local_relation", "cached_local_relation", "chunked_cached_local_relation",
})
_WORD, _CALL = re.compile(r"\w+"), re.compile(r"\b(\w+)\(")


class FrameTexts(FrameColumns):
    """The texts of relations."""

    def __init__(
        self, names: TextNames, tables: Mapping[str, T.StructType], spark: SparkSession,
        relation: Any,
    ):
        super().__init__(names, frozenset(
            word.lower() for message in messages_in(relation)
            for _, value in message.ListFields()
            for text in ([value] if isinstance(value, str) else (
                [item for item in value if isinstance(item, str)]
                if hasattr(value, "extend") else []
            ))
            for word in _WORD.findall(text)
        ))
        self.spark, self._structs = spark, tables
        #: The tables and constant frames of the text, by their names in it.
        self.tables: dict[str, tuple[str, T.StructType]] = {}
        self.constants: dict[str, DataFrame] = {}
        #: The texts of common table expressions, each with its columns.
        self.queries: dict[str, tuple[list[str], str]] = {}
        self._references: dict[int, Any] = {}
        self._enclosing: tuple[RelationText, ...] = ()

    def query(
        self, columns: Sequence[str], text: str, entries: Sequence[ScopeColumn],
        below: Sequence[ScopeColumn] = (),
    ) -> RelationText:
        """A relation that is the common table expression of a text."""
        name = self.fresh("r")
        if self.outers & set(_WORD.findall(text)):
            # A common table expression reads no column of an enclosing query.
            return RelationText(
                f"({text}) AS {name} ({', '.join(columns)})", tuple(entries), tuple(below)
            )
        self.queries[name] = (list(columns), text)
        return RelationText(name, tuple(entries), tuple(below))

    def closed(self, written: RelationText, distinct: bool = False, rest: str = "") -> RelationText:
        """A relation without conditions of its own."""
        entries = written.visible() if distinct else written.entries
        columns = list(dict.fromkeys(item.column for item in entries)) if distinct else (
            written.columns()
        )
        text = (
            f"SELECT {'DISTINCT ' if distinct else ''}{', '.join(columns)} FROM {written.body}"
            f"{where(written)}{rest}"
        )
        if not columns:
            self.refuse(refusals.NODE, "a frame without columns")
        below = () if distinct else written.below
        return replace(
            self.query(columns, text, entries, below), frames=written.frames
        )

    def simple(self, written: RelationText) -> RelationText:
        """A relation whose body is one item of FROM."""
        if not written.conditions and re.fullmatch(r"\w+", written.body):
            return written
        return self.closed(written)

    def names_of(self, relation: Any) -> list[str] | None:
        """The names of the columns of a relation; None if only its enclosing query has them."""
        if self._references:
            whole = type(relation)()
            whole.with_relations.root.CopyFrom(relation)
            whole.with_relations.references.extend(self._references.values())
            relation = whole
        try:
            return list(frame_of_relation(relation, self.spark).schema.names)
        except PySparkException:
            return None

    def kinds_of(self, relation: Any) -> list[T.DataType]:
        try:
            schema = frame_of_relation(relation, self.spark).schema
        except PySparkException:
            self.refuse(refusals.NODE, "a clause in a correlated subquery")
        return [item.dataType for item in schema.fields]

    def named(self, written: RelationText, relation: Any, renames: bool = False) -> RelationText:
        """A relation whose visible columns have the names that the server says."""
        names, visible = self.names_of(relation), written.visible()
        if names is None:
            return written
        if len(names) != len(visible):
            self.refuse(refusals.NODE, str(relation.WhichOneof("rel_type")), (
                f"the reader understands {len(visible)} columns, and Spark {len(names)}. Remedy: "
                "select the columns by name"
            ))
        entries = []
        for name, entry in zip(names, visible):
            same = entry.name == name or entry.name is not None and (
                self.names.folded(entry.name) == self.names.folded(name)
            )
            if entry.name is not None and not same and not renames:
                self.refuse(refusals.NODE, str(relation.WhichOneof("rel_type")), (
                    f"the reader understands the column {entry.name}, and Spark {name}. Remedy: "
                    "select the columns by name"
                ))
            entries.append(
                replace(entry, name=name) if same else ScopeColumn(name, None, entry.column)
            )
        hidden = [entry for entry in written.entries if entry.hidden]
        return replace(written, entries=(*entries, *hidden))

    def relation(self, message: Any) -> RelationText:
        """The text of a relation; refused parts are noted, and those below them too."""
        kind = message.WhichOneof("rel_type")
        if kind == "with_relations":
            return self.with_references(message.with_relations)
        if kind in _TRANSPARENT:
            written = self.relation(getattr(message, kind).input)
        elif kind in _CONSTANT:
            written = self.constant(message)
        else:
            method = getattr(self, f"_of_{kind}", None)
            if method is None:
                self.unknown(message, kind)
            assert method is not None
            written = method(getattr(message, kind), message)
        number = message.common.plan_id
        if not message.common.HasField("plan_id"):
            return written
        return replace(written, frames=(*written.frames, (number, written.entries)))

    def unknown(self, message: Any, kind: str) -> None:
        """Notes a refused relation, and those below it."""
        self.refusals.append(Refusal(refusals.NODE, kind))
        inner = getattr(message, kind)
        for _, value in inner.ListFields():
            if getattr(getattr(value, "DESCRIPTOR", None), "name", "") == "Relation":
                try:
                    self.relation(value)
                except RefusedPart:
                    pass
        raise RefusedPart

    def both(self, *messages: Any) -> list[RelationText]:
        """Several relations; all of them are read before a refusal leaves the part."""
        results, stopped = [], False
        for message in messages:
            try:
                results.append(self.relation(message))
            except RefusedPart:
                stopped = True
        if stopped:
            raise RefusedPart
        return results

    def with_references(self, message: Any) -> RelationText:
        before = dict(self._references)
        for item in message.references:
            self._references[item.common.plan_id] = item
        try:
            return self.relation(message.root)
        finally:
            self._references = before

    def subquery(self, number: int, places: Surroundings) -> str:
        message = self._references.get(number)
        if message is None:
            self.refuse(refusals.NODE, "a subquery of an unknown frame")
        before = self._enclosing
        self._enclosing = (places.own, *places.outer)
        try:
            written = self.relation(message)
        finally:
            self._enclosing = before
        columns = ", ".join(entry.column for entry in written.visible())
        return f"SELECT {columns} FROM {written.body}{where(written)}"

    def places(self, written: RelationText) -> Surroundings:
        return Surroundings(written, self._enclosing)

    def scan(self, text: str, names: Sequence[str]) -> RelationText:
        pairs = [(name, self.fresh(name)) for name in names]
        body = f"SELECT {', '.join(quoted(name) for name in names)} FROM {text}"
        return self.query([column for _, column in pairs], body, [
            ScopeColumn(name, None, column) for name, column in pairs
        ])

    def constant(self, relation: Any) -> RelationText:
        frame, name = frame_of_relation(relation, self.spark), self.fresh("constant")
        self.constants[self.names.folded(name)] = frame
        return self.scan(name, frame.columns)

    def renamed(self, text: str, relation: Any) -> RelationText:
        """The columns of a text under new names, and those that the server says."""
        names = self.names_of(relation)
        if names is None:
            self.refuse(refusals.NODE, "a clause in a correlated subquery")
        assert names is not None
        columns = [self.fresh(name) for name in names]
        return self.query(columns, text, [
            ScopeColumn(name, None, column) for name, column in zip(names, columns)
        ])

    def all_items(self, messages: Sequence[Any], written: RelationText) -> list[Item]:
        """The items of a select list; all of them are read before a refusal leaves the part."""
        items, stopped = [], False
        for message in messages:
            try:
                items += self.items(message, self.places(written))
            except RefusedPart:
                stopped = True
        if stopped:
            raise RefusedPart
        return items

    def selected(
        self, written: RelationText, items: Sequence[Item], relation: Any, rest: str = "",
        keeps: bool = True,
    ) -> RelationText:
        """The select list of items over a relation."""
        names = self.names_of(relation)
        total = len(names) if names is not None else len(items)
        columns: list[str] = []
        texts: list[str] = []
        entries: list[ScopeColumn] = []
        for item in items:
            count = 1
            if item.generates and sum(other.generates for other in items) == 1:
                count = total - len(items) + 1
            own = [
                names[len(entries) + number] if names is not None and (
                    len(entries) + number < len(names)
                ) else (item.names[number] if number < len(item.names) else None)
                for number in range(count)
            ]
            entry = item.entry
            if entry is not None and not (item.names and item.names[-1] != entry.name and (
                self.names.folded(item.names[-1]) != self.names.folded(entry.name or "")
            )) and entry.column not in columns and keeps:
                columns.append(entry.column)
                texts.append(item.text)
                entries.append(ScopeColumn(own[0] or entry.name, entry.qualifier, entry.column))
                if names is not None and entry.name is not None and (
                    self.names.folded(entry.name) != self.names.folded(own[0] or "")
                ):
                    self.refuse(refusals.NODE, f"the column {own[0]}", (
                        f"the reader understands {entry.name}. Remedy: name the columns"
                    ))
                continue
            fresh = [self.fresh(name) for name in own]
            columns += fresh
            entries += [ScopeColumn(name, None, column) for name, column in zip(own, fresh)]
            if count == 1:
                texts.append(f"{item.text} AS {fresh[0]}")
            else:
                texts.append(f"{item.text} AS ({', '.join(fresh)})")
        if names is not None and len(entries) != len(names):
            self.refuse(refusals.NODE, "a select list", (
                f"the reader understands {len(entries)} columns, and Spark {len(names)}. Remedy: "
                "name the columns"
            ))
        # A sort or filter above may name the columns below, but not those below an aggregate.
        called = {name.lower() for text in texts for name in _CALL.findall(text)}
        below: list[ScopeColumn] = []
        if not rest and not called & AGGREGATES and not any(item.generates for item in items):
            below = [
                entry for entry in (*written.entries, *written.below)
                if entry.column not in columns
            ]
            for column in dict.fromkeys(entry.column for entry in below):
                columns.append(column)
                texts.append(column)
        if not columns:
            self.refuse(refusals.NODE, "a frame without columns")
        text = f"SELECT {', '.join(texts)} FROM {written.body}{where(written)}{rest}"
        return replace(self.query(columns, text, entries, below), frames=written.frames)


def where(written: RelationText) -> str:
    return f" WHERE {' AND '.join(written.conditions)}" if written.conditions else ""
