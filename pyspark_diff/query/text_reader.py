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
from pyspark_diff.query.clock import QueryClock
from pyspark_diff.query.form import (
    Aggregate,
    Distinct,
    Generate,
    Named,
    Project,
    Relation,
    SetOperation,
    SqlExpression,
    UnionAll,
    Window,
    column_of,
    outers_of,
)
from pyspark_diff.query.joins import filtered
from pyspark_diff.query.refusals import Refusal, RefusedPart
from pyspark_diff.query.sessions import with_merged_sessions
from pyspark_diff.query.text_calls import GENERATORS, INTERVALS, aggregates_in, function_name
from pyspark_diff.query.text_fields import Item
from pyspark_diff.query.text_groups import Groups
from pyspark_diff.query.text_intervals import TextIntervals
from pyspark_diff.query.text_limits import ORDERED, once
from pyspark_diff.query.text_names import (
    Attempts,
    Context,
    Query,
    Scope,
    ScopeColumn,
    Tables,
    through,
)
from pyspark_diff.query.text_parser import canonical, parsed
from pyspark_diff.spark.jvm import frame_of_no_rows


@dataclass(frozen=True)
class TextRead:
    """A text that was read.

    Parameters
    ----------
    columns, names : tuple of str
        The columns of the result in the form, and those that Spark gives them.
    tables : frozenset of str
        The tables that it reads.
    sources : tuple of (str, str)
        The tables of the catalog among them, each with its provider.
    notes : tuple of str
        Remarks for `explain_sql`.
    """

    relation: Relation
    columns: tuple[str, ...]
    names: tuple[str, ...]
    tables: frozenset[str]
    sources: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def read_text(
    text: str, tables: Mapping[str, T.StructType], spark: SparkSession,
    providers: frozenset[str] = frozenset(), clock: QueryClock | None = None,
) -> TextRead:
    """The relational form of a text.

    Parameters
    ----------
    tables : mapping of str to StructType
        The tables of the dataflow.
    spark : SparkSession
        It resolves the types of expressions, and of the whole text over tables without rows.
    providers : frozenset of str
        The providers of tables of the catalog that a source reads.
    clock : QueryClock, optional
        The current date and time are its values.

    Raises
    ------
    SchemaError
        If the text is no query of Spark.
    UnsupportedQueryError
        If parts of the query cannot be kept up to date, or are unknown to the reader. It lists all
        of them.
    """
    tree = parsed(text)
    if not isinstance(tree, (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)):
        raise refusals.refused([Refusal(refusals.NO_QUERY, " ".join(text.split()[:2]))])
    return TextReader(text, tables, spark, providers, clock).read_all(tree)


def _without_nulls(kind: T.DataType) -> str:
    """A type without metadata, and without the information whether parts of it may be NULL."""
    text: str = kind.json()
    text = re.sub(r'"metadata":\{[^{}]*\}', "", text)
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false)', "", text)


class TextReader(TextIntervals):
    """The clauses of a query."""

    def read_all(
        self, tree: exp.Expr, schema: T.StructType | None = None,
        refused: Sequence[Refusal] = (),
    ) -> TextRead:
        """The relational form of a tree.

        Parameters
        ----------
        schema : StructType, optional
            That of the frame whose text it is; then the text has no places to report.
        refused : sequence of Refusal
            Refused parts of the frame.
        """
        try:
            self.check_session()
            query = self.query(tree, None, {})
            query = replace(query, relation=with_merged_sessions(
                query.relation, self.intervals, self.fresh, self.refusals
            ))
            if self.refusals or refused:
                raise RefusedPart
            result = self.whole_schema() if schema is None else schema
        except RefusedPart:
            if schema is not None:
                raise refusals.refused([*refused, *(
                    replace(item, line=None, column=None) for item in self.refusals
                )]) from None
            self.check_names()
            raise refusals.refused(sorted(
                self.refusals, key=lambda item: (item.line or 0, item.column or 0)
            )) from None
        except PySparkException as error:
            raise SchemaError(f"Spark refuses the query: {error}") from error
        columns = tuple(column for _, column in query.outputs)
        ours = [_without_nulls(self.types[column]) for column in columns]
        theirs = [_without_nulls(item.dataType) for item in result.fields]
        names = [name for name, _ in query.outputs]
        if ours != theirs or schema is None and any(
            name is not None and name != item.name for name, item in zip(names, result.fields)
        ):
            raise refusals.refused([Refusal(refusals.EXPRESSION, "SELECT", detail=(
                f"the reader understands the columns as {names} of {ours}, and Spark as "
                f"{result.simpleString()}. Remedy: write the query with the methods of DiffFrame"
            ))])
        if tree.args.get("order") and not (tree.args.get("limit") or tree.args.get("offset")):
            self.notes.append(
                "ORDER BY: a collection has no order; sort the frame that at() returns"
            )
        return TextRead(
            query.relation, columns, tuple(result.names),
            frozenset(table for table, _ in self.read.values()) | self.sources.keys(),
            tuple(self.sources.items()), tuple(self.notes),
        )

    def query(self, node: exp.Expr, outer: Scope | None, ctes: Tables) -> Query:
        if isinstance(node, exp.Values):
            return self.values(node)
        if not isinstance(node, (exp.Select, exp.SetOperation, exp.Subquery)):
            self.refuse(refusals.NODE, node.key.upper(), node)
        ctes = self.common(node.args.get("with_"), ctes)
        if isinstance(node, exp.Select):
            query = self.select(node, outer, ctes)
            node.meta[ORDERED] = query.ordered
            return query
        if isinstance(node, exp.SetOperation):
            query = self.set_operation(node, outer, ctes)
        else:
            # The clause FROM reads the pivots and samples of its tables.
            pivots = ("pivots", "sample") if isinstance(node.parent, (exp.From, exp.Join)) else ()
            self.known(node, "this", "alias", "with_", "order", "limit", "offset", *pivots)
            query = self.query(node.this, outer, ctes)
        entries = tuple(ScopeColumn(name, None, column) for name, column in query.outputs)
        relation = self.first(node, query, Context(Scope(entries, outer), ctes=ctes))
        node.meta[ORDERED] = query.ordered or bool(node.args.get("order"))
        return replace(query, relation=relation, ordered=node.meta[ORDERED])

    # SELECT

    def select(self, node: exp.Select, outer: Scope | None, ctes: Tables) -> Query:
        attempts = Attempts()
        attempts(lambda: self.known(
            node, "expressions", "distinct", "from_", "joins", "laterals", "where", "group",
            "having", "order", "limit", "offset", "with_", "hint", "windows", "qualify",
            # The partitions of a query and their order make no difference to its rows.
            "sort", "distribute", "cluster",
        ), None)
        if node.args.get("distinct"):
            attempts(lambda: self.known(node.args["distinct"]), None)
        relation, scope = self.source(node, outer, ctes, attempts)
        where, having = node.args.get("where"), node.args.get("having")
        if where:
            relation = filtered(relation, attempts(
                lambda: self.conditions(where.this, Context(scope, ctes=ctes)), []
            ))
        relation, scope = attempts(
            lambda: self.with_interval(node, relation, scope, ctes), (relation, scope)
        )
        items = attempts(lambda: [
            part for parts in through(
                node.expressions, lambda item: list(self.expanded(item, scope))
            ) for part in parts
        ], [])
        aliases = {
            self.folded(item.alias): item.this for _, item in items if isinstance(item, exp.Alias)
        }
        context = Context(
            scope, windows=[], ctes=ctes,
            definitions={item.name: item for item in node.args.get("windows") or ()},
            later=frozenset(aliases) | {
                self.folded(name) for name, item in items
                if name is not None and isinstance(item, exp.Expr)
            },
        )
        grouped = node.args.get("group") or having or any(
            True for _, item in items if isinstance(item, exp.Expr) for _ in aggregates_in(item)
        )
        groups = Groups()
        if grouped:
            if attempts.stopped:
                scope = replace(scope, partial=True)
            groups = attempts(lambda: self.groups(
                node.args.get("group"), items, aliases, Context(scope, ctes=ctes)
            ), groups)
            if attempts.stopped:
                scope = replace(scope, partial=True)
            context = replace(
                context, child=scope, keys=groups.columns(), groupings=groups.groupings()
            )
        generated: list[Generate] = []
        named, outputs = attempts(lambda: self.selected(items, context, generated), ([], ()))
        after = attempts(
            lambda: self.passed_groups(having, items, aliases, context), []
        ) if having else []
        limited = bool(node.args.get("limit") or node.args.get("offset"))
        if attempts.stopped:
            scope = replace(scope, partial=True)
        ordering = replace(
            context, windows=None, later=frozenset(),
            scope=replace(context.scope, partial=scope.partial),
            child=None if context.child is None else scope,
            outputs={
                self.folded(name): column for name, column in outputs
                if name is not None and once(name, [other for other, _ in outputs])
            },
        )
        order = attempts(lambda: self.ordered(node, outputs, ordering), []) if limited else []
        qualify = node.args.get("qualify")
        qualifying = replace(ordering, windows=[])
        passed = attempts(lambda: self.qualified(qualify, qualifying), []) if qualify else []
        limits = attempts(lambda: self.limits(node), (None, 0))
        sorted_below = self.is_ordered(node, ctes)
        if limited and sorted_below and not node.args.get("order"):
            attempts(lambda: self.refuse_limit(node), None)
        attempts.end()
        if grouped:
            relation, keys = self.once_for_each_set(relation, groups)
            relation = Aggregate(
                relation, keys, tuple(item for _, item, _ in context.calls),
                frozenset(item.name for _, item, zero in context.calls if zero),
            )
        relation = filtered(relation, after)
        for item in generated:
            relation = replace(item, child=relation)
        if generated and (context.windows or qualify):
            self.refuse(refusals.NODE, "a window next to a generator in SELECT", node)
        if context.windows:
            relation = Window(relation, tuple(context.windows))
        if qualify:
            below = {item.name for item in named}
            relation = Project(relation, (
                *named, *(Named(column, column_of(column)) for column in relation.columns
                          if column not in below)
            ))
            if qualifying.windows:
                relation = Window(relation, tuple(qualifying.windows))
            relation = filtered(relation, passed)
            named = [Named(item.name, column_of(item.name)) for item in named]
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
            relation = self.limited(relation, order, *limits)
        ordered = bool(node.args.get("order")) or sorted_below and not (
            grouped or context.windows or node.args.get("distinct")
        )
        return Query(relation, outputs, self.kept_qualifiers(items, outputs, scope), ordered)

    def passed_groups(
        self, having: exp.Expr, items: Sequence[Item], aliases: dict[str, exp.Expr],
        context: Context,
    ) -> list[SqlExpression]:
        """The conditions of HAVING, which may name the items of the select list."""
        return self.conditions(having.this, replace(
            context, windows=None, aliases=aliases, later=frozenset(),
            earlier=self.with_earlier(items, context)[-1].earlier,
        ))

    def kept_qualifiers(
        self, items: Sequence[Item], outputs: Sequence[tuple[str | None, str]], scope: Scope
    ) -> dict[str, str]:
        """The qualifiers of the columns of a select list that have no alias."""
        if len(items) != len(outputs):
            return {}
        qualifiers = {}
        for (_, item), (_, column) in zip(items, outputs):
            if isinstance(item, exp.Column):
                entries = self.matches([part.name for part in item.parts], scope)
                item = entries[0][0] if len(entries) == 1 else item
            if isinstance(item, ScopeColumn) and item.qualifier is not None:
                qualifiers[column] = item.qualifier
        return qualifiers

    def expanded(self, node: exp.Expr, scope: Scope) -> Iterator[Item]:
        """The columns of a star, or an expression with its name."""
        star = node.this if isinstance(node, exp.Column) else node
        if isinstance(star, exp.Star):
            self.known(star, "except_", "replace")
            entries: list[ScopeColumn] = scope.visible()
            if isinstance(node, exp.Column):
                self.known(node, "this", "table")
                own = [
                    entry for entry in scope.entries if entry.qualifier is not None
                    and self.folded(entry.qualifier) == self.folded(node.table)
                ]
                # Spark writes the second key of USING first.
                entries = sorted(own, key=lambda entry: not entry.hidden)
            if not entries and scope.partial:
                raise RefusedPart
            if not entries:
                self.refuse(refusals.NODE, "a star of no table", node)
            left_out = [self.left_out(part, entries) for part in star.args.get("except_") or ()]
            entries = [entry for entry in entries if entry not in left_out]
            values = [
                (self.left_out(part.args["alias"], entries), part)
                for part in star.args.get("replace") or ()
            ]
            for entry in entries:
                value = next((part for other, part in values if other == entry), None)
                yield (entry.name, entry) if value is None else (value.alias, value)
            return
        inner = node
        while isinstance(inner, exp.Paren):
            inner = inner.this
        if isinstance(node, exp.Aliases) and function_name(node.this) not in GENERATORS:
            self.refuse(refusals.NODE, "an alias of several columns", node)
        name = node.alias if isinstance(node, exp.Alias) else (
            inner.parts[-1].name if isinstance(inner, exp.Column) else None
        )
        if name is None and function_name(inner) in INTERVALS:
            name = function_name(inner)
        yield name, node

    def left_out(self, node: exp.Expr, entries: Sequence[ScopeColumn]) -> ScopeColumn:
        """The column of a star that a name in its EXCEPT leaves out."""
        if isinstance(node, exp.Identifier):
            node = exp.Column(this=node)
        if not isinstance(node, exp.Column) or len(node.parts) > 2:
            self.refuse(refusals.NODE, "EXCEPT of a field or expression", node)
        name, table = self.folded(node.name), self.folded(node.table)
        matches = [
            entry for entry in entries if entry.name is not None
            and self.folded(entry.name) == name and (not table or (
                entry.qualifier is not None and self.folded(entry.qualifier) == table
            ))
        ]
        fields = table and any(
            entry.name is not None and self.folded(entry.name) == table for entry in entries
        )
        # EXCEPT of a field leaves the rest of its struct, which the form has no column for.
        if fields or len(matches) != 1 or any(entry.hidden for entry in entries) or (
            entries.count(matches[0]) > 1
        ):
            self.refuse(refusals.NODE, f"EXCEPT of {node.sql()}", node)
        return matches[0]

    def selected(
        self, items: Sequence[Item], context: Context, generated: list[Generate]
    ) -> tuple[list[Named], tuple[tuple[str | None, str], ...]]:
        """The columns of a select list, and their names; generators go to their list."""
        contexts = self.with_earlier(items, context)
        read = through(
            zip(items, contexts), lambda pair: self.select_item(*pair[0], pair[1], generated)
        )
        named = {column: value for part in read for _, column, value in part}
        self.typed(named.items())
        return [Named(column, value) for column, value in named.items()], tuple(
            (name, column) for part in read for name, column, _ in part
        )

    def with_earlier(self, items: Sequence[Item], context: Context) -> list[Context]:
        """The contexts of the items of a select list, and the one after the last item.

        An item may name those before it. IN with a subquery is false for NULL, which only a
        condition allows, and a generator has rows.
        """
        contexts, earlier = [], dict(context.earlier)
        for _, item in items:
            contexts.append(replace(context, earlier=dict(earlier)))
            if not isinstance(item, exp.Alias):
                continue
            name = self.folded(item.alias)
            plain = name not in earlier and not any(
                isinstance(part, exp.In) and part.args.get("query")
                or function_name(part) in GENERATORS for part in item.this.walk()
            )
            earlier.pop(name, None)
            if plain:
                earlier[name] = item.this, contexts[-1].earlier
        return [*contexts, replace(context, earlier=earlier)]

    def select_item(
        self, name: str | None, item: exp.Expr | ScopeColumn, context: Context,
        generated: list[Generate],
    ) -> list[tuple[str | None, str, SqlExpression]]:
        """The columns of an item: their names in the query and in the form, and their values."""
        if isinstance(item, exp.Expr):
            inner = item.this if isinstance(item, exp.Aliases) else _inner(item)
            if function_name(inner) in GENERATORS:
                return self.generated_columns(item, inner, context, generated)
            value = self.expression(inner, context)
        elif context.keys is None:
            value = column_of(item.column)
        else:
            key = context.keys.get(canonical(item.column))
            if key is None and context.scope.partial:
                raise RefusedPart
            if key is None:
                self.refuse(refusals.NODE, "a star with GROUP BY", None)
            value = column_of(key)
        column = value.text
        if value != column_of(column) or value.subqueries:
            column = self.fresh(name)
        return [(name, column, value)]

    def generated_columns(
        self, node: exp.Expr, call: exp.Expr, context: Context, generated: list[Generate],
    ) -> list[tuple[str | None, str, SqlExpression]]:
        """The columns of a generator in a select list."""
        if generated:
            self.refuse(refusals.NODE, "several generators in SELECT", node)
        # The child is that of the whole select.
        item, pairs = self.generate(call, UnionAll((), ()), context)
        generated.append(item)
        names = [name for name, _ in pairs]
        if isinstance(node, exp.Aliases):
            names = [part.name for part in node.expressions]
        elif isinstance(node, exp.Alias):
            names = [node.alias]
        if len(names) != len(pairs):
            self.refuse(refusals.NODE, "an alias with another number of columns", node)
        return [(name, column, column_of(column)) for name, (_, column) in zip(names, pairs)]

    def qualified(self, node: exp.Expr, context: Context) -> list[SqlExpression]:
        """The conditions of QUALIFY, which sees the select list before the columns of FROM."""
        for item in aggregates_in(node.this):
            self.refuse(refusals.NODE, "an aggregate in QUALIFY", item, (
                "Spark reads it after GROUP BY. Remedy: name it in the select list, and use its "
                "name"
            ))
        for column in node.find_all(exp.Column):
            output = context.outputs.get(self.folded(column.parts[0].name))
            below = self.matches([part.name for part in column.parts], context.child or (
                context.scope
            ))
            own = {entry.column for entry, _ in below}
            if context.keys is not None:
                own = {context.keys.get(canonical(name)) or name for name in own}
            if output is not None and own and own != {output}:
                self.refuse(refusals.EXPRESSION, f"{column.name} in QUALIFY", column, (
                    "the name is that of an alias and of a column of FROM, and Spark takes one in "
                    "a window and the other outside of it. Remedy: give the alias another name"
                ))
        conditions = self.conditions(node.this, context)
        if any(outers_of(query.relation) for part in conditions for query in part.subqueries):
            self.refuse(refusals.NODE, "a correlated subquery in QUALIFY", node)
        return conditions

    # UNION, EXCEPT, INTERSECT

    def set_operation(
        self, node: exp.SetOperation, outer: Scope | None, ctes: Tables
    ) -> Query:
        self.known(node, "this", "expression", "distinct", "order", "limit", "offset", "with_")
        queries = through(
            (node.this, node.expression), lambda side: self.query(side, outer, ctes)
        )
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
        qualifiers = {
            new: left.qualifiers[old]
            for (_, old), (_, new), kind in zip(left.outputs, outputs, kinds)
            if old in left.qualifiers and self.types[old] == kind
        }
        sides = []
        for query in queries:
            named = []
            for (_, old), (_, new), kind in zip(query.outputs, outputs, kinds):
                text = old if self.types[old] == kind else f"CAST({old} AS {kind.simpleString()})"
                named.append(Named(new, SqlExpression(text, columns=frozenset({old}))))
            sides.append(Project(query.relation, tuple(named)))
        columns = tuple(new for _, new in outputs)
        distinct = bool(node.args.get("distinct"))
        if isinstance(node, exp.Union):
            relation: Relation = UnionAll(tuple(sides), columns)
            return Query(Distinct(relation) if distinct else relation, outputs, qualifiers)
        if not isinstance(node, (exp.Except, exp.Intersect)):
            self.refuse(refusals.NODE, node.key.upper(), node)
        how = node.key if distinct else f"{node.key}_all"
        return Query(SetOperation(sides[0], sides[1], how, columns), outputs, qualifiers)


def _inner(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.Alias) else node
