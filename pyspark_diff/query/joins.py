"""The order of joins: the conditions of a query go to the joins and tables that they are about.

    rows(filtered(node, conditions), t) = rows(Selection(node, conditions), t)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark_diff.query.form import Join, Relation, Selection, SqlExpression


def filtered(relation: Relation, conditions: Sequence[SqlExpression]) -> Relation:
    """The rows of a relation for which conditions are true; comma joins become equality joins.

    Examples
    --------
    >>> from pyspark_diff.query.form import Scan
    >>> a, b = (Scan(name, (("x", f"{name}_1"),)) for name in "ab")
    >>> equal = SqlExpression("a_1 = b_1", columns=frozenset({"a_1", "b_1"}))
    >>> filtered(Join(a, b, "inner", ()), [equal]).conditions[0].text
    'a_1 = b_1'
    """
    plain = [item for item in conditions if _is_plain(item) and item.columns]
    others = [item for item in conditions if not (_is_plain(item) and item.columns)]
    relation = _pushed(relation, list(dict.fromkeys(plain)))
    return Selection(relation, tuple(others)) if others else relation


def _is_plain(item: SqlExpression) -> bool:
    """Whether a condition is about columns of its own relation alone."""
    return not item.subqueries and not item.outers


def _sorted(conditions: Sequence[SqlExpression]) -> tuple[SqlExpression, ...]:
    return tuple(sorted(conditions, key=lambda item: item.text))


def _pushed(relation: Relation, conditions: list[SqlExpression]) -> Relation:
    if isinstance(relation, Join) and not relation.lateral:
        if _is_inner(relation):
            leaves: list[Relation] = []
            _flatten(relation, leaves, conditions)
            return _ordered(leaves, list(dict.fromkeys(conditions)))
        if relation.kind in ("left", "left_semi", "left_anti"):
            left = [item for item in conditions if item.columns <= set(relation.left.columns)]
            conditions = [item for item in conditions if item not in left]
            relation = replace(
                relation, left=_pushed(relation.left, left), right=_pushed(relation.right, [])
            )
        else:
            relation = replace(
                relation, left=_pushed(relation.left, []), right=_pushed(relation.right, [])
            )
    return Selection(relation, _sorted(conditions)) if conditions else relation


def _is_inner(relation: Relation) -> bool:
    return isinstance(relation, Join) and relation.kind == "inner" and not relation.lateral and all(
        _is_plain(item) and item.columns for item in relation.conditions
    )


def _flatten(relation: Relation, leaves: list[Relation], conditions: list[SqlExpression]) -> None:
    """Gathers the sides of a tree of inner joins, and its conditions."""
    if isinstance(relation, Join) and _is_inner(relation):
        conditions += relation.conditions
        _flatten(relation.left, leaves, conditions)
        _flatten(relation.right, leaves, conditions)
    else:
        leaves.append(relation)


def _ordered(leaves: list[Relation], conditions: list[SqlExpression]) -> Relation:
    """Inner joins in an order in which conditions connect each side, if there is one."""
    placed = []
    for leaf in leaves:
        own = [item for item in conditions if item.columns <= set(leaf.columns)]
        conditions = [item for item in conditions if item not in own]
        placed.append(_pushed(leaf, own))
    relation, rest = placed[0], placed[1:]
    while rest:
        columns = set(relation.columns)

        def links(leaf: Relation) -> int:
            both = columns | set(leaf.columns)
            equal = [item for item in conditions if item.columns <= both]
            return max([1 + (" = " in item.text) for item in equal], default=0)

        leaf = max(rest, key=links)
        rest = [item for item in rest if item is not leaf]
        both = columns | set(leaf.columns)
        on = [item for item in conditions if item.columns <= both]
        conditions = [item for item in conditions if item not in on]
        relation = Join(relation, leaf, "inner", _sorted(on))
    return relation
