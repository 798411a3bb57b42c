"""The sessions of a query: ``GROUP BY user, session_window(ts, '5 minutes')``.

Spark computes an interval of each row, and an aggregate merges the intervals that touch. In the
order of their starts, among the rows of the other keys::

    begins(r)  =  start(r) > max of end(q), q before r
    first(r)   =  max of start(q), q up to r with begins(q)
    last(r)    =  max of end(q), q with first(q) = first(r)

The session of a row is ``(first, last)``. A column that is an interval or a session, under any
name, is merged by each aggregate that groups by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from pyspark_diff.query import refusals
from pyspark_diff.query.form import (
    Aggregate,
    Distinct,
    Named,
    Order,
    Project,
    Recursion,
    Relation,
    Scan,
    SetOperation,
    SqlExpression,
    UnionAll,
    Window,
    WindowFunction,
    children,
    column_of,
    mapped,
)
from pyspark_diff.query.refusals import Refusal

#: The frame of the rows before a row.
_BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
#: The frame of the rows up to a row and those that start with it.
_UP_TO = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


def with_merged_sessions(
    relation: Relation, intervals: Iterable[str], fresh: Callable[[str], str],
    refused: list[Refusal],
) -> Relation:
    """The relation with merged sessions in each aggregate that groups by intervals.

    Parameters
    ----------
    intervals : iterable of str
        The columns of the relation that a call of ``session_window`` computed.
    fresh : callable
        A new name that begins with a text.
    refused : list of Refusal
        It receives DISTINCT, set operations and recursions with sessions, groups by the sessions
        of two calls, and aggregates of a session.

    Examples
    --------
    >>> scan = Scan("clicks", (("w", "w_1"), ("user", "user_2")))
    >>> users = Aggregate(scan, (Named("g1_", column_of("w_1")),), ())
    >>> numbers = iter(range(9))
    >>> merged = with_merged_sessions(
    ...     users, {"w_1"}, lambda name: f"{name}_{next(numbers)}", [])
    >>> merged.keys[0].expression.text, merged.child.named[-1].expression.text
    ('session_6', "IF(first_4 IS NULL, NULL, named_struct('start', first_4, 'end', last_5))")
    """
    columns = frozenset(intervals)
    return _Sessions(columns, fresh, refused).relation(relation) if columns else relation


class _Sessions:
    """Relations with merged sessions, each built once: a query may read one several times."""

    def __init__(
        self, intervals: frozenset[str], fresh: Callable[[str], str], refused: list[Refusal]
    ):
        self._intervals, self._fresh, self._refused = intervals, fresh, refused
        self._built: dict[int, tuple[Relation, Relation]] = {}

    def relation(self, node: Relation) -> Relation:
        if id(node) not in self._built:
            self._built[id(node)] = node, self._build(mapped(node, self.relation))
        return self._built[id(node)][1]

    def _build(self, node: Any) -> Relation:
        if isinstance(node, Aggregate):
            return self._of_aggregate(node)
        if isinstance(node, (Distinct, SetOperation, Recursion)) and any(
            map(self.columns, children(node))
        ):
            self._refuse("DISTINCT or a set operation of session_window(...)", (
                "Spark merges the sessions that touch. Remedy: GROUP BY the session, and name its "
                "start and end in SELECT"
            ))
        return node

    def columns(self, node: Relation) -> frozenset[str]:
        """The columns of a relation that are intervals or sessions."""
        if isinstance(node, Project):
            below = self.columns(node.child)
            return frozenset(
                item.name for item in node.named
                if item.expression.text in below or item.name in self._intervals
            )
        if isinstance(node, UnionAll):
            # Spark takes the properties of a column from the first side.
            first = node.children[0]
            below = self.columns(first)
            return frozenset(
                name for name, old in zip(node.columns, first.columns) if old in below
            )
        if isinstance(node, Aggregate):
            below = self.columns(node.child)
            return frozenset(item.name for item in node.keys if item.expression.text in below)
        if isinstance(node, Scan):
            return self._intervals & frozenset(node.columns)
        return frozenset().union(*map(self.columns, children(node))) & frozenset(node.columns)

    def _refuse(self, construct: str, detail: str) -> None:
        self._refused.append(Refusal(refusals.NODE, construct, detail=detail))

    def _of_aggregate(self, node: Aggregate) -> Relation:
        sessions = self.columns(node.child)
        names = {item.expression.text for item in node.keys} & sessions
        if not names:
            return node
        if len(names) > 1:
            self._refuse("GROUP BY of several session_window(...)", (
                "a row is in one session of each. Remedy: group by one of them"
            ))
            return node
        if any(item.expression.columns & names for item in node.aggregates):
            self._refuse("an aggregate of session_window(...)", (
                "its argument is a session that changes with other rows. Remedy: aggregate the "
                "time of the rows"
            ))
        (name,) = names
        others = [item for item in node.keys if item.expression.text != name]
        rows, keys, session = self._merged(node, name, others)
        return replace(node, child=rows, keys=tuple(
            replace(item, expression=column_of(
                session if item.expression.text == name else keys[item.name]
            )) for item in node.keys
        ))

    def _merged(
        self, node: Aggregate, name: str, others: Sequence[Named]
    ) -> tuple[Relation, dict[str, str], str]:
        """The rows below an aggregate, the columns of its other keys, and that of the session."""
        fresh = self._fresh
        keys = {item.name: fresh("k") for item in others}
        start, end, before, begins, first, last, session = map(fresh, (
            "start", "end", "before", "begins", "first", "last", "session"
        ))
        self._intervals |= {session}
        # A window compares all columns of its rows.
        used = node.child.columns if any(
            item.expression.subqueries for item in node.aggregates
        ) else [column for column in node.child.columns if any(
            column in item.expression.columns for item in node.aggregates
        )]
        passed = [Named(column, column_of(column)) for column in used]
        rows: Relation = Project(node.child, (
            *passed, *(Named(keys[item.name], item.expression) for item in others),
            Named(start, _expression(f"{name}.start", name)),
            Named(end, _expression(f"{name}.end", name)),
        ))
        partition = tuple(map(column_of, keys.values()))
        order = (Order(column_of(start), descending=False, nulls_first=True),)
        rows = Window(rows, (
            WindowFunction(before, _expression(f"max({end})", end), partition, order, _BEFORE),
        ))
        begin = f"CASE WHEN {before} IS NULL OR {start} > {before} THEN {start} END"
        rows = Project(rows, (
            *(Named(column, column_of(column)) for column in rows.columns if column != before),
            Named(begins, _expression(begin, before, start)),
        ))
        # The start identifies the session, so that a new session changes no other one.
        rows = Window(rows, (
            WindowFunction(first, _expression(f"max({begins})", begins), partition, order, _UP_TO),
        ))
        rows = Window(rows, (
            WindowFunction(
                last, _expression(f"max({end})", end), (*partition, column_of(first)), (), ""
            ),
        ))
        # The rows of an outer join may have no session.
        merged = f"IF({first} IS NULL, NULL, named_struct('start', {first}, 'end', {last}))"
        return Project(rows, (
            *passed, *(Named(column, column_of(column)) for column in keys.values()),
            Named(session, _expression(merged, first, last)),
        )), keys, session


def _expression(text: str, *columns: str) -> SqlExpression:
    return SqlExpression(text, columns=frozenset(columns))
