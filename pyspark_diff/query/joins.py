"""The order of joins, and the places of conditions: what reduces rows comes first.

    rows(placed(node), t) = rows(node, t)

The sides of a tree of inner joins are joined one by one, each by a condition with those before it
if there is one, and first those that a condition of their own reduces. A condition goes to the
side or join that it is about. A condition with a subquery waits for the joins if another side is
reduced, unless it is an IN whose subquery is the same for all rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark_diff.query.form import (
    Join,
    Relation,
    Selection,
    SqlExpression,
    in_order,
    mapped,
    outers_of,
)

_EQUALITY = re.compile(r"(?<![<>!=])=(?![=>])|\bIN\b|\bLIKE\b", re.IGNORECASE)
_NEGATION = re.compile(r"\bNOT\b", re.IGNORECASE)
_NO_NULL = re.compile(r"\bIS NOT NULL\b|\bisnotnull\b", re.IGNORECASE)


def filtered(relation: Relation, conditions: Sequence[SqlExpression]) -> Relation:
    """The rows of a relation for which conditions are true.

    Examples
    --------
    >>> from pyspark_diff.query.form import Scan
    >>> scan = Scan("orders", (("id", "id_1"),))
    >>> filtered(scan, []) is scan
    True
    """
    return Selection(relation, tuple(conditions)) if conditions else relation


def placed(relation: Relation) -> Relation:
    """The same rows, with joins in an order of small results and conditions at their places.

    Examples
    --------
    >>> from pyspark_diff.query.form import Scan
    >>> a, b = (Scan(name, (("x", f"{name}_1"),)) for name in "ab")
    >>> equal = SqlExpression("a_1 = b_1", columns=frozenset({"a_1", "b_1"}))
    >>> placed(Selection(Join(a, b, "inner", ()), (equal,))).conditions[0].text
    'a_1 = b_1'
    """
    return _Placement().relation(relation)


class _Placement:
    """Relations with their joins in order, each built once: a query may read one several times."""

    def __init__(self) -> None:
        self._built: dict[int, tuple[Relation, Relation]] = {}

    def relation(self, node: Relation) -> Relation:
        if id(node) not in self._built:
            self._built[id(node)] = node, self._build(node)
        return self._built[id(node)][1]

    def _build(self, node: Relation) -> Relation:
        if not isinstance(node, (Selection, Join)):
            return mapped(node, self.relation)
        child, conditions = _above(node)
        if isinstance(child, Join) and _is_inner(child):
            leaves: list[Relation] = []
            below: list[SqlExpression] = []
            _flatten(child, leaves, below)
            return self._joined(
                leaves, [mapped(item, self.relation) for item in (*below, *conditions)]
            )
        left: list[SqlExpression] = []
        if isinstance(child, Join) and child.kind in ("left", "left_semi", "left_anti"):
            left = [
                item for item in conditions
                if _is_plain(item) and item.columns <= set(child.left.columns)
            ]
            conditions = [item for item in conditions if item not in left]
        if isinstance(child, Join) and (left or child is node):
            if left:
                child = replace(child, left=filtered(child.left, in_order(left)))
            child = mapped(child, self.relation)
        else:
            child = self.relation(child)
        return filtered(child, [mapped(item, self.relation) for item in conditions])

    def _joined(self, leaves: list[Relation], conditions: list[SqlExpression]) -> Relation:
        """Inner joins of some sides by some conditions."""
        conditions = list(dict.fromkeys(conditions))
        own: list[list[SqlExpression]] = [[] for _ in leaves]
        later: list[SqlExpression] = []
        rest = []
        for item in conditions:
            place = next((
                place for place, leaf in enumerate(leaves) if _needs(item) <= set(leaf.columns)
            ), None)
            if not _is_plain(item):
                later.append(item)
            elif place is None:
                rest.append(item)
            else:
                own[place].append(item)
        own = [list(in_order(items)) for items in own]
        reduced = [place for place, items in enumerate(own) if _rank(items)]
        above = []
        for item in later:
            places = [
                place for place, leaf in enumerate(leaves) if _needs(item) <= set(leaf.columns)
            ]
            if places and (_is_cheap(item) or not set(reduced) - {places[0]}):
                own[places[0]].append(item)
            else:
                above.append(item)
        sides = [
            (self.relation(filtered(leaf, items)), _rank(items))
            for leaf, items in zip(leaves, own)
        ]
        return filtered(_ordered(sides, rest), above)


def _above(node: Relation) -> tuple[Relation, list[SqlExpression]]:
    """The node below some filters, and their conditions."""
    conditions: list[SqlExpression] = []
    while isinstance(node, Selection):
        conditions = [*node.conditions, *conditions]
        node = node.child
    return node, conditions


def _is_plain(item: SqlExpression) -> bool:
    """Whether a condition is about columns of its own relation alone."""
    return not item.subqueries and not item.outers and bool(item.columns)


def _is_cheap(item: SqlExpression) -> bool:
    """Whether a condition costs little for each row, and removes many."""
    return not item.subqueries or all(
        subquery.kind == "in" and not outers_of(subquery.relation) for subquery in item.subqueries
    )


def _needs(item: SqlExpression) -> set[str]:
    """The columns of its own relation that a condition needs."""
    needs = set(item.columns)
    for subquery in item.subqueries:
        needs |= outers_of(subquery.relation)
        needs = needs.union(*(value.columns for value in subquery.values))
    return needs - {subquery.name for subquery in item.subqueries}


def _rank(conditions: Iterable[SqlExpression]) -> int:
    """How much conditions reduce a relation: 2 by equalities, 1 by others, 0 not at all."""
    texts = [
        item.text for item in conditions
        if not item.subqueries and not _NO_NULL.search(item.text)
    ]
    return max(
        [2 if _EQUALITY.search(text) and not _NEGATION.search(text) else 1 for text in texts],
        default=0,
    )


def _is_inner(relation: Join) -> bool:
    return relation.kind == "inner" and not relation.lateral and all(
        _is_plain(item) for item in relation.conditions
    )


def _flatten(relation: Relation, leaves: list[Relation], conditions: list[SqlExpression]) -> None:
    """Gathers the sides of a tree of inner joins, and its conditions, the inner ones first."""
    child, above = _above(relation)
    if isinstance(child, Join) and _is_inner(child):
        _flatten(child.left, leaves, conditions)
        _flatten(child.right, leaves, conditions)
        conditions += child.conditions
    else:
        leaves.append(child)
    conditions += above


def _ordered(sides: list[tuple[Relation, int]], conditions: list[SqlExpression]) -> Relation:
    """Inner joins in an order in which conditions connect each side, if there is one.

    Parameters
    ----------
    sides : list of (Relation, int)
        Each with the rank of its conditions.
    """
    (relation, _), *rest = sides
    while rest:
        columns = set(relation.columns)

        def links(side: tuple[Relation, int]) -> tuple[int, int]:
            both = columns | set(side[0].columns)
            equal = [item for item in conditions if item.columns <= both]
            return max([1 + (" = " in item.text) for item in equal], default=0), side[1]

        side = max(rest, key=links)
        rest = [item for item in rest if item is not side]
        both = columns | set(side[0].columns)
        on = [item for item in conditions if item.columns <= both]
        conditions = [item for item in conditions if item not in on]
        relation = Join(relation, side[0], "inner", in_order(on))
    return relation
