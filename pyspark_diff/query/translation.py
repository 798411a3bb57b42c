"""Translates the relational form into the operators of a `DiffFrame`.

    translated(node, domain) accumulated at t
        = for each row of the domain at t: the rows of the node at t, with the columns of this row

The domain is the distinct values of the outer columns of a correlated relation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from pyspark_diff.errors import DiffError, UnsupportedQueryError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query import refusals
from pyspark_diff.query.form import (
    Aggregate,
    ConstantRelation,
    Distinct,
    Generate,
    Join,
    Named,
    Order,
    Project,
    Recursion,
    RecursionReference,
    Relation,
    Scan,
    Selection,
    SetOperation,
    SqlExpression,
    TopK,
    UnionAll,
    Window,
    outers_of,
    references,
)
from pyspark_diff.query.pairs import completed, joined, same
from pyspark_diff.query.refusals import Refusal
from pyspark_diff.query.shapes import shape_of
from pyspark_diff.query.subqueries import ROUND, Domain, Subqueries
from pyspark_diff.query.text_columns import call_column, condition_of

#: The column of a relation that has no other one.
_NONE = "one_"
#: Relations that keep a state: two of one shape have one state.
_SHARED = (Aggregate, Distinct, Join, SetOperation, TopK, Window)

#: Names in messages for nodes that Spark calls by another one.
_SPARK_NAMES = {"ConstantRelation": "LocalRelation", "Selection": "Filter"}


def translated(
    relation: Relation, tables: Mapping[str, DiffFrame], spark: SparkSession,
    constant: Callable[[Any], DiffFrame],
    frames: dict[int, tuple[Relation, DiffFrame]] | None = None,
) -> DiffFrame:
    """The frame of a relation.

    Parameters
    ----------
    tables : mapping of str to DiffFrame
        The tables that its scans name.
    constant : callable
        Makes a collection of a Spark frame that never changes.
    frames : dict, optional
        It gets the frames of the uncorrelated relations below, by identity.

    Raises
    ------
    UnsupportedQueryError
        If an operator refuses a part of the query.
    """
    translation = _Translation(tables, spark, constant)
    frame = translation.frame(relation, None)
    if frames is not None:
        frames.update(translation._frames)
    return frame


class _Translation(Subqueries):
    """The frames of relations."""

    def __init__(
        self, tables: Mapping[str, DiffFrame], spark: SparkSession,
        constant: Callable[[Any], DiffFrame],
    ):
        super().__init__(tables, spark, constant)
        #: The frames of shared relations, each with the names of its columns by number.
        self._shapes: dict[tuple[Any, ...], tuple[DiffFrame, dict[int, str]]] = {}

    def frame(self, node: Relation, domain: Domain | None) -> DiffFrame:
        """A frame with the columns of a node, and those of the domain."""
        if domain is not None and not outers_of(node) and not self._in_rounds(node):
            return self.frame(node, None).crossJoin(domain.frame.hint("broadcast"))
        if domain is None and id(node) in self._frames:
            return self._frames[id(node)][1]
        if domain is None and isinstance(node, _SHARED):
            frame = self._shared(node)
            self._frames[id(node)] = node, frame
            return frame
        return self._built(node, domain)

    def _shared(self, node: Relation) -> DiffFrame:
        """The frame of a relation; that of an earlier one that differs in names of columns only."""
        shape = shape_of(node) if node.columns else None
        if shape is None:
            return self._built(node, None)
        if shape.key not in self._shapes:
            frame = self._built(node, None)
            self._shapes[shape.key] = frame, dict(zip(shape.columns, node.columns))
            return frame
        frame, names = self._shapes[shape.key]
        return frame.select(*[
            F.col(names[number]).alias(name)
            for number, name in zip(shape.columns, node.columns)
        ])

    def _built(self, node: Relation, domain: Domain | None) -> DiffFrame:
        method = getattr(self, f"_of_{type(node).__name__.lower()}")
        try:
            frame: DiffFrame = method(node, domain)
        except UnsupportedQueryError:
            raise
        except DiffError as error:
            name = type(node).__name__
            raise refusals.refused([Refusal(
                refusals.OPERATOR, _SPARK_NAMES.get(name, name), detail=str(error)
            )]) from error
        if domain is None:
            self._frames[id(node)] = node, frame
        return frame

    # Nodes

    def _of_scan(self, node: Scan, _: Domain | None) -> DiffFrame:
        table = self._tables[node.table]
        return table.select(*[
            F.col(f"`{old.replace('`', '``')}`").alias(new) for old, new in node.renamed
        ])

    def _of_constantrelation(self, node: ConstantRelation, _: Domain | None) -> DiffFrame:
        return self._constant(node.frame)

    def _of_project(self, node: Project, domain: Domain | None) -> DiffFrame:
        return self._projected(self.frame(node.child, domain), node.named, domain)

    def _projected(
        self, frame: DiffFrame, named: Sequence[Named], domain: Domain | None
    ) -> DiffFrame:
        frame = self._with_subqueries(frame, [item.expression for item in named], domain)
        texts = [
            item.name if item.expression.text == item.name else f"{item.expression} AS {item.name}"
            for item in named
        ]
        texts += domain.names if domain else ()
        return frame.selectExpr(*(texts or [f"1 AS {_NONE}"]))

    def _of_selection(self, node: Selection, domain: Domain | None) -> DiffFrame:
        rest = sorted(node.conditions, key=_cost)
        if domain is None or outers_of(node.child) or self._in_rounds(node.child):
            frame = self.frame(node.child, domain)
        else:
            # The domain is joined by the conditions that refer to it.
            own = [item for item in rest if not item.outers and not item.subqueries]
            on = [item for item in rest if item.outers and not item.subqueries]
            rest = [item for item in rest if item.subqueries]
            child = self.frame(node.child, None)
            for condition in own:
                child = self._filtered(child, condition, None)
            frame = joined(child, domain.frame, [item.text for item in on], "inner")
        for condition in rest:
            frame = self._filtered(frame, condition, domain)
        return frame

    def _of_aggregate(self, node: Aggregate, domain: Domain | None) -> DiffFrame:
        frame = self._groups(node, domain)
        if domain is None or node.keys or not node.aggregates:
            return frame
        # A value of the domain without a row has a group of no rows.
        names = domain.names
        twice = [(name, f"{name}q_") for name in names]
        frame = domain.frame.join(
            frame.withColumnsRenamed(dict(twice)), condition_of(same(twice)), "left"
        )
        return frame.selectExpr(*names, *[
            f"coalesce({item.name}, 0) AS {item.name}" if item.name in node.zeros else item.name
            for item in node.aggregates
        ])

    def _groups(self, node: Aggregate, domain: Domain | None) -> DiffFrame:
        """The groups of an aggregate that have rows; without keys and a domain, that of all."""
        frame = self.frame(node.child, domain)
        values = [item.expression for item in (*node.keys, *node.aggregates)]
        frame = self._with_subqueries(frame, values, domain)
        names = domain.names if domain else ()
        plain = {item.name: item.expression.text for item in node.keys}
        for name, text in plain.items():
            frame = frame.withColumn(name, F.expr(text))
        by = [*plain, *names]
        calls = [call_column(item.expression.text).alias(item.name) for item in node.aggregates]
        if not calls:
            if by:
                return frame.select(*by).distinct()
            return frame.agg(F.count("*").alias(_NONE), empty=True)
        return frame.groupBy(*by).agg(*calls) if by else frame.agg(*calls, empty=True)

    def _of_distinct(self, node: Distinct, domain: Domain | None) -> DiffFrame:
        return self.frame(node.child, domain).distinct()

    def _of_unionall(self, node: UnionAll, domain: Domain | None) -> DiffFrame:
        sides = [self._side(child, node.columns, domain) for child in node.children]
        return sides[0].concat(*sides[1:]) if sides[1:] else sides[0]

    def _side(
        self, child: Relation, columns: Sequence[str], domain: Domain | None
    ) -> DiffFrame:
        """A child of a set operation, its columns in one order."""
        return self.frame(child, domain).select(*columns, *(domain.names if domain else ()))

    def _of_setoperation(self, node: SetOperation, domain: Domain | None) -> DiffFrame:
        left, right = (self._side(item, node.columns, domain) for item in (node.left, node.right))
        method = {
            "except": left.subtract, "except_all": left.exceptAll,
            "intersect": left.intersect, "intersect_all": left.intersectAll,
        }[node.kind]
        return method(right)

    def _of_join(self, node: Join, domain: Domain | None) -> DiffFrame:
        if node.lateral:
            return self._lateral(node, domain)
        inside = [
            domain is not None and bool(outers_of(side) or self._in_rounds(side))
            for side in (node.left, node.right)
        ]
        outer_condition = any(item.outers for item in node.conditions)
        if domain and (node.kind in ("left", "left_semi", "left_anti") and not inside[0]
                       or outer_condition and not any(inside)):
            inside[0] = True
        if domain and node.kind in ("right", "full"):
            raise refusals.refused([Refusal(refusals.CORRELATED_JOIN, f"{node.kind} join")])
        left = self.frame(node.left, domain if inside[0] else None)
        right = self.frame(node.right, domain if inside[1] else None)
        on = [item.text for item in node.conditions if not item.subqueries]
        later = [item for item in node.conditions if item.subqueries]
        twice: list[tuple[str, str]] = []
        if all(inside):
            assert domain is not None
            twice = [(name, self._fresh("j")) for name in domain.names]
            right = right.withColumnsRenamed(dict(twice))
            on += [same(twice)]
        if later and node.kind != "inner":
            return self._joined_by_subqueries(node, left, right, on, later, domain, twice)
        frame = joined(left, right, on, node.kind)
        for condition in later:
            frame = self._filtered(frame, condition, domain)
        if twice and node.kind not in ("left_semi", "left_anti"):
            frame = frame.drop(*[new for _, new in twice])
        return frame

    def _joined_by_subqueries(
        self, node: Join, left: DiffFrame, right: DiffFrame, on: list[str],
        later: list[SqlExpression], domain: Domain | None, twice: list[tuple[str, str]],
    ) -> DiffFrame:
        """An outer, semi or anti join whose condition has subqueries: by its inner pairs."""
        pairs = joined(left, right, on, "inner")
        for condition in later:
            pairs = self._filtered(pairs, condition, domain)
        frame = completed(left, right, pairs, node.kind)
        if twice and node.kind not in ("left_semi", "left_anti"):
            frame = frame.drop(*[new for _, new in twice])
        return frame

    def _lateral(self, node: Join, domain: Domain | None) -> DiffFrame:
        left = self.frame(node.left, domain)
        rows, pairs = self._of_subquery(left, node.right)
        on = [item.text for item in node.conditions]
        on += [same(pairs)] if pairs else []
        frame = joined(left, rows, on, node.kind)
        return frame.drop(*[key for _, key in pairs]) if pairs else frame

    def _of_window(self, node: Window, domain: Domain | None) -> DiffFrame:
        frame = self.frame(node.child, domain)
        columns, texts = frame.columns, []
        for item in node.functions:
            used = [item.function, *item.partition, *(order.expression for order in item.order)]
            frame = self._with_subqueries(frame, used, domain)
            by = [*(part.text for part in item.partition), *(domain.names if domain else ())]
            over = [f"PARTITION BY {', '.join(by)}"] if by else []
            if item.order:
                over.append(f"ORDER BY {', '.join(map(_order_text, item.order))}")
            over += [item.frame] if item.frame else []
            texts.append(f"{item.function} OVER ({' '.join(over)}) AS {item.name}")
        return frame.selectExpr(*columns, *texts)

    def _of_generate(self, node: Generate, domain: Domain | None) -> DiffFrame:
        frame = self._with_subqueries(self.frame(node.child, domain), [node.generator], domain)
        columns = self.frame(node.child, domain).columns
        text = node.generator.text
        if node.outer:
            text = text.replace("(", "_outer(", 1)
        names = f"({', '.join(node.names)})" if len(node.names) > 1 else node.names[0]
        return frame.selectExpr(*columns, f"{text} AS {names}")

    def _of_topk(self, node: TopK, domain: Domain | None) -> DiffFrame:
        frame = self.frame(node.child, domain)
        columns = frame.columns
        frame = self._with_subqueries(frame, [item.expression for item in node.order], domain)
        order: list[Column] = []
        for item in node.order:
            name = self._fresh("o")
            frame = frame.withColumn(name, F.expr(item.expression.text))
            ends = "desc" if item.descending else "asc"
            nulls = "nulls_first" if item.nulls_first else "nulls_last"
            order.append(getattr(F.col(name), f"{ends}_{nulls}")())
        per = list(domain.names) if domain else []
        by = order or [F.col(name) for name in columns if name not in per]
        if node.limit == 0:
            return frame.where("false").select(*columns)
        first = frame
        if node.limit is not None:
            first = frame.top_k(node.limit + node.skip, by, per=per or None)
        if node.skip:
            first = first.exceptAll(frame.top_k(node.skip, by, per=per or None))
        return first.select(*columns)

    def _of_recursion(self, node: Recursion, domain: Domain | None) -> DiffFrame:
        anchor = self._side(node.anchor, node.columns, None)
        rounds = None
        if not node.distinct and references(node.step, node.name) > 1:
            rounds = ROUND
            anchor = anchor.withColumn(ROUND, F.lit(0))
        start = anchor.distinct() if node.distinct else anchor

        def body(variable: DiffFrame) -> DiffFrame:
            outside = dict(self._frames), dict(self._shapes)
            levels = None
            if rounds:
                levels = Domain(variable.select(ROUND).distinct(), (ROUND,))
            self._loops[node.name] = variable, levels
            step = self._side(node.step, node.columns, levels)
            if rounds:
                step = step.selectExpr(*node.columns, f"{ROUND} + 1 AS {ROUND}")
            result = start.concat(step)
            # A frame of the body is in the loop, and means nothing outside of it.
            self._frames, self._shapes = outside
            return result.distinct() if node.distinct else result

        match = start.iterate(body, max_iterations=node.max_iterations)
        return match.select(*node.columns)

    def _of_recursionreference(
        self, node: RecursionReference, domain: Domain | None
    ) -> DiffFrame:
        variable, levels = self._loops[node.name]
        if domain is None:
            return variable.select(*node.columns)
        others = [name for name in domain.names if levels is None or name not in levels.names]
        if not others:
            return variable.select(*node.columns, *domain.names)
        twice = [(name, self._fresh("j")) for name in (levels.names if levels else ())]
        reached = domain.frame.withColumnsRenamed(dict(twice))
        on = [same(twice)] if twice else []
        frame = joined(variable, reached, on, "inner")
        return frame.select(*node.columns, *domain.names)


def _cost(condition: SqlExpression) -> int:
    """The place of a condition among those of a filter: cheap and selective ones come first."""
    kinds = {subquery.kind for subquery in condition.subqueries}
    if not kinds:
        return 0
    if kinds <= {"in", "exists"} and condition.text.strip("()` ") in {
        subquery.name for subquery in condition.subqueries
    }:
        return 1
    return 3 if kinds == {"not in"} or condition.text.startswith("(NOT ") else 2


def _order_text(order: Order) -> str:
    nulls = "FIRST" if order.nulls_first else "LAST"
    return f"{order.expression} {'DESC' if order.descending else 'ASC'} NULLS {nulls}"
