"""Reads a frame of Spark Connect: its relations as one text of SQL, for the reader of texts.

    WITH r_1 AS (relation 1), r_2 AS (relation 2, which reads r_1), ... SELECT columns FROM r_n

Each column has a name that is unique in the text, so that the text has no name to look up: the
names of the frame are looked up here, in the columns of the frames below. The server says the
names of the columns of each relation, and the types of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.query import refusals
from pyspark_diff.query.frame_columns import Item, RelationText, parts_of
from pyspark_diff.query.frame_groups import FrameGroups
from pyspark_diff.query.frame_texts import where
from pyspark_diff.query.placeholder import projected_table
from pyspark_diff.query.refusals import Refusal, RefusedPart
from pyspark_diff.query.text_expressions import quoted
from pyspark_diff.query.text_names import ScopeColumn, TextNames
from pyspark_diff.query.text_parser import parsed
from pyspark_diff.query.text_reader import TextRead, TextReader
from pyspark_diff.query.text_values import with_values
from pyspark_diff.spark.remote_plans import relation_of, value_of_literal

_JOINS = {
    0: "JOIN", 1: "JOIN", 2: "FULL JOIN", 3: "LEFT JOIN", 4: "RIGHT JOIN", 5: "LEFT ANTI JOIN",
    6: "LEFT SEMI JOIN", 7: "CROSS JOIN",
}
_SETS = {1: "INTERSECT", 2: "UNION", 3: "EXCEPT"}
#: Relations whose rows have the order of their input.
_IN_ORDER = frozenset({
    "project", "subquery_alias", "with_relations", "hint", "drop", "with_columns", "to_df",
    "with_columns_renamed", "filter", "limit", "offset", "to_schema", "drop_na", "fill_na",
    "replace", "collect_metrics",
})
_ORDER = "ORDER BY: a collection has no order; sort the frame that at() returns"


def read_frame(
    frame: DataFrame, tables: Mapping[str, T.StructType], spark: SparkSession,
    providers: frozenset[str] = frozenset(),
) -> TextRead:
    """The relational form of a frame of Spark Connect.

    Parameters
    ----------
    tables : mapping of str to StructType
        The tables of the dataflow.
    providers : frozenset of str
        The providers of tables of the catalog that a source reads.

    Raises
    ------
    SchemaError
        If Spark refuses the frame.
    UnsupportedQueryError
        If parts of the query cannot be kept up to date, or are unknown to the reader. It lists all
        of them.
    """
    try:
        schema = frame.schema
    except PySparkException as error:
        raise SchemaError(f"Spark refuses the query: {error}") from error
    relation = relation_of(frame)
    names = TextNames("", {}, spark, providers, None)
    writer = _Frames(names, tables, spark, relation)
    try:
        text = writer.whole(relation)
    except RefusedPart:
        raise refusals.refused(writer.refusals) from None
    reader = TextReader(text, {}, spark, providers, None)
    reader.tables, reader.constants = writer.tables, writer.constants
    reader.once = frozenset(map(reader.folded, writer.queries))
    read = reader.read_all(parsed(text), schema, writer.refusals)
    notes = [*read.notes, *([_ORDER] if writer.sorts(relation) else [])]
    return replace(read, names=tuple(schema.names), notes=tuple(notes))


class _Frames(FrameGroups):
    """The relations of a frame, by their kinds."""

    def whole(self, relation: Any) -> str:
        written = self.relation(relation)
        columns = ", ".join(entry.column for entry in written.visible())
        text = f"SELECT {columns or '1 AS one_'} FROM {written.body}{where(written)}"
        queries = ",\n".join(
            f"{name} ({', '.join(columns)}) AS ({body}\n)"
            for name, (columns, body) in self.queries.items()
        )
        return f"WITH {queries}\n{text}" if queries else text

    def sorts(self, relation: Any) -> bool:
        """Whether the order of a relation's rows is that of a sort."""
        while True:
            kind = relation.WhichOneof("rel_type")
            if kind == "with_relations":
                relation = relation.with_relations.root
            elif kind in ("project", "subquery_alias"):
                relation = getattr(relation, kind).input
            else:
                return bool(kind == "sort" and relation.sort.is_global)

    def table(self, name: str, columns: Sequence[str]) -> RelationText:
        if name not in self._structs:
            self.refuse(refusals.TABLE, name)
        alias = self.fresh("t")
        self.tables[self.names.folded(alias)] = name, self._structs[name]
        return self.scan(alias, columns)

    def _of_read(self, message: Any, relation: Any) -> RelationText:
        if message.is_streaming:
            self.refuse(refusals.STREAM, "stream")
        if message.WhichOneof("read_type") != "named_table":
            source = message.data_source
            self.refuse(refusals.TABLE, " ".join([source.format, *source.paths]).strip())
        if message.named_table.options:
            self.refuse(refusals.NODE, "a table with options")
        name = message.named_table.unparsed_identifier
        names = self.names_of(relation) or []
        return self.scan(".".join(map(quoted, parts_of(name))), names)

    def _of_sql(self, message: Any, relation: Any) -> RelationText:
        args: dict[str, Any] = {}
        if message.pos_args or message.args or message.pos_arguments:
            self.refuse(refusals.NODE, "spark.sql with positional arguments", (
                "Remedy: name them, or pass the text to flow.sql"
            ))
        for name, item in message.named_arguments.items():
            if item.WhichOneof("expr_type") != "literal":
                self.refuse(refusals.NODE, f"spark.sql with the argument {name}")
            args[name] = value_of_literal(item.literal)
        text = with_values(message.query, args, {}).strip().rstrip(";")
        views = []
        for item in self._references.values():
            if item.WhichOneof("rel_type") == "subquery_alias":
                alias = item.subquery_alias
                written = self.relation(alias.input)
                names = ", ".join(quoted(entry.name or "") for entry in written.visible())
                columns = ", ".join(entry.column for entry in written.visible())
                views.append(
                    f"{quoted(alias.alias)} ({names}) AS (SELECT {columns} FROM {written.body}"
                    f"{where(written)})"
                )
        if views:
            text = f"WITH {', '.join(views)} SELECT * FROM ({text}\n) AS {self.fresh('q')}"
        return self.renamed(text, relation)

    def _of_subquery_alias(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        return replace(written, entries=tuple(
            replace(entry, qualifier=message.alias) for entry in written.visible()
        ))

    def _of_filter(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        if " OVER (" in written.body:
            written = self.closed(written)
        condition = self.text(message.condition, self.places(written))
        return replace(written, conditions=(*written.conditions, condition))

    def _of_project(self, message: Any, relation: Any) -> RelationText:
        if not message.HasField("input"):
            self.refuse(refusals.NODE, "a projection without rows")
        table = projected_table(message)
        if table is not None:
            return self.table(*table)
        written = self.relation(message.input)
        return self.selected(written, self.all_items(message.expressions, written), relation)

    def _of_with_columns(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        items = [Item(entry.column, entry=entry) for entry in written.visible()]
        folded = self.names.folded
        for alias in message.aliases:
            (item,) = self.all_items([alias.expr], written)
            name = alias.name[0]
            if item.generates:
                self.refuse(refusals.NODE, "a generator in withColumns", "Remedy: use select")
            item = Item(item.text, (name,))
            places = [
                number for number, other in enumerate(items)
                if folded((other.names or ((other.entry.name or "") if other.entry else "",))[0])
                == folded(name)
            ]
            for number in places:
                items[number] = item
            if not places:
                items.append(item)
        return self.selected(written, items, relation)

    def _of_with_columns_renamed(self, message: Any, relation: Any) -> RelationText:
        return self.named(self.relation(message.input), relation, renames=True)

    def _of_to_df(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        return replace(written, entries=tuple(
            ScopeColumn(name, None, entry.column)
            for name, entry in zip(message.column_names, written.visible())
        ))

    def _of_drop(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        gone, folded = set(), self.names.folded
        names = {folded(name) for name in message.column_names}
        for item in message.columns:
            if item.WhichOneof("expr_type") != "unresolved_attribute":
                self.refuse(refusals.NODE, "drop of an expression")
            (part,) = self.items(item, self.places(written))
            gone.add(part.entry)
        entries = [
            entry for entry in written.visible()
            if entry not in gone and folded(entry.name or "") not in names
        ]
        return self.named(replace(written, entries=tuple(entries), below=(
            *written.below, *(entry for entry in written.entries if entry not in entries)
        )), relation)

    def _of_sort(self, message: Any, relation: Any) -> RelationText:
        return self.relation(message.input)

    def _of_limit(self, message: Any, relation: Any) -> RelationText:
        inner, skip = message.input, 0
        if inner.WhichOneof("rel_type") == "offset":
            skip, inner = inner.offset.offset, inner.offset.input
        return self.first(inner, message.limit, skip)

    def _of_offset(self, message: Any, relation: Any) -> RelationText:
        return self.first(message.input, None, message.offset)

    def first(self, message: Any, limit: int | None, skip: int) -> RelationText:
        """The rows at some positions, in the order of a sort below projections."""
        above, inner = self.relation(message), message
        # coalesce() joins partitions in their order.
        while inner.WhichOneof("rel_type") in _IN_ORDER or (
            inner.WhichOneof("rel_type") == "repartition" and not inner.repartition.shuffle
        ):
            kind = inner.WhichOneof("rel_type")
            inner = getattr(inner, kind)
            inner = inner.root if kind == "with_relations" else inner.input
        rest = ""
        if inner.WhichOneof("rel_type") == "sort" and inner.sort.is_global:
            if inner is not message:
                self.refuse(refusals.NODE, "a limit apart from its sort", (
                    "Spark takes the first rows of the sorted frame. Remedy: sort right before the "
                    "limit"
                ))
            rest = f" ORDER BY {', '.join(self.order(inner.sort.order, self.places(above)))}"
        rest += "" if limit is None else f" LIMIT {limit}"
        rest += f" OFFSET {skip}" if skip else ""
        return self.closed(above, rest=rest)

    def _of_deduplicate(self, message: Any, relation: Any) -> RelationText:
        written = self.relation(message.input)
        folded = self.names.folded
        names = {folded(name) for name in message.column_names}
        if message.within_watermark or not message.all_columns_as_keys and any(
            folded(entry.name or "") not in names for entry in written.visible()
        ):
            self.refuse(refusals.NODE, "dropDuplicates of some columns", (
                "it keeps any row of a key. Remedy: choose the row, by min_by(struct(...), ...) "
                "GROUP BY the key, or by row_number() in a window"
            ))
        return self.closed(written, distinct=True)

    def _of_sample(self, message: Any, relation: Any) -> RelationText:
        self.refusals.append(Refusal(refusals.SAMPLE, "sample"))
        return self.relation(message.input)

    def _of_set_op(self, message: Any, relation: Any) -> RelationText:
        left, right = self.both(message.left_input, message.right_input)
        sides = [[entry.column for entry in side.visible()] for side in (left, right)]
        entries: list[ScopeColumn] = left.visible()
        if message.by_name:
            folded = self.names.folded
            by = {folded(entry.name or ""): entry for entry in right.visible()}
            kinds = dict(zip(by, self.kinds_of(message.right_input)))
            mine = dict(zip(
                (folded(entry.name or "") for entry in entries), self.kinds_of(message.left_input)
            ))
            if len(by) < len(right.visible()) or len(mine) < len(entries):
                self.refuse(refusals.NODE, "unionByName of columns of equal names")
            sides[1] = [
                by[name].column if name in by else f"CAST(NULL AS {kind.simpleString()})"
                for name, kind in mine.items()
            ]
            more = [name for name in by if name not in mine]
            sides[0] += [f"CAST(NULL AS {kinds[name].simpleString()})" for name in more]
            sides[1] += [by[name].column for name in more]
            entries = [*entries, *(ScopeColumn(by[name].name, None, "") for name in more)]
            if any(isinstance(kind, T.StructType) for kind in (*kinds.values(), *mine.values())):
                self.refuse(refusals.NODE, "unionByName of structs")
        how = f"{_SETS[message.set_op_type]}{' ALL' if message.is_all else ''}"
        text = f" {how} ".join(
            f"SELECT {', '.join(columns)} FROM {side.body}{where(side)}"
            for columns, side in zip(sides, (left, right))
        )
        columns = [self.fresh(entry.name) for entry in entries]
        after = dict(zip(sides[0], columns))
        frames = tuple(
            (number, tuple(
                replace(entry, column=after[entry.column]) for entry in own
                if entry.column in after
            )) for number, own in left.frames
        )
        written = replace(self.query(columns, text, [
            replace(entry, column=column) for entry, column in zip(entries, columns)
        ]), frames=frames)
        return self.named(written, relation)

    def _of_join(self, message: Any, relation: Any) -> RelationText:
        left, right = self.both(message.left, message.right)
        left = self.closed(left) if left.conditions else left
        right, how = self.simple(right), _JOINS[message.join_type]
        semi = message.join_type in (5, 6)
        sides = (*left.visible(), *right.visible())
        frames = (*left.frames, *right.frames)
        whole = RelationText("", sides, frames=frames)
        # Columns below the select lists of the sides may be found by their frames alone.
        condition = ""
        entries: list[ScopeColumn] = list(left.visible() if semi else sides)
        texts: list[str] = []
        if message.using_columns:
            pairs = []
            for name in message.using_columns:
                keys = [
                    [entry for entry in side.visible()
                     if self.names.folded(entry.name or "") == self.names.folded(name)]
                    for side in (left, right)
                ]
                if any(len(items) != 1 for items in keys):
                    self.refuse(refusals.EXPRESSION, name, "a join by names needs one column each")
                pairs.append((keys[0][0], keys[1][0]))
            condition = " AND ".join(f"{a.column} = {b.column}" for a, b in pairs)
            used = {entry for pair in pairs for entry in pair}
            others = [entry for entry in entries if entry not in used]
            if message.join_type == 4:
                entries = [*(b for _, b in pairs), *others,
                           *(replace(a, hidden=True) for a, _ in pairs)]
            elif message.join_type == 2:
                merged = [ScopeColumn(a.name, None, self.fresh(a.name)) for a, _ in pairs]
                texts = [
                    f"coalesce({a.column}, {b.column}) AS {entry.column}"
                    for (a, b), entry in zip(pairs, merged)
                ]
                hidden = [replace(entry, hidden=True) for pair in pairs for entry in pair]
                entries = [*merged, *others, *hidden]
            else:
                entries = [*(a for a, _ in pairs), *others]
                if not semi:
                    entries += [replace(b, hidden=True) for _, b in pairs]
        elif message.HasField("join_condition"):
            condition = self.text(message.join_condition, self.places(whole))
        if not condition and how != "CROSS JOIN":
            condition = "true"
        on = f" ON {condition}" if condition else ""
        written = RelationText(f"{left.body} {how} {right.body}{on}", tuple(entries), frames=frames)
        if texts:
            columns = [entry.column for entry in entries]
            rest = [entry.column for entry in entries[len(texts):]]
            text = f"SELECT {', '.join([*texts, *rest])} FROM {written.body}"
            written = replace(self.query(columns, text, entries), frames=frames)
        return self.named(written, relation)

    def _of_lateral_join(self, message: Any, relation: Any) -> RelationText:
        left = self.closed(self.relation(message.left))
        before = self._enclosing
        self._enclosing = (left, *before)
        outers, self.outers = self.outers, set(self.outers)
        try:
            right = self.relation(message.right)
            columns = [entry.column for entry in right.visible()]
            text = f"SELECT {', '.join(columns)} FROM {right.body}{where(right)}"
        finally:
            self._enclosing, self.outers = before, outers
        kind = {0: "JOIN", 1: "JOIN", 3: "LEFT JOIN", 7: "CROSS JOIN"}.get(message.join_type)
        if kind is None:
            self.refuse(refusals.NODE, f"{_JOINS[message.join_type]} LATERAL")
        frames = (*left.frames, *right.frames)
        entries = (*left.visible(), *right.visible())
        on = ""
        if message.HasField("join_condition"):
            condition = self.text(
                message.join_condition, self.places(RelationText("", entries, frames=frames))
            )
            on = f" ON {condition}"
        body = (
            f"{left.body} {kind} LATERAL ({text}) AS {self.fresh('l')} ({', '.join(columns)}){on}"
        )
        return self.named(
            self.closed(RelationText(body, entries, frames=frames)), relation
        )
