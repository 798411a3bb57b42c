"""Translates the subqueries of expressions: joins with the distinct values of outer columns.

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

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_diff.frame.diffframe import DiffFrame
from pyspark_diff.query.form import (
    OUTER,
    Aggregate,
    Distinct,
    Named,
    Project,
    RecursionReference,
    Relation,
    Selection,
    SqlExpression,
    Subquery,
    TopK,
    children,
    expressions,
    outers_of,
)
from pyspark_diff.query.pairs import joined, same
from pyspark_diff.query.text_columns import call_column, condition_of

#: The column of the round of a recursion.
ROUND = "round_"
_SEVERAL_ROWS = (
    "SCALAR_SUBQUERY_TOO_MANY_ROWS: a scalar subquery has more than one row; aggregate it or limit "
    "it to one row"
)

_CAST = re.compile(r"\bCAST\s*\(", re.IGNORECASE)
_CAST_END = re.compile(r"\bAS\s+[A-Z]+(\s*\(\s*\d+\s*(,\s*\d+\s*)?\))?", re.IGNORECASE)
_CALL = re.compile(r"\w\s*\(")
_ARITHMETIC = re.compile(r"[\w\s.+\-*/()]*")
_COMPARISON = re.compile(r"(?<![<>=!])(?:<=(?!>)|>=|<>|!=|=|<|>)(?![<>=])")
#: Words of conditions that may be true, or false, whether a part of them is NULL or not.
_WORDS = frozenset("AND BETWEEN CASE DISTINCT ELSE END IN IS LIKE NOT NULL OR THEN WHEN".split())


@dataclass(frozen=True)
class Domain:
    """The distinct values of outer columns: a frame, and the names of its columns."""

    frame: DiffFrame
    names: tuple[str, ...]


class Subqueries:
    """The values and conditions of expressions with subqueries."""

    def __init__(
        self, tables: Mapping[str, DiffFrame], spark: SparkSession,
        constant: Callable[[Any], DiffFrame],
    ):
        self._tables, self._spark, self._constant = tables, spark, constant
        #: Frames of uncorrelated relations, by identity: a shared relation becomes one frame.
        self._frames: dict[int, tuple[Relation, DiffFrame]] = {}
        self._loops: dict[int, tuple[DiffFrame, Domain | None]] = {}
        self._numbers = 0

    def frame(self, node: Relation, domain: Domain | None) -> DiffFrame:
        """A frame with the columns of a node, and those of the domain."""
        raise NotImplementedError

    def _groups(self, node: Aggregate, domain: Domain | None) -> DiffFrame:
        """The groups of an aggregate that have rows."""
        raise NotImplementedError

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
        self, frame: DiffFrame, expressions: Iterable[SqlExpression], domain: Domain | None
    ) -> DiffFrame:
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
        return self._in_domain(frame, relation, lambda domain: self.frame(relation, domain))

    def _in_domain(
        self, frame: DiffFrame, relation: Relation, rows_of: Callable[[Domain | None], DiffFrame]
    ) -> tuple[DiffFrame, list[tuple[str, str]]]:
        """The rows that a function makes in the domain of a relation, and the pairs as above."""
        outers = sorted(outers_of(relation))
        rounds = [ROUND] if self._in_rounds(relation) and ROUND in frame.columns else []
        if not outers and not rounds:
            return rows_of(None), []
        pairs = [(item if item in frame.columns else item + OUTER, item + OUTER) for item in outers]
        pairs += [(item, item) for item in rounds]
        chosen = frame.selectExpr(
            *[f"{column} AS {name}" if column != name else name for column, name in pairs]
        )
        domain = Domain(chosen.distinct(), tuple(name for _, name in pairs))
        rows = rows_of(domain)
        renamed_pairs = [
            (column, name if column != name else self._fresh("d")) for column, name in pairs
        ]
        renamed = {old: new for (_, old), (_, new) in zip(pairs, renamed_pairs) if old != new}
        return (rows.withColumnsRenamed(renamed) if renamed else rows), renamed_pairs

    def _with_subquery(
        self, frame: DiffFrame, subquery: Subquery, domain: Domain | None
    ) -> DiffFrame:
        columns, name = frame.columns, subquery.name
        totals = self._with_totals(frame, subquery, "left")
        if totals is not None:
            return totals
        rows, pairs = self._of_subquery(frame, subquery)
        keys = [key for _, key in pairs]
        if subquery.kind == "scalar":
            rows = self._scalar(rows, subquery, keys)
            if keys:
                return frame.join(rows, condition_of(same(pairs)), "left").select(*columns, name)
            return frame.crossJoin(rows.hint("broadcast"))
        if subquery.kind == "in":
            return self._with_membership(frame, subquery, rows, pairs, domain)
        if subquery.kind == "not in":
            return self._without_membership(frame, subquery, rows, pairs, domain)
        number = self._fresh("n")
        calls = [call_column("count(*)").alias(number)]
        if keys:
            totals = rows.groupBy(*keys).agg(*calls)
            frame = frame.join(totals, condition_of(same(pairs)), "left")
        else:
            frame = frame.crossJoin(rows.agg(*calls, empty=True).hint("broadcast"))
        return frame.selectExpr(*columns, f"coalesce({number}, 0) > 0 AS {name}")

    def _scalar(self, rows: DiffFrame, subquery: Subquery, keys: Sequence[str]) -> DiffFrame:
        """The value of a scalar subquery for each key, under its name."""
        value, name = subquery.relation.columns[0], subquery.name
        rows = rows.selectExpr(f"{value} AS {name}", *keys)
        return rows if _one_row(subquery.relation) else self._first_row(rows, name, keys)

    def _with_totals(
        self, frame: DiffFrame, subquery: Subquery, how: str
    ) -> DiffFrame | None:
        """The frame joined with the groups of a correlated aggregate; None for other subqueries.

        A row without a group has the value of no rows after a left join: zeros and NULLs come
        first, and the expression over the aggregates after them.
        """
        node, columns = subquery.relation, frame.columns
        value = None
        if isinstance(node, Project) and len(node.named) == 1:
            value, node = node.named[0].expression, node.child
        if subquery.kind != "scalar" or not isinstance(node, Aggregate) or node.keys or (
            not node.aggregates or value is not None and (value.outers or value.subqueries)
        ):
            return None
        aggregate = node
        if not outers_of(aggregate) or self._in_rounds(aggregate) or any(
            item.name in columns for item in aggregate.aggregates
        ):
            return None
        rows, pairs = self._in_domain(
            frame, aggregate, lambda domain: self._groups(aggregate, domain)
        )
        frame = frame.join(rows, condition_of(same(pairs)), how)
        frame = frame.selectExpr(*columns, *[
            f"coalesce({item.name}, 0) AS {item.name}" if item.name in aggregate.zeros
            else item.name for item in aggregate.aggregates
        ])
        text = aggregate.aggregates[0].name if value is None else value.text
        return frame.selectExpr(*columns, f"{text} AS {subquery.name}")

    def _tested(
        self, frame: DiffFrame, subquery: Subquery, domain: Domain | None
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
        pairs: list[tuple[str, str]], domain: Domain | None,
    ) -> DiffFrame:
        """The frame with a column that says whether a row of the subquery equals the values."""
        columns = frame.columns
        frame, tests = self._tested(frame, subquery, domain)
        hits = {old: self._fresh("h") for old in (*tests, *(key for _, key in pairs))}
        distinct = rows.selectExpr(*[f"{old} AS {new}" for old, new in hits.items()]).distinct()
        on = [f"{test} = {hits[column]}" for column, test in tests.items()]
        on += [same([(column, hits[key])]) for column, key in pairs]
        frame = frame.join(distinct, condition_of(" AND ".join(on)), "left")
        hit = hits[next(iter(tests))]
        return frame.selectExpr(*columns, f"{hit} IS NOT NULL AS {subquery.name}")

    def _without_membership(
        self, frame: DiffFrame, subquery: Subquery, rows: DiffFrame,
        pairs: list[tuple[str, str]], domain: Domain | None,
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
        outer = [same([(looked[column], hits[key])]) for column, key in pairs]
        plain = [(looked[test], hits[column]) for column, test in tests.items()]
        # By equality first: comparisons with nulls find no pairs by a key.
        equal = [f"{a} = {b}" for a, b in plain]
        rest = joined(values, distinct, [*equal, *outer], "left_anti")
        anything = " OR ".join(f"{b} IS NULL" for _, b in plain)
        nulls = distinct.where(anything)
        maybe = [f"({a} IS NULL OR {b} IS NULL OR {a} = {b})" for a, b in plain]
        rest = joined(rest, nulls, [*outer, *maybe], "left_anti")
        # Values with nulls meet any row.
        known = " AND ".join(f"{a} IS NOT NULL" for a, _ in plain)
        sure = rest.where(known)
        unsure = joined(rest.where(f"NOT ({known})"), distinct, [*outer, *maybe], "left_anti")
        mark = self._fresh("u")
        sure = sure.concat(unsure).withColumn(mark, F.lit(True))
        back = [(old, new) for old, new in looked.items()]
        frame = frame.join(sure, condition_of(same(back)), "left")
        return frame.selectExpr(*columns, f"{mark} IS NOT NULL AS {subquery.name}")

    def _first_row(self, rows: DiffFrame, value: str, keys: Sequence[str]) -> DiffFrame:
        """The only row of each key; a step that brings a second one fails."""
        number = self._fresh("n")
        # An aggregate over the only row is its value.
        calls = [call_column(f"max({value})").alias(value), call_column("count(*)").alias(number)]
        match = rows.groupBy(*keys).agg(*calls) if keys else rows.agg(*calls, empty=True)
        match.where(f"{number} > 1").assert_empty(_SEVERAL_ROWS)
        return match.drop(number)

    def _filtered(
        self, frame: DiffFrame, condition: SqlExpression, domain: Domain | None
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
            if subquery.kind == "not in" and positive and len(subquery.values) == 1:
                rows, pairs = self._of_subquery(frame, subquery)
                if not pairs:
                    return self._outside(frame, subquery, rows, domain)
            value = _equal_to(condition.text, subquery.name)
            if value is not None and subquery.kind == "scalar" and not condition.outers and not (
                outers_of(subquery.relation) or self._in_rounds(subquery.relation)
            ):
                rows = self._scalar(self.frame(subquery.relation, None), subquery, [])
                on = [f"{value} = {subquery.name}"]
                return joined(frame, rows, on, "inner").select(*columns)
            if _is_null_without_rows(subquery) and _compares(condition.text, subquery.name):
                totals = self._with_totals(frame, subquery, "inner")
                frame = frame if totals is None else totals
        if condition.subqueries:
            frame = self._with_subqueries(frame, [condition], domain)
        return frame.where(condition.text).select(*columns)

    def _outside(
        self, frame: DiffFrame, subquery: Subquery, rows: DiffFrame, domain: Domain | None
    ) -> DiffFrame:
        """The rows whose value differs from each row of a subquery.

        All rows stay if the subquery has none. Else a row stays if its value is no NULL, no row of
        the subquery is NULL, and none equals the value.
        """
        columns = frame.columns
        frame, tests = self._tested(frame, subquery, domain)
        ((column, test),) = tests.items()
        other, empty, unknown = (self._fresh(prefix) for prefix in "hez")
        frame = joined(
            frame, rows.selectExpr(f"{column} AS {other}"), [f"{test} = {other}"], "left_anti"
        )
        counts = [
            call_column("count(*)").alias(empty), call_column(f"count({column})").alias(unknown)
        ]
        # Without repetitions, so that a change of the numbers alone changes no row.
        facts = rows.agg(*counts, empty=True).selectExpr(
            f"{empty} = 0 AS {empty}", f"{empty} > {unknown} AS {unknown}"
        ).distinct()
        frame = frame.crossJoin(facts.hint("broadcast"))
        return frame.where(f"{empty} OR ({test} IS NOT NULL AND NOT {unknown})").select(*columns)

    def _semijoined(
        self, frame: DiffFrame, subquery: Subquery, positive: bool, domain: Domain | None
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
            on = [same([pair]) for pair in pairs]
        if not on and not subquery.values:
            return None
        frame = self._with_subqueries(frame, subquery.values, domain)
        for value, item in zip(subquery.values, subquery.relation.columns):
            test = value.text
            if test not in columns:
                # A copy of a column would be stored too.
                test = self._fresh("t")
                frame = frame.withColumn(test, F.expr(value.text))
            on.append(f"{test} = {item}")
        kind = "left_semi" if positive else "left_anti"
        return joined(frame, rows, on, kind).select(*columns)

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
        if not isinstance(relation, Selection) or outers_of(relation.child):
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


def _is_null_without_rows(subquery: Subquery) -> bool:
    """Whether a subquery is arithmetic of aggregates that are NULL over no rows."""
    node, text = subquery.relation, ""
    if isinstance(node, Project) and len(node.named) == 1:
        text, node = node.named[0].expression.text, node.child
    if not isinstance(node, Aggregate) or node.keys or not node.aggregates:
        return False
    names = {item.name for item in node.aggregates} - node.zeros
    return _is_strict(text or node.aggregates[0].name, names)


def _is_strict(text: str, names: Iterable[str]) -> bool:
    """Whether an expression is arithmetic with one of some columns: NULL if the column is.

    Examples
    --------
    >>> _is_strict("0.2BD * CAST(a_1 AS DECIMAL(14,6))", ["a_1"])
    True
    >>> _is_strict("coalesce(a_1, 2)", ["a_1"]), _is_strict("2 * a_2", ["a_1"])
    (False, False)
    """
    text = _CAST_END.sub("", text.replace("`", ""))
    text = _CAST.sub("(", text)
    words = set(re.findall(r"[^\W\d]\w*", text))
    return not (_CALL.search(text) or words.isdisjoint(names)) and bool(
        _ARITHMETIC.fullmatch(text) and _WORDS.isdisjoint(map(str.upper, words))
    )


def _compares(text: str, name: str) -> bool:
    """Whether a condition compares arithmetic with a column, so that it is not true for NULL.

    Examples
    --------
    >>> _compares("(b_1 < (2 * s_1))", "s_1"), _compares("(b_1 <=> s_1)", "s_1")
    (True, False)
    """
    text = text.replace("`", "").strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    sides = _COMPARISON.split(text)
    return len(sides) == 2 and any(
        _is_strict(side, [name]) and side.count("(") == side.count(")") for side in sides
    ) and _WORDS.isdisjoint(word.upper() for word in re.findall(r"[^\W\d]\w*", text))


def _equal_to(text: str, name: str) -> str | None:
    """The arithmetic that a condition compares with a column by equality; None for other ones.

    Examples
    --------
    >>> _equal_to("(a_1 = s_1)", "s_1"), _equal_to("(s_1 = (2 * a_1))", "s_1")
    ('a_1', '(2 * a_1)')
    >>> _equal_to("(a_1 < s_1)", "s_1"), _equal_to("((a_1 = s_1) OR (a_1 = 2))", "s_1")
    (None, None)
    """
    text = text.replace("`", "").strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    sides = [side.strip() for side in _COMPARISON.split(text)]
    if len(sides) != 2 or name not in sides or _COMPARISON.findall(text) != ["="]:
        return None
    other = sides[1 - sides.index(name)]
    words = re.findall(r"[^\W\d]\w*", other)
    is_one = words and name not in words and other.count("(") == other.count(")")
    return other if is_one and _ARITHMETIC.fullmatch(other) and not _CALL.search(other) and (
        _WORDS.isdisjoint(map(str.upper, words))
    ) else None


def _one_row(node: Relation) -> bool:
    """Whether a relation has at most one row for each value of its domain, for any tables."""
    if isinstance(node, (Project, Selection, Distinct)):
        return _one_row(node.child)
    if isinstance(node, TopK):
        return node.limit is not None and node.limit <= 1 or _one_row(node.child)
    return isinstance(node, Aggregate) and not node.keys


def _renamed(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![\w`]){re.escape(old)}(?!\w)", new, text)
