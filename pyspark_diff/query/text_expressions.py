"""Reads the expressions of a query's text: the text itself, in which columns have other names.

Subqueries, aggregates and windows become columns, so no function is rewritten. Spark says the type
of each expression, by a frame without rows. A name that the reader has not replaced is an error
there, as no name of the form is a word of the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlglot import exp

from pyspark_diff.errors import SchemaError
from pyspark_diff.query import refusals
from pyspark_diff.query.clock import NOTE, QueryClock
from pyspark_diff.query.form import (
    OUTER,
    Named,
    Order,
    SqlExpression,
    WindowFunction,
    may_fail,
)
from pyspark_diff.query.refusals import RefusedPart
from pyspark_diff.query.text_calls import (
    AGGREGATES,
    CLOCK,
    CLOCK_NODES,
    INTERVALS,
    OFFSETS,
    OTHERS,
    RANDOM,
    REFUSED,
    SYNTAX,
    UNIT,
    UNITS,
    ZEROS,
    aggregate_of,
    clock_kind,
    function_name,
)
from pyspark_diff.query.text_fields import TextFields, is_star, quoted
from pyspark_diff.query.text_names import Attempts, Context, Scope, TextReferences, through
from pyspark_diff.query.text_parser import canonical, place_of

_COMMENT = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|--[^\n]*|/\*.*?\*/""", re.DOTALL
)


class TextExpressions(TextFields):
    """The expressions of a text."""

    def expression(self, node: exp.Expr, context: Context) -> SqlExpression:
        parts = TextReferences()
        text = self.text(node, context, parts)
        return parts.expression(text)

    def text(self, node: exp.Expr, context: Context, parts: TextReferences) -> str:
        """The text of a node, its columns under the names of the form."""
        node = node.this if isinstance(node, exp.Alias) else node
        start, end = self.place(node)
        edits: dict[tuple[int, int], str] = {}
        self.edit(node, context, parts, edits)
        return self.replaced(node, (start, end), edits)

    def replaced(
        self, node: exp.Expr, place: tuple[int, int], edits: dict[tuple[int, int], str]
    ) -> str:
        """The text at a place after some replacements, without comments."""
        pieces, at = [], place[0]
        for (begin, stop), replacement in sorted(edits.items()):
            if begin < at or stop > place[1]:
                self.refuse(refusals.EXPRESSION, self.source_text[slice(*place)], node)
            pieces += [self.source_text[at:begin], replacement]
            at = stop
        text = "".join([*pieces, self.source_text[at:place[1]]])
        # A comment up to the end of a line would hide the text after it.
        return _COMMENT.sub(lambda match: match[1] or " ", text)

    def edit(
        self, node: exp.Expr, context: Context, parts: TextReferences,
        edits: dict[tuple[int, int], str],
    ) -> None:
        """Notes the replacements of the columns, calls and subqueries in a node."""
        if is_star(node):
            edits[self.place(node)] = self.star(node, context, parts)
            return
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            output = context.outputs.get(self.folded(node.name))
            if output is not None:
                parts.columns.add(output)
                edits[self.place(node)] = output
                return
        if context.keys is not None:
            key = self.key_of(node, context)
            if key is not None:
                parts.columns.add(key)
                edits[self.place(node)] = key
                return
        if isinstance(node, exp.Column):
            edits[self.place(node)] = self.column(node, context, parts)
            return
        if isinstance(node, exp.Window):
            edits[self.place(node)] = self.window(node, context, parts)
            return
        if isinstance(node, (exp.Subquery, exp.Exists, exp.Not, exp.In, exp.Query)):
            match = self.subquery(node, context, parts)
            if match is not None:
                edits[self.place(node)] = match
                return
        if aggregate_of(node) is not None:
            edits[self.place(node)] = self.aggregate(node, context, parts)
            return
        if context.groupings is not None and function_name(node) in ("grouping", "grouping_id"):
            edits[self.place(node)] = self.grouping(node, context, parts)
            return
        interval = (context.child or context.scope).interval
        if interval is not None and function_name(node) in INTERVALS:
            if interval[0] == canonical(self.source_text[slice(*self.place(node))]):
                parts.columns.add(interval[1])
                edits[self.place(node)] = interval[1]
                return
        if self.clock is not None and clock_kind(node) is not None:
            edits[self.place(node)] = self.current(node, self.clock, parts)
            return
        if isinstance(node, exp.Anonymous) and function_name(node) == "arrays_zip":
            edits[self.place(node)] = self.zipped(node, context, parts)
            return
        self.check(node)
        below: Iterable[exp.Expr] = list(node.iter_expressions())
        if isinstance(node, exp.Anonymous):
            below = node.expressions
            if function_name(node) in UNITS and len(node.expressions) == 3:
                first = node.expressions[0]
                if isinstance(first, (exp.Column, exp.Var)) and first.name.lower() in UNIT:
                    below = node.expressions[1:]
        fields = isinstance(node, exp.Tuple) or function_name(node) == "struct"
        attempts = Attempts()
        shifted = False
        for number, item in enumerate(below):
            attempts(lambda: self.edit(item, context, parts, edits), None)
            if fields and not attempts.stopped and not is_star(item):
                self.name_field(item, number, edits, shifted)
            shifted |= is_star(item)
        attempts.end()

    def current(self, node: exp.Expr, clock: QueryClock, parts: TextReferences) -> str:
        """The current date or time, as the value of the clock."""
        value = clock.value(self.fresh)
        self.types[value.name] = clock.kind
        parts.subqueries.append(value)
        if NOTE not in self.notes:
            self.notes.append(NOTE)
        return f"CAST({value.name} AS {clock_kind(node)})"

    def grouping(self, node: exp.Expr, context: Context, parts: TextReferences) -> str:
        """The text of a call that says which keys the grouping set of a row lacks."""
        groupings, child = context.groupings, context.child
        assert groupings is not None and child is not None
        parts.columns.add(groupings.column)
        if function_name(node) == "grouping_id":
            return groupings.column
        bits = through(node.expressions, lambda item: groupings.bits.get(
            canonical(self.text(item, Context(child), TextReferences()))
        ))
        if len(bits) != 1 or bits[0] is None:
            self.refuse(refusals.NODE, "grouping(...) of no key", node)
        return f"CAST(shiftright({groupings.column}, {bits[0]}) & 1 AS TINYINT)"

    def check(self, node: exp.Expr) -> None:
        """Refuses calls and nodes that have another meaning outside of their query."""
        name = function_name(node)
        if name is not None:
            if name in CLOCK or name == "unix_timestamp" and not node.expressions:
                self.refuse(refusals.CURRENT_TIME, f"{name}()", node)
            if name in RANDOM:
                self.refuse(refusals.NON_DETERMINISTIC, f"{name}()", node)
            if name in REFUSED:
                self.refuse(refusals.NODE, f"{name}(...)", node)
            if name in OFFSETS and not isinstance(
                node.parent, (exp.Window, exp.IgnoreNulls, exp.RespectNulls)
            ):
                self.refuse(refusals.WINDOW_EXPRESSION, f"{name}(...)", node)
            if self._functions is None:
                rows = self.spark.sql("SHOW SYSTEM FUNCTIONS").collect()
                self._functions = frozenset(row[0].lower() for row in rows)
            if name not in self._functions | SYNTAX:
                self.refuse(refusals.PYTHON_FUNCTION, f"{name}(...)", node, (
                    "the function is none of Spark's own. Remedy: apply it to a frame with "
                    "withColumn"
                ))
        if isinstance(node, CLOCK_NODES):
            place = place_of(node)
            self.refuse(
                refusals.CURRENT_TIME, self.source_text[slice(*place)] if place else node.key, node
            )
        if isinstance(node, (exp.All, exp.Any)) and isinstance(node.parent, (exp.Like, exp.ILike)):
            if isinstance(node.this, (exp.Tuple, exp.Paren)):
                return
        if isinstance(node, (
            exp.All, exp.Any, exp.CurrentUser, exp.Parameter, exp.Placeholder, exp.Query,
            exp.SessionParameter, exp.Star, exp.Table,
        )):
            self.refuse(refusals.EXPRESSION, node.key, node)
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            self.refuse(refusals.PYTHON_FUNCTION, node.sql("spark"), node)

    def key_of(self, node: exp.Expr, context: Context) -> str | None:
        """The key of the group that a node is."""
        assert context.keys is not None and context.child is not None
        if place_of(node) is None:
            return None
        if any(True for _ in node.find_all(exp.Query, exp.Exists)):
            return self.key_of_subquery(node, context)
        if any(True for _ in node.find_all(exp.Window)):
            return None
        if any(
            aggregate_of(item) is not None or function_name(item) in ("grouping", "grouping_id")
            for item in node.walk()
        ):
            return None
        for item in node.find_all(exp.Column):
            names = _names(item)
            # ORDER BY prefers the select list.
            if self.folded(names[0]) in context.outputs or not self.matches(names, context.child):
                return None
        text = self.text(node, Context(context.child), TextReferences())
        return context.keys.get(canonical(text))

    def key_of_subquery(self, node: exp.Expr, context: Context) -> str | None:
        """The key of the group that a node with a subquery is, by its words."""
        assert context.keys is not None
        tokens = self.own_tokens(node)
        if tokens not in context.keys or any(
            self.folded(_names(item)[0]) in context.outputs for item in node.find_all(exp.Column)
        ):
            return None
        for table, first in zip(
            node.find_all(exp.Table), self.repeated[tokens].find_all(exp.Table)
        ):
            match = self.read.get(self.place(first.this))
            if match is not None:
                self.read[self.place(table.this)] = match
        return context.keys[tokens]

    def own_tokens(self, node: exp.Expr) -> tuple[str, ...]:
        """The tokens of a node in the query's own words."""
        text = self.source_text[slice(*self.place(node))]
        return (text,) if self.sensitive else canonical(text)

    def column(self, node: exp.Column, context: Context, parts: TextReferences) -> str:
        names = _names(node)
        if context.keys is not None:
            return self.grouped_column(node, context, parts)
        own = self.matches(names, context.scope)
        if len(own) != 1 and context.scope.partial:
            raise RefusedPart
        if not own and not context.scope.partial:
            value = self.earlier_item(node, context, parts)
            if value is not None:
                return value
        if not own:
            return self.outer_column(node, context.scope, parts, context.later)
        if len(own) > 1:
            self.refuse(refusals.EXPRESSION, ".".join(names), node, "the name is ambiguous")
        entry, count = own[0]
        parts.columns.add(entry.column)
        return entry.column + _fields(node, count)

    def earlier_item(self, node: exp.Column, context: Context, parts: TextReferences) -> str | None:
        """The value of an item of the select list before this one, if the name is its alias."""
        match = context.earlier.get(self.folded(_names(node)[0]))
        if match is None:
            return None
        alias, before = match
        text = self.text(alias, replace(context, earlier=before), parts)
        return f"({text}){_fields(node, 1)}"

    def outer_column(
        self, node: exp.Column, scope: Scope, parts: TextReferences, later: frozenset[str]
    ) -> str:
        """A column of the enclosing query."""
        names = _names(node)
        if scope.partial or scope.outer is not None and scope.outer.partial:
            raise RefusedPart
        unnamed = any(entry.name is None for entry in scope.entries)
        hidden = unnamed or self.folded(names[0]) in later
        outer = [] if scope.outer is None or hidden else self.matches(names, scope.outer)
        if len(outer) != 1:
            self.refuse(refusals.EXPRESSION, ".".join(names), node, (
                "the reader does not find a column of this name in the clause, nor in the query "
                "around it. Remedy: give expressions in subqueries names with AS, and do not name "
                "an alias in the SELECT or WHERE that defines it"
            ))
        entry, count = outer[0]
        parts.outers.add(entry.column)
        return entry.column + OUTER + _fields(node, count)

    def grouped_column(self, node: exp.Column, context: Context, parts: TextReferences) -> str:
        """A column above an aggregate, which is no key: a field of a key, or an alias."""
        assert context.keys is not None and context.child is not None
        names = _names(node)
        own = self.matches(names, context.child)
        if len(own) == 1:
            key = context.keys.get(canonical(own[0][0].column))
            if key is not None:
                parts.columns.add(key)
                return key + _fields(node, own[0][1])
        alias = context.aliases.get(self.folded(names[0])) if len(names) == 1 else None
        if alias is not None:
            later = context.later | context.aliases.keys()
            return f"({self.text(alias, replace(context, aliases={}, later=later), parts)})"
        if context.child.partial:
            raise RefusedPart
        value = None if own else self.earlier_item(node, context, parts)
        if value is not None:
            return value
        if own:
            self.refuse(refusals.EXPRESSION, ".".join(names), node, (
                "the reader finds it neither among the expressions of GROUP BY nor in an "
                "aggregate. Remedy: write it as GROUP BY has it"
            ))
        return self.outer_column(node, context.child, parts, context.later)

    def aggregate(self, node: exp.Expr, context: Context, parts: TextReferences) -> str:
        """The column of an aggregate."""
        if context.keys is None or context.child is None:
            self.refuse(refusals.NODE, f"{aggregate_of(node)}(...) in this clause", node)
        for item in node.find_all(exp.Column):
            name = self.folded(_names(item)[0])
            own = self.matches(_names(item), context.child)
            if name in context.outputs or not own and (
                name in context.aliases or name in context.later
            ):
                self.refuse(refusals.EXPRESSION, item.name, item, (
                    "an alias in an aggregate. Remedy: write its expression"
                ))
        inner = TextReferences()
        text = self.call_text(node, Context(context.child), inner)
        if inner.outers and not inner.columns:
            self.refuse(refusals.CORRELATED_EXPRESSION, text, node)
        tokens = canonical(text)
        for known, named, _ in context.calls:
            if known == tokens and not inner.subqueries:
                parts.columns.add(named.name)
                return named.name
        name = self.fresh("a")
        call = inner.expression(text)
        function = aggregate_of(node) or ""
        context.calls.append((tokens, Named(name, call), function in ZEROS))
        if function in OTHERS and context.child.outer is not None and not any(
            True for _ in context.keys
        ):
            self.refuse(refusals.NODE, f"{function}(...) in a correlated subquery", node)
        self.typed([(name, call)], aggregates=True)
        parts.columns.add(name)
        return name

    def call_text(
        self, node: exp.Expr, context: Context, parts: TextReferences,
        place: tuple[int, int] | None = None,
    ) -> str:
        """The text of an aggregate or window function: its arguments, order and FILTER."""
        edits: dict[tuple[int, int], str] = {}
        attempts = Attempts()
        function = node
        while not isinstance(function, exp.Anonymous):
            self.known(function, "this", "expression", "expressions")
            if isinstance(function, exp.Filter):
                attempts(lambda: self.edit(function.expression.this, context, parts, edits), None)
            elif isinstance(function, exp.WithinGroup):
                for item in function.expression.expressions:
                    attempts(lambda: self.edit(item.this, context, parts, edits), None)
            elif not isinstance(function, (exp.IgnoreNulls, exp.RespectNulls)):
                self.refuse(refusals.NODE, function.key, node)
            function = function.this
        for item in function.expressions:
            distinct = isinstance(item, exp.Distinct)
            if distinct:
                self.known(item, "expressions")
            for part in item.expressions if distinct else [item]:
                counts = function_name(function) == "count" and not distinct
                if isinstance(part, exp.Star) and counts:
                    self.known(part)
                else:
                    attempts(lambda: self.edit(part, context, parts, edits), None)
        attempts.end()
        return self.replaced(node, place or self.place(node), edits)

    def window(self, node: exp.Window, context: Context, parts: TextReferences) -> str:
        """The column of a window function."""
        if context.windows is None:
            self.refuse(refusals.WINDOW_EXPRESSION, "OVER in this clause", node)
        self.known(node, "this", "partition_by", "order", "spec", "over", "alias")
        definition = self.definition(node, context)
        start, end = self.place(node)
        over, depth = None, 0
        for word, begin, _, _ in self.words:
            if start <= begin < end:
                depth += {"(": 1, ")": -1}.get(word, 0)
                if depth == 0 and word.upper() == "OVER":
                    over = begin
        call = node.this
        while not isinstance(call, exp.Anonymous) and isinstance(call.this, exp.Expr):
            call = call.this
        if over is None or function_name(call) not in AGGREGATES | OFFSETS:
            self.refuse(refusals.WINDOW_EXPRESSION, f"{function_name(call)}(...) OVER", node)
        inside = replace(context, windows=None)
        inner = TextReferences()
        attempts = Attempts()
        function = attempts(
            lambda: self.call_text(node.this, inside, inner, (start, over)), ""
        ).strip()
        expression = inner.expression(function)
        partition = tuple(attempts(lambda: through(
            definition.args.get("partition_by") or (), lambda item: self.expression(item, inside)
        ), []))
        order = attempts(lambda: self.order(definition.args.get("order"), inside), ())
        attempts.end()
        item = WindowFunction(
            self.fresh("w"), expression, partition, order, self.frame(definition.args.get("spec"))
        )
        by = f"PARTITION BY {', '.join(map(str, partition))} " if partition else ""
        by += f"ORDER BY {', '.join(str(part.expression) for part in order)} " if order else ""
        used = [expression, *partition, *(part.expression for part in order)]
        whole = SqlExpression(
            f"{function} OVER ({by}{item.frame})",
            frozenset().union(*(part.outers for part in used)),
            tuple(query for part in used for query in part.subqueries),
            frozenset().union(*(part.columns for part in used)),
        )
        if whole.subqueries:
            self.refuse(refusals.NODE, "a subquery in a window", node)
        for known in context.windows:
            if replace(known, name=item.name) == item:
                parts.columns.add(known.name)
                return known.name
        self.typed([(item.name, whole)])
        context.windows.append(item)
        parts.columns.add(item.name)
        return item.name

    def definition(self, node: exp.Window, context: Context) -> exp.Window:
        """The node with the partition, order and frame of a window, which may have a name."""
        names: list[str] = []
        while node.args.get("alias") is not None:
            name = node.args["alias"].name
            if name in names or name not in context.definitions:
                raise SchemaError(
                    f"Spark refuses the query: OVER refers to the window {name}, and the clause "
                    f"WINDOW defines {', '.join(context.definitions) or 'none'}. Define it there; "
                    "capital letters count"
                )
            if any(node.args.get(part) for part in ("partition_by", "order", "spec")):
                raise SchemaError(
                    f"Spark refuses the query: a window that names {name} has clauses of its own. "
                    f"Write all clauses in one window"
                )
            names.append(name)
            node = context.definitions[name]
        return node

    def frame(self, spec: exp.Expr | None) -> str:
        """The frame of a window; empty if the query has none."""
        if spec is None:
            return ""
        self.known(spec, "kind", "start", "start_side", "end", "end_side")

        def bound(value: Any, side: Any) -> str:
            text = value if isinstance(value, str) else self.source_text[slice(*self.place(value))]
            return f"{text} {side or ''}".strip()

        start = bound(spec.args["start"], spec.args.get("start_side"))
        end = spec.args.get("end")
        stop = "CURRENT ROW" if end is None else bound(end, spec.args.get("end_side"))
        return f"{spec.args['kind']} BETWEEN {start} AND {stop}".upper()

    def order(self, node: exp.Expr | None, context: Context) -> tuple[Order, ...]:
        if node is None:
            return ()
        self.known(node, "expressions")
        for item in node.expressions:
            self.known(item, "this", "desc", "nulls_first")
        return tuple(through(node.expressions, lambda item: Order(
            self.expression(item.this, context), bool(item.args.get("desc")),
            bool(item.args.get("nulls_first")),
        )))

    def conditions(self, node: exp.Expr, context: Context) -> list[SqlExpression]:
        """The conjuncts of a condition, and those that all sides of an OR share.

        Their order depends on that of the query only if they may fail, and not on its aliases.
        """
        spelled = [(self.spelling(item, context), item) for item in _sides(node, exp.And)]
        # The aggregates of HAVING are columns of its relation.
        others = [
            item for words, item in spelled if item.find(exp.Table) is None
            and may_fail(" ".join(word for word in words if word.lower() not in AGGREGATES))
        ]
        safe = [(words, item) for words, item in spelled if item not in others]
        sides = [item for _, item in sorted(safe, key=lambda pair: pair[0])] + others
        read = through(sides, lambda item: self.conjuncts(item, context))
        return [part for parts in read for part in parts]

    def spelling(self, node: exp.Expr, context: Context) -> tuple[str, ...]:
        """The tokens of an expression, its columns without the aliases of tables."""
        scope = context.child or context.scope
        edits = {}
        for item in node.find_all(exp.Column):
            place, match = place_of(item), self.matches(_names(item), scope)
            if place is not None and len(item.parts) > 1:
                edits[place] = match[0][0].column if len(match) == 1 else item.parts[-1].name
            elif place is not None and len(match) == 1:
                edits[place] = match[0][0].column
        place = place_of(node)
        return () if place is None else canonical(self.replaced(node, place, edits))

    def conjuncts(self, node: exp.Expr, context: Context) -> list[SqlExpression]:
        """A conjunct, and those that all sides of it share if it is an OR."""
        whole = self.expression(node, context)
        sides = _sides(node, exp.Or)
        if len(sides) == 1 or whole.subqueries:
            return [whole]
        shared: dict[tuple[str, ...], SqlExpression] | None = None
        for side in sides:
            match = [self.expression(part, context) for part in _sides(side, exp.And)]
            texts = {canonical(part.text): part for part in match}
            shared = {
                key: part for key, part in (texts if shared is None else shared).items()
                if key in texts
            }
        return [whole, *(shared or {}).values()]

    def subquery(self, node: exp.Expr, context: Context, parts: TextReferences) -> str | None:
        """The column of a subquery; None for a node that is none."""
        raise NotImplementedError


def _sides(node: exp.Expr, kind: Any) -> list[exp.Expr]:
    """The operands of a chain of AND or OR."""
    inner = node
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if not isinstance(inner, kind):
        return [node]
    return [*_sides(inner.this, kind), *_sides(inner.expression, kind)]


def _names(node: exp.Column) -> list[str]:
    return [part.name for part in node.parts]


def _fields(node: exp.Column, count: int) -> str:
    """The access to the fields of a struct, after the name of a column."""
    return "".join(f".{quoted(part.name)}" for part in node.parts[count:])
