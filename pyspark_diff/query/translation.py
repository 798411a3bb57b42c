"""Translates the relational form into the operators of a `DiffFrame`.

    translated(node, domain) accumulated at t
        = for each row of the domain at t: the rows of the node at t, with the columns of this row

The domain of a correlated relation is the distinct values of the outer columns that it refers to;
without outer columns there is no domain. A correlated subquery thereby becomes a join with its own
domain, in any clause and at any depth.

Source: Neumann, Kemper, "Unnesting Arbitrary Queries", BTW 2015.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import DiffError, SchemaError, UnsupportedQueryError
from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query import refusals
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
    children,
    expressions,
    outers_of,
)
from pyspark_diff.query.refusals import Refusal
from pyspark_diff.query.text_columns import call_of, condition_of

#: The column of a relation that has no other one.
_NONE = "one_"
_ROUND = "round_"
_SEVERAL_ROWS = (
    "SCALAR_SUBQUERY_TOO_MANY_ROWS: a scalar subquery has more than one row; aggregate it or limit "
    "it to one row"
)


@dataclass(frozen=True)
class _Domain:
    """The distinct values of outer columns: a frame, and the names of its columns."""

    frame: DiffFrame
    names: tuple[str, ...]


def translated(
    relation: Relation, tables: Mapping[str, DiffFrame], spark: SparkSession,
    constant: Callable[[Any], DiffFrame],
    frames: dict[int, tuple[Relation, DiffFrame]] | None = None,
) -> DiffFrame:
    """The frame of a relation.

    Parameters
    ----------
    relation : Relation
    tables : mapping of str to DiffFrame
        The tables that its scans name.
    spark : SparkSession
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


class _Translation:
    def __init__(
        self, tables: Mapping[str, DiffFrame], spark: SparkSession,
        constant: Callable[[Any], DiffFrame],
    ):
        self._tables, self._spark, self._constant = tables, spark, constant
        #: Frames of uncorrelated relations, by identity: a shared relation becomes one frame.
        self._frames: dict[int, tuple[Relation, DiffFrame]] = {}
        self._loops: dict[int, tuple[DiffFrame, _Domain | None]] = {}
        self._numbers = 0

    def frame(self, node: Relation, domain: _Domain | None) -> DiffFrame:
        """A frame with the columns of a node, and those of the domain."""
        if domain is not None and not outers_of(node) and not self._in_rounds(node):
            return self.frame(node, None).crossJoin(domain.frame.hint("broadcast"))
        if domain is None and id(node) in self._frames:
            return self._frames[id(node)][1]
        method = getattr(self, f"_of_{type(node).__name__.lower()}")
        try:
            frame: DiffFrame = method(node, domain)
        except UnsupportedQueryError:
            raise
        except DiffError as error:
            raise refusals.refused([Refusal(
                refusals.OPERATOR, type(node).__name__, detail=str(error)
            )]) from error
        if domain is None:
            self._frames[id(node)] = node, frame
        return frame

    def _in_rounds(self, node: Relation) -> bool:
        """Whether a relation reads a recursion whose rows have the number of their round."""
        if isinstance(node, RecursionReference):
            return self._loops[node.name][1] is not None
        return any(map(self._in_rounds, children(node))) or any(
            self._in_rounds(subquery.relation)
            for expression in expressions(node) for subquery in expression.subqueries
        )

    def _fresh(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers}__"

    # Expressions with subqueries

    def _with_subqueries(
        self, frame: DiffFrame, expressions: Iterable[Expression], domain: _Domain | None
    ) -> DiffFrame:
        """The frame with a column for each subquery of some expressions."""
        done: set[str] = set()
        for expression in expressions:
            for subquery in expression.subqueries:
                if subquery.name not in done and subquery.name not in frame.columns:
                    done.add(subquery.name)
                    frame = self._with_subquery(frame, subquery, domain)
        return frame

    def _of_subquery(
        self, frame: DiffFrame, subquery: Subquery | Relation
    ) -> tuple[DiffFrame, list[tuple[str, str]]]:
        """The rows of a subquery, and pairs of an outer column and the column of its domain.

        A relation inside of a correlated one may use columns of the enclosing domain too.
        """
        relation = subquery.relation if isinstance(subquery, Subquery) else subquery
        outers = sorted(outers_of(relation))
        rounds = [_ROUND] if self._in_rounds(relation) and _ROUND in frame.columns else []
        if not outers and not rounds:
            return self.frame(relation, None), []
        pairs = [(item if item in frame.columns else item + OUTER, item + OUTER) for item in outers]
        pairs += [(item, item) for item in rounds]
        chosen = frame.selectExpr(
            *[f"{column} AS {name}" if column != name else name for column, name in pairs]
        )
        domain = _Domain(chosen.distinct(), tuple(name for _, name in pairs))
        rows = self.frame(relation, domain)
        renamed_pairs = [
            (column, name if column != name else self._fresh("d")) for column, name in pairs
        ]
        renamed = {old: new for (_, old), (_, new) in zip(pairs, renamed_pairs) if old != new}
        return (rows.withColumnsRenamed(renamed) if renamed else rows), renamed_pairs

    def _with_subquery(
        self, frame: DiffFrame, subquery: Subquery, domain: _Domain | None
    ) -> DiffFrame:
        """The frame with the value of a subquery as a column."""
        columns, name = frame.columns, subquery.name
        rows, pairs = self._of_subquery(frame, subquery)
        keys = [key for _, key in pairs]
        if subquery.kind == "scalar":
            value = subquery.relation.columns[0]
            rows = rows.selectExpr(f"{value} AS {name}", *keys)
            if not _one_row(subquery.relation):
                rows = self._first_row(rows, name, keys)
            if keys:
                return frame.join(rows, condition_of(_same(pairs)), "left").select(*columns, name)
            return frame.crossJoin(rows.hint("broadcast"))
        if subquery.kind == "in":
            return self._with_membership(frame, subquery, rows, pairs, domain)
        if subquery.kind == "not in":
            return self._without_membership(frame, subquery, rows, pairs, domain)
        number = self._fresh("n")
        calls = [call_of("count(*)").alias(number)]
        if keys:
            totals = rows.groupBy(*keys).agg(*calls)
            frame = frame.join(totals, condition_of(_same(pairs)), "left")
        else:
            frame = frame.crossJoin(rows.agg(*calls, empty=True).hint("broadcast"))
        return frame.selectExpr(*columns, f"coalesce({number}, 0) > 0 AS {name}")

    def _tested(
        self, frame: DiffFrame, subquery: Subquery, domain: _Domain | None
    ) -> tuple[DiffFrame, dict[str, str]]:
        """The frame with the left side of an IN, and its columns by those of the subquery."""
        frame = self._with_subqueries(frame, subquery.values, domain)
        tests = {}
        for value, column in zip(subquery.values, subquery.relation.columns):
            tests[column] = self._fresh("t")
            frame = frame.withColumn(tests[column], F.expr(value.text))
        return frame, tests

    def _with_membership(
        self, frame: DiffFrame, subquery: Subquery, rows: DiffFrame,
        pairs: list[tuple[str, str]], domain: _Domain | None,
    ) -> DiffFrame:
        """The frame with a column that says whether a row of the subquery equals the values."""
        columns = frame.columns
        frame, tests = self._tested(frame, subquery, domain)
        hits = {old: self._fresh("h") for old in (*tests, *(key for _, key in pairs))}
        distinct = rows.selectExpr(*[f"{old} AS {new}" for old, new in hits.items()]).distinct()
        on = [f"{test} = {hits[column]}" for column, test in tests.items()]
        on += [_same([(column, hits[key])]) for column, key in pairs]
        frame = frame.join(distinct, condition_of(" AND ".join(on)), "left")
        hit = hits[next(iter(tests))]
        return frame.selectExpr(*columns, f"{hit} IS NOT NULL AS {subquery.name}")

    def _without_membership(
        self, frame: DiffFrame, subquery: Subquery, rows: DiffFrame,
        pairs: list[tuple[str, str]], domain: _Domain | None,
    ) -> DiffFrame:
        """The frame with a column that says whether each row of the subquery differs.

        It is looked up once for each combination of values: a combination stays if no row equals
        it, and no null leaves that open.
        """
        columns = frame.columns
        frame, tests = self._tested(frame, subquery, domain)
        outside = [column for column, _ in pairs]
        looked = {column: self._fresh("v") for column in (*tests.values(), *outside)}
        values = frame.selectExpr(*[f"{old} AS {new}" for old, new in looked.items()]).distinct()
        hits = {old: self._fresh("h") for old in (*tests, *(key for _, key in pairs))}
        distinct = rows.selectExpr(*[f"{old} AS {new}" for old, new in hits.items()]).distinct()
        same = [_same([(looked[column], hits[key])]) for column, key in pairs]
        plain = [(looked[test], hits[column]) for column, test in tests.items()]
        # By equality first: comparisons with nulls find no pairs by a key.
        equal = [f"{a} = {b}" for a, b in plain]
        rest = _joined(values, distinct, [*equal, *same], "left_anti")
        anything = " OR ".join(f"{b} IS NULL" for _, b in plain)
        nulls = distinct.where(anything)
        maybe = [f"({a} IS NULL OR {b} IS NULL OR {a} = {b})" for a, b in plain]
        rest = _joined(rest, nulls, [*same, *maybe], "left_anti")
        # Values with nulls meet any row.
        known = " AND ".join(f"{a} IS NOT NULL" for a, _ in plain)
        sure = rest.where(known)
        unsure = _joined(rest.where(f"NOT ({known})"), distinct, [*same, *maybe], "left_anti")
        mark = self._fresh("u")
        sure = sure.concat(unsure).withColumn(mark, F.lit(True))
        back = [(old, new) for old, new in looked.items()]
        frame = frame.join(sure, condition_of(_same(back)), "left")
        return frame.selectExpr(*columns, f"{mark} IS NOT NULL AS {subquery.name}")

    def _first_row(self, rows: DiffFrame, value: str, keys: Sequence[str]) -> DiffFrame:
        """The only row of each key; a step that brings a second one fails."""
        number = self._fresh("n")
        # An aggregate over the only row is its value.
        calls = [call_of(f"max({value})").alias(value), call_of("count(*)").alias(number)]
        match = rows.groupBy(*keys).agg(*calls) if keys else rows.agg(*calls, empty=True)
        match.where(f"{number} > 1").assert_empty(_SEVERAL_ROWS)
        return match.drop(number)

    # Nodes

    def _of_scan(self, node: Scan, _: _Domain | None) -> DiffFrame:
        table = self._tables[node.table]
        return table.select(*[
            F.col(f"`{old.replace('`', '``')}`").alias(new) for old, new in node.renamed
        ])

    def _of_constant(self, node: Constant, _: _Domain | None) -> DiffFrame:
        return self._constant(node.frame)

    def _of_project(self, node: Project, domain: _Domain | None) -> DiffFrame:
        return self._projected(self.frame(node.child, domain), node.named, domain)

    def _projected(
        self, frame: DiffFrame, named: Sequence[Named], domain: _Domain | None
    ) -> DiffFrame:
        frame = self._with_subqueries(frame, [item.expression for item in named], domain)
        texts = [
            item.name if item.expression.text == item.name else f"{item.expression} AS {item.name}"
            for item in named
        ]
        texts += domain.names if domain else ()
        return frame.selectExpr(*(texts or [f"1 AS {_NONE}"]))

    def _of_filter(self, node: Filter, domain: _Domain | None) -> DiffFrame:
        rest = list(node.conditions)
        if domain is None or outers_of(node.child) or self._in_rounds(node.child):
            frame = self.frame(node.child, domain)
        else:
            # The domain is joined by the conditions that refer to it.
            on = [item for item in rest if item.outers and not item.subqueries]
            rest = [item for item in rest if item not in on]
            child = self.frame(node.child, None)
            frame = _joined(child, domain.frame, [item.text for item in on], "inner")
        for condition in rest:
            frame = self._filtered(frame, condition, domain)
        return frame

    def _filtered(
        self, frame: DiffFrame, condition: Expression, domain: _Domain | None
    ) -> DiffFrame:
        columns = frame.columns
        if len(condition.subqueries) == 1:
            (subquery,) = condition.subqueries
            positive = condition.text.strip("()` ") == subquery.name
            negative = condition.text.replace("`", "") in (
                f"(NOT {subquery.name})", f"NOT {subquery.name}"
            ) and subquery.kind == "exists"
            if subquery.kind in ("exists", "in") and (positive or negative):
                semi = self._semijoined(frame, subquery, positive, domain)
                if semi is not None:
                    return semi
        if condition.subqueries:
            frame = self._with_subqueries(frame, [condition], domain)
        return frame.where(condition.text).select(*columns)

    def _semijoined(
        self, frame: DiffFrame, subquery: Subquery, positive: bool, domain: _Domain | None
    ) -> DiffFrame | None:
        """The rows for which a subquery has a row; None if a semi join cannot say it."""
        if subquery.kind == "scalar":
            return None
        columns = frame.columns
        direct = self._direct(frame, subquery)
        if direct is not None:
            rows, on = direct
        else:
            rows, pairs = self._of_subquery(frame, subquery)
            on = [_same([pair]) for pair in pairs]
        if not on and not subquery.values:
            return None
        frame = self._with_subqueries(frame, subquery.values, domain)
        for value, item in zip(subquery.values, subquery.relation.columns):
            test = self._fresh("t")
            frame = frame.withColumn(test, F.expr(value.text))
            on.append(f"{test} = {item}")
        joined = _joined(frame, rows, on, "left_semi" if positive else "left_anti")
        return joined.select(*columns)

    def _direct(
        self, frame: DiffFrame, subquery: Subquery
    ) -> tuple[DiffFrame, list[str]] | None:
        """The rows and conditions of a subquery that is correlated by a filter at its top only.

        Then the conditions are those of the semi join, and no domain is needed.
        """
        relation = subquery.relation
        chosen: tuple[Named, ...] = ()
        if isinstance(relation, Project):
            chosen, relation = relation.named, relation.child
        if not isinstance(relation, Filter) or outers_of(relation.child):
            return None
        if self._in_rounds(relation) or any(item.expression.outers for item in chosen):
            return None
        correlated = [item for item in relation.conditions if item.outers]
        if not correlated or any(item.subqueries for item in correlated):
            return None
        outers = {outer for item in correlated for outer in item.outers}
        if not outers <= set(frame.columns):
            return None
        rows = self.frame(relation.child, None)
        for item in relation.conditions:
            if item not in correlated:
                rows = self._filtered(rows, item, None)
        used = {column for item in correlated for column in item.columns}
        rows = self._with_subqueries(rows, [item.expression for item in chosen], None)
        if subquery.values:
            texts = [f"{item.expression} AS {item.name}" if item.expression.text != item.name
                     else item.name for item in chosen]
            if not chosen:
                texts = list(relation.columns)
            texts += sorted(used - {item.name for item in chosen} - set(texts))
            rows = rows.selectExpr(*texts)
        else:
            rows = rows.select(*(sorted(used) or rows.columns))
        on = []
        for item in correlated:
            text = item.text
            for outer in sorted(item.outers, key=len, reverse=True):
                text = _renamed(text, outer + OUTER, outer)
            on.append(text)
        return rows, on

    def _of_aggregate(self, node: Aggregate, domain: _Domain | None) -> DiffFrame:
        frame = self.frame(node.child, domain)
        values = [item.expression for item in (*node.keys, *node.aggregates)]
        frame = self._with_subqueries(frame, values, domain)
        names = domain.names if domain else ()
        plain = {item.name: item.expression.text for item in node.keys}
        for name, text in plain.items():
            frame = frame.withColumn(name, F.expr(text))
        by = [*plain, *names]
        calls = [call_of(item.expression.text).alias(item.name) for item in node.aggregates]
        if not calls:
            if by:
                return frame.select(*by).distinct()
            return frame.agg(F.count("*").alias(_NONE), empty=True)
        if by:
            frame = frame.groupBy(*by).agg(*calls)
        else:
            return frame.agg(*calls, empty=True)
        if domain is None or node.keys:
            return frame
        # A value of the domain without a row has a group of no rows.
        twice = [(name, f"{name}q_") for name in names]
        frame = domain.frame.join(
            frame.withColumnsRenamed(dict(twice)), condition_of(_same(twice)), "left"
        )
        return frame.selectExpr(*names, *[
            f"coalesce({item.name}, 0) AS {item.name}" if item.name in node.zeros else item.name
            for item in node.aggregates
        ])

    def _of_distinct(self, node: Distinct, domain: _Domain | None) -> DiffFrame:
        return self.frame(node.child, domain).distinct()

    def _of_unionall(self, node: UnionAll, domain: _Domain | None) -> DiffFrame:
        sides = [self._side(child, node.columns, domain) for child in node.children]
        return sides[0].concat(*sides[1:]) if sides[1:] else sides[0]

    def _side(
        self, child: Relation, columns: Sequence[str], domain: _Domain | None
    ) -> DiffFrame:
        """A child of a set operation, its columns in one order."""
        return self.frame(child, domain).select(*columns, *(domain.names if domain else ()))

    def _of_setoperation(self, node: SetOperation, domain: _Domain | None) -> DiffFrame:
        left, right = (self._side(item, node.columns, domain) for item in (node.left, node.right))
        method = {
            "except": left.subtract, "except_all": left.exceptAll,
            "intersect": left.intersect, "intersect_all": left.intersectAll,
        }[node.kind]
        return method(right)

    def _of_join(self, node: Join, domain: _Domain | None) -> DiffFrame:
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
            on += [_same(twice)]
        if later and node.kind != "inner":
            return self._joined_by_subqueries(node, left, right, on, later, domain, twice)
        frame = _joined(left, right, on, node.kind)
        for condition in later:
            frame = self._filtered(frame, condition, domain)
        if twice and node.kind not in ("left_semi", "left_anti"):
            frame = frame.drop(*[new for _, new in twice])
        return frame

    def _joined_by_subqueries(
        self, node: Join, left: DiffFrame, right: DiffFrame, on: list[str],
        later: list[Expression], domain: _Domain | None, twice: list[tuple[str, str]],
    ) -> DiffFrame:
        """An outer, semi or anti join whose condition has subqueries: by its inner pairs."""
        pairs = _joined(left, right, on, "inner")
        for condition in later:
            pairs = self._filtered(pairs, condition, domain)
        frame = _completed(left, right, pairs, node.kind)
        if twice and node.kind not in ("left_semi", "left_anti"):
            frame = frame.drop(*[new for _, new in twice])
        return frame

    def _lateral(self, node: Join, domain: _Domain | None) -> DiffFrame:
        left = self.frame(node.left, domain)
        rows, pairs = self._of_subquery(left, node.right)
        on = [item.text for item in node.conditions]
        on += [_same(pairs)] if pairs else []
        frame = _joined(left, rows, on, node.kind)
        return frame.drop(*[key for _, key in pairs]) if pairs else frame

    def _of_window(self, node: Window, domain: _Domain | None) -> DiffFrame:
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

    def _of_generate(self, node: Generate, domain: _Domain | None) -> DiffFrame:
        frame = self._with_subqueries(self.frame(node.child, domain), [node.generator], domain)
        columns = self.frame(node.child, domain).columns
        text = node.generator.text
        if node.outer:
            text = text.replace("(", "_outer(", 1)
        names = f"({', '.join(node.names)})" if len(node.names) > 1 else node.names[0]
        return frame.selectExpr(*columns, f"{text} AS {names}")

    def _of_topk(self, node: TopK, domain: _Domain | None) -> DiffFrame:
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

    def _of_recursion(self, node: Recursion, domain: _Domain | None) -> DiffFrame:
        anchor = self._side(node.anchor, node.columns, None)
        rounds = None
        if not node.distinct and _references(node.step, node.name) > 1:
            rounds = _ROUND
            anchor = anchor.withColumn(_ROUND, F.lit(0))
        start = anchor.distinct() if node.distinct else anchor

        def body(variable: DiffFrame) -> DiffFrame:
            outside = dict(self._frames)
            levels = None
            if rounds:
                levels = _Domain(variable.select(_ROUND).distinct(), (_ROUND,))
            self._loops[node.name] = variable, levels
            step = self._side(node.step, node.columns, levels)
            if rounds:
                step = step.selectExpr(*node.columns, f"{_ROUND} + 1 AS {_ROUND}")
            result = start.concat(step)
            # A frame of the body is in the loop, and means nothing outside of it.
            self._frames = outside
            return result.distinct() if node.distinct else result

        match = start.iterate(body, max_iterations=node.max_iterations)
        return match.select(*node.columns)

    def _of_recursionreference(
        self, node: RecursionReference, domain: _Domain | None
    ) -> DiffFrame:
        variable, levels = self._loops[node.name]
        if domain is None:
            return variable.select(*node.columns)
        others = [name for name in domain.names if levels is None or name not in levels.names]
        if not others:
            return variable.select(*node.columns, *domain.names)
        twice = [(name, self._fresh("j")) for name in (levels.names if levels else ())]
        reached = domain.frame.withColumnsRenamed(dict(twice))
        on = [_same(twice)] if twice else []
        frame = _joined(variable, reached, on, "inner")
        return frame.select(*node.columns, *domain.names)


def _references(node: Relation, name: int) -> int:
    """The number of references to a recursion in a relation, subqueries included."""
    if isinstance(node, RecursionReference):
        return int(node.name == name)
    below = sum(_references(child, name) for child in children(node))
    return below + sum(
        _references(subquery.relation, name)
        for expression in expressions(node) for subquery in expression.subqueries
    )


def _one_row(node: Relation) -> bool:
    """Whether a relation has at most one row for each value of its domain, for any tables."""
    if isinstance(node, (Project, Filter, Distinct)):
        return _one_row(node.child)
    if isinstance(node, TopK):
        return node.limit is not None and node.limit <= 1 or _one_row(node.child)
    return isinstance(node, Aggregate) and not node.keys


def _same(pairs: Iterable[tuple[str, str]]) -> str:
    return " AND ".join(f"{item} <=> {other}" for item, other in pairs)


def _renamed(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![\w`]){re.escape(old)}(?!\w)", new, text)


def _order_text(order: Order) -> str:
    nulls = "FIRST" if order.nulls_first else "LAST"
    return f"{order.expression} {'DESC' if order.descending else 'ASC'} NULLS {nulls}"


def _joined(left: DiffFrame, right: DiffFrame, on: Sequence[str], how: str) -> DiffFrame:
    """A join by conditions in SQL; by all pairs, if no condition finds pairs."""
    condition = " AND ".join(f"({item})" if len(on) > 1 else item for item in on)
    if condition:
        try:
            return left.join(right, condition_of(condition), how)
        except SchemaError as error:
            if "to find matches by" not in str(error) and "equality" not in str(error):
                raise
    pairs = left.crossJoin(right.hint("broadcast"))
    pairs = pairs.where(condition) if condition else pairs
    return _completed(left, right, pairs, how)


def _completed(left: DiffFrame, right: DiffFrame, pairs: DiffFrame, how: str) -> DiffFrame:
    """The join of a kind, from its inner pairs."""
    if how == "inner":
        return pairs

    def met(side: DiffFrame, kind: str) -> DiffFrame:
        twice = [(name, f"{name}m_") for name in side.columns]
        matches = pairs.select(*side.columns).withColumnsRenamed(dict(twice))
        return side.join(matches, condition_of(_same(twice)), kind)

    if how in ("left_semi", "left_anti"):
        return met(left, how)
    frame = pairs
    if how in ("left", "full"):
        frame = frame.concat(
            met(left, "left_anti").selectExpr(*left.columns, *_nulls(right.schema))
        )
    if how in ("right", "full"):
        frame = frame.concat(
            met(right, "left_anti").selectExpr(*_nulls(left.schema), *right.columns)
        )
    return frame


def _nulls(schema: T.StructType) -> list[str]:
    return [
        f"CAST(NULL AS {item.dataType.simpleString()}) AS {item.name}" for item in schema.fields
    ]
