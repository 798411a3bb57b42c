"""Reads ORDER BY, LIMIT and OFFSET in the text of a query.

    rows of ORDER BY keys LIMIT n  =  the first n rows by the keys
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from sqlglot import exp

from pyspark_diff.query import refusals
from pyspark_diff.query.form import Order, Relation, SqlExpression, TopK, column_of
from pyspark_diff.query.refusals import RefusedPart
from pyspark_diff.query.text_names import Context, Query, Tables, through
from pyspark_diff.query.text_subqueries import picked
from pyspark_diff.query.text_tables import TextTables

#: The key in the metadata of a query whose rows have an order in Spark.
ORDERED = "ordered"


class TextLimits(TextTables):
    """The orders and limits of a query."""

    def first(self, node: exp.Expr, query: Query, context: Context) -> Relation:
        """The rows that the LIMIT and OFFSET of a query without a select list leave."""
        if not (node.args.get("limit") or node.args.get("offset")):
            return query.relation
        if query.ordered and not node.args.get("order"):
            self.refuse_limit(node)
        context = replace(context, outputs={
            self.folded(name): column for name, column in query.outputs
            if name is not None and once(name, [other for other, _ in query.outputs])
        })
        order = self.ordered(node, query.outputs, context)
        return self.limited(picked(query), order, *self.limits(node))

    def ordered(
        self, node: exp.Expr, outputs: Sequence[tuple[str | None, str]], context: Context
    ) -> list[tuple[SqlExpression, bool, bool]]:
        """Sort keys, each with its directions."""
        clause = node.args.get("order")
        if clause is None:
            return []
        self.known(clause, "expressions")
        return through(
            clause.expressions, lambda item: self.sort_key(item, outputs, context)
        )

    def sort_key(
        self, node: exp.Expr, outputs: Sequence[tuple[str | None, str]], context: Context
    ) -> tuple[SqlExpression, bool, bool]:
        self.known(node, "this", "desc", "nulls_first")
        this = node.this
        if isinstance(this, exp.Literal) and not this.is_string:
            number = int(this.name) if this.name.isdigit() else 0
            if not 1 <= number <= len(outputs):
                if context.scope.partial:
                    raise RefusedPart
                self.refuse(refusals.NODE, f"ORDER BY {this.name}", node)
            key = column_of(outputs[number - 1][1])
        else:
            key = self.expression(this, context)
        if key.outers or key.subqueries:
            self.refuse(refusals.NODE, "a subquery or outer column in ORDER BY", node)
        return key, bool(node.args.get("desc")), bool(node.args.get("nulls_first"))

    def limits(self, node: exp.Expr) -> tuple[int | None, int]:
        """The numbers of LIMIT and OFFSET."""
        limit, skip = through(
            (node.args.get("limit"), node.args.get("offset")), self.number
        )
        return limit, skip or 0

    def limited(
        self, relation: Relation, order: Sequence[tuple[SqlExpression, bool, bool]],
        limit: int | None, skip: int,
    ) -> Relation:
        if limit is None and not skip:
            return relation
        if not order:
            self.notes.append(
                "LIMIT without ORDER BY: any rows are right, and these are the least ones by "
                "their columns"
            )
        return TopK(relation, limit, skip, tuple(Order(*item) for item in order))

    def number(self, node: exp.Expr | None) -> int | None:
        """The number of a LIMIT or OFFSET."""
        if node is None:
            return None
        if isinstance(node, exp.Limit) and node.is_limit_all:
            return None
        self.known(node, "expression")
        value = node.args.get("expression")
        if not isinstance(node, (exp.Limit, exp.Offset)) or not isinstance(value, exp.Literal) or (
            not value.name.isdigit() or value.is_string
        ):
            self.refuse(refusals.NODE, f"{node.key.upper()} of an expression", node)
        return int(value.name)

    def is_ordered(self, node: exp.Select, ctes: Tables) -> bool:
        """Whether the only table in FROM is a query whose rows have an order in Spark."""
        clause = node.args.get("from_")
        if clause is None or node.args.get("joins"):
            return False
        table = clause.this
        if isinstance(table, exp.Table) and not table.args.get("db"):
            query = ctes.get(self.folded(table.name))
            return query is not None and query.ordered
        return bool(table.meta.get(ORDERED)) and not table.args.get("pivots")

    def refuse_limit(self, node: exp.Expr) -> NoReturn:
        self.refuse(refusals.NODE, "LIMIT apart from its ORDER BY", node, (
            "Spark takes the first rows of the sorted subquery. Remedy: write ORDER BY next to "
            "LIMIT"
        ))


def once(name: str, names: Sequence[str | None]) -> bool:
    return sum(other is not None and other.lower() == name.lower() for other in names) == 1
