"""Column expressions as trees of Python values.

A tree does not depend on the form of the expression: methods of columns or SQL text, on classic
Spark or on Connect. Nothing is analysed; names and types are those of the user.
"""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Callable, Iterator, Union

from pyspark.sql import Column
from pyspark.sql import types as T

from pyspark_diff.spark import jvm


@dataclass(frozen=True)
class Attribute:
    """A column by its name, and perhaps an alias of its collection."""

    name: str
    qualifier: str | None = None


@dataclass(frozen=True)
class Literal:
    """A value of a type: an int, float, Decimal, bool or str, or None.

    A date is a number of days and a timestamp a number of microseconds since 1970; an interval of
    days and times is a number of microseconds.
    """

    value: Any
    kind: T.DataType


@dataclass(frozen=True)
class Call:
    """A function or operator, under one name for all forms. The arguments of ``case`` are
    alternating conditions and values, and last the value of all other rows.
    """

    name: str
    arguments: tuple["Tree", ...]


@dataclass(frozen=True)
class Cast:
    """A value in another type."""

    child: "Tree"
    kind: T.DataType


@dataclass(frozen=True)
class Alias:
    """A value under another name."""

    child: "Tree"
    name: str


Tree = Union[Attribute, Literal, Call, Cast, Alias]

#: Types by their names in Spark's JSON; trees have no values of other types.
_TYPES: dict[str, T.DataType] = {
    "void": T.NullType(),
    "boolean": T.BooleanType(),
    "byte": T.ByteType(),
    "short": T.ShortType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "string": T.StringType(),
    "date": T.DateType(),
    "double": T.DoubleType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
}

#: Further names of the same types in SQL.
_SHORT = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}

#: Names of functions and of classes of the SQL parser, with their name in a tree.
_NAMES = {
    "=": "==",
    "!": "not",
    "mod": "%",
    "equal_null": "<=>",
    "ifnull": "coalesce",
    "nvl": "coalesce",
    "if": "case",
    "when": "case",
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Remainder": "%",
    "Divide": "/",
    "IntegralDivide": "div",
    "Floor": "floor",
    "Ceil": "ceil",
    "ceiling": "ceil",
    "UnaryMinus": "negative",
    "EqualTo": "==",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "And": "and",
    "Or": "or",
    "Not": "not",
    "IsNull": "isnull",
    "IsNotNull": "isnotnull",
    "In": "in",
    "CaseWhen": "case",
    "Like": "like",
    "StartsWith": "startswith",
    "EndsWith": "endswith",
    "Contains": "contains",
    "Substring": "substring",
    "substr": "substring",
    "Year": "year",
    "Month": "month",
    "DayOfMonth": "day",
    "dayofmonth": "day",
    "date_diff": "datediff",
}

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_INTERVAL = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
#: A part of a name on Connect.
_PART = r"(?:`(?:[^`]|``)+`|[^`.*]+)"

_EPOCH = datetime.date(1970, 1, 1)
#: Spark counts days before 1582 in one calendar and displays them in another.
_FIRST_YEAR = 1583
#: The largest depth, as functions walk trees by recursion.
_DEEPEST = 100


class _NoTree(Exception):
    """The expression has a part that no tree can represent."""


def tree_of(column: Column) -> Tree | None:
    """A column expression as a tree; nothing is analysed or run.

    Parameters
    ----------
    column : Column
        Classic or Connect. SQL text (`F.expr`) is parsed on classic only: a Connect client has no
        parser.

    Returns
    -------
    Tree or None
        None if a value or a cast has an unknown type, or a name has more than two parts. An unknown
        function is a `Call` all the same, and a struct's field may look like a column under an
        alias.

    Examples
    --------
    >>> tree_of((F.col("n") + 1).alias("m"))  # doctest: +NORMALIZE_WHITESPACE
    Alias(child=Call(name='+', arguments=(Attribute(name='n', qualifier=None),
        Literal(value=1, kind=IntegerType()))), name='m')
    >>> tree_of(F.col("*")) is None
    True
    """
    text = jvm.expression_json(column)
    try:
        if text is not None:
            nodes = json.loads(text)
            return _classic_tree(iter(nodes)) if _escapes_as_usual(nodes, column) else None
        return _connect_tree(column._expr)
    except _NoTree:
        return None


def planned_tree(text: str, named: Callable[[str], str | None]) -> Tree | None:
    """The tree of an expression of a plan, from its JSON by Spark.

    Parameters
    ----------
    named : callable
        The column of a name, which has the user's spelling in a plan and may differ in case. None
        if no column has the name.
    """
    nodes = json.loads(text)
    try:
        return _classic_tree(iter(nodes), named=named) if _escapes_as_usual(nodes) else None
    except _NoTree:
        return None


def _escapes_as_usual(nodes: list[dict[str, Any]], column: Column | None = None) -> bool:
    """Whether no pattern of LIKE has a special escape character, which the JSON lacks.
    """
    likes = sum(node["class"].endswith(".Like") for node in nodes)
    # The text of a column has the user's spelling, in any case.
    shown = str(column).lower() if likes else ""
    return not likes or len(re.findall(r"\blike\b", shown)) == likes and "escape" not in shown


def _classic_tree(
    nodes: Iterator[dict[str, Any]], depth: int = 0, *,
    named: Callable[[str], str | None] | None = None,
) -> Tree:
    """The tree of the next node, which also consumes the node's children."""
    node = next(nodes)
    kind = node["class"].rpartition(".")[2]
    if depth > _DEEPEST:
        raise _NoTree
    children = tuple(
        _classic_tree(nodes, depth + 1, named=named) for _ in range(node["num-children"])
    )
    if named is not None and kind == "AttributeReference":
        name = named(node["name"])
        if name is None:
            raise _NoTree
        return Attribute(name)
    if kind == "UnresolvedAttribute":
        return _attribute(node["nameParts"])
    if kind == "Literal":
        return _literal(node["value"], _type(node["dataType"]))
    if kind == "Alias":
        return Alias(children[0], node["name"])
    if kind == "Cast":
        return Cast(children[0], _type(node["dataType"]))
    if kind != "UnresolvedFunction":
        return _call(kind, children)
    if node["isDistinct"] or node.get("filter") or node.get("ignoreNulls"):
        raise _NoTree
    # A name of several parts has a comma, so it matches no known function.
    return _call(node["nameParts"][1:-1].lower(), children)


def _connect_tree(node: Any, depth: int = 0) -> Tree:
    # Names of classes, as an installation without Connect cannot import the classes.
    kind = type(node).__name__
    if depth > _DEEPEST:
        raise _NoTree
    below = depth + 1
    if kind == "ColumnReference" and node._plan_id is None and not node._is_metadata_column:
        name = node._unparsed_identifier
        if re.fullmatch(rf"{_PART}(\.{_PART})?", name):
            parts = [
                part[1:-1].replace("``", "`") if part.startswith("`") else part
                for part in re.findall(_PART, name)
            ]
            return Attribute(parts[-1], parts[0] if len(parts) == 2 else None)
    if kind == "LiteralExpression":
        return _literal(node._value, node._dataType)
    if kind == "ColumnAlias" and len(node._alias) == 1:
        return Alias(_connect_tree(node._child, below), node._alias[0])
    if kind == "CastExpression":
        target = node._data_type
        if isinstance(target, str):
            target = _type(_SHORT.get(target.lower(), target.lower()))
        elif target not in _TYPES.values() and not isinstance(target, T.DecimalType):
            raise _NoTree
        return Cast(_connect_tree(node._expr, below), target)
    if kind == "UnresolvedFunction" and not node._is_distinct or kind == "CallFunction":
        return _call(node._name.lower(), tuple(_connect_tree(n, below) for n in node._args))
    if kind == "CaseWhen":
        return _call("case", tuple(_connect_tree(n, below) for n in node.children))
    raise _NoTree


def _type(name: Any) -> T.DataType:
    if not isinstance(name, str):
        raise _NoTree
    digits = _DECIMAL.fullmatch(name)
    if digits:
        return T.DecimalType(int(digits.group(1)), int(digits.group(2)))
    if _INTERVAL.fullmatch(name):
        return T.DayTimeIntervalType()
    if name not in _TYPES:
        raise _NoTree
    return _TYPES[name]


def _attribute(parts: str) -> Attribute:
    # The JSON does not distinguish two parts from one part with a comma: the look-up of the column
    # has to decide by the existing names.
    names = parts[1:-1].split(", ")
    if len(names) > 2:
        raise _NoTree
    return Attribute(names[-1], names[0] if len(names) == 2 else None)


def _literal(value: Any, kind: T.DataType) -> Literal:
    """A literal from Python's value or from its text in JSON."""
    if value is None:
        return Literal(None, kind)
    if isinstance(kind, T.StringType) and kind == T.StringType():
        return Literal(value, kind)
    if isinstance(kind, T.BooleanType):
        return Literal(value if isinstance(value, bool) else value == "true", kind)
    if isinstance(kind, T.DateType):
        return Literal(value if isinstance(value, int) else _day(value), kind)
    if isinstance(kind, (T.IntegralType, T.TimestampNTZType, T.DayTimeIntervalType)):
        return Literal(int(value), kind)
    if isinstance(kind, T.DecimalType):
        return Literal(Decimal(value), kind)
    if isinstance(kind, T.DoubleType):
        return Literal(float(value), kind)
    raise _NoTree


def _day(text: str) -> int:
    match = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", text)
    if not match or int(match.group(1)) < _FIRST_YEAR:
        raise _NoTree
    return (datetime.date(*map(int, match.groups())) - _EPOCH).days


def _call(name: str, arguments: tuple[Tree, ...]) -> Call | Cast:
    name = _NAMES.get(name, name)
    if name in ("!=", "<>"):
        return Call("not", (Call("==", arguments),))
    if name in ("to_date", "date") and len(arguments) == 1:
        return Cast(arguments[0], T.DateType())
    if name == "between" and len(arguments) == 3:
        value, low, high = arguments
        return Call("and", (Call(">=", (value, low)), Call("<=", (value, high))))
    if name == "nullif" and len(arguments) == 2:
        return Call("case", (Call("==", arguments), Literal(None, T.NullType()), arguments[0]))
    if name == "nvl2" and len(arguments) == 3:
        return Call("case", (Call("isnotnull", arguments[:1]), *arguments[1:]))
    if name == "case" and len(arguments) % 2 == 0:
        return Call(name, (*arguments, Literal(None, T.NullType())))
    return Call(name, arguments)
