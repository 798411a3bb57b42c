"""Reads the expressions of a plan that Spark has analysed: as SQL text over the names of the form.

Catalyst writes the text of an expression, after the reader has renamed its attributes. Subqueries
become columns.

    expression(text(e)) = e

Catalyst leaves parameters out of some texts, such as the options of ``to_csv``. So Spark reads a
text back unless all its parts have exact texts. If it means another expression, it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


from pyspark_diff.query import refusals
from pyspark_diff.query.clock import KINDS, NOTE
from pyspark_diff.query.form import (
    OUTER,
    Named,
    Order,
    Project,
    Relation,
    SqlExpression,
    Subquery,
    column_of,
    in_order,
)
from pyspark_diff.query.plan_names import PlanNames, bare, scala_object, topmost
from pyspark_diff.spark.frames import sql_text as quoted_text
from pyspark_diff.spark.jvm import (
    JVM_ERRORS,
    analysed_of,
    frame_of_plan,
    items_of,
    kind_of,
    scala_sequence,
    sql_class,
    sql_text,
)

_NUMBERS = re.compile(r"#\d+L?")
#: Expressions of Catalyst whose texts name all their parameters.
_EXACT = frozenset({
    "And", "AttributeReference", "Coalesce", "CaseWhen", "EqualNullSafe", "EqualTo", "GreaterThan",
    "GreaterThanOrEqual", "If", "IsNotNull", "IsNull", "LessThan", "LessThanOrEqual", "Not", "Or",
})
#: The types that only the text of a cast names.
_NESTED = frozenset({"array", "map", "struct"})
#: The SQL text of expressions that Catalyst writes in words that it does not read.
_WRITTEN = {
    "ExtractANSIIntervalDays": "extract(DAY FROM {})",
    "SecondWithFraction": "extract(SECOND FROM {})",
}
#: Functions that write the options of a format, and those that also have a schema.
_OPTIONS = {
    "StructsToCsv": "to_csv", "StructsToJson": "to_json", "StructsToXml": "to_xml",
    "CsvToStructs": "from_csv", "JsonToStructs": "from_json", "XmlToStructs": "from_xml",
}
#: Other expressions whose text in Catalyst leaves a parameter out.
_PARTIAL = frozenset({"ArraysZip", "Collate", "VariantGet"})
#: Comparisons with constant patterns, which Catalyst does not count as arguments.
_PATTERNS = {
    "LikeAll": "LIKE ALL", "LikeAny": "LIKE ANY", "NotLikeAll": "NOT LIKE ALL",
    "NotLikeAny": "NOT LIKE ANY",
}
#: The texts between a time and its microseconds, by the types of both. Each keeps all digits, and
#: those of a time without a zone do not depend on the zone of the session.
_FROM_ZONE, _TO_ZONE = "unix_micros({})", "timestamp_micros({})"
_FROM_LOCAL = (
    "CAST(CAST(CAST(({} - TIMESTAMP_NTZ'1970-01-01 00:00:00') AS INTERVAL SECOND) "
    "AS DECIMAL(18,6)) * 1000000 AS BIGINT)"
)
_TO_LOCAL = (
    "(TIMESTAMP_NTZ'1970-01-01 00:00:00' + "
    "make_dt_interval(0, 0, 0, CAST({} AS DECIMAL(18,0)) / 1000000))"
)
_MICROSECONDS = {
    ("timestamp", "long"): _FROM_ZONE, ("long", "timestamp"): _TO_ZONE,
    ("timestamp", "bigint"): _FROM_ZONE, ("bigint", "timestamp"): _TO_ZONE,
    ("timestamp_ntz", "long"): _FROM_LOCAL, ("long", "timestamp_ntz"): _TO_LOCAL,
    ("timestamp_ntz", "bigint"): _FROM_LOCAL, ("bigint", "timestamp_ntz"): _TO_LOCAL,
}
_CLOCK = frozenset({
    "CurrentDate", "CurrentTimestamp", "Now", "LocalTimestamp", "CurrentTime",
})
_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "ScalaUDF", "PythonUDTF"})
#: Aggregates that may leave out nulls.
_ENDS = frozenset({"First", "Last", "AnyValue"})


@dataclass
class Swaps:
    """The columns that stand for expressions, such as the keys below a projection."""

    by_hash: dict[int, list[tuple[Any, str]]] = field(default_factory=dict)

    def add(self, expression: Any, name: str) -> None:
        self.by_hash.setdefault(expression.semanticHash(), []).append((expression, name))

    def get(self, expression: Any) -> str | None:
        if not self.by_hash:
            return None
        near = self.by_hash.get(expression.semanticHash(), ())
        return next((name for old, name in near if old.semanticEquals(expression)), None)


@dataclass
class PlanReferences:
    """The columns, outer columns and subqueries of an expression, gathered while it is renamed."""

    columns: set[str] = field(default_factory=set)
    outers: set[str] = field(default_factory=set)
    subqueries: list[Subquery] = field(default_factory=list)
    lambdas: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AggregateCall:
    """A function with its arguments, each a node or a text, and the node of its order."""

    name: str
    arguments: tuple[Any, ...]
    order: Any = None
    descending: bool = False


class PlanExpressions(PlanNames):
    """The expressions of a plan."""

    def expression(self, node: Any, swaps: Swaps | None = None) -> SqlExpression:
        parts = PlanReferences()
        text = self.text(bare(node), parts, swaps)
        return SqlExpression(
            text, frozenset(parts.outers), tuple(parts.subqueries), frozenset(parts.columns)
        )

    def text(self, node: Any, parts: PlanReferences, swaps: Swaps | None = None) -> str:
        refused = len(self.refusals)
        renamed = self.renamed(node, parts, swaps)
        text = sql_text(renamed)
        # A function of a window has no meaning without its window.
        over = self.is_a(node, "AggregateWindowFunction")
        over = over or self.is_a(node, "FrameLessOffsetWindowFunction")
        if not over and (
            text is None or len(self.refusals) == refused and not self.reads_back(renamed)
        ):
            self.refuse(refusals.EXPRESSION, str(node.prettyName()), node)
            return "NULL"
        text = str(text)
        if kind_of(node) in ("Lag", "Lead") and node.ignoreNulls():
            text += " IGNORE NULLS"
        for name, written in parts.lambdas.items():
            text = text.replace(name, written)
        return text

    def reads_back(self, node: Any) -> bool:
        """Whether the text of an expression means the expression.

        Parameters
        ----------
        node : JavaObject
            An expression over the names of the form.
        """
        if not topmost(node, lambda e: kind_of(e) not in _EXACT):
            return True
        if self.is_a(node, "Generator"):  # the text of one alone is another operator
            return all(map(self.reads_back, items_of(node.children())))
        columns = {item.name(): item for item in items_of(node.references().toSeq())}
        relation = scala_object("catalyst.plans.logical.LocalRelation").fromExternalRows(
            scala_sequence(columns.values()), scala_sequence([])
        )
        try:
            frame = frame_of_plan(relation, self.spark).selectExpr(str(node.sql()))
            read = items_of(analysed_of(frame).expressions())
            first, second = (_bare_function(item) for item in (*read, _renewed(node, columns)))
            if first.semanticEquals(second):
                return True
            # Constants such as a NaN have a text that is a cast, and Spark adds casts to sums.
            first, second = (self.folded(item, relation) for item in (first, second))
            return bool(first.semanticEquals(second))
        except (*JVM_ERRORS, ValueError):
            return False

    def folded(self, node: Any, relation: Any) -> Any:
        """An expression over a relation, its constants evaluated, without casts to its own type."""
        plan = sql_class("catalyst.plans.logical.Filter")(node, relation)
        # A cast below a removed one is removed the next time.
        for rule in ("ConstantFolding", *["SimplifyCasts"] * 3):
            plan = scala_object(f"catalyst.optimizer.{rule}").apply(plan)
        return plan.condition()

    def column(self, name: str, like: Any) -> Any:
        """A column of a name, with the type of an expression."""
        kind = sql_class("types.StructField")(
            name, like.dataType(), True, sql_class("types.Metadata").empty()
        )
        return sql_class("catalyst.types.DataTypeUtils").toAttribute(kind)

    def renamed(self, node: Any, parts: PlanReferences, swaps: Swaps | None) -> Any:
        """The expression over the names of the form; subqueries become columns."""
        column = swaps.get(node) if swaps else None
        if column:
            parts.columns.add(column)
            return self.column(column, node)
        kind = kind_of(node)
        if kind == "AttributeReference":
            name = self.name(node)
            parts.columns.add(name)
            return node.withQualifier(scala_sequence([])).withName(name)
        if kind == "OuterReference":
            inner = node.e()
            if kind_of(inner) != "AttributeReference":
                self.refuse(refusals.CORRELATED_EXPRESSION, str(inner.sql()), node)
                return node
            name = self.name(inner)
            parts.outers.add(name)
            return inner.withQualifier(scala_sequence([])).withName(name + OUTER)
        if kind == "InSubquery" or self.is_a(node, "SubqueryExpression"):
            return self.with_subquery(node, parts, swaps)
        if kind == "Not" and kind_of(node.child()) == "InSubquery":
            return self.with_subquery(node.child(), parts, swaps, negated=True)
        if kind == "Literal" or kind == "NamedLambdaVariable":
            return node
        if kind in _CLOCK or self.is_a(node, "CurrentTimestampLike"):
            type_name = str(node.dataType().sql())
            if self.clock is not None and type_name in KINDS.values():
                value = self.clock.value(self.fresh)
                parts.subqueries.append(value)
                if NOTE not in self.notes:
                    self.notes.append(NOTE)
                return self.written(f"CAST({value.name} AS {type_name})", node, parts)
            self.refuse(refusals.CURRENT_TIME, f"{node.prettyName()}()", node)
            return node
        if kind in _PYTHON:
            self.refuse(refusals.PYTHON_FUNCTION, str(node.name()), node)
            return node
        if kind == "With":
            for item in items_of(node.defs()):
                self._common[_id_of(item)] = item.child()
            return self.renamed(node.child(), parts, swaps)
        if kind == "CommonExpressionRef":
            return self.renamed(self._common[_id_of(node)], parts, swaps)
        if kind == "LambdaFunction":
            return self.with_lambda(node, parts, swaps)
        if kind == "AggregateExpression" and kind_of(node.aggregateFunction()) == "PivotFirst":
            return self.pivoted(node.aggregateFunction(), parts, swaps)
        if kind == "AggregateExpression":
            call = _aggregate_call(node.aggregateFunction())
            if call is not None:
                return self.written(self.aggregate_text(node, call, parts, swaps), node, parts)
        if kind in _WRITTEN:
            arguments = [self.text(item, parts, swaps) for item in items_of(node.children())]
            return self.written(_WRITTEN[kind].format(*arguments), node, parts)
        if kind == "AtLeastNNonNulls":
            return self.written(self.counted_values(node, parts, swaps), node, parts)
        if kind in ("KnownNullable", "KnownNotContainsNull"):
            return self.renamed(node.child(), parts, swaps)
        nested = kind == "Cast" and str(node.dataType().typeName()) in _NESTED
        if nested and node.foldable() and not topmost(node, lambda e: kind_of(e) in _CLOCK):
            # Such as the shares of percentile, which a column would hide.
            literal = sql_class("catalyst.expressions.Literal")
            return literal(node.eval(None), node.dataType())
        if nested or kind in _OPTIONS or kind in _PATTERNS or kind in _PARTIAL:
            return self.written(self.whole_text(kind, node, parts, swaps), node, parts)
        if self.is_a(node, "HigherOrderFunction"):
            # Its variables have no columns, so that Spark reads the text around it back alone.
            arguments = [self.text(item, parts, swaps) for item in items_of(node.children())]
            return self.written(f"{node.prettyName()}({', '.join(arguments)})", node, parts)
        if kind == "PreciseTimestampConversion":
            return self.converted(node, parts, swaps)
        if self.is_a(node, "RuntimeReplaceable"):
            return self.replaced(node, parts, swaps)
        below = items_of(node.children())
        if not node.deterministic() and all(child.deterministic() for child in below):
            self.refuse(refusals.NON_DETERMINISTIC, f"{node.prettyName()}()", node)
            return node
        if not below:
            return node
        # A field of a struct keeps its alias, which is no SQL within an expression.
        children = scala_sequence([self.renamed(bare(child), parts, swaps) for child in below])
        if kind == "CreateNamedStruct":
            # One that was written as struct(k) would lose the name of its field in SQL text.
            return node.copy(children)
        return node.withNewChildren(children)

    def converted(self, node: Any, parts: PlanReferences, swaps: Swaps | None) -> Any:
        """The start or the end of window(time, length), or of session_window(time, gap)."""
        below = node.child()
        if kind_of(below) == kind_of(node) and below.fromType().equals(node.toType()):
            return self.renamed(below.child(), parts, swaps)
        template = _MICROSECONDS[
            str(node.fromType().typeName()), str(node.toType().typeName())
        ]
        return self.written(template.format(self.text(below, parts, swaps)), node, parts)

    def aggregate_text(
        self, node: Any, call: AggregateCall, parts: PlanReferences, swaps: Swaps | None
    ) -> str:
        """The text of an aggregate with its DISTINCT, order and FILTER."""
        arguments = ", ".join(
            item if isinstance(item, str) else self.text(item, parts, swaps)
            for item in call.arguments
        )
        text = f"{call.name}({'DISTINCT ' if node.isDistinct() else ''}{arguments})"
        if call.order is not None:
            by = self.text(call.order, parts, swaps)
            text += f" WITHIN GROUP (ORDER BY {by}{' DESC' if call.descending else ''})"
        if node.filter().isDefined():
            text += f" FILTER (WHERE {self.text(node.filter().get(), parts, swaps)})"
        return text

    def replaced(self, node: Any, parts: PlanReferences, swaps: Swaps | None) -> Any:
        """The replacement of an expression, or the expression if only it has SQL text."""
        refused = len(self.refusals)
        tried = PlanReferences(
            set(parts.columns), set(parts.outers), list(parts.subqueries), dict(parts.lambdas)
        )
        replacement = self.renamed(node.replacement(), tried, swaps)
        if len(self.refusals) > refused or self.reads_back(replacement):
            vars(parts).update(vars(tried))
            return replacement
        if not self.is_a(node, "InheritAnalysisRules"):
            children = [self.renamed(bare(item), parts, swaps) for item in items_of(
                node.children()
            )]
            return node.withNewChildren(scala_sequence(children))
        # Spark renews the ids of attributes in the replacement, and not in the parameters.
        known = {
            item.name(): item for item in topmost(
                node.replacement(), lambda e: kind_of(e) == "AttributeReference"
            )
        }
        arguments = [
            self.text(_renewed(item, known), parts, swaps) for item in items_of(node.parameters())
        ]
        return self.written(f"{node.prettyName()}({', '.join(arguments)})", node, parts)

    def whole_text(self, kind: str, node: Any, parts: PlanReferences, swaps: Swaps | None) -> str:
        """The text of an expression with the parameters that Catalyst leaves out."""
        if kind == "Collate":
            return f"({self.text(node.child(), parts, swaps)} COLLATE {node.collation().sql()})"
        arguments = [self.text(item, parts, swaps) for item in items_of(node.children())]
        if kind in _OPTIONS:
            if kind.endswith("ToStructs"):
                arguments.append(quoted_text(str(node.schema().sql())))
            options = items_of(node.options().toSeq())
            if options:
                texts = [quoted_text(str(value)) for pair in options for value in (
                    pair.productElement(0), pair.productElement(1)
                )]
                arguments.append(f"map({', '.join(texts)})")
            return f"{_OPTIONS[kind]}({', '.join(arguments)})"
        if kind in _PATTERNS:
            literal = sql_class("catalyst.expressions.Literal")
            patterns = [
                str(literal(item, node.child().dataType()).sql())
                for item in items_of(node.patterns())
            ]
            return f"({arguments[0]} {_PATTERNS[kind]} ({', '.join(patterns)}))"
        type_name = str(node.dataType().sql())
        if kind == "VariantGet":
            return f"{node.prettyName()}({', '.join(arguments)}, {quoted_text(type_name)})"
        if kind == "ArraysZip":
            # The fields have the names of the query.
            return f"CAST(arrays_zip({', '.join(arguments)}) AS {type_name})"
        tried = str(node.evalMode().toString()) == "TRY"
        return f"{'TRY_' if tried else ''}CAST({arguments[0]} AS {type_name})"

    def written(self, text: str, node: Any, parts: PlanReferences) -> Any:
        """A column whose name `text` replaces by a text at the end."""
        name = self.fresh("text_of_")
        parts.lambdas[name] = text
        # Texts may be in texts: the outer one is replaced first.
        parts.lambdas = dict(reversed(list(parts.lambdas.items())))
        return self.column(name, node)

    def with_lambda(self, node: Any, parts: PlanReferences, swaps: Swaps | None) -> Any:
        arguments = items_of(node.arguments())
        names = {item.exprId().id(): self.fresh("x") for item in arguments}
        body = self.with_variables(node.function(), names)
        variables = ", ".join(names.values())
        variables = f"({variables})" if len(names) > 1 else variables
        text = f"{variables} -> {self.text(body, parts, swaps)}"
        return self.written(text, node.function(), parts)

    def with_variables(self, node: Any, names: dict[int, str]) -> Any:
        if kind_of(node) == "NamedLambdaVariable" and node.exprId().id() in names:
            # A variable has the text of a column that is in no relation.
            name = names[node.exprId().id()]
            column = self.column(name, node)
            self._names[column.exprId().id()] = name
            return column
        below = items_of(node.children())
        if not below:
            return node
        return node.withNewChildren(
            scala_sequence([self.with_variables(child, names) for child in below])
        )

    def counted_values(self, node: Any, parts: PlanReferences, swaps: Swaps | None) -> str:
        """The condition that so many values are neither NULL nor NaN, as of dropna."""
        tests = []
        for item in items_of(node.children()):
            text = self.text(item, parts, swaps)
            numbers = str(item.dataType().typeName()) in ("float", "double")
            tests.append(f"{text} IS NOT NULL" + (f" AND NOT isnan({text})" if numbers else ""))
        least = int(node.n())
        if least == len(tests):
            return " AND ".join(tests)
        counts = " + ".join(f"CASE WHEN {test} THEN 1 ELSE 0 END" for test in tests)
        return f"{counts or 0} >= {least}"

    def pivoted(self, node: Any, parts: PlanReferences, swaps: Swaps | None) -> Any:
        """The values of a pivot in an array, in the order of the pivoted values."""
        if node.pivotColumnValues().isEmpty():
            name, detail = refusals.PIVOT
            self.refuse(refusals.NODE, name, node, detail)
            return node
        pivot = self.text(node.pivotColumn(), parts, swaps)
        value = self.text(node.valueColumn(), parts, swaps)
        kind, names = node.pivotColumn().dataType(), []
        for constant in items_of(node.pivotColumnValues()):
            if not isinstance(constant, int):
                constant = sql_class("catalyst.expressions.Literal")(constant, kind).sql()
            names.append(f"CAST({constant} AS {kind.sql()})")
        calls = ", ".join(f"max(CASE WHEN {pivot} <=> {item} THEN {value} END)" for item in names)
        return self.written(f"array({calls})", node, parts)

    def with_subquery(
        self, node: Any, parts: PlanReferences, swaps: Swaps | None, negated: bool = False
    ) -> Any:
        kind, query = kind_of(node), node
        values: tuple[SqlExpression, ...] = ()
        if kind == "ScalarSubquery":
            name = "scalar"
        elif kind == "Exists":
            name = "exists"
        elif kind == "InSubquery":
            name, query = "not in" if negated else "in", node.query()
            values = tuple(self.expression(item, swaps) for item in items_of(node.values()))
        else:
            self.refuse(refusals.NODE, kind, node)
            return node
        relation = self.correlated(query.plan())
        output = [self.name(item) for item in items_of(query.plan().output())]
        relation = picked(relation, output)
        column = self.fresh("s")
        parts.subqueries.append(Subquery(column, name, relation, values))
        for value in values:
            parts.columns |= value.columns
        return self.column(column, node)

    def named(self, nodes: Iterable[Any], swaps: Swaps | None = None) -> tuple[Named, ...]:
        """Aliases and attributes as columns; an attribute may be listed twice."""
        columns: dict[str, Any] = {self.name(item): item for item in nodes}
        return tuple(Named(name, self.expression(item, swaps)) for name, item in columns.items())

    def order(self, nodes: Iterable[Any], swaps: Swaps | None = None) -> tuple[Order, ...]:
        return tuple(
            Order(
                self.expression(item.child(), swaps), item.direction().sql() != "ASC",
                item.nullOrdering().sql() == "NULLS FIRST",
            )
            for item in nodes
        )

    def conditions(self, parts: list[Any]) -> tuple[SqlExpression, ...]:
        """Conjuncts in an order that depends little on that of the query."""
        plain = [self.expression(item) for item in parts if not self.has_subquery(item)]
        others = [
            self.expression(item) for item in sorted(parts, key=self.spelling)
            if self.has_subquery(item)
        ]
        return (*in_order(plain), *others)

    def spelling(self, node: Any) -> str:
        """The text of an expression in Spark, without the numbers and aliases of its query."""
        texts = [str(node.toString())]
        for part in topmost(node, self.is_subquery):
            query = part.query() if kind_of(part) == "InSubquery" else part
            texts.append(str(query.plan().toString()))
        return "\n".join(
            _NUMBERS.sub("", line) for text in texts for line in text.splitlines()
            if "SubqueryAlias" not in line
        )

    def is_subquery(self, node: Any) -> bool:
        return kind_of(node) == "InSubquery" or self.is_a(node, "SubqueryExpression")

    def has_subquery(self, node: Any) -> bool:
        return _some(node, self.is_subquery)

    def correlated(self, plan: Any) -> Relation:
        """The relational form of the plan of a subquery."""
        raise NotImplementedError


def _aggregate_call(function: Any) -> AggregateCall | None:
    """An aggregate whose text in Catalyst leaves a part out, or names a function of its own."""
    kind = kind_of(function)
    if kind in _ENDS and function.ignoreNulls():
        return AggregateCall(str(function.prettyName()), (function.child(), "true"))
    if kind == "Mode" and function.reverseOpt().isDefined():
        # The text of Catalyst has the other direction.
        return AggregateCall("mode", (), function.child(), not function.reverseOpt().get())
    if kind == "HyperLogLogPlusPlus":  # the answer is exact, whatever the allowed error is
        return AggregateCall("approx_count_distinct", (function.child(),))
    if kind == "PercentileCont":
        return AggregateCall(
            "percentile_cont", (function.right(),), function.left(), function.reverse()
        )
    if kind in ("RegrSXX", "RegrSYY"):
        return AggregateCall(kind.lower().replace("regr", "regr_"), tuple(
            items_of(function.children())
        ))
    return None


def _bare_function(node: Any) -> Any:
    """An expression without an alias; a function, if it is an aggregate of all its rows."""
    node = bare(node)
    plain = kind_of(node) == "AggregateExpression" and not (
        node.isDistinct() or node.filter().isDefined()
    )
    return node.aggregateFunction() if plain else node


def _id_of(common: Any) -> str:
    return str(common.id().toString())


def _renewed(node: Any, known: dict[str, Any]) -> Any:
    """The expression, its attributes replaced by the known ones of their names."""
    if kind_of(node) == "AttributeReference":
        return known.get(node.name(), node)
    below = items_of(node.children())
    if not below:
        return node
    return node.withNewChildren(scala_sequence([_renewed(item, known) for item in below]))


def _some(node: Any, test: Callable[[Any], bool]) -> bool:
    return bool(topmost(node, test))


def picked(relation: Relation, names: Sequence[str]) -> Relation:
    if relation.columns == tuple(names):
        return relation
    unique = dict.fromkeys(names)
    return Project(relation, tuple(Named(name, column_of(name)) for name in unique))
