"""Reads the time windows and sessions in the text of a query: ``GROUP BY window(ts, '1 hour')``.

Spark computes the interval of a row below the select list and GROUP BY, as the column ``window`` or
``session_window``, and leaves rows without an interval out.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.query import refusals
from pyspark_diff.query.form import Named, Project, Relation, Selection, SqlExpression, column_of
from pyspark_diff.query.refusals import RefusedPart
from pyspark_diff.query.text_calls import INTERVALS, function_name
from pyspark_diff.query.text_limits import TextLimits
from pyspark_diff.query.text_names import Context, Scope, ScopeColumn, Tables, TextReferences
from pyspark_diff.query.text_parser import canonical


class TextIntervals(TextLimits):
    """The intervals of time of a query."""

    def with_interval(
        self, node: exp.Select, relation: Relation, scope: Scope, ctes: Tables
    ) -> tuple[Relation, Scope]:
        """The rows with the interval that calls of one of `INTERVALS` in a query compute."""
        clauses = [*node.expressions, *filter(None, map(node.args.get, ("group", "order")))]
        calls = [
            item for clause in clauses
            for item in clause.walk(prune=lambda part: isinstance(part, exp.Query))
            if function_name(item) in INTERVALS
        ]
        if not calls:
            return relation, scope
        if scope.partial:
            raise RefusedPart
        call = calls[0]
        name = str(function_name(call))
        tokens = [canonical(self.source_text[slice(*self.place(item))]) for item in calls]
        if tokens.count(tokens[0]) < len(tokens):
            self.refuse(refusals.NODE, f"several {name}(...)", call, (
                f"a query has one interval of time. Remedy: write all calls of {name} in the same "
                "words"
            ))
        context = Context(scope, ctes=ctes)
        value = self.text_of_call(call, context)
        if value.outers or value.subqueries:
            self.refuse(refusals.NODE, f"{name}(...) of a subquery or outer column", call)
        conditions: tuple[SqlExpression, ...] = ()
        if name == "session_window":
            value, conditions = self.session_of(call, context)
        column = self.fresh(name)
        self.typed([(column, value)])
        relation = Project(relation, (
            *(Named(name, column_of(name)) for name in relation.columns), Named(column, value)
        ))
        if conditions:
            self.intervals.add(column)
            relation = Selection(relation, (*conditions, SqlExpression(
                f"{column}.end > {column}.start", columns=frozenset({column})
            )))
        entry = ScopeColumn(name, None, column, computed=True)
        return relation, replace(
            scope, entries=(*scope.entries, entry), interval=(tokens[0], column)
        )

    def text_of_call(self, call: exp.Expr, context: Context) -> SqlExpression:
        """A call with the names of the form in its arguments."""
        edits: dict[tuple[int, int], str] = {}
        parts = TextReferences()
        for argument in call.expressions:
            self.edit(argument, context, parts, edits)
        return parts.expression(self.replaced(call, self.place(call), edits))

    def session_of(
        self, call: exp.Expr, context: Context
    ) -> tuple[SqlExpression, tuple[SqlExpression, ...]]:
        """The interval of a row from its time to the end of its gap, and its conditions."""
        if len(call.expressions) != 2:
            self.refuse(refusals.NODE, "session_window(...) without a time and a gap", call)
        time, gap = (self.expression(argument, context) for argument in call.expressions)
        column = self.fresh("time")
        self.typed([(column, time)])
        kind = self.types[column]
        if isinstance(kind, T.StructType):
            self.refuse(refusals.NODE, "session_window(...) of a time window", call, (
                "it has a start and an end. Remedy: write window.start, or a time of the rows"
            ))
        named = "TIMESTAMP_NTZ" if isinstance(kind, T.TimestampNTZType) else "TIMESTAMP"
        start = f"CAST({time} AS {named})"
        end = f"CAST({start} + CAST({gap} AS INTERVAL) AS {named})"
        return SqlExpression(
            f"named_struct('start', {start}, 'end', {end})", columns=time.columns | gap.columns
        ), (replace(time, text=f"({time}) IS NOT NULL"),)
