"""Reads PIVOT and UNPIVOT in the text of a query.

    PIVOT    =  a row for each group of the other columns, with a column for each value
    UNPIVOT  =  a row for each of the columns, without NULLs
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.query import refusals
from pyspark_diff.query.form import (
    Aggregate,
    Named,
    Project,
    Relation,
    Selection,
    SqlExpression,
    UnionAll,
    column_of,
)
from pyspark_diff.query.text_fields import quoted
from pyspark_diff.query.text_groups import TextGroups
from pyspark_diff.query.text_names import Context, Scope, ScopeColumn, Tables, through
from pyspark_diff.query.text_parser import canonical
from pyspark_diff.query.text_values import literal
from pyspark_diff.spark.jvm import frame_of_no_rows

#: Types whose aggregates are NULL in a group without rows.
_PLAIN = (
    T.NumericType, T.BooleanType, T.StringType, T.DateType, T.TimestampType, T.TimestampNTZType,
)


class TextPivots(TextGroups):
    """The pivots of a query."""

    def pivoted(
        self, node: exp.Expr, relation: Relation, entries: tuple[ScopeColumn, ...], ctes: Tables
    ) -> tuple[Relation, tuple[ScopeColumn, ...]]:
        """A table of FROM after its PIVOT or UNPIVOT."""
        pivots = node.args.get("pivots")
        if not pivots:
            return relation, entries
        (pivot, *more), select = pivots, node.find_ancestor(exp.Select)
        if more or select is None or select.args.get("joins") or select.args.get("laterals"):
            self.refuse(refusals.NODE, "PIVOT next to other tables", node)
        names = [entry.name for entry in entries]
        if None in names or len({self.folded(name or "") for name in names}) < len(names):
            self.refuse(refusals.NODE, "PIVOT of columns without names of their own", node)
        fields = self.pivot_schema(pivot, node, entries)
        if pivot.args.get("unpivot"):
            self.known(pivot, "expressions", "fields", "unpivot", "include_nulls", "alias",
                       "value_columns_first")
            relation, columns = self.unpivot(pivot, relation, entries, fields)
        else:
            self.known(pivot, "expressions", "fields", "alias", "columns", "pivot_column_naming")
            relation, columns = self.pivot(pivot, relation, entries, ctes)
        if len(columns) != len(fields):
            self.refuse(refusals.NODE, "PIVOT", node)
        for column, item in zip(columns, fields):
            self.types[column] = item.dataType
        alias = pivot.args.get("alias")
        qualifier = alias.name if alias is not None else None
        if alias is not None:
            self.known(alias, "this")
        return relation, tuple(
            ScopeColumn(item.name, qualifier, column) for item, column in zip(fields, columns)
        )

    def pivot_schema(
        self, pivot: exp.Expr, node: exp.Expr, entries: Sequence[ScopeColumn]
    ) -> list[T.StructField]:
        """The columns that Spark makes of a pivot."""
        begin, depth, end = None, 0, None
        start = self.place(node.this if isinstance(node, exp.Table) else node)[0]
        for word, at, stop, plain in self.words:
            if at < start or end is not None:
                continue
            if begin is None:
                if plain and word.upper() in ("PIVOT", "UNPIVOT"):
                    begin = at
                continue
            depth += {"(": 1, ")": -1}.get(word, 0)
            if word == ")" and depth == 0:
                end = stop
        if begin is None or end is None:
            self.refuse(refusals.NODE, "PIVOT", node)
        frame = frame_of_no_rows(self.spark, T.StructType([
            T.StructField(entry.name or "", self.types[entry.column]) for entry in entries
        ]))
        text = self.source_text[begin:end].replace("{", "{{").replace("}", "}}")
        alias = next((entry.qualifier for entry in entries if entry.qualifier), None)
        name = f" AS {quoted(alias)}" if alias else ""
        schema: T.StructType = self.spark.sql(f"SELECT * FROM {{c}}{name} {text}", c=frame).schema
        return schema.fields

    def pivot(
        self, pivot: exp.Expr, relation: Relation, entries: Sequence[ScopeColumn], ctes: Tables
    ) -> tuple[Relation, list[str]]:
        if len(pivot.args["fields"]) != 1:
            self.refuse(refusals.NODE, "PIVOT by several FOR", pivot)
        field = pivot.args["fields"][0]
        if not isinstance(field, exp.In):
            self.refuse(refusals.NODE, "PIVOT without a list of values", pivot)
        self.known(field, "this", "expressions")
        scope = Scope(tuple(entries))
        by = through(_parts(field.this), lambda item: self.expression(item, Context(scope)))
        chosen = [(self.fresh("p"), value) for value in by]
        self.typed(chosen)
        context = Context(scope, keys={}, child=scope, ctes=ctes)
        inner = [item.this if isinstance(item, exp.Alias) else item for item in pivot.expressions]
        values = [(self.fresh("v"), value) for value in through(
            inner, lambda item: self.expression(item, context)
        )]
        self.typed(values)
        for (name, value), item in zip(values, inner):
            kind = self.types[name]
            called = canonical(value.text) in [canonical(call.name) for _, call, _ in context.calls]
            if not isinstance(kind, _PLAIN) or not (called or isinstance(kind, T.NumericType)):
                self.refuse(refusals.NODE, f"PIVOT of {kind.simpleString()}", item)
        used = set().union(*(value.columns for value in by), *(
            call.expression.columns for _, call, _ in context.calls
        ))
        keys = [entry.column for entry in entries if entry.column not in used]
        groups = Aggregate(
            relation, (*(Named(key, column_of(key)) for key in keys),
                       *(Named(*item) for item in chosen)),
            tuple(call for _, call, _ in context.calls),
            frozenset(call.name for _, call, zero in context.calls if zero),
        )
        rows = Project(groups, tuple(
            Named(name, value) for name, value in (
                *((key, column_of(key)) for key in keys),
                *((name, column_of(name)) for name, _ in chosen), *values,
            )
        ))
        results = []
        for item in field.expressions:
            constant = item.this if isinstance(item, exp.PivotAlias) else item
            tests = []
            for (name, _), part in zip(chosen, _parts(constant)):
                text = self.expression(part, Context(Scope(()))).text
                tests.append(f"{name} <=> CAST({text} AS {self.types[name].simpleString()})")
            for column, _ in values:
                results.append(Named(self.fresh("c"), SqlExpression(
                    f"max(CASE WHEN {' AND '.join(tests)} THEN {column} END)",
                    columns=frozenset({column, *(name for name, _ in chosen)}),
                )))
        whole = Aggregate(
            rows, tuple(Named(self.fresh("k"), column_of(key)) for key in keys), tuple(results)
        )
        return whole, list(whole.columns)

    def unpivot(
        self, pivot: exp.Expr, relation: Relation, entries: Sequence[ScopeColumn],
        fields: Sequence[T.StructField],
    ) -> tuple[Relation, list[str]]:
        if len(pivot.args["fields"]) != 1 or len(pivot.expressions) != 1:
            self.refuse(refusals.NODE, "UNPIVOT of several values", pivot)
        field, scope = pivot.args["fields"][0], Scope(tuple(entries))
        chosen = []
        for item in field.expressions:
            column = item.this if isinstance(item, exp.PivotAlias) else item
            if not isinstance(column, exp.Column):
                self.refuse(refusals.NODE, "UNPIVOT of several values", pivot)
            match = self.matches([part.name for part in column.parts], scope)
            if len(match) != 1:
                self.refuse(refusals.EXPRESSION, column.name, column, "UNPIVOT needs one column")
            entry = match[0][0]
            label = item.args["alias"].name if isinstance(item, exp.PivotAlias) else entry.name
            chosen.append((entry.column, label or ""))
        gone = {column for column, _ in chosen}
        rest = [entry.column for entry in entries if entry.column not in gone]
        columns = [self.fresh("k") for _ in rest] + [self.fresh("k"), self.fresh("v")]
        kind = fields[-1].dataType.simpleString()
        sides = tuple(
            Project(relation, (
                *(Named(new, column_of(old)) for old, new in zip(rest, columns)),
                Named(columns[-2], SqlExpression(literal(label))),
                Named(columns[-1], SqlExpression(
                    f"CAST({column} AS {kind})", columns=frozenset({column})
                )),
            ))
            for column, label in chosen
        )
        whole: Relation = UnionAll(sides, tuple(columns))
        if not pivot.args.get("include_nulls"):
            present = SqlExpression(f"{columns[-1]} IS NOT NULL", columns=frozenset({columns[-1]}))
            whole = Selection(whole, (present,))
        return whole, columns


def _parts(node: exp.Expr) -> list[exp.Expr]:
    """The expressions in brackets, or the only one."""
    return list(node.expressions) if isinstance(node, exp.Tuple) else [node]
