"""The columns of tables that a query uses, and the query without the others.

    rows(pruned(node)) = the rows of the node, in the used columns

A column is used if the value of a row of the result, or the number of rows, may depend on it. The
columns of a set operation, a recursion, DISTINCT, LIMIT and a window are all used: they are
compared, matched by position, or break ties.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from pyspark_diff.query.form import (
    Distinct,
    Generate,
    Join,
    Project,
    Recursion,
    Relation,
    Scan,
    Selection,
    SetOperation,
    SqlExpression,
    TopK,
    UnionAll,
    Window,
    children,
    expressions,
    mapped,
)

_WORD = re.compile(r"\w+")


def used_columns(relation: Relation, wanted: Iterable[str]) -> dict[str, set[str]]:
    """The used columns of each table, by its name.

    Parameters
    ----------
    wanted : iterable of str
        The columns of the relation that its reader uses.

    Examples
    --------
    >>> scan = Scan("orders", (("id", "id_1"), ("day", "day_2"), ("note", "note_3")))
    >>> query = Selection(scan, (SqlExpression("day_2 > 1", columns=frozenset({"day_2"})),))
    >>> {name: sorted(columns) for name, columns in used_columns(query, ["id_1"]).items()}
    {'orders': ['day', 'id']}
    """
    demand = _Demand()
    demand.add(relation, frozenset(wanted))
    used: dict[str, set[str]] = {}
    for node, columns in demand.nodes.values():
        if isinstance(node, Scan):
            used.setdefault(node.table, set()).update(
                old for old, new in node.renamed if new in columns
            )
    return used


def used_names(relation: Relation, wanted: Iterable[str]) -> frozenset[str]:
    """The used columns of all nodes of a relation.

    Examples
    --------
    >>> scan = Scan("orders", (("id", "id_1"), ("day", "day_2")))
    >>> sorted(used_names(Selection(scan, (SqlExpression("day_2 > 1"),)), ["id_1"]))
    ['day_2', 'id_1']
    """
    demand = _Demand()
    demand.add(relation, frozenset(wanted))
    return frozenset().union(*(columns for _, columns in demand.nodes.values()))


def pruned(
    relation: Relation, wanted: Iterable[str], tables: Mapping[str, Collection[str]]
) -> Relation:
    """The relation without the unused columns that its tables lack.

    Parameters
    ----------
    tables : mapping of str to collection of str
        The columns of each table. A used column that a table lacks stays.

    Examples
    --------
    >>> scan = Scan("orders", (("id", "id_1"), ("day", "day_2"), ("note", "note_3")))
    >>> pruned(scan, ["id_1"], {"orders": ["id", "day"]}).columns
    ('id_1', 'day_2')
    """
    demand = _Demand()
    demand.add(relation, frozenset(wanted))
    scans = [node for node, _ in demand.nodes.values() if isinstance(node, Scan)]
    if all(old in tables[node.table] for node in scans for old, _ in node.renamed):
        return relation
    return _Pruning(demand, tables).pruned(relation)


class _Demand:
    """The wanted columns of each node, by identity, since a query may read a node several times."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[Relation, frozenset[str]]] = {}

    def add(self, node: Relation, wanted: frozenset[str]) -> None:
        before = self.nodes.get(id(node))
        columns = wanted.intersection(node.columns)
        if before is not None:
            columns |= before[1]
            if columns == before[1]:
                return
        self.nodes[id(node)] = node, columns
        names = self._names(node, columns)
        for child in children(node):
            self.add(child, frozenset(child.columns) if _compares(node) else names)

    def _names(self, node: Relation, wanted: frozenset[str]) -> frozenset[str]:
        """The columns of its children that a node uses."""
        names: set[str] = set()
        if isinstance(node, (Selection, Generate, Join)):
            names |= wanted
        parts: Iterable[SqlExpression] = expressions(node)
        if isinstance(node, Project):
            parts = (item.expression for item in node.named if item.name in wanted)
        for expression in parts:
            names |= self._in(expression)
        if isinstance(node, Join) and node.lateral:
            names |= _outers(node.right)
        return frozenset(names)

    def _in(self, expression: SqlExpression) -> set[str]:
        names = {*expression.columns, *_WORD.findall(expression.text)}
        for subquery in expression.subqueries:
            compared = () if subquery.kind == "exists" else subquery.relation.columns
            self.add(subquery.relation, frozenset(compared))
            names |= _outers(subquery.relation)
            for value in subquery.values:
                names |= self._in(value)
        return names


def _compares(node: Relation) -> bool:
    """Whether the result of a node depends on all columns of its children."""
    return isinstance(node, (Distinct, Recursion, SetOperation, TopK, UnionAll, Window))


def _outers(node: Relation) -> set[str]:
    """The names of columns of enclosing queries in a relation, at each depth."""
    names: set[str] = set()
    for expression in expressions(node):
        names |= expression.outers
        for subquery in expression.subqueries:
            names |= _outers(subquery.relation)
    for child in children(node):
        names |= _outers(child)
    return names


class _Pruning:
    """Relations without columns that tables lack, each built once."""

    def __init__(self, demand: _Demand, tables: Mapping[str, Collection[str]]):
        self._demand, self._tables = demand, tables
        self._built: dict[int, Relation] = {}
        self._absent: set[str] = set()

    def pruned(self, node: Relation) -> Relation:
        if id(node) not in self._built:
            self._built[id(node)] = self._build(node)
        return self._built[id(node)]

    def _build(self, node: Relation) -> Relation:
        wanted = self._demand.nodes[id(node)][1]
        if isinstance(node, Scan):
            table = self._tables[node.table]
            pairs = tuple(
                (old, new) for old, new in node.renamed if new in wanted or old in table
            )
            self._absent.update(set(node.columns) - {new for _, new in pairs})
            return replace(node, renamed=pairs)
        if isinstance(node, Project):
            child = self.pruned(node.child)
            remaining = tuple(
                item for item in node.named
                if item.name in wanted or not self._absent & self._names(item.expression)
            )
            self._absent.update(set(node.columns) - {item.name for item in remaining})
            return Project(child, tuple(mapped(item, self.pruned) for item in remaining))
        return mapped(node, self.pruned)

    def _names(self, expression: SqlExpression) -> set[str]:
        return {*expression.columns, *_WORD.findall(expression.text)}
