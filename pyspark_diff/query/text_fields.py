"""Reads the parts of a query's text that Spark names by columns: stars, structs, zipped arrays.

    an argument that is a column  =>  its field has the name of the column in the query
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.query import refusals
from pyspark_diff.query.text_calls import function_name
from pyspark_diff.query.refusals import RefusedPart
from pyspark_diff.query.text_names import (
    Context,
    Scope,
    ScopeColumn,
    TextNames,
    TextReferences,
    through,
)
from pyspark_diff.query.text_parser import canonical, place_of

#: An item of a select list with its name: an expression, or a column of a star.
Item = tuple["str | None", "exp.Expr | ScopeColumn"]


class TextFields(TextNames):
    """The stars and fields of a text."""

    def star(self, node: exp.Expr, context: Context, parts: TextReferences) -> str:
        """The columns of a star in a call, as arguments: fields of a struct have names."""
        call = node.parent.parent if isinstance(node.parent, exp.Distinct) else node.parent
        if not isinstance(call, exp.Anonymous):
            self.refuse(refusals.NODE, "a star in an expression", node)
        columns = []
        for name, item in self.expanded(node, context.child or context.scope):
            if not isinstance(item, ScopeColumn) or name is None:
                self.refuse(refusals.EXPRESSION, "a star over a column without a name", node)
            column: str | None = item.column
            if context.keys is not None:
                column = context.keys.get(canonical(item.column))
            if column is None:
                if context.scope.partial:
                    raise RefusedPart
                self.refuse(refusals.NODE, "a star with GROUP BY", node)
            parts.columns.add(column)
            columns.append(
                f"{column} AS {quoted(name)}" if function_name(call) == "struct" else column
            )
        return ", ".join(columns)

    def name_field(
        self, node: exp.Expr, number: int, edits: dict[tuple[int, int], str], shifted: bool
    ) -> None:
        """Gives a field of a struct the name that Spark takes from the query's own column.

        Spark numbers the other fields. The columns of a star would shift the later numbers.
        """
        if isinstance(node, exp.Column):
            edits[self.place(node)] += f" AS {quoted(node.parts[-1].name)}"
        elif isinstance(node, (exp.Dot, exp.Paren)):
            self.refuse_field(node)
        elif place_of(node) in edits:
            edits[self.place(node)] += f" AS col{number + 1}"
        elif shifted and not isinstance(node, exp.Alias):
            end = self.place(node)[1]
            edits[end, end] = f" AS col{number + 1}"

    def refuse_field(self, node: exp.Expr) -> None:
        self.refuse(refusals.EXPRESSION, node.sql("spark"), node, (
            "the reader does not know the name of the field. Remedy: give it one with AS"
        ))

    def zipped(self, node: exp.Anonymous, context: Context, parts: TextReferences) -> str:
        """The text of a call of arrays_zip, cast to the names that the query's columns give."""
        for item in node.expressions:
            if isinstance(item, (exp.Dot, exp.Paren)) or is_star(item):
                self.refuse_field(item)
        if node.find_ancestor(exp.Lambda) is not None:
            self.refuse(refusals.NODE, "arrays_zip(...) in a lambda function", node)
        edits: dict[tuple[int, int], str] = {}
        own = TextReferences()
        through(node.expressions, lambda item: self.edit(item, context, own, edits))
        text = self.replaced(node, self.place(node), edits)
        name = self.fresh("zipped")
        self.typed([(name, own.expression(text))])
        parts.columns |= own.columns
        parts.outers |= own.outers
        parts.subqueries += own.subqueries
        kind = self.types[name]
        if not isinstance(kind, T.ArrayType) or not isinstance(kind.elementType, T.StructType):
            self.refuse(refusals.EXPRESSION, "arrays_zip(...)", node)
        names = [
            item.parts[-1].name if isinstance(item, exp.Column) else str(number)
            for number, item in enumerate(node.expressions)
        ]
        fields = ", ".join(
            f"{quoted(name)}: {field.dataType.simpleString()}"
            for name, field in zip(names, kind.elementType.fields)
        )
        return f"CAST({text} AS ARRAY<STRUCT<{fields}>>)"

    def expanded(self, node: exp.Expr, scope: Scope) -> Iterator[Item]:
        """The columns of a star, or an expression with its name."""
        raise NotImplementedError

    def edit(
        self, node: exp.Expr, context: Context, parts: TextReferences,
        edits: dict[tuple[int, int], str],
    ) -> None:
        """Notes the replacements of the columns, calls and subqueries in a node."""
        raise NotImplementedError

    def replaced(
        self, node: exp.Expr, place: tuple[int, int], edits: dict[tuple[int, int], str]
    ) -> str:
        """The text at a place after some replacements, without comments."""
        raise NotImplementedError


def is_star(node: exp.Expr) -> bool:
    return isinstance(node.this if isinstance(node, exp.Column) else node, exp.Star)


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
