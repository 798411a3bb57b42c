"""Reads the text of a query: its relational form without a plan, for sessions of Spark Connect.

The parser says where clauses, columns, calls and subqueries are. The reader refuses each clause
that it does not know. It looks names up as Spark does: in GROUP BY and HAVING a column of FROM goes
before an alias, and in ORDER BY an alias goes before a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.errors import SchemaError
from pyspark_diff.query import refusals
from pyspark_diff.query.form import (
    Aggregate,
    Constant,
    Distinct,
    Expression,
    Join,
    Named,
    Order,
    Project,
    Relation,
    Scan,
    SetOperation,
    TopK,
    UnionAll,
    Window,
)
from pyspark_diff.query.joins import filtered
from pyspark_diff.query.refusals import Refusal
from pyspark_diff.query.text_expressions import (
    TextExpressions,
    aggregates_in,
    column_of,
    picked,
)
from pyspark_diff.query.text_names import Context, Entry, Query, Scope
from pyspark_diff.query.text_parser import canonical, parsed
from pyspark_diff.spark.jvm import analysed_plan, frame_of_no_rows

_KINDS = {
    ("", ""): "inner", ("", "INNER"): "inner", ("", "CROSS"): "inner", ("LEFT", ""): "left",
    ("LEFT", "OUTER"): "left", ("RIGHT", ""): "right", ("RIGHT", "OUTER"): "right",
    ("FULL", ""): "full", ("FULL", "OUTER"): "full", ("LEFT", "SEMI"): "left_semi",
    ("LEFT", "ANTI"): "left_anti", ("", "SEMI"): "left_semi", ("", "ANTI"): "left_anti",
}


@dataclass(frozen=True)
class TextRead:
    """A text that was read.

    Parameters
    ----------
    relation : Relation
    columns, names : tuple of str
        The columns of the result in the form, and those that Spark gives them.
    tables : frozenset of str
        The tables that it reads.
    notes : tuple of str
        Remarks for `explain_sql`.
    """

    relation: Relation
    columns: tuple[str, ...]
    names: tuple[str, ...]
    tables: frozenset[str]
    notes: tuple[str, ...]


def read_text(text: str, tables: Mapping[str, T.StructType], spark: SparkSession) -> TextRead:
    """The relational form of a text.

    Parameters
    ----------
    text : str
    tables : mapping of str to StructType
        The tables of the dataflow.
    spark : SparkSession
        It resolves the types of expressions, and of the whole text over tables without rows.

    Raises
    ------
    SchemaError
        If the text is no query of Spark.
    UnsupportedQueryError
        If a part of the query cannot be kept up to date, or is unknown to the reader.
    """
    tree = parsed(text)
    if not isinstance(tree, (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)):
        raise refusals.refused([Refusal(refusals.NO_QUERY, " ".join(text.split()[:2]))])
    reader = _TextReader(text, tables, spark)
    try:
        query = reader.query(tree, None, {})
        schema = reader.whole_schema()
    except PySparkException as error:
        raise SchemaError(f"Spark refuses the query: {error}") from error
    columns = tuple(column for _, column in query.outputs)
    ours = [_without_nulls(reader.types[column]) for column in columns]
    theirs = [_without_nulls(item.dataType) for item in schema.fields]
    names = [name for name, _ in query.outputs]
    if ours != theirs or any(
        name is not None and name != item.name for name, item in zip(names, schema.fields)
    ):
        raise refusals.refused([Refusal(refusals.EXPRESSION, "SELECT", detail=(
            f"the reader understands the columns as {names} of {ours}, and Spark as "
            f"{schema.simpleString()}. Remedy: write the query with the methods of DiffFrame"
        ))])
    if tree.args.get("order") and not (tree.args.get("limit") or tree.args.get("offset")):
        reader.notes.append(
            "ORDER BY: a collection has no order; sort the frame that at() returns"
        )
    return TextRead(
        query.relation, columns, tuple(schema.names),
        frozenset(table for table, _ in reader.read.values()), tuple(reader.notes),
    )


def _without_nulls(kind: T.DataType) -> str:
    """A type without the information whether parts of it may be NULL."""
    text: str = kind.json()
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false)', "", text)


class _TextReader(TextExpressions):
    """The clauses of a query."""

    def query(
        self, node: exp.Expr, outer: Scope | None, ctes: Mapping[str, Query]
    ) -> Query:
        if isinstance(node, exp.Values):
            return self.values(node)
        if not isinstance(node, (exp.Select, exp.SetOperation, exp.Subquery)):
            self.refuse(refusals.NODE, node.key.upper(), node)
        ctes = self.common(node.args.get("with_"), ctes)
        if isinstance(node, exp.Select):
            return self.select(node, outer, ctes)
        if isinstance(node, exp.SetOperation):
            query = self.set_operation(node, outer, ctes)
        else:
            self.known(node, "this", "alias", "with_", "order", "limit", "offset")
            query = self.query(node.this, outer, ctes)
        entries = tuple(Entry(name, None, column) for name, column in query.outputs)
        return Query(self.first(node, query, Context(Scope(entries, outer), ctes=ctes)),
                     query.outputs)

    def common(
        self, node: exp.Expr | None, ctes: Mapping[str, Query]
    ) -> Mapping[str, Query]:
        """The common table expressions that a query may read."""
        if node is None:
            return ctes
        self.known(node, "expressions")
        ctes = dict(ctes)
        for item in node.expressions:
            self.known(item, "this", "alias")
            name, columns = self.alias(item.args["alias"])
            query = self.query(item.this, None, ctes)
            ctes[self.folded(name or "")] = Query(
                picked(query), self.renamed(query, columns, item)
            )
        return ctes

    def alias(self, node: exp.Expr | None) -> tuple[str | None, list[str]]:
        """The alias of a table, and those of its columns."""
        if node is None:
            return None, []
        self.known(node, "this", "columns")
        return node.name or None, [item.name for item in node.args.get("columns") or ()]

    def renamed(
        self, query: Query, columns: Sequence[str], node: exp.Expr
    ) -> tuple[tuple[str | None, str], ...]:
        if columns and len(columns) != len(query.outputs):
            self.refuse(refusals.NODE, "an alias with another number of columns", node)
        names: list[str | None] = [*columns] or [name for name, _ in query.outputs]
        return tuple((name, column) for name, (_, column) in zip(names, query.outputs))

    # FROM

    def source(
        self, node: exp.Expr, outer: Scope | None, ctes: Mapping[str, Query]
    ) -> tuple[Relation, Scope]:
        """The tables of a query, joined, and their columns."""
        clause = node.args.get("from_")
        if clause is None:
            frame = self.spark.sql(f"SELECT 1 AS {self.fresh('one')}")
            return Constant(frame), Scope((), outer)
        self.known(clause, "this")
        left = self.table(clause.this, outer, ctes)
        # In Spark a comma binds as tightly as JOIN.
        for join in node.args.get("joins") or ():
            right = self.table(join.this, outer, ctes)
            left = self.joined(join, left, right, outer, ctes)
        return left[0], Scope(left[1], outer)

    def table(
        self, node: exp.Expr, outer: Scope | None, ctes: Mapping[str, Query]
    ) -> tuple[Relation, tuple[Entry, ...]]:
        """One item of FROM."""
        if isinstance(node, (exp.Subquery, exp.Values)):
            alias, columns = self.alias(node.args.get("alias"))
            query = self.query(node, outer, ctes)
            columns = [] if isinstance(node, exp.Values) else columns
            outputs = self.renamed(query, columns, node)
            return query.relation, tuple(Entry(name, alias, column) for name, column in outputs)
        if not isinstance(node, exp.Table):
            self.refuse(refusals.NODE, node.key.upper(), node)
        self.known(node, "this", "alias")
        if not isinstance(node.this, exp.Identifier):
            self.refuse(refusals.NODE, "a function that makes a table", node)
        alias, columns = self.alias(node.args.get("alias"))
        name = node.this.name
        shared = ctes.get(self.folded(name))
        if shared is not None:
            renames = [(item, column, self.fresh(item)) for item, column in shared.outputs]
            for _, old, new in renames:
                self.types[new] = self.types[old]
            relation: Relation = Project(
                shared.relation, tuple(Named(new, column_of(old)) for _, old, new in renames)
            )
            query = Query(relation, tuple((item, new) for item, _, new in renames))
        else:
            if self.folded(name) not in self.tables:
                self.refuse(refusals.TABLE, name, node)
            table, struct = self.tables[self.folded(name)]
            pairs = [(item.name, self.fresh(item.name)) for item in struct.fields]
            for item, (_, new) in zip(struct.fields, pairs):
                self.types[new] = item.dataType
            self.read[self.place(node.this)] = table, alias is not None
            query = Query(Scan(table, tuple(pairs)), tuple(pairs))
        outputs = self.renamed(query, columns, node)
        return query.relation, tuple(
            Entry(item, alias or name, column) for item, column in outputs
        )

    def values(self, node: exp.Values) -> Query:
        """Rows in the text, which never change."""
        start, end = self.place(node)
        frame = self.spark.sql(f"SELECT * FROM {self.source_text[start:end]}")
        unstable = analysed_plan(frame).unstable
        if unstable:
            self.refuse(refusals.NON_DETERMINISTIC, ", ".join(unstable), node)
        outputs = tuple((name, self.fresh(name)) for name in frame.columns)
        for item, (_, column) in zip(frame.schema.fields, outputs):
            self.types[column] = item.dataType
        return Query(Constant(frame.toDF(*[column for _, column in outputs])), outputs)

    def joined(
        self, node: exp.Expr, left: tuple[Relation, tuple[Entry, ...]],
        right: tuple[Relation, tuple[Entry, ...]], outer: Scope | None,
        ctes: Mapping[str, Query],
    ) -> tuple[Relation, tuple[Entry, ...]]:
        self.known(node, "this", "on", "using", "side", "kind")
        how = ((node.args.get("side") or "").upper(), (node.args.get("kind") or "").upper())
        if how not in _KINDS:
            self.refuse(refusals.NODE, f"{' '.join(how)} JOIN", node)
        kind, using = _KINDS[how], node.args.get("using") or []
        semi = kind in ("left_semi", "left_anti")
        both = (*left[1], *right[1])
        conditions: list[Expression] = []
        on = node.args.get("on")
        if on is not None and not (isinstance(on, exp.Boolean) and on.this):
            conditions = self.conditions(on, Context(Scope(both, outer), ctes=ctes))
        pairs = [
            tuple(self.key(item, entries) for entries in (left[1], right[1])) for item in using
        ]
        conditions += [
            Expression(f"{a.column} = {b.column}", columns=frozenset({a.column, b.column}))
            for a, b in pairs
        ]
        relation: Relation = Join(left[0], right[0], kind, tuple(dict.fromkeys(conditions)))
        if not using:
            return relation, left[1] if semi else both
        merged, hidden = [], []
        for a, b in pairs:
            if kind == "full":
                column = self.fresh(a.name)
                value = Expression(
                    f"coalesce({a.column}, {b.column})", columns=frozenset({a.column, b.column})
                )
                self.typed([(column, value)])
                relation = Project(relation, (
                    *(Named(name, column_of(name)) for name in relation.columns),
                    Named(column, value),
                ))
                merged.append(Entry(a.name, None, column))
                hidden += [replace(a, hidden=True), replace(b, hidden=True)]
            elif kind == "right":
                merged.append(b)
                hidden.append(replace(a, hidden=True))
            else:
                merged.append(a)
                hidden += [] if semi else [replace(b, hidden=True)]
        keys = {entry.column for pair in pairs for entry in pair}
        sides = left[1] if semi else both
        rest = tuple(entry for entry in sides if entry.column not in keys)
        return relation, (*merged, *rest, *hidden)

    def key(self, node: exp.Expr, entries: Sequence[Entry]) -> Entry:
        """The only visible column of a name, for USING."""
        match = [
            entry for entry in entries if not entry.hidden and entry.name is not None
            and self.folded(entry.name) == self.folded(node.name)
        ]
        if len(match) != 1:
            self.refuse(refusals.EXPRESSION, node.name, node, "USING needs one column of the name")
        return match[0]

    # SELECT

    def select(
        self, node: exp.Select, outer: Scope | None, ctes: Mapping[str, Query]
    ) -> Query:
        self.known(
            node, "expressions", "distinct", "from_", "joins", "where", "group", "having", "order",
            "limit", "offset", "with_", "hint",
        )
        if node.args.get("distinct"):
            self.known(node.args["distinct"])
        relation, scope = self.source(node, outer, ctes)
        where, having = node.args.get("where"), node.args.get("having")
        conditions = self.conditions(where.this, Context(scope, ctes=ctes)) if where else []
        relation = filtered(relation, conditions)
        items = [part for item in node.expressions for part in self.expanded(item, scope)]
        aliases = {
            self.folded(item.alias): item.this for _, item in items if isinstance(item, exp.Alias)
        }
        context = Context(
            scope, windows=[], ctes=ctes,
            later=frozenset(aliases) | {
                self.folded(name) for name, item in items
                if name is not None and isinstance(item, exp.Expr)
            },
        )
        grouped = node.args.get("group") or having or any(
            True for _, item in items if isinstance(item, exp.Expr) for _ in aggregates_in(item)
        )
        keys: tuple[Named, ...] = ()
        if grouped:
            keys = self.keys(node.args.get("group"), items, aliases, Context(scope, ctes=ctes))
            context = replace(context, child=scope, keys={
                canonical(item.expression.text): item.name for item in keys
            })
        named, outputs = self.selected(items, context)
        after = self.conditions(having.this, replace(
            context, windows=None, aliases=aliases, later=frozenset()
        )) if having else []
        limited = bool(node.args.get("limit") or node.args.get("offset"))
        ordering = replace(context, windows=None, later=frozenset(), outputs={
            self.folded(name): column for name, column in outputs
            if name is not None and _once(name, [other for other, _ in outputs])
        })
        order = self.ordered(node, outputs, ordering) if limited else ()
        if grouped:
            relation = Aggregate(
                relation, keys, tuple(item for _, item, _ in context.calls),
                frozenset(item.name for _, item, zero in context.calls if zero),
            )
        relation = filtered(relation, after)
        if context.windows:
            relation = Window(relation, tuple(context.windows))
        present = {item.name for item in named}
        extra = sorted({column for item in order for column in item[0].columns} - present)
        if node.args.get("distinct") and extra:
            self.refuse(refusals.NODE, "ORDER BY of a column that DISTINCT has not", node)
        relation = Project(
            relation, (*named, *(Named(column, column_of(column)) for column in extra))
        )
        if node.args.get("distinct"):
            relation = Distinct(relation)
        if limited:
            relation = self.limited(node, relation, order)
        return Query(relation, outputs)

    def expanded(
        self, node: exp.Expr, scope: Scope
    ) -> Iterator[tuple[str | None, exp.Expr | Entry]]:
        """The columns of a star, or an expression with its name."""
        star = node.this if isinstance(node, exp.Column) else node
        if isinstance(star, exp.Star):
            self.known(star)
            entries: list[Entry] = scope.visible()
            if isinstance(node, exp.Column):
                self.known(node, "this", "table")
                own = [
                    entry for entry in scope.entries if entry.qualifier is not None
                    and self.folded(entry.qualifier) == self.folded(node.table)
                ]
                # Spark writes the second key of USING first.
                entries = sorted(own, key=lambda entry: not entry.hidden)
            if not entries:
                self.refuse(refusals.NODE, "a star of no table", node)
            for entry in entries:
                yield entry.name, entry
            return
        inner = node
        while isinstance(inner, exp.Paren):
            inner = inner.this
        if isinstance(node, exp.Aliases):
            self.refuse(refusals.NODE, "an alias of several columns", node)
        name = node.alias if isinstance(node, exp.Alias) else (
            inner.parts[-1].name if isinstance(inner, exp.Column) else None
        )
        yield name, node

    def keys(
        self, node: exp.Expr | None, items: Sequence[tuple[str | None, exp.Expr | Entry]],
        aliases: Mapping[str, exp.Expr], context: Context,
    ) -> tuple[Named, ...]:
        """The expressions of GROUP BY."""
        if node is None:
            return ()
        self.known(node, "expressions")
        keys: dict[tuple[str, ...], Named] = {}
        for item in node.expressions:
            if isinstance(item, (
                exp.Tuple, exp.Var, exp.Rollup, exp.Cube, exp.GroupingSets
            )):
                self.refuse(refusals.NODE, f"GROUP BY {item.sql('spark')}", item)
            target: exp.Expr | Entry = item
            if isinstance(item, exp.Literal) and not item.is_string:
                number = int(item.name) if item.name.isdigit() else 0
                if not 1 <= number <= len(items):
                    self.refuse(refusals.NODE, f"GROUP BY {item.name}", item)
                target = items[number - 1][1]
            elif isinstance(item, exp.Column) and len(item.parts) == 1:
                if not self.matches([item.name], context.scope):
                    target = aliases.get(self.folded(item.name), item)
            value = (
                column_of(target.column) if isinstance(target, Entry)
                else self.expression(_inner(target), context)
            )
            if value.subqueries:
                self.refuse(refusals.NODE, "a subquery in GROUP BY", item)
            if canonical(value.text) not in keys:
                keys[canonical(value.text)] = Named(self.fresh("g"), value)
        self.typed((item.name, item.expression) for item in keys.values())
        return tuple(keys.values())

    def selected(
        self, items: Sequence[tuple[str | None, exp.Expr | Entry]], context: Context
    ) -> tuple[list[Named], tuple[tuple[str | None, str], ...]]:
        """The columns of a select list, and their names."""
        named: dict[str, Expression] = {}
        outputs = []
        for name, item in items:
            if isinstance(item, exp.Expr):
                value = self.expression(_inner(item), context)
            elif context.keys is None:
                value = column_of(item.column)
            else:
                key = context.keys.get(canonical(item.column))
                if key is None:
                    self.refuse(refusals.NODE, "a star with GROUP BY", None)
                value = column_of(key)
            column = value.text
            if value != column_of(column) or value.subqueries:
                column = self.fresh(name)
            named[column] = value
            outputs.append((name, column))
        self.typed((column, value) for column, value in named.items())
        return [Named(column, value) for column, value in named.items()], tuple(outputs)

    # ORDER BY, LIMIT, OFFSET

    def first(self, node: exp.Expr, query: Query, context: Context) -> Relation:
        """The rows that the LIMIT and OFFSET of a query without a select list leave."""
        if not (node.args.get("limit") or node.args.get("offset")):
            return query.relation
        context = replace(context, outputs={
            self.folded(name): column for name, column in query.outputs
            if name is not None and _once(name, [other for other, _ in query.outputs])
        })
        order = self.ordered(node, query.outputs, context)
        return self.limited(node, picked(query), order)

    def ordered(
        self, node: exp.Expr, outputs: Sequence[tuple[str | None, str]], context: Context
    ) -> list[tuple[Expression, bool, bool]]:
        """Sort keys, each with its directions."""
        clause = node.args.get("order")
        if clause is None:
            return []
        self.known(clause, "expressions")
        keys = []
        for item in clause.expressions:
            self.known(item, "this", "desc", "nulls_first")
            this = item.this
            if isinstance(this, exp.Literal) and not this.is_string:
                number = int(this.name) if this.name.isdigit() else 0
                if not 1 <= number <= len(outputs):
                    self.refuse(refusals.NODE, f"ORDER BY {this.name}", item)
                key = column_of(outputs[number - 1][1])
            else:
                key = self.expression(this, context)
            if key.outers or key.subqueries:
                self.refuse(refusals.NODE, "a subquery or outer column in ORDER BY", item)
            keys.append((key, bool(item.args.get("desc")), bool(item.args.get("nulls_first"))))
        return keys

    def limited(
        self, node: exp.Expr, relation: Relation,
        order: Sequence[tuple[Expression, bool, bool]],
    ) -> Relation:
        if not order:
            self.notes.append(
                "LIMIT without ORDER BY: any rows are right, and these are the least ones by "
                "their columns"
            )
        limit = self.number(node.args.get("limit"))
        skip = self.number(node.args.get("offset"))
        return TopK(relation, limit, skip or 0, tuple(Order(*item) for item in order))

    def number(self, node: exp.Expr | None) -> int | None:
        """The number of a LIMIT or OFFSET."""
        if node is None:
            return None
        self.known(node, "expression")
        value = node.args.get("expression")
        if not isinstance(node, (exp.Limit, exp.Offset)) or not isinstance(value, exp.Literal) or (
            not value.name.isdigit() or value.is_string
        ):
            self.refuse(refusals.NODE, f"{node.key.upper()} of an expression", node)
        return int(value.name)

    # UNION, EXCEPT, INTERSECT

    def set_operation(
        self, node: exp.SetOperation, outer: Scope | None, ctes: Mapping[str, Query]
    ) -> Query:
        self.known(node, "this", "expression", "distinct", "order", "limit", "offset", "with_")
        queries = [self.query(side, outer, ctes) for side in (node.this, node.expression)]
        left, right = queries
        if len(left.outputs) != len(right.outputs):
            raise SchemaError(
                f"Spark refuses the query: {node.key.upper()} of {len(left.outputs)} and "
                f"{len(right.outputs)} columns"
            )
        frames = [
            frame_of_no_rows(self.spark, T.StructType([
                T.StructField(f"c{number}", self.types[column])
                for number, (_, column) in enumerate(query.outputs)
            ]))
            for query in queries
        ]
        kinds = [item.dataType for item in frames[0].unionAll(frames[1]).schema.fields]
        outputs = tuple((name, self.fresh(name)) for name, _ in left.outputs)
        for (_, new), kind in zip(outputs, kinds):
            self.types[new] = kind
        sides = []
        for query in queries:
            named = []
            for (_, old), (_, new), kind in zip(query.outputs, outputs, kinds):
                text = old if self.types[old] == kind else f"CAST({old} AS {kind.simpleString()})"
                named.append(Named(new, Expression(text, columns=frozenset({old}))))
            sides.append(Project(query.relation, tuple(named)))
        columns = tuple(new for _, new in outputs)
        distinct = bool(node.args.get("distinct"))
        if isinstance(node, exp.Union):
            relation: Relation = UnionAll(tuple(sides), columns)
            return Query(Distinct(relation) if distinct else relation, outputs)
        if not isinstance(node, (exp.Except, exp.Intersect)):
            self.refuse(refusals.NODE, node.key.upper(), node)
        how = node.key if distinct else f"{node.key}_all"
        return Query(SetOperation(sides[0], sides[1], how, columns), outputs)


def _inner(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.Alias) else node


def _once(name: str, names: Sequence[str | None]) -> bool:
    return sum(other is not None and other.lower() == name.lower() for other in names) == 1
