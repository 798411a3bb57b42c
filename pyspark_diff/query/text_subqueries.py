"""Reads the subqueries in the expressions of a query's text: each becomes a column.

    IN, NOT IN, EXISTS and scalar subqueries  =  columns that the form defines by their relations
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.query import refusals
from pyspark_diff.query.form import Named, Project, Relation, SqlExpression, Subquery, column_of
from pyspark_diff.query.text_expressions import TextExpressions
from pyspark_diff.query.text_names import Context, Query, Scope, Tables, TextReferences
from pyspark_diff.query.text_parser import canonical


class TextSubqueries(TextExpressions):
    """The subqueries of a text."""

    def subquery(self, node: exp.Expr, context: Context, parts: TextReferences) -> str | None:
        """The column of a subquery; None for a node that is none."""
        target, kind = node, "scalar"
        if isinstance(node, exp.Not):
            inner = node.this
            while isinstance(inner, exp.Paren):
                inner = inner.this
            if context.keys is not None and self.key_of(inner, context) is not None:
                return None
            if isinstance(inner, exp.Exists):
                return f"NOT {self.subquery(inner, context, parts)}"
            if not isinstance(inner, exp.In):
                return None
            target, kind = inner, "not in"
        if isinstance(target, exp.In):
            if any(isinstance(item, exp.Query) for item in target.expressions):
                self.refuse(refusals.NODE, "IN with a subquery in its list", node)
            if not target.args.get("query"):
                return None
            self.known(target, "this", "query")
            kind = kind if kind == "not in" else "in"
            # Elsewhere a NULL would differ from false.
            above = node.parent
            while isinstance(above, (exp.And, exp.Or, exp.Paren, exp.Case, exp.If)):
                above = above.parent
            if not isinstance(above, (
                exp.Where, exp.Having, exp.Qualify, exp.Join, exp.Alias, exp.Select, exp.Group,
            )):
                self.refuse(refusals.NODE, f"{kind.upper()} with a subquery in an operator", node)
        elif isinstance(target, exp.Exists):
            self.known(target, "this")
            kind = "exists"
        elif not isinstance(target, exp.Subquery):
            return None
        body = target.args["query"] if isinstance(target, exp.In) else (
            target.this if isinstance(target, exp.Exists) else target
        )
        query = self.query(body, self.enclosing(context), context.ctes)
        relation = picked(query)
        values: tuple[SqlExpression, ...] = ()
        if isinstance(target, exp.In):
            left = target.this.expressions if isinstance(target.this, exp.Tuple) else [target.this]
            values = tuple(self.expression(item, context) for item in left)
            self.compared(values, relation.columns, node)
        elif kind == "scalar" and len(relation.columns) != 1:
            self.refuse(refusals.NODE, "a scalar subquery with several columns", node)
        name = self.fresh("s")
        self.types[name] = (
            self.types[relation.columns[0]] if kind == "scalar" else T.BooleanType()
        )
        parts.subqueries.append(Subquery(name, kind, relation, values))
        for value in values:
            parts.columns |= value.columns
        return name

    def compared(
        self, values: Sequence[SqlExpression], columns: Sequence[str], node: exp.Expr
    ) -> None:
        """Refuses an IN whose sides Spark might convert to another type than an equality."""
        names = [self.fresh("v") for _ in values]
        self.typed(list(zip(names, values)))
        if len(values) != len(columns):
            self.refuse(refusals.NODE, "IN with several columns", node)
        for name, column in zip(names, columns):
            left, right = self.types[name], self.types[column]
            plain = all(
                isinstance(kind, (T.IntegralType, T.DoubleType)) for kind in (left, right)
            )
            if left != right and not plain:
                self.refuse(refusals.NODE, (
                    f"IN of {left.simpleString()} and {right.simpleString()}"
                ), node, "the types differ. Remedy: cast one side to the type of the other")

    def enclosing(self, context: Context) -> Scope:
        """The columns that a subquery at a place may refer to."""
        if context.keys is None or context.child is None:
            return context.scope
        match = [
            (entry, context.keys.get(canonical(entry.column))) for entry in context.child.entries
        ]
        return Scope(
            tuple(replace(entry, column=key) for entry, key in match if key is not None),
            context.child.outer, context.child.partial,
        )

    def query(self, node: exp.Expr, outer: Scope | None, ctes: Tables) -> Query:
        """The relation of a query inside of the text."""
        raise NotImplementedError


def picked(query: Query) -> Relation:
    """The relation with the columns of the result alone."""
    columns = dict.fromkeys(column for _, column in query.outputs)
    if query.relation.columns == tuple(columns):
        return query.relation
    return Project(query.relation, tuple(Named(name, column_of(name)) for name in columns))
