"""The unique key of a query: columns with a different value in each row of its result.

    unique_key(node) = K  =>  at each time no two rows of the node are equal in K (NULL equals NULL)

An empty key says that there is at most one row. None says that nothing is known.
"""

from __future__ import annotations

from pyspark_diff.query.form import (
    Aggregate,
    Distinct,
    Join,
    Project,
    Recursion,
    Relation,
    Selection,
    SetOperation,
    TopK,
    Window,
)

Key = frozenset[str]


def unique_key(node: Relation) -> Key | None:
    """Columns of a relation with a different value in each of its rows; None if unknown.

    Examples
    --------
    >>> from pyspark_diff.query.form import Scan
    >>> scan = Scan("orders", (("id", "id_1"), ("day", "day_2")))
    >>> sorted(unique_key(Distinct(scan)))
    ['day_2', 'id_1']
    >>> unique_key(scan) is None
    True
    """
    if isinstance(node, Aggregate):
        return frozenset(item.name for item in node.keys)
    if isinstance(node, Distinct) or isinstance(node, Recursion) and node.distinct:
        return _smaller(node)
    if isinstance(node, (Selection, TopK, Window)):
        return unique_key(node.child)
    if isinstance(node, SetOperation):
        return _of_set_operation(node)
    if isinstance(node, Project):
        return _renamed(node, unique_key(node.child))
    if isinstance(node, Join):
        left = unique_key(node.left)
        if node.kind in ("left_semi", "left_anti"):
            return left
        # A lateral right side has its key within one row of the left side, which is enough.
        right = unique_key(node.right)
        # In a full join the unmatched rows of both sides may have NULL in all columns of the key.
        return None if left is None or right is None or node.kind == "full" else left | right
    return None


def _smaller(node: Distinct | Recursion) -> Key:
    """The key of the child of a distinct relation, or all columns."""
    inner = unique_key(node.child) if isinstance(node, Distinct) else None
    return frozenset(node.columns) if inner is None else inner


def _of_set_operation(node: SetOperation) -> Key | None:
    if node.kind in ("except", "intersect"):
        return frozenset(node.columns)
    inner = unique_key(node.left)
    if inner is None:
        return None
    names = dict(zip(node.left.columns, node.columns))
    return frozenset(names[name] for name in inner)


def _renamed(node: Project, key: Key | None) -> Key | None:
    """The key under the new names of its columns, if the projection keeps all of them."""
    if key is None:
        return None
    names = {
        item.expression.text.strip("`"): item.name for item in node.named
        if not item.expression.subqueries and not item.expression.outers
    }
    return frozenset(names[name] for name in key) if key <= names.keys() else None
