"""Reads LIMIT and OFFSET in a plan that Spark has analysed, with the order of the rows below.

    rows of LIMIT n  =  the first n rows in the order of the nearest sort whose order nodes keep
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark_diff.query import refusals
from pyspark_diff.query.form import (
    Named,
    Order,
    Project,
    Relation,
    Selection,
    TopK,
    column_of,
    outers_of,
)
from pyspark_diff.query.plan_expressions import PlanExpressions
from pyspark_diff.query.plan_names import conjuncts, topmost
from pyspark_diff.query.refusals import RefusedPart
from pyspark_diff.spark.jvm import items_of, kind_of

#: Nodes whose rows always have the order of their child's.
_IN_ORDER = frozenset({
    "Project", "Filter", "SubqueryAlias", "ResolvedHint", "UnresolvedHint", "View",
    "CollectMetrics", "PipeOperator",
})


class PlanLimits(PlanExpressions):
    """The limits of a plan."""

    #: The plans of common table expressions, by their numbers.
    _bodies: dict[int, Any]

    def first(self, plan: Any) -> Relation:
        """The rows at some positions, in the order of a sort below."""
        relation, order = self.in_order(plan)
        if not order:
            self.notes.append(
                "LIMIT without ORDER BY: any rows are right, and these are the least ones by "
                "their columns"
            )
        # A query may list a column twice, and its relation has it once.
        columns = tuple(dict.fromkeys(map(self.name, items_of(plan.output()))))
        if set(relation.columns) != set(columns):
            # Some are there for the order alone.
            relation = Project(relation, tuple(Named(name, column_of(name)) for name in columns))
        return relation

    def in_order(self, plan: Any) -> tuple[Relation, tuple[Order, ...]]:
        """The rows of a plan, and the order that they have in Spark; they have its columns, too."""
        kind = kind_of(plan)
        if kind == "Sort" and _is_global(plan):
            return self.walk(plan.child()), self.order(items_of(plan.order()))
        if kind in ("GlobalLimit", "Offset"):
            skip, limit = 0, None
            if kind == "GlobalLimit":
                limit, plan = int(plan.limitExpr().eval(None)), plan.child()
                plan = plan.child() if kind_of(plan) == "LocalLimit" else plan
            if kind_of(plan) == "Offset":
                skip, plan = int(plan.offsetExpr().eval(None)), plan.child()
            relation, order = self.in_order(plan)
            return TopK(relation, limit, skip, order), order
        if kind == "CTERelationRef" and self.is_sorted(plan):
            return self.sorted_table(plan)
        if kind == "Generate" and self.is_sorted(plan):
            self.refuse(refusals.NODE, "a generator between ORDER BY and LIMIT", plan, (
                "Spark takes the elements of the first rows. Remedy: sort the generator's rows"
            ))
            raise RefusedPart
        if _keeps_order(plan) and self.is_sorted(plan):
            relation, order = self.in_order(plan.child())
            if kind == "Filter":
                return Selection(relation, self.conditions(conjuncts(plan.condition()))), order
            if kind != "Project":
                return relation, order
            return _with_keys(relation, self.selected(plan), order), order
        return self.walk(plan), ()

    def correlated(self, plan: Any) -> Relation:
        """The relational form of the plan of a subquery."""
        text = str(plan.toString())
        sorts = "Sort [" in text or "CTERelationRef" in text
        if sorts and "GlobalLimit " in text and "outer(" in text:
            self.check_limits(plan)
        return self.walk(self.prepared(plan))

    def check_limits(self, plan: Any) -> None:
        """Refuses a LIMIT over a sort whose order a join with the enclosing query loses.

        Spark joins there if an expression above the sort refers to the enclosing query, except by
        an equality of one of its columns. A sort above the join keeps its order.
        """
        if kind_of(plan) == "GlobalLimit" and self.is_sorted(plan):
            joins, below = False, plan
            while kind_of(below) != "Sort":
                joins = joins or any(map(_joins_outer, items_of(below.expressions())))
                below = (
                    self._bodies[below.cteId()] if kind_of(below) == "CTERelationRef"
                    else below.child()
                )
            if joins and "outer(" not in str(below.toString()):
                name, detail = refusals.LOST_ORDER
                self.refuse(refusals.NODE, name, plan, detail)
        for child in items_of(plan.children()):
            self.check_limits(child)

    def is_sorted(self, plan: Any) -> bool:
        """Whether a sort gives the rows of a plan their order in Spark."""
        while True:
            kind = kind_of(plan)
            if kind == "CTERelationRef" and plan.cteId() in self._bodies:
                plan = self._bodies[plan.cteId()]
            elif _keeps_order(plan) or kind in ("GlobalLimit", "LocalLimit", "Offset", "Generate"):
                plan = plan.child()
            else:
                return kind == "Sort" and _is_global(plan)

    def sorted_table(self, plan: Any) -> tuple[Relation, tuple[Order, ...]]:
        """The rows of a common table expression with an order."""
        body = self._bodies[plan.cteId()]
        relation, order = self.in_order(self.prepared(body))
        if outers_of(relation):
            self.refuse(refusals.CORRELATED_CTE, "WITH", plan)
        return _with_keys(relation, tuple(
            Named(self.name(new), column_of(self.name(old)))
            for old, new in zip(items_of(body.output()), items_of(plan.output()))
        ), order), order

    def walk(self, plan: Any) -> Relation:
        """The relational form of a node."""
        raise NotImplementedError

    def selected(self, plan: Any) -> tuple[Named, ...]:
        """The columns of a projection."""
        raise NotImplementedError


def _with_keys(child: Relation, named: tuple[Named, ...], order: Sequence[Order]) -> Project:
    """A projection that has the columns of an order too."""
    lacking = {name for key in order for name in key.expression.columns}
    lacking -= {item.name for item in named}
    return Project(child, (*named, *(Named(name, column_of(name)) for name in sorted(lacking))))


def _joins_outer(node: Any) -> bool:
    """Whether an expression refers to the enclosing query, except by an equality of its column."""
    if kind_of(node) == "And":
        return any(map(_joins_outer, items_of(node.children())))
    outers = [topmost(part, _is_outer) for part in items_of(node.children())]
    if kind_of(node) == "EqualTo" and [] in outers:
        return not any(map(_is_outer, items_of(node.children())))
    return _is_outer(node) or any(outers)


def _is_outer(node: Any) -> bool:
    return kind_of(node) == "OuterReference"


def _keeps_order(plan: Any) -> bool:
    """Whether the rows of a node have the order of its child's, as far as it has any."""
    kind = kind_of(plan)
    # coalesce() joins partitions in their order.
    return kind in _IN_ORDER or kind == "Repartition" and not plan.shuffle()


def _is_global(sort: Any) -> bool:
    """Whether a sort is one of all rows, and not of each partition."""
    return bool(getattr(sort, "global")())
