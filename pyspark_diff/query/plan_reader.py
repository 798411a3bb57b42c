"""Reads a plan that Spark has analysed: the relational form of a query, on a classic session.

Spark parses the query, resolves names and types, and expands stars, grouping sets and pivots. The
reader walks the remaining kinds of nodes, by class and field name.

* An attribute has an id that is unique in the plan. The form calls it ``name_number``, by the order
  in which the reader meets the attributes.
* An expression becomes SQL text: Catalyst writes it after the reader has renamed its attributes.
* Four rules of the optimiser, applied by name, keep the meaning of each node and turn
  ``FROM a, b WHERE a.x = b.x`` into joins with conditions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from pyspark_diff.query import refusals
from pyspark_diff.query.clock import KINDS, NOTE, Clock
from pyspark_diff.query.form import (
    OUTER,
    Aggregate,
    Constant,
    Distinct,
    Expression,
    Filter,
    Generate,
    Join,
    Named,
    Order,
    Project,
    Recursion,
    RecursionReference,
    Relation,
    Scan,
    SetOperation,
    Subquery,
    TopK,
    UnionAll,
    Window,
    WindowFunction,
    outers_of,
)
from pyspark_diff.query.refusals import Refusal
from pyspark_diff.spark.jvm import (
    described_table,
    frame_of_plan,
    items_of,
    kind_of,
    loaded_class,
    scala_sequence,
    sql_class,
    sql_text,
)

#: The key in the metadata of a column that names the table of the dataflow.
TABLE = "pyspark_diff.table"
#: A recursion of UNION has this much added to its greatest number of rounds.
DISTINCT_ROUNDS = 1 << 30

_CATALYST = "catalyst."
_TRAITS = {
    trait.rpartition(".")[2]: f"org.apache.spark.sql.catalyst.expressions.{trait}"
    for trait in (
        "RuntimeReplaceable", "InheritAnalysisRules", "SubqueryExpression",
        "AggregateWindowFunction", "FrameLessOffsetWindowFunction",
        "aggregate.AggregateExpression", "CurrentTimestampLike", "LambdaFunction",
    )
}
_RULES = (
    "analysis.EliminateSubqueryAliases", "optimizer.BooleanSimplification",
    "optimizer.ReorderJoin", "optimizer.PushDownPredicates",
)
_ROUNDS = 3
_WORD = re.compile("[a-z][a-z0-9_]*")
_JOINS = {
    "INNER": "inner", "CROSS": "inner", "LEFT OUTER": "left", "RIGHT OUTER": "right",
    "FULL OUTER": "full", "LEFT SEMI": "left_semi", "LEFT ANTI": "left_anti",
}
#: Expressions of Catalyst that have no SQL text.
_NO_SQL = frozenset({"StaticInvoke", "Invoke"})
#: The SQL text of expressions that Catalyst writes in words that it does not read.
_WRITTEN = {"ExtractANSIIntervalDays": "extract(DAY FROM {})"}
_CLOCK = frozenset({
    "CurrentDate", "CurrentTimestamp", "Now", "LocalTimestamp", "CurrentTime",
})
_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "ScalaUDF", "PythonUDTF"})
#: Aggregates whose value over no rows is 0.
_ZEROS = frozenset({"Count", "CountIf", "RegrCount", "HyperLogLogPlusPlus"})
#: Aggregates whose value over no rows is an empty list.
_LISTS = frozenset({"CollectList", "CollectSet"})
_TRANSPARENT = frozenset({
    "SubqueryAlias", "ResolvedHint", "UnresolvedHint", "Subquery", "Repartition",
    "RepartitionByExpression", "RebalancePartitions", "Sort", "View", "CollectMetrics",
    "WithWindowDefinition", "LocalLimit",
})
#: Leaves whose rows Spark has at hand.
_CONSTANT = frozenset({"LocalRelation", "OneRowRelation", "Range", "LogicalRDD"})
#: Aggregates that may leave out nulls.
_ENDS = frozenset({"First", "Last", "AnyValue"})


class _Stop(Exception):
    """The reader cannot go on below a refused part."""


@dataclass
class _Swaps:
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
class _Parts:
    """The columns, outer columns and subqueries of an expression, gathered while it is renamed."""

    columns: set[str] = field(default_factory=set)
    outers: set[str] = field(default_factory=set)
    subqueries: list[Subquery] = field(default_factory=list)
    lambdas: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _AggregateCall:
    """A function with its arguments, each a node or a text, and the node of its order."""

    name: str
    arguments: tuple[Any, ...]
    order: Any = None
    descending: bool = False


@dataclass(frozen=True)
class Read:
    """A query that was read.

    Parameters
    ----------
    relation : Relation
    columns : tuple of (str, str)
        Pairs of a column of the relation and its name in the result.
    tables : frozenset of str
        The tables of the dataflow that it reads.
    sources : tuple of (str, str)
        The tables of the catalog among them, each with its provider.
    notes : tuple of str
        Remarks for `explain_sql`: clauses that have no effect on a collection.
    """

    relation: Relation
    columns: tuple[tuple[str, str], ...]
    tables: frozenset[str]
    sources: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def read_plan(
    plan: Any, spark: SparkSession, providers: frozenset[str] = frozenset(),
    clock: Clock | None = None,
) -> Read:
    """The relational form of an analysed plan.

    Parameters
    ----------
    plan : py4j object
        A logical plan that Spark has analysed.
    spark : SparkSession
        The session that analysed it.
    providers : frozenset of str
        The providers of tables of the catalog that a source reads.
    clock : Clock, optional
        The current date and time are its values.

    Raises
    ------
    UnsupportedQueryError
        If the query has parts that cannot be kept up to date; it lists all of them.
    """
    reader = _PlanReader(spark, providers, clock)
    relation: Relation | None = None
    try:
        relation = reader.walk(reader.prepared(plan))
    except _Stop:
        pass
    if reader.refusals or relation is None:
        raise refusals.refused(reader.refusals)
    attributes = items_of(plan.output())
    names = numbered([str(attribute.name()) for attribute in attributes])
    columns = [(reader.name(attribute), name) for attribute, name in zip(attributes, names)]
    if plan.output().size() and any(
        kind_of(node) == "Sort" for node in _top(plan)
    ):
        reader.notes.append(
            "ORDER BY: a collection has no order; sort the frame that at() returns"
        )
    return Read(
        relation, tuple(columns), frozenset(reader.tables), tuple(reader.sources.items()),
        tuple(reader.notes),
    )


def numbered(names: Iterable[str]) -> list[str]:
    """Names with numbers where several are equal: a query may have that, a collection may not.

    Examples
    --------
    >>> numbered(["id", "ID", "name"])
    ['id', 'ID_2', 'name']
    """
    used: set[str] = set()
    result = []
    for name in names:
        unique, number = name, 1
        while unique.lower() in used:
            number += 1
            unique = f"{name}_{number}"
        used.add(unique.lower())
        result.append(unique)
    return result


def _top(plan: Any) -> Iterable[Any]:
    """The nodes above the first one that gives rows their order or number."""
    while kind_of(plan) in ("Project", "SubqueryAlias", "WithCTE", "Sort"):
        yield plan
        if kind_of(plan) == "Sort":
            return
        plan = plan.plan() if kind_of(plan) == "WithCTE" else plan.child()


class _PlanReader:
    def __init__(
        self, spark: SparkSession, providers: frozenset[str], clock: Clock | None
    ):
        self.spark, self.providers, self.clock = spark, providers, clock
        self.refusals: list[Refusal] = []
        self.notes: list[str] = []
        self.tables: set[str] = set()
        self.sources: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._numbers = 0
        self._bodies: dict[int, Any] = {}
        self._shared: dict[int, Relation] = {}
        self._loops: dict[int, tuple[str, ...]] = {}
        self._common: dict[str, Any] = {}
        self._traits: dict[str, frozenset[str]] = {}
        self._classes = {name: loaded_class(path) for name, path in _TRAITS.items()}
        self._rules = [
            getattr(sql_class(f"{_CATALYST}{rule}$"), "MODULE$") for rule in _RULES
        ]

    # Names, classes and refusals

    def prepared(self, plan: Any) -> Any:
        """The plan after rules that keep the meaning of each node."""
        for _ in range(_ROUNDS):
            for rule in self._rules:
                plan = rule.apply(plan)
        return plan

    def name(self, attribute: Any) -> str:
        number = attribute.exprId().id()
        if number not in self._names:
            # Ids differ in each session, and the name of an expression has aliases of tables in
            # it: neither may change the identity of a program.
            word = str(attribute.name()).lower()
            word = word[:20] if _WORD.fullmatch(word) else "c"
            self._names[number] = f"{word}_{len(self._names) + 1}"
        return self._names[number]

    def fresh(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers}_"

    def is_a(self, node: Any, trait: str) -> bool:
        kind = node.getClass().getName()
        if kind not in self._traits:
            self._traits[kind] = frozenset(
                name for name, loaded in self._classes.items() if loaded.isInstance(node)
            )
        return trait in self._traits[kind]

    def refuse(self, code: str, construct: str, node: Any, detail: str = "") -> None:
        origin = node.origin()
        line, column = origin.line(), origin.startPosition()
        self.refusals.append(Refusal(
            code, construct, line.get() if line.isDefined() else None,
            column.get() + 1 if column.isDefined() else None, detail,
        ))

    # Expressions

    def expression(self, node: Any, swaps: _Swaps | None = None) -> Expression:
        parts = _Parts()
        text = self.text(_bare(node), parts, swaps)
        return Expression(
            text, frozenset(parts.outers), tuple(parts.subqueries), frozenset(parts.columns)
        )

    def text(self, node: Any, parts: _Parts, swaps: _Swaps | None = None) -> str:
        renamed = self.renamed(node, parts, swaps)
        text = sql_text(renamed)
        if text is None:
            self.refuse(refusals.EXPRESSION, str(node.prettyName()), node)
            return "NULL"
        for name, written in parts.lambdas.items():
            text = text.replace(name, written)
        return text

    def column(self, name: str, like: Any) -> Any:
        """A column of a name, with the type of an expression."""
        kind = sql_class("types.StructField")(
            name, like.dataType(), True, sql_class("types.Metadata").empty()
        )
        return sql_class("catalyst.types.DataTypeUtils").toAttribute(kind)

    def renamed(self, node: Any, parts: _Parts, swaps: _Swaps | None) -> Any:
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
        if self.is_a(node, "RuntimeReplaceable"):
            return self.replaced(node, parts, swaps)
        below = items_of(node.children())
        if not node.deterministic() and all(child.deterministic() for child in below):
            self.refuse(refusals.NON_DETERMINISTIC, f"{node.prettyName()}()", node)
            return node
        if not below:
            return node
        # A field of a struct keeps its alias, which is no SQL within an expression.
        children = scala_sequence([self.renamed(_bare(child), parts, swaps) for child in below])
        if kind == "CreateNamedStruct":
            # One that was written as struct(k) would lose the name of its field in SQL text.
            return node.copy(children)
        return node.withNewChildren(children)

    def aggregate_text(
        self, node: Any, call: _AggregateCall, parts: _Parts, swaps: _Swaps | None
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

    def replaced(self, node: Any, parts: _Parts, swaps: _Swaps | None) -> Any:
        """The replacement of an expression, or the expression if only it has SQL text."""
        replacement = node.replacement()
        if not _some(replacement, lambda e: kind_of(e) in _NO_SQL):
            return self.renamed(replacement, parts, swaps)
        if kind_of(node) == "StructsToJson" and node.options().isEmpty():
            return self.written(f"to_json({self.text(node.child(), parts, swaps)})", node, parts)
        if not self.is_a(node, "InheritAnalysisRules"):
            self.refuse(refusals.EXPRESSION, str(node.prettyName()), node)
            return node
        # Spark renews the ids of attributes in the replacement, and not in the parameters.
        known = {
            item.name(): item for item in _topmost(
                replacement, lambda e: kind_of(e) == "AttributeReference"
            )
        }
        arguments = [
            self.text(_renewed(item, known), parts, swaps) for item in items_of(node.parameters())
        ]
        return self.written(f"{node.prettyName()}({', '.join(arguments)})", node, parts)

    def written(self, text: str, node: Any, parts: _Parts) -> Any:
        """A column whose name `text` replaces by a text at the end."""
        name = self.fresh("text_of_")
        parts.lambdas[name] = text
        # Texts may be in texts: the outer one is replaced first.
        parts.lambdas = dict(reversed(list(parts.lambdas.items())))
        return self.column(name, node)

    def with_lambda(self, node: Any, parts: _Parts, swaps: _Swaps | None) -> Any:
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

    def pivoted(self, node: Any, parts: _Parts, swaps: _Swaps | None) -> Any:
        """The values of a pivot in an array, in the order of the pivoted values."""
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
        self, node: Any, parts: _Parts, swaps: _Swaps | None, negated: bool = False
    ) -> Any:
        kind, query = kind_of(node), node
        values: tuple[Expression, ...] = ()
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
        relation = self.walk(self.prepared(query.plan()))
        output = [self.name(item) for item in items_of(query.plan().output())]
        relation = _picked(relation, output)
        column = self.fresh("s")
        parts.subqueries.append(Subquery(column, name, relation, values))
        for value in values:
            parts.columns |= value.columns
        return self.column(column, node)

    def named(self, nodes: Iterable[Any], swaps: _Swaps | None = None) -> tuple[Named, ...]:
        """Aliases and attributes as columns; an attribute may be listed twice."""
        columns: dict[str, Any] = {self.name(item): item for item in nodes}
        return tuple(Named(name, self.expression(item, swaps)) for name, item in columns.items())

    def order(self, nodes: Iterable[Any], swaps: _Swaps | None = None) -> tuple[Order, ...]:
        return tuple(
            Order(
                self.expression(item.child(), swaps), item.direction().sql() != "ASC",
                item.nullOrdering().sql() == "NULLS FIRST",
            )
            for item in nodes
        )

    # Nodes

    def walk(self, plan: Any) -> Relation:
        kind = kind_of(plan)
        # Columns pass their metadata on, also to references of common table expressions.
        table = self.table_of(plan) if kind == "LocalRelation" else None
        if table is not None:
            self.tables.add(table)
            return self.scan(table, plan)
        if kind in _CONSTANT:
            return self.on_constant(plan)
        if kind in _TRANSPARENT:
            return self.walk(plan.child())
        method = getattr(self, f"on_{kind.lower()}", None)
        if method is None:
            return self.on_unknown(plan, kind)
        return method(plan)

    def scan(self, table: str, leaf: Any) -> Scan:
        columns = items_of(leaf.output())
        return Scan(table, tuple((item.name(), self.name(item)) for item in columns))

    def table_of(self, plan: Any) -> str | None:
        """The table of the dataflow that a leaf reads."""
        for attribute in items_of(plan.output()):
            if attribute.metadata().contains(TABLE):
                return str(attribute.metadata().getString(TABLE))
            return None
        return None

    def on_constant(self, plan: Any) -> Relation:
        if plan.isStreaming():
            self.refuse(refusals.STREAM, "stream", plan)
            raise _Stop
        frame = frame_of_plan(plan, self.spark)
        frame = frame.toDF(*[self.name(item) for item in items_of(plan.output())])
        return Constant(frame if frame.columns else frame.selectExpr("1 AS one_"))

    def on_unknown(self, plan: Any, kind: str) -> Relation:
        if plan.children().size() == 0:
            match = self.external_table(plan, kind)
            if match is not None:
                return match
            raise _Stop
        if kind.endswith("Command") or "Command" in kind:
            self.refuse(refusals.NO_QUERY, kind, plan)
        else:
            self.refuse(refusals.NODE, kind, plan)
        for child in items_of(plan.children()):
            try:
                self.walk(child)
            except _Stop:
                pass
        raise _Stop

    def external_table(self, plan: Any, kind: str) -> Relation | None:
        if plan.isStreaming():
            self.refuse(refusals.STREAM, "stream", plan)
            return None
        table = described_table(plan)
        if table is None:
            self.refuse(refusals.NODE, kind, plan)
            return None
        name, provider = table
        if provider not in self.providers:
            self.refuse(refusals.TABLE, name, plan, refusals.without_source(name, provider))
            return None
        self.tables.add(name)
        self.sources[name] = provider
        return self.scan(name, plan)

    def on_project(self, plan: Any) -> Relation:
        return Project(self.walk(plan.child()), self.named(items_of(plan.projectList())))

    def on_filter(self, plan: Any) -> Relation:
        child = self.walk(plan.child())
        return Filter(child, self.conditions(_conjuncts(plan.condition())))

    def on_aggregate(self, plan: Any) -> Relation:
        child = self.walk(plan.child())
        results, swaps = items_of(plan.aggregateExpressions()), _Swaps()
        keys, aggregates, zeros = [], [], set()
        for item in items_of(plan.groupingExpressions()):
            if swaps.get(item) is None:
                keys.append(Named(self.fresh("g"), self.expression(item)))
                swaps.add(item, keys[-1].name)
        calls = [
            call for item in results
            for call in _topmost(item, lambda e: self.is_a(e, "AggregateExpression"))
        ]
        for call in calls:
            if swaps.get(call) is None:
                name = self.fresh("a")
                aggregates.append(Named(name, self.expression(call)))
                swaps.add(call, name)
                if kind_of(call.aggregateFunction()) in _ZEROS:
                    zeros.add(name)
                if kind_of(call.aggregateFunction()) in _LISTS and not keys and outers_of(child):
                    self.refuse(
                        refusals.NODE, f"{call.aggregateFunction().prettyName()}(...)", call,
                        "a correlated subquery without rows has an empty list. Remedy: join with "
                        "a query that has GROUP BY, and coalesce(..., array())",
                    )
        grouped = Aggregate(child, tuple(keys), tuple(aggregates), frozenset(zeros))
        return Project(grouped, self.named(results, swaps))

    def on_deduplicate(self, plan: Any) -> Relation:
        child, keys = self.walk(plan.child()), items_of(plan.keys())
        if keys and len(keys) < plan.child().output().size():
            self.refuse(
                refusals.NODE, "dropDuplicates of some columns", plan,
                "it keeps any row of a key. Remedy: choose the row, by min_by(struct(...), ...) "
                "GROUP BY the key, or by row_number() in a window",
            )
        return Distinct(child)

    def on_expand(self, plan: Any) -> Relation:
        child, output = self.walk(plan.child()), items_of(plan.output())
        rows = []
        for row in items_of(plan.projections()):
            columns = {}
            for item, attribute in zip(items_of(row), output):
                value = self.expression(item)
                text = f"CAST({value} AS {attribute.dataType().sql()})"
                columns[self.name(attribute)] = Expression(
                    text, value.outers, value.subqueries, value.columns
                )
            rows.append(Project(child, tuple(Named(*column) for column in columns.items())))
        return rows[0] if len(rows) == 1 else UnionAll(tuple(rows), rows[0].columns)

    def on_window(self, plan: Any) -> Relation:
        child, functions = self.walk(plan.child()), []
        for item in items_of(plan.windowExpressions()):
            call = _bare(item)
            if kind_of(call) != "WindowExpression":
                self.refuse(refusals.WINDOW_EXPRESSION, str(item.sql()), item)
                continue
            function, spec = call.windowFunction(), call.windowSpec()
            # Ranks and offsets have a frame of their own, which SQL text must not repeat.
            own = kind_of(function) != "NthValue" and (
                self.is_a(function, "AggregateWindowFunction")
                or self.is_a(function, "FrameLessOffsetWindowFunction")
            )
            functions.append(WindowFunction(
                self.name(item), self.expression(function),
                tuple(map(self.expression, items_of(spec.partitionSpec()))),
                self.order(items_of(spec.orderSpec())),
                "" if own else str(spec.frameSpecification().sql()),
            ))
        return Window(child, tuple(functions))

    def on_generate(self, plan: Any) -> Relation:
        return Generate(
            self.walk(plan.child()), self.expression(plan.generator()), bool(plan.outer()),
            tuple(self.name(item) for item in items_of(plan.generatorOutput())),
        )

    def on_join(self, plan: Any) -> Relation:
        left, right = self.walk(plan.left()), self.walk(plan.right())
        return self.joined(plan, left, right)

    def on_lateraljoin(self, plan: Any) -> Relation:
        left = self.walk(plan.left())
        right = self.walk(self.prepared(plan.right().plan()))
        output = [self.name(item) for item in items_of(plan.right().plan().output())]
        return self.joined(plan, left, _picked(right, output), lateral=True)

    def joined(
        self, plan: Any, left: Relation, right: Relation, lateral: bool = False
    ) -> Relation:
        how = str(plan.joinType().sql())
        if how not in _JOINS:
            self.refuse(refusals.NODE, f"{how} JOIN", plan)
            raise _Stop
        condition = plan.condition()
        parts = _conjuncts(condition.get()) if condition.isDefined() else []
        return Join(left, right, _JOINS[how], self.conditions(parts), lateral)

    def conditions(self, parts: list[Any]) -> tuple[Expression, ...]:
        """Conjuncts in an order that does not depend on that of the query."""
        plain = [self.expression(item) for item in parts if not self.has_subquery(item)]
        others = [self.expression(item) for item in parts if self.has_subquery(item)]
        return (*sorted(plain, key=lambda item: item.text), *others)

    def has_subquery(self, node: Any) -> bool:
        return _some(
            node, lambda e: kind_of(e) == "InSubquery" or self.is_a(e, "SubqueryExpression")
        )

    def on_distinct(self, plan: Any) -> Relation:
        return Distinct(self.walk(plan.child()))

    def sides(self, plan: Any) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
        output = tuple(self.name(item) for item in items_of(plan.output()))
        sides = tuple(
            Project(self.walk(child), tuple(
                Named(name, _column(self.name(item)))
                for item, name in zip(items_of(child.output()), output)
            ))
            for child in items_of(plan.children())
        )
        return sides, output

    def on_union(self, plan: Any) -> Relation:
        return UnionAll(*self.sides(plan))

    def on_except(self, plan: Any) -> Relation:
        (left, right), output = self.sides(plan)
        return SetOperation(left, right, "except_all" if plan.isAll() else "except", output)

    def on_intersect(self, plan: Any) -> Relation:
        (left, right), output = self.sides(plan)
        return SetOperation(left, right, "intersect_all" if plan.isAll() else "intersect", output)

    def on_globallimit(self, plan: Any) -> Relation:
        limit = int(plan.limitExpr().eval(None))
        child = plan.child()
        child = child.child() if kind_of(child) == "LocalLimit" else child
        if kind_of(child) == "Offset":
            return self.first(child.child(), limit, int(child.offsetExpr().eval(None)), plan)
        return self.first(child, limit, 0, plan)

    def on_offset(self, plan: Any) -> Relation:
        return self.first(plan.child(), None, int(plan.offsetExpr().eval(None)), plan)

    def first(self, child: Any, limit: int | None, skip: int, plan: Any) -> Relation:
        """The rows at some positions, in the order of a sort below projections."""
        above = None
        if kind_of(child) == "Project" and kind_of(child.child()) == "Sort":
            above, child = child, child.child()
        order: tuple[Order, ...] = ()
        if kind_of(child) == "Sort":
            order = self.order(items_of(child.order()))
            child = child.child()
        else:
            self.notes.append(
                "LIMIT without ORDER BY: any rows are right, and these are the least ones by "
                "their columns"
            )
        relation: Relation = TopK(self.walk(child), limit, skip, order)
        if above is not None:
            relation = Project(relation, self.named(items_of(above.projectList())))
        return relation

    def on_sample(self, plan: Any) -> Relation:
        self.refuse(refusals.SAMPLE, "TABLESAMPLE", plan)
        return self.walk(plan.child())

    def on_withcte(self, plan: Any) -> Relation:
        for item in items_of(plan.cteDefs()):
            self._bodies[item.id()] = item.child()
        return self.walk(plan.plan())

    def on_cterelationref(self, plan: Any) -> Relation:
        number = plan.cteId()
        body = self._bodies[number]
        if number not in self._shared:
            self._shared[number] = self.walk(self.prepared(body))
            if outers_of(self._shared[number]):
                self.refuse(refusals.CORRELATED_CTE, "WITH", plan)
        return Project(self._shared[number], tuple(
            Named(self.name(new), _column(self.name(old)))
            for old, new in zip(items_of(body.output()), items_of(plan.output()))
        ))

    def on_unionloop(self, plan: Any) -> Relation:
        output = tuple(self.name(item) for item in items_of(plan.output()))
        number = plan.id()
        self._loops[number] = output

        def side(child: Any) -> Relation:
            return Project(self.walk(child), tuple(
                Named(name, _column(self.name(item)))
                for item, name in zip(items_of(child.output()), output)
            ))

        depth = plan.maxDepth()
        rounds = int(depth.get()) if depth.isDefined() else None
        distinct = rounds is not None and rounds >= DISTINCT_ROUNDS
        if distinct:
            assert rounds is not None
            rounds = (rounds - DISTINCT_ROUNDS) or None
        relation = Recursion(
            number, side(plan.anchor()), side(plan.recursion()), output, distinct, rounds
        )
        if outers_of(relation):
            self.refuse(refusals.CORRELATED_RECURSION, "WITH RECURSIVE", plan)
        return relation

    def on_unionloopref(self, plan: Any) -> Relation:
        output = self._loops[plan.loopId()]
        reference = RecursionReference(plan.loopId(), output)
        return Project(reference, tuple(
            Named(self.name(new), _column(old))
            for old, new in zip(output, items_of(plan.output()))
        ))


def _aggregate_call(function: Any) -> _AggregateCall | None:
    """An aggregate whose text in Catalyst leaves a part out, or names a function of its own."""
    kind = kind_of(function)
    if kind in _ENDS and function.ignoreNulls():
        return _AggregateCall(str(function.prettyName()), (function.child(), "true"))
    if kind == "Mode" and function.reverseOpt().isDefined():
        # The text of Catalyst has the other direction.
        return _AggregateCall("mode", (), function.child(), not function.reverseOpt().get())
    if kind == "PercentileCont":
        return _AggregateCall(
            "percentile_cont", (function.right(),), function.left(), function.reverse()
        )
    if kind in ("RegrSXX", "RegrSYY"):
        return _AggregateCall(kind.lower().replace("regr", "regr_"), tuple(
            items_of(function.children())
        ))
    return None


def _column(name: str) -> Expression:
    return Expression(name, columns=frozenset({name}))


def _picked(relation: Relation, names: Sequence[str]) -> Relation:
    if relation.columns == tuple(names):
        return relation
    unique = dict.fromkeys(names)
    return Project(relation, tuple(Named(name, _column(name)) for name in unique))


def _bare(node: Any) -> Any:
    return node.child() if kind_of(node) == "Alias" else node


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


def _topmost(node: Any, test: Callable[[Any], bool]) -> list[Any]:
    """The topmost parts of an expression that pass a test."""
    if test(node):
        return [node]
    return [part for child in items_of(node.children()) for part in _topmost(child, test)]


def _some(node: Any, test: Callable[[Any], bool]) -> bool:
    return bool(_topmost(node, test))


def _conjuncts(node: Any) -> list[Any]:
    if kind_of(node) != "And":
        return [node]
    return [part for child in items_of(node.children()) for part in _conjuncts(child)]
