"""The shape of a relation: the relation without the names of its columns.

    shape_of(a).key == shape_of(b).key   =>   rows(a, t) = rows(b, t), column by column

A query that has a part twice, such as a join below an aggregate and below its total, thereby
computes it once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from pyspark_diff.query.form import (
    OUTER,
    ConstantRelation,
    Recursion,
    RecursionReference,
    Relation,
    Scan,
    SqlExpression,
)

#: A text in quotes or a field of a struct, which are no columns; or a word.
_PARTS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\.\s*(?:`[^`]*`|\w+)|\w+")
#: Fields whose strings are no columns.
_WORDS = frozenset({"table", "kind", "frame"})


@dataclass(frozen=True)
class Shape:
    """A relation without the names of its columns.

    Parameters
    ----------
    key : tuple
        Equal for relations that differ in the names of columns alone.
    columns : tuple of int
        The number of each column of the relation in the key.
    """

    key: tuple[Any, ...]
    columns: tuple[int, ...]


def shape_of(node: Relation) -> Shape | None:
    """The shape of a relation; None if it reads a recursion.

    Examples
    --------
    >>> from pyspark_diff.query.form import Selection
    >>> a, b = (Scan("orders", (("id", f"id_{n}"),)) for n in (1, 2))
    >>> first = shape_of(Selection(a, (SqlExpression("id_1 > 2"),)))
    >>> first == shape_of(Selection(b, (SqlExpression("id_2 > 2"),)))
    True
    >>> first == shape_of(Selection(b, (SqlExpression("id_2 > 3"),)))
    False
    """
    numbering = _Numbering()
    try:
        key = numbering.key(node)
    except _HasRecursionError:
        return None
    return Shape(key, tuple(numbering.numbers[name] for name in node.columns))


class _HasRecursionError(Exception):
    """A recursion is a relation by its identity."""


class _Numbering:
    """Numbers the columns of a relation in the order of their definitions."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def key(self, node: Any) -> tuple[Any, ...]:
        if isinstance(node, (Recursion, RecursionReference)):
            raise _HasRecursionError
        kind = type(node).__name__
        if isinstance(node, Scan):
            return kind, node.table, tuple((old, self._name(new)) for old, new in node.renamed)
        if isinstance(node, ConstantRelation):
            return kind, id(node.frame), tuple(map(self._name, node.columns))
        if isinstance(node, SqlExpression):
            subqueries = tuple(map(self.key, node.subqueries))
            return kind, self._text(node.text), subqueries
        # The first fields are relations: they define the columns that the others use.
        return kind, tuple(
            self._value(field.name, getattr(node, field.name)) for field in fields(node)
        )

    def _value(self, field: str, value: Any) -> Any:
        if isinstance(value, str):
            return value if field in _WORDS else self._name(value)
        if isinstance(value, frozenset):
            return tuple(sorted(map(self._name, value)))
        if isinstance(value, tuple):
            return tuple(self._value(field, part) for part in value)
        return self.key(value) if hasattr(value, "__dataclass_fields__") else value

    def _name(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def _text(self, text: str) -> str:
        def part(match: re.Match[str]) -> str:
            word = match.group()
            if word in self.numbers:
                return f"\0{self.numbers[word]}"
            outer = word.removesuffix(OUTER)
            return f"\0{self.numbers[outer]}o" if outer in self.numbers else word

        return _PARTS.sub(part, text)
