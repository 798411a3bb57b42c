"""Reads FROM in the text of a query: tables, joins, generators, and common table expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from sqlglot import exp

from pyspark_diff.query import refusals
from pyspark_diff.query.form import (
    ConstantRelation,
    Generate,
    Join,
    Named,
    Project,
    Recursion,
    RecursionReference,
    Relation,
    Scan,
    SqlExpression,
    column_of,
    references,
)
from pyspark_diff.query.refusals import RefusedPart
from pyspark_diff.query.text_calls import FROM_ONLY, GENERATORS, function_name
from pyspark_diff.query.text_fields import quoted
from pyspark_diff.query.text_names import (
    Attempts,
    Context,
    Query,
    Scope,
    ScopeColumn,
    Tables,
    TextReferences,
    through,
)
from pyspark_diff.query.text_parser import place_of
from pyspark_diff.query.text_pipes import PIPED
from pyspark_diff.query.text_pivots import TextPivots
from pyspark_diff.query.text_subqueries import picked
from pyspark_diff.spark.jvm import analysed_plan

_KINDS = {
    ("", ""): "inner", ("", "INNER"): "inner", ("", "CROSS"): "inner", ("LEFT", ""): "left",
    ("LEFT", "OUTER"): "left", ("RIGHT", ""): "right", ("RIGHT", "OUTER"): "right",
    ("FULL", ""): "full", ("FULL", "OUTER"): "full", ("LEFT", "SEMI"): "left_semi",
    ("LEFT", "ANTI"): "left_anti", ("", "SEMI"): "left_semi", ("", "ANTI"): "left_anti",
}
#: Generators that may have no row; the others have rows for each row.
_EMPTY = frozenset({"explode", "posexplode", "inline", "variant_explode"})
_CALLED = re.compile(r"\w+\s*\(")
#: The relation of a refused part, which nothing translates.
_NOTHING = Scan("", ())

#: A relation and its columns.
_Table = tuple[Relation, tuple[ScopeColumn, ...]]


class TextTables(TextPivots):
    """The tables of a query."""

    # WITH

    def common(self, node: exp.Expr | None, ctes: Tables) -> Tables:
        """The common table expressions that a query may read."""
        if node is None:
            return ctes
        self.known(node, "expressions", "recursive")
        ctes = dict(ctes)
        for item in node.expressions:
            name = self.folded(item.args["alias"].name)
            try:
                self.known(item, "this", "alias", "levels")
                own = bool(node.args.get("recursive")) and self.mentions(item.this, name)
                ctes[name] = self.recursive(item, ctes) if own else self.common_table(item, ctes)
            except RefusedPart:
                ctes[name] = None
        return ctes

    def common_table(self, item: exp.Expr, ctes: Tables) -> Query:
        _, columns = self.alias(item.args["alias"])
        if item.args.get("levels") is not None:
            self.refuse(refusals.NODE, "MAX RECURSION LEVEL without a recursion", item)
        query = self.query(item.this, None, ctes)
        return Query(picked(query), self.renamed(query, columns, item), ordered=query.ordered)

    def mentions(self, node: exp.Expr, name: str) -> bool:
        """Whether a query names a table."""
        return any(
            self.folded(table.name) == name and not table.args.get("db")
            for table in node.find_all(exp.Table)
        )

    def recursive(self, item: exp.Expr, ctes: Tables) -> Query:
        """A recursion: an anchor, and a step that names the recursion itself."""
        name, columns = self.alias(item.args["alias"])
        body, name = item.this, self.folded(name or "")
        while isinstance(body, exp.Subquery):
            self.known(body, "this")
            body = body.this
        if not isinstance(body, exp.Union) or self.mentions(body.this, name):
            self.refuse(
                refusals.NODE, f"the recursion {name}", item,
                "the reader knows an anchor, UNION or UNION ALL, and one step that names the "
                "recursion. Remedy: write the query so"
            )
        self.known(body, "this", "expression", "distinct")
        distinct = bool(body.args.get("distinct"))
        if distinct:
            self.mark_union_all(body)
        anchor = self.query(body.this, None, ctes)
        outputs = self.renamed(anchor, columns, item)
        pairs = tuple((output, self.fresh(output)) for output, _ in outputs)
        for (_, old), (_, new) in zip(outputs, pairs):
            self.types[new] = self.types[old]
        self.recursions += 1
        number = self.recursions
        names = tuple(new for _, new in pairs)
        reference = Query(RecursionReference(number, names), pairs)
        step = self.query(body.expression, None, {**ctes, name: reference})
        if not references(step.relation, number):
            self.refuse(
                refusals.NODE, f"the recursion {name}", item,
                "only a query inside of it has a table of this name. Remedy: rename one of them"
            )
        if len(step.outputs) != len(pairs):
            self.refuse(refusals.NODE, "a step with another number of columns", body.expression)
        for (_, old), (output, new) in zip(step.outputs, pairs):
            if self.types[old] != self.types[new]:
                mine, wanted = (self.types[column].simpleString() for column in (old, new))
                self.note(
                    refusals.NODE, f"the recursion {name}", body.expression,
                    f"the step has {output} of {mine}, and the anchor of {wanted}. Remedy: cast "
                    "one of them to the type of the other"
                )

        def side(query: Query) -> Relation:
            return Project(query.relation, tuple(
                Named(new, column_of(old)) for (_, old), new in zip(query.outputs, names)
            ))

        levels = item.args.get("levels")
        relation = Recursion(
            number, side(anchor), side(step), names, distinct,
            levels,
        )
        return Query(relation, pairs)

    def mark_union_all(self, node: exp.Expr) -> None:
        """Spark analyses a recursion of UNION ALL alone: writes it so in the text for Spark."""
        begin = max(end for _, end in self.places(node.this))
        for number, (word, start, end, plain) in enumerate(self.words):
            if start >= begin and plain and word.upper() == "UNION":
                self.changes[start, end] = "UNION ALL"
                after, start, end, _ = self.words[number + 1]
                if after.upper() == "DISTINCT":
                    self.changes[start, end] = ""
                return

    def places(self, node: exp.Expr) -> list[tuple[int, int]]:
        """The places of the parts of a query: the parser gives the query itself none."""
        places = [place for place in map(place_of, node.walk()) if place is not None]
        if not places:
            self.refuse(refusals.NODE, "a recursion without expressions", node)
        return places

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
        self, node: exp.Expr, outer: Scope | None, ctes: Tables, attempts: Attempts
    ) -> tuple[Relation, Scope]:
        """The tables of a query, joined, and their columns."""
        clause = node.args.get("from_")
        if clause is None:
            if node.args.get("laterals"):
                self.refuse(refusals.NODE, "LATERAL VIEW without FROM", node)
            frame = self.spark.sql(f"SELECT 1 AS {self.fresh('one')}")
            return ConstantRelation(frame), Scope((), outer)
        self.known(clause, "this")
        nothing: _Table = (_NOTHING, ())
        lacks = Attempts()
        left = lacks(lambda: self.table(clause.this, outer, ctes), nothing)
        # In Spark a comma binds as tightly as JOIN.
        for join in node.args.get("joins") or ():
            scope = Scope(left[1], outer, lacks.stopped)
            if isinstance(join.this, exp.Lateral):
                left = lacks(lambda: self.lateral(join, left, scope, ctes), left)
                continue
            right = lacks(lambda: self.table(join.this, outer, ctes), nothing)
            both = (left[0], (*left[1], *right[1]))
            left = lacks(
                lambda: self.joined(join, left, right, outer, ctes, attempts, lacks.stopped), both
            )
        for item in node.args.get("laterals") or ():
            scope = Scope(left[1], outer, lacks.stopped)
            left = lacks(
                lambda: self.generated(item, left, scope, ctes, bool(item.args.get("outer"))), left
            )
        attempts.stopped |= lacks.stopped
        return left[0], Scope(left[1], outer, lacks.stopped)

    def table(self, node: exp.Expr, outer: Scope | None, ctes: Tables) -> _Table:
        """One item of FROM."""
        if node.args.get("sample"):
            self.note(refusals.SAMPLE, "TABLESAMPLE", node)
        if isinstance(node, (exp.Subquery, exp.Values)):
            alias, columns = self.alias(node.args.get("alias"))
            query = self.query(node, outer, ctes)
            columns = [] if isinstance(node, exp.Values) else columns
            outputs = self.renamed(query, columns, node)
            qualifiers = query.qualifiers if node.meta.get(PIPED) else {}
            entries = tuple(
                ScopeColumn(name, qualifiers.get(column, alias), column) for name, column in outputs
            )
            return self.pivoted(node, query.relation, entries, ctes)
        if not isinstance(node, exp.Table):
            self.refuse(refusals.NODE, node.key.upper(), node)
        self.known(node, "this", "alias", "db", "catalog", "sample", "pivots")
        alias, columns = self.alias(node.args.get("alias"))
        if isinstance(node.this, exp.Anonymous):
            query = self.function(node)
            name = function_name(node.this) or ""
        else:
            name = node.this.name
            query = self.named_table(node, alias is not None, ctes)
        outputs = self.renamed(query, columns, node)
        entries = tuple(ScopeColumn(item, alias or name, column) for item, column in outputs)
        return self.pivoted(node, query.relation, entries, ctes)

    def named_table(self, node: exp.Table, aliased: bool, ctes: Tables) -> Query:
        """A common table expression, a table of the dataflow, or one of the catalog."""
        if not isinstance(node.this, exp.Identifier):
            self.refuse(refusals.NODE, "a function that makes a table", node)
        name = self.folded(node.this.name)
        plain = not node.args.get("db")
        if plain and name in ctes:
            shared = ctes[name]
            if shared is None:
                raise RefusedPart
            if name in self.once:
                return shared
            renames = [(item, column, self.fresh(item)) for item, column in shared.outputs]
            for _, old, new in renames:
                self.types[new] = self.types[old]
            relation: Relation = Project(
                shared.relation, tuple(Named(new, column_of(old)) for _, old, new in renames)
            )
            return Query(relation, tuple((item, new) for item, _, new in renames))
        if plain and name in self.constants:
            return self.constant_of(self.constants[name])
        if plain and name in self.tables:
            table, struct = self.tables[name]
            self.read[self.place(node.this)] = table, aliased
        else:
            table, struct = self.external(node)
        pairs = [(item.name, self.fresh(item.name)) for item in struct.fields]
        for item, (_, new) in zip(struct.fields, pairs):
            self.types[new] = item.dataType
        return Query(Scan(table, tuple(pairs)), tuple(pairs))

    def external(self, node: exp.Table) -> tuple[str, T.StructType]:
        """A table of the catalog, by its whole name, and its schema."""
        parts = [part.name for part in node.parts]
        text = ".".join(map(quoted, parts))
        shown = ".".join(parts)
        try:
            struct = self.spark.table(text).schema
        except PySparkException:
            self.refuse(refusals.TABLE, shown, node)
        facts: dict[str, str] = {}
        rows = [(row[0], row[1]) for row in self.spark.sql(f"DESCRIBE EXTENDED {text}").collect()]
        begun = False
        for key, value in rows:
            begun |= str(key).startswith("# Detailed Table Information")
            if begun and value is not None:
                facts.setdefault(str(key), str(value))
        if not facts or "VIEW" in facts.get("Type", ""):
            self.refuse(refusals.TABLE, shown, node, (
                "the plan of a view is not visible over Spark Connect. Remedy: write the query of "
                "the view as a subquery, or declare flow.source for the view"
            ))
        provider = facts.get("Provider", "hive").lower()
        if "Name" in facts:
            whole = facts["Name"]
        else:
            named = [facts[key] for key in ("Catalog", "Database", "Table") if key in facts]
            whole = ".".join(named) if named else shown
        if provider not in self.providers:
            self.refuse(refusals.TABLE, whole, node, refusals.without_source(whole, provider))
        self.sources[whole] = provider
        return whole, struct

    def values(self, node: exp.Values) -> Query:
        """Rows in the text, which never change."""
        start, end = self.place(node)
        return self.constant(f"SELECT * FROM {self.source_text[start:end]}", node)

    def function(self, node: exp.Table) -> Query:
        """The rows of a function of Spark whose arguments are constants."""
        name = function_name(node.this)
        if name == "python_worker_logs":
            self.refuse(refusals.NODE, f"{name}()", node, refusals.LOGS)
        if name not in GENERATORS | FROM_ONLY:
            self.refuse(refusals.NODE, f"{name}(...), a function that makes a table,", node)
        if any(True for _ in node.this.find_all(exp.Column, exp.Query)):
            self.refuse(
                refusals.NODE, f"{name}(...) of columns", node,
                refusals.only_in_from(name) if name in FROM_ONLY else
                "in FROM it has constants. Remedy: write LATERAL before it"
            )
        start, end = self.place(node.this)
        return self.constant(f"SELECT * FROM {self.source_text[start:end]}", node)

    def constant(self, text: str, node: exp.Expr) -> Query:
        frame = self.spark.sql(text)
        unstable = analysed_plan(frame).unstable
        if unstable:
            self.refuse(refusals.NON_DETERMINISTIC, ", ".join(unstable), node)
        return self.constant_of(frame)

    def constant_of(self, frame: DataFrame) -> Query:
        """The rows of a frame that never changes."""
        outputs = tuple((name, self.fresh(name)) for name in frame.columns)
        for item, (_, column) in zip(frame.schema.fields, outputs):
            self.types[column] = item.dataType
        return Query(ConstantRelation(frame.toDF(*[column for _, column in outputs])), outputs)

    # Generators

    def generated(
        self, node: exp.Expr, left: _Table, scope: Scope, ctes: Tables, outer: bool
    ) -> _Table:
        """A table with the rows that a generator makes of each row."""
        self.known(node, "this", "view", "outer", "alias", "ordinality")
        if function_name(node.this) not in GENERATORS | FROM_ONLY:
            self.refuse(refusals.NODE, "LATERAL of a function that is no generator", node)
        relation, fields = self.generate(node.this, left[0], Context(scope, ctes=ctes), outer)
        alias, columns = self.alias(node.args.get("alias"))
        if columns and len(columns) != len(fields):
            self.refuse(refusals.NODE, "an alias with another number of columns", node)
        names = columns or [name for name, _ in fields]
        entries = tuple(
            ScopeColumn(name, alias, column) for name, (_, column) in zip(names, fields)
        )
        return relation, (*left[1], *entries)

    def generate(
        self, node: exp.Expr, relation: Relation, context: Context, outer: bool = False
    ) -> tuple[Generate, list[tuple[str, str]]]:
        """The rows of a generator, and pairs of its column's name in Spark and in the form."""
        name = function_name(node) or ""
        if name in FROM_ONLY:
            self.refuse(refusals.NODE, f"{name}(...)", node, refusals.only_in_from(name))
        parts = TextReferences()
        text = self.call_text(node, context, parts)
        generator = parts.expression(_CALLED.sub(f"{name}(", text.strip(), count=1))
        if generator.subqueries:
            self.refuse(refusals.NODE, f"a subquery in {name}(...)", node)
        spare = self.fresh("plain")
        frame = self.frame_for([generator], {spare: T.IntegerType()})
        kinds = frame.selectExpr(generator.text).schema.fields
        pairs = [(item.name, self.fresh(item.name)) for item in kinds]
        for item, (_, column) in zip(kinds, pairs):
            self.types[column] = item.dataType
        names = tuple(column for _, column in pairs)
        return Generate(relation, generator, outer and name in _EMPTY, names), pairs

    def lateral(self, join: exp.Expr, left: _Table, scope: Scope, ctes: Tables) -> _Table:
        """A join with a query or generator that reads the columns on its left."""
        node = join.this
        self.known(join, "this", "on", "side", "kind")
        how = ((join.args.get("side") or "").upper(), (join.args.get("kind") or "").upper())
        kind = _KINDS.get(how, "")
        if kind not in ("inner", "left"):
            self.refuse(refusals.NODE, f"{' '.join(how).strip()} JOIN LATERAL", node)
        on = join.args.get("on")
        on = None if isinstance(on, exp.Boolean) and on.this else on
        if function_name(node.this) is not None:
            if on is not None:
                self.refuse(refusals.NODE, "ON of a generator", node)
            if kind == "left":
                self.refuse(
                    refusals.NODE, "LEFT JOIN LATERAL of a generator", node,
                    refusals.LEFT_GENERATOR,
                )
            return self.generated(node, left, scope, ctes, outer=False)
        self.known(node, "this", "alias", "ordinality")
        if not isinstance(node.this, exp.Subquery):
            self.refuse(refusals.NODE, "LATERAL of no query", node)
        query = self.query(node.this, scope, ctes)
        alias, columns = self.alias(node.args.get("alias"))
        outputs = self.renamed(query, columns, node)
        right = tuple(ScopeColumn(name, alias, column) for name, column in outputs)
        entries = (*left[1], *right)
        conditions = [] if on is None else self.conditions(
            on, Context(replace(scope, entries=entries), ctes=ctes)
        )
        if any(item.subqueries for item in conditions):
            self.refuse(refusals.NODE, "a subquery in ON of a LATERAL join", node)
        return Join(left[0], picked(query), kind, tuple(conditions), lateral=True), entries

    # JOIN

    def joined(
        self, node: exp.Expr, left: _Table, right: _Table, outer: Scope | None, ctes: Tables,
        attempts: Attempts, partial: bool,
    ) -> _Table:
        self.known(node, "this", "on", "using", "side", "kind", "method")
        method = (node.args.get("method") or "").upper()
        how = ((node.args.get("side") or "").upper(), (node.args.get("kind") or "").upper())
        if how not in _KINDS or method not in ("", "NATURAL"):
            self.refuse(refusals.NODE, " ".join([method, *how, "JOIN"]).strip(), node)
        kind = _KINDS[how]
        using = [item.name for item in node.args.get("using") or ()]
        if method:
            if partial:
                raise RefusedPart
            using = list(self.shared_names(left[1], right[1], node))
        semi = kind in ("left_semi", "left_anti")
        both = (*left[1], *right[1])
        conditions: list[SqlExpression] = []
        on = node.args.get("on")
        if on is not None and not (isinstance(on, exp.Boolean) and on.this):
            context = Context(Scope(both, outer, partial), ctes=ctes)
            conditions = attempts(lambda: self.conditions(on, context), [])
        pairs = through(using, lambda name: tuple(
            self.key(name, entries, node, partial) for entries in (left[1], right[1])
        ))
        conditions += [
            SqlExpression(f"{a.column} = {b.column}", columns=frozenset({a.column, b.column}))
            for a, b in pairs
        ]
        relation: Relation = Join(left[0], right[0], kind, tuple(dict.fromkeys(conditions)))
        if not using:
            return relation, left[1] if semi else both
        merged, hidden = [], []
        for a, b in pairs:
            if kind == "full":
                column = self.fresh(a.name)
                value = SqlExpression(
                    f"coalesce({a.column}, {b.column})", columns=frozenset({a.column, b.column})
                )
                self.typed([(column, value)])
                relation = Project(relation, (
                    *(Named(name, column_of(name)) for name in relation.columns),
                    Named(column, value),
                ))
                merged.append(ScopeColumn(a.name, None, column))
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

    def shared_names(
        self, left: Sequence[ScopeColumn], right: Sequence[ScopeColumn], node: exp.Expr
    ) -> Iterator[str]:
        """The names of the columns that both sides of a NATURAL join have."""
        names = {self.folded(item.name) for item in right if item.name and not item.hidden}
        for entry in left:
            if entry.name and not entry.hidden and self.folded(entry.name) in names:
                yield entry.name

    def key(
        self, name: str, entries: Sequence[ScopeColumn], node: exp.Expr, partial: bool
    ) -> ScopeColumn:
        """The only visible column of a name, for USING."""
        match = [
            entry for entry in entries if not entry.hidden and entry.name is not None
            and self.folded(entry.name) == self.folded(name)
        ]
        if not match and partial:
            raise RefusedPart
        if len(match) != 1:
            place = next((item for item in node.args.get("using") or () if item.name == name), node)
            self.refuse(refusals.EXPRESSION, name, place, "USING needs one column of the name")
        return match[0]
