"""The relational form: a query as a tree of frozen values, between a reader and the operators.

A relation denotes a multiset of rows for each time::

    rows(node, t) = the rows that SQL defines for the node, over the tables at t

Each column has a name that is unique in the whole query. A correlated relation, the body of a
subquery, refers to columns of the enclosing query; an expression writes such a column with the
suffix `OUTER`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Iterator, Union, get_args

from pyspark.sql import DataFrame

#: The suffix by which an expression names a column of the enclosing query.
OUTER = "o"
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
#: Arithmetic, an element, or a call.
_FALLIBLE = re.compile(
    r"[-+*/%\[]|\bDIV\b|(?<!\w)(?!(?:AND|OR|NOT|IN|WHEN|THEN|ELSE|BETWEEN|LIKE|IS)\s*\()\w+\s*\(",
    re.IGNORECASE,
)
#: A word that needs no backticks, and the length of the words in unique names.
_WORD, WORD_LENGTH_MAX = re.compile("[a-z][a-z0-9_]*"), 20


@dataclass(frozen=True)
class SqlExpression:
    """A value for each row: SQL text over the names of columns.

    Parameters
    ----------
    outers : frozenset of str
        The columns of the enclosing query that the text refers to, without the suffix.
    subqueries : tuple of Subquery
        The subqueries whose values the text refers to, by their names.
    columns : frozenset of str
        The columns of its own relation that the text refers to.
    """

    text: str
    outers: frozenset[str] = frozenset()
    subqueries: tuple["Subquery", ...] = ()
    columns: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Subquery:
    """A value that a relation has for each row of the enclosing query.

    ``scalar``: the only value of the relation, NULL if it is empty, an error for several rows.
    ``exists``: whether the relation has a row.
    ``in``: whether one of its rows equals the values. ``not in``: whether each of its rows differs
    from the values. A comparison with NULL is neither, so both may be false. Neither is NULL: Spark
    makes existence joins of them.

    Parameters
    ----------
    name : str
        The column that stands for it in the text of an expression.
    kind : {"scalar", "exists", "in", "not in"}
    values : tuple of SqlExpression
        The left side of an IN or NOT IN.
    """

    name: str
    kind: str
    relation: "Relation"
    values: tuple[SqlExpression, ...] = ()


@dataclass(frozen=True)
class Named:
    """An expression under the name of a new column."""

    name: str
    expression: SqlExpression


@dataclass(frozen=True)
class Order:
    """A sort order of rows: by an expression, in a direction, nulls first or last."""

    expression: SqlExpression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Scan:
    """rows(t) = the rows of a table of the dataflow at t, its columns renamed."""

    table: str
    renamed: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(new for _, new in self.renamed)


@dataclass(frozen=True, eq=False)
class ConstantRelation:
    """rows(t) = the rows of a frame that never changes."""

    frame: DataFrame

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.frame.columns)


@dataclass(frozen=True)
class Project:
    """rows(t) = for each row of the child, the row of the expressions."""

    child: "Relation"
    named: tuple[Named, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.named)


@dataclass(frozen=True)
class Selection:
    """rows(t) = the rows of the child for which each of the conditions is true."""

    child: "Relation"
    conditions: tuple[SqlExpression, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.child.columns


@dataclass(frozen=True)
class Join:
    """rows(t) = the pairs of rows for which each condition is true, and as the kind says.

    Parameters
    ----------
    kind : {"inner", "left", "right", "full", "left_semi", "left_anti"}
    lateral : bool
        Whether the right side refers to columns of the left one.
    """

    left: "Relation"
    right: "Relation"
    kind: str
    conditions: tuple[SqlExpression, ...]
    lateral: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        if self.kind in ("left_semi", "left_anti"):
            return self.left.columns
        return (*self.left.columns, *self.right.columns)


@dataclass(frozen=True)
class Aggregate:
    """rows(t) = one row for each combination of the keys that a row of the child has.

    Without keys: exactly one row, also of an empty child.

    Parameters
    ----------
    aggregates : tuple of Named
        Calls of aggregate functions over columns of the child.
    zeros : frozenset of str
        The aggregates whose value over no rows is 0. The others are NULL.
    """

    child: "Relation"
    keys: tuple[Named, ...]
    aggregates: tuple[Named, ...]
    zeros: frozenset[str] = frozenset()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(item.name for item in (*self.keys, *self.aggregates))


@dataclass(frozen=True)
class Distinct:
    """rows(t) = each row of the child, once."""

    child: "Relation"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.child.columns


@dataclass(frozen=True)
class UnionAll:
    """rows(t) = the sum of the rows of the children, matched by position."""

    children: tuple["Relation", ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class SetOperation:
    """rows(t) = the difference or intersection of two multisets, or of two sets.

    Parameters
    ----------
    kind : {"except", "except_all", "intersect", "intersect_all"}
    """

    left: "Relation"
    right: "Relation"
    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Window:
    """rows(t) = the rows of the child, each with the values of window functions."""

    child: "Relation"
    functions: tuple["WindowFunction", ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.child.columns, *(item.name for item in self.functions))


@dataclass(frozen=True)
class WindowFunction:
    """A function over the rows of a partition, in an order, within a frame.

    Parameters
    ----------
    frame : str
        In SQL; empty for a function that has a frame of its own.
    """

    name: str
    function: SqlExpression
    partition: tuple[SqlExpression, ...]
    order: tuple[Order, ...]
    frame: str


@dataclass(frozen=True)
class Generate:
    """rows(t) = for each row of the child, a row for each row of the generator.

    Parameters
    ----------
    outer : bool
        Whether a row without generated rows stays, with nulls.
    names : tuple of str
        The generated columns.
    """

    child: "Relation"
    generator: SqlExpression
    outer: bool
    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.child.columns, *self.names)


@dataclass(frozen=True)
class TopK:
    """rows(t) = the rows of the child at positions ``skip`` to ``skip + limit`` of an order.

    Columns break ties, so that the choice is the same for each way of cutting steps.

    Parameters
    ----------
    limit : int or None
        None for all rows after the skipped ones.
    order : tuple of Order
        Empty if any choice is right.
    """

    child: "Relation"
    limit: int | None
    skip: int
    order: tuple[Order, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.child.columns


@dataclass(frozen=True)
class Recursion:
    """rows(t) = the anchor, plus the rows of the step in each round, until a round has none.

    A reference in the step reads the rows of the round before (UNION ALL), or all rows so far
    (UNION). Several references of UNION ALL read the same round.

    Parameters
    ----------
    name : int
        The name that references in the step have.
    distinct : bool
        Whether each row counts once (UNION) or as often as it is derived (UNION ALL).
    """

    name: int
    anchor: "Relation"
    step: "Relation"
    columns: tuple[str, ...]
    distinct: bool
    max_iterations: int | None = None


@dataclass(frozen=True)
class RecursionReference:
    """rows(t) = the rows that the previous round of a recursion added."""

    name: int
    columns: tuple[str, ...]


Relation = Union[
    Scan, ConstantRelation, Project, Selection, Join, Aggregate, Distinct, UnionAll, SetOperation,
    Window, Generate, TopK, Recursion, RecursionReference,
]
_RELATIONS = get_args(Relation)


def prefix_of(name: str) -> str:
    """The begin of the unique names of columns that a query calls by a name.

    A number follows, which counts the columns with this prefix alone. So a column that a table
    gains or loses changes the names of no others, and no fingerprint of a program without it.

    Examples
    --------
    >>> prefix_of("Amount"), prefix_of("due date"), len(prefix_of("a" * 50))
    ('amount', 'c9df1d72f', 20)
    """
    word = name.lower()
    if len(word) <= WORD_LENGTH_MAX and _WORD.fullmatch(word):
        return word
    number = f"{zlib.crc32(word.encode()):08x}"
    if _WORD.fullmatch(word):
        return word[:WORD_LENGTH_MAX - len(number)] + number
    return f"c{number}"


def column_of(name: str) -> SqlExpression:
    """The expression that is a column.

    Examples
    --------
    >>> column_of("id_1").columns
    frozenset({'id_1'})
    """
    return SqlExpression(name, columns=frozenset({name}))


def may_fail(text: str) -> bool:
    """Whether an expression may raise an error for a row: it computes, converts or looks up.

    Examples
    --------
    >>> may_fail("(n_1 / d_1) > 2"), may_fail("CAST(s_1 AS INT) = 1")
    (True, True)
    >>> may_fail("(NOT (d_1 = 0)) AND s_1 IN ('a / b')")
    False
    """
    return bool(_FALLIBLE.search(_QUOTED.sub("''", text)))


def in_order(conditions: Iterable[SqlExpression]) -> tuple[SqlExpression, ...]:
    """Conditions in an order that depends little on that of the query.

    A condition that may fail comes after the others and after those before it, as they may guard
    it: ``d <> 0 AND n / d > 2``.

    Examples
    --------
    >>> texts = ["n_1 / d_1 > 2", "d_1 <> 0", "a_1 = 1"]
    >>> [item.text for item in in_order(map(SqlExpression, texts))]
    ['a_1 = 1', 'd_1 <> 0', 'n_1 / d_1 > 2']
    """
    conditions = tuple(conditions)
    safe = [item for item in conditions if not may_fail(item.text)]
    others = [item for item in conditions if may_fail(item.text)]
    return (*sorted(safe, key=lambda item: item.text), *others)


def children(node: Relation) -> tuple[Relation, ...]:
    """The relations that a node reads; the bodies of subqueries are not among them.

    Examples
    --------
    >>> children(Distinct(Scan("orders", (("id", "id_1"),))))[0].columns
    ('id_1',)
    """
    if isinstance(node, UnionAll):
        return node.children
    if isinstance(node, (Join, SetOperation)):
        return (node.left, node.right)
    if isinstance(node, Recursion):
        return (node.anchor, node.step)
    child = getattr(node, "child", None)
    return () if child is None else (child,)


def expressions(node: Relation) -> Iterator[SqlExpression]:
    """The expressions of a node, without those of its children.

    Examples
    --------
    >>> scan = Scan("orders", (("id", "id_1"),))
    >>> [str(one) for one in expressions(Selection(scan, (SqlExpression("id_1 > 2"),)))]
    ['id_1 > 2']
    """
    for field in fields(node):
        yield from _expressions_in(getattr(node, field.name))


def _expressions_in(value: Any) -> Iterator[SqlExpression]:
    if isinstance(value, SqlExpression):
        yield value
        for subquery in value.subqueries:
            for left in subquery.values:
                yield from _expressions_in(left)
    elif isinstance(value, (Named, Order)):
        yield from _expressions_in(value.expression)
    elif isinstance(value, WindowFunction):
        yield from _expressions_in((value.function, *value.partition, *value.order))
    elif isinstance(value, tuple):
        for part in value:
            yield from _expressions_in(part)


def mapped(value: Any, of_relation: Callable[[Any], Any]) -> Any:
    """A node, or a part of one, with each relation in its fields replaced by another.

    The relations of subqueries are among them.

    Examples
    --------
    >>> scan = Scan("orders", (("id", "id_1"),))
    >>> mapped(Distinct(scan), lambda relation: Distinct(relation)).child.child.table
    'orders'
    """
    changed = {
        field.name: _mapped(getattr(value, field.name), of_relation) for field in fields(value)
    }
    if all(changed[field.name] is getattr(value, field.name) for field in fields(value)):
        return value
    return replace(value, **changed)


def _mapped(value: Any, of_relation: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        parts = tuple(_mapped(part, of_relation) for part in value)
        return value if all(a is b for a, b in zip(parts, value)) else parts
    if isinstance(value, (SqlExpression, Subquery, Named, Order, WindowFunction)):
        return mapped(value, of_relation)
    return of_relation(value) if isinstance(value, _RELATIONS) else value


def references(node: Relation, name: int) -> int:
    """The number of references to a recursion in a relation, subqueries included.

    Examples
    --------
    >>> references(Distinct(RecursionReference(1, ("id_1",))), 1)
    1
    """
    if isinstance(node, RecursionReference):
        return int(node.name == name)
    below = sum(references(child, name) for child in children(node))
    return below + sum(
        references(subquery.relation, name)
        for expression in expressions(node) for subquery in expression.subqueries
    )


def outers_of(node: Relation) -> frozenset[str]:
    """The columns of the enclosing query that a relation refers to.

    A subquery inside of the relation may refer to columns of the relation itself, which are not
    columns of the enclosing query.

    Examples
    --------
    >>> scan = Scan("orders", (("id", "id_1"),))
    >>> condition = SqlExpression("id_1 = id_7o", outers=frozenset({"id_7"}))
    >>> sorted(outers_of(Selection(scan, (condition,))))
    ['id_7']
    """
    outers: set[str] = set()
    for expression in expressions(node):
        outers |= expression.outers
    own = children(node)
    if isinstance(node, Join) and node.lateral:
        outers |= outers_of(node.right) - set(node.left.columns)
        own = (node.left,)
    for child in own:
        outers |= outers_of(child)
    return frozenset(outers)
