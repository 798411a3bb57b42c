"""Reads a plan that Spark has analysed: the relational form of a query, on a classic session.

Spark parses the query, resolves names and types, and expands stars, grouping sets and pivots. The
reader walks the remaining kinds of nodes, by class and field name.

Four rules of the optimiser, applied by name, keep the meaning of each node and turn
``FROM a, b WHERE a.x = b.x`` into joins with conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from pyspark_diff.query import refusals
from pyspark_diff.query.clock import QueryClock
from pyspark_diff.query.form import (
    Aggregate,
    ConstantRelation,
    Distinct,
    Generate,
    Join,
    Named,
    Project,
    Recursion,
    RecursionReference,
    Relation,
    Scan,
    Selection,
    SetOperation,
    SqlExpression,
    UnionAll,
    Window,
    WindowFunction,
    column_of,
    outers_of,
)
from pyspark_diff.query.placeholder import is_placeholder, marked_table
from pyspark_diff.query.plan_expressions import Swaps, picked
from pyspark_diff.query.joins import placed
from pyspark_diff.query.plan_limits import PlanLimits
from pyspark_diff.query.plan_names import bare, conjuncts, topmost
from pyspark_diff.query.pruning import used_names
from pyspark_diff.query.refusals import RefusedPart
from pyspark_diff.query.sessions import with_merged_sessions
from pyspark_diff.spark.jvm import (
    analysed_plan,
    frame_of_plan,
    has_sessions,
    items_of,
    kind_of,
)
from pyspark_diff.spark.jvm_tables import described_table

#: A recursion of UNION has this much added to its greatest number of rounds.
DISTINCT_ROUNDS = 1 << 30

#: Generators that Spark accepts only in FROM, by class.
_FROM_ONLY = frozenset({"Collations", "SQLKeywords", "VariantExplode"})
_JOINS = {
    "INNER": "inner", "CROSS": "inner", "LEFT OUTER": "left", "RIGHT OUTER": "right",
    "FULL OUTER": "full", "LEFT SEMI": "left_semi", "LEFT ANTI": "left_anti",
}
#: Aggregates whose value over no rows is 0.
_ZEROS = frozenset({"Count", "CountIf", "RegrCount", "HyperLogLogPlusPlus"})
#: Aggregates whose value over no rows is an empty list.
_LISTS = frozenset({"CollectList", "CollectSet"})
_TRANSPARENT = frozenset({
    "SubqueryAlias", "ResolvedHint", "UnresolvedHint", "Subquery", "Repartition",
    "RepartitionByExpression", "RebalancePartitions", "Sort", "View", "CollectMetrics",
    "WithWindowDefinition", "LocalLimit", "PipeOperator",
})
#: The key in the metadata of a column of sessions.
_SESSION = "spark.sessionWindow"
#: Leaves whose rows Spark has at hand.
_CONSTANT = frozenset({"LocalRelation", "OneRowRelation", "Range", "LogicalRDD"})


@dataclass(frozen=True)
class QueryForm:
    """A query that was read.

    Parameters
    ----------
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
    clock: QueryClock | None = None, renamed: Mapping[str, Mapping[str, str]] = {},
) -> QueryForm:
    """The relational form of an analysed plan.

    Parameters
    ----------
    plan : py4j object
        A logical plan that Spark has analysed.
    spark : SparkSession
        The session that analysed it.
    providers : frozenset of str
        The providers of tables of the catalog that a source reads.
    clock : QueryClock, optional
        The current date and time are its values.
    renamed : mapping of str to mapping of str to str
        Columns that the form has under other names than their tables have, by these.

    Raises
    ------
    UnsupportedQueryError
        If the query has parts that cannot be kept up to date; it lists all of them.
    """
    attributes = items_of(plan.output())
    reader = _PlanReader(spark, providers, clock)
    reader.state_names = renamed
    relation = reader.relation(plan)
    used = used_names(relation, map(reader.name, attributes))
    disturbing = reader.disturbing(used)
    if disturbing:
        # A table may gain or lose an unused column with the name of a used one of another table.
        reader = _PlanReader(spark, providers, clock)
        reader.unused, reader.state_names = disturbing, renamed
        relation = reader.relation(plan)
    names = numbered([str(attribute.name()) for attribute in attributes])
    columns = [(reader.name(attribute), name) for attribute, name in zip(attributes, names)]
    if plan.output().size() and any(
        kind_of(node) == "Sort" for node in _top(plan)
    ):
        reader.notes.append(
            "ORDER BY: a collection has no order; sort the frame that at() returns"
        )
    return QueryForm(
        placed(relation), tuple(columns), frozenset(reader.tables), tuple(reader.sources.items()),
        tuple(reader.notes),
    )


def check_pivot(plan: Any) -> None:
    """Refuses a frame whose last method is a pivot for whose values Spark has looked itself.

    The analysed plan of a pivot without values may have no trace of it.
    """
    if kind_of(plan) == "Pivot" and plan.pivotValues().isEmpty():
        name, detail = refusals.PIVOT
        raise refusals.refused([refusals.Refusal(refusals.NODE, name, detail=detail)])


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


def _is_session(item: Any) -> bool:
    """Whether an expression is a column of sessions."""
    return kind_of(item) == "AttributeReference" and bool(item.metadata().contains(_SESSION))


class _PlanReader(PlanLimits):
    """The nodes of a plan."""

    def __init__(
        self, spark: SparkSession, providers: frozenset[str], clock: QueryClock | None
    ):
        super().__init__(spark, providers, clock)
        self._bodies: dict[int, Any] = {}
        self._shared: dict[int, Relation] = {}
        self._loops: dict[int, tuple[str, ...]] = {}
        self._intervals: set[str] = set()

    # Nodes

    def relation(self, plan: Any) -> Relation:
        """The relational form of a whole plan, or the list of its refused parts as an error."""
        relation: Relation | None = None
        if has_sessions(plan):
            # Spark moves conditions on a session below its aggregate, to the rows of the session.
            self.moves_conditions = False
        try:
            relation = with_merged_sessions(
                self.walk(self.prepared(plan)), self._intervals, self.fresh, self.refusals
            )
        except RefusedPart:
            pass
        if self.refusals or relation is None:
            raise refusals.refused(self.refusals)
        return relation

    def walk(self, plan: Any) -> Relation:
        kind = kind_of(plan)
        # Columns pass their metadata on, also to references of common table expressions.
        table = marked_table(plan) if kind in ("LocalRelation", "LogicalRDD") else None
        if table is not None and is_placeholder(plan):
            self.tables.add(table)
            return self.scan(table, plan)
        if table is not None:
            self.refuse(refusals.NODE, f"the rows of table({table!r})", plan, (
                "checkpoint() and rdd compute them, and the frame has none. Remedy: leave the call "
                "out"
            ))
            raise RefusedPart
        if kind in _CONSTANT:
            return self.on_constant(plan)
        if kind in _TRANSPARENT:
            return self.walk(plan.child())
        method = getattr(self, f"on_{kind.lower()}", None)
        if method is None:
            return self.on_unknown(plan, kind)
        return method(plan)

    def scan(self, table: str, leaf: Any) -> Scan:
        names = self.state_names.get(table, {})
        columns = [(names.get(item.name(), item.name()), item) for item in items_of(leaf.output())]
        return Scan(table, tuple((name, self.name(item, name)) for name, item in columns))

    def on_constant(self, plan: Any) -> Relation:
        if plan.isStreaming():
            self.refuse(refusals.STREAM, "stream", plan)
            raise RefusedPart
        frame = frame_of_plan(plan, self.spark)
        frame = frame.toDF(*[self.name(item) for item in items_of(plan.output())])
        return ConstantRelation(frame if frame.columns else frame.selectExpr("1 AS one_"))

    def on_unknown(self, plan: Any, kind: str) -> Relation:
        if plan.children().size() == 0:
            match = self.external_table(plan, kind)
            if match is not None:
                return match
            raise RefusedPart
        if kind.endswith("Command") or "Command" in kind:
            self.refuse(refusals.NO_QUERY, kind, plan)
        else:
            self.refuse(refusals.NODE, kind, plan)
        for child in items_of(plan.children()):
            try:
                self.walk(child)
            except RefusedPart:
                pass
        raise RefusedPart

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
        return Project(self.walk(plan.child()), self.selected(plan))

    def selected(self, plan: Any) -> tuple[Named, ...]:
        items = items_of(plan.projectList())
        self._intervals.update(
            self.name(item) for item in items
            if kind_of(item) == "Alias" and kind_of(item.child()) == "CreateNamedStruct"
            and item.metadata().contains(_SESSION)
        )
        return self.named(items)

    def on_filter(self, plan: Any) -> Relation:
        child = self.walk(plan.child())
        return Selection(child, self.conditions(conjuncts(plan.condition())))

    def on_aggregate(self, plan: Any) -> Relation:
        child = self.walk(plan.child())
        # HAVING adds aggregates in the order of its conditions, which is none of the program.
        results, swaps = sorted(items_of(plan.aggregateExpressions()), key=self.spelling), Swaps()
        keys, aggregates, zeros = [], [], set()
        for item in items_of(plan.groupingExpressions()):
            if swaps.get(item) is None:
                keys.append(Named(self.fresh("g"), self.expression(item)))
                swaps.add(item, keys[-1].name)
        calls = [
            call for item in results
            for call in topmost(item, lambda e: self.is_a(e, "AggregateExpression"))
        ]
        if any(map(_is_session, items_of(plan.groupingExpressions()))) and any(
            kind_of(call.aggregateFunction()) == "PivotFirst" for call in calls
        ):
            self.refuse(
                refusals.NODE, "a pivot by session_window(...)", plan, refusals.SESSION_PIVOT
            )
        for call in sorted(calls, key=self.spelling):
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
                if _is_session(item) and item.exprId().id() != attribute.exprId().id():
                    self.refuse(
                        refusals.NODE, "grouping sets of session_window(...)", plan,
                        refusals.SESSION_SETS,
                    )
                text = f"CAST({value} AS {attribute.dataType().sql()})"
                columns[self.name(attribute)] = SqlExpression(
                    text, value.outers, value.subqueries, value.columns
                )
            rows.append(Project(child, tuple(Named(*column) for column in columns.items())))
        return rows[0] if len(rows) == 1 else UnionAll(tuple(rows), rows[0].columns)

    def on_window(self, plan: Any) -> Relation:
        child, functions = self.walk(plan.child()), []
        for item in items_of(plan.windowExpressions()):
            call = bare(item)
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
        if kind_of(plan.generator()) in _FROM_ONLY:
            return self.on_table_function(plan)
        return Generate(
            self.walk(plan.child()), self.expression(plan.generator()), bool(plan.outer()),
            tuple(self.name(item) for item in items_of(plan.generatorOutput())),
        )

    def on_table_function(self, plan: Any) -> Relation:
        """The rows of a function that Spark accepts only in FROM, of constants."""
        if kind_of(plan.child()) == "OneRowRelation":
            outer = topmost(plan.generator(), lambda e: kind_of(e) == "OuterReference")
            read = None if outer else analysed_plan(frame_of_plan(plan, self.spark))
            if read and not (read.unstable or read.outside):
                return self.on_constant(plan)
        name = str(plan.generator().prettyName()) + "_outer" * bool(plan.outer())
        self.refuse(refusals.NODE, f"{name}(...)", plan, refusals.only_in_from(name))
        raise RefusedPart

    def on_pythonworkerlogs(self, plan: Any) -> Relation:
        self.refuse(refusals.NODE, "python_worker_logs()", plan, refusals.LOGS)
        raise RefusedPart

    def on_join(self, plan: Any) -> Relation:
        left, right = self.walk(plan.left()), self.walk(plan.right())
        return self.joined(plan, left, right)

    def on_lateraljoin(self, plan: Any) -> Relation:
        left, below = self.walk(plan.left()), plan.right().plan()
        while kind_of(below) in ("SubqueryAlias", "Project"):
            below = below.child()
        if kind_of(below) == "Generate" and str(plan.joinType().sql()) == "LEFT OUTER":
            self.refuse(
                refusals.NODE, "LEFT JOIN LATERAL of a generator", plan, refusals.LEFT_GENERATOR
            )
        right = self.correlated(plan.right().plan())
        output = [self.name(item) for item in items_of(plan.right().plan().output())]
        return self.joined(plan, left, picked(right, output), lateral=True)

    def joined(
        self, plan: Any, left: Relation, right: Relation, lateral: bool = False
    ) -> Relation:
        how = str(plan.joinType().sql())
        if how not in _JOINS:
            self.refuse(refusals.NODE, f"{how} JOIN", plan)
            raise RefusedPart
        condition = plan.condition()
        parts = conjuncts(condition.get()) if condition.isDefined() else []
        return Join(left, right, _JOINS[how], self.conditions(parts), lateral)

    def on_distinct(self, plan: Any) -> Relation:
        return Distinct(self.walk(plan.child()))

    def sides(self, plan: Any) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
        output = tuple(self.name(item) for item in items_of(plan.output()))
        sides = tuple(
            Project(self.walk(child), tuple(
                Named(name, column_of(self.name(item)))
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
        return self.first(plan)

    def on_offset(self, plan: Any) -> Relation:
        return self.first(plan)

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
            Named(self.name(new), column_of(self.name(old)))
            for old, new in zip(items_of(body.output()), items_of(plan.output()))
        ))

    def on_unionloop(self, plan: Any) -> Relation:
        output = tuple(self.name(item) for item in items_of(plan.output()))
        number = plan.id()
        self._loops[number] = output

        def side(child: Any) -> Relation:
            return Project(self.walk(child), tuple(
                Named(name, column_of(self.name(item)))
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
            Named(self.name(new), column_of(old))
            for old, new in zip(output, items_of(plan.output()))
        ))
