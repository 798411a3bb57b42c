"""The calls in column expressions: the function, its arguments, and their order.

    call_of(f(x, y).alias("z"))  =  f, (x, y), "z"

The result is the same for a column of Python code, on classic or on Connect, and for SQL text.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Any, Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.spark.jvm import (
    column_of,
    columns_of,
    expression_of,
    is_classic,
    items_of,
    kind_of,
    node_of,
    scala_sequence,
    sql_class,
)
from pyspark_diff.spark.replaced import classic_replaced, replaced

#: Operators that classic columns, and operators that the SQL parser, spell in another way.
_CLASSIC_OPERATORS = {"=": "==", "!": "not"}
_SQL_OPERATORS = {
    "And": "and", "Or": "or", "Not": "not", "EqualTo": "==", "EqualNullSafe": "<=>",
    "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "Add": "+", "Subtract": "-",
}

#: The text after the name of a function that ignores nulls.
IGNORE_NULLS = "ignore nulls"

#: Functions that may ignore nulls, also by an argument.
_ENDS = ("first", "first_value", "last", "last_value", "any_value")

#: Aggregates with WITHIN GROUP (ORDER BY x), and the functions that have x as an argument instead.
_ORDERED = {"percentile_cont": "percentile", "percentile_disc": "percentile_disc", "mode": "mode"}


@dataclass(frozen=True)
class Ordering:
    """One column of an order."""

    column: Column
    descending: bool
    nulls_last: bool


@dataclass(frozen=True)
class ColumnCall:
    """A function call at the top of a column expression.

    Parameters
    ----------
    name : str
        The function in lower case, or the operator as Python writes it, save for ``and``, ``or``,
        ``not`` and ``<=>``, which is `eqNullSafe`.
    arguments : tuple of Column
        The arguments as columns; empty for ``count(*)`` and ``count(1)``.
    distinct : bool
        Whether the function sees each of its arguments once, as in ``count(DISTINCT x)``.
    alias : str or None
        The outermost alias of the result.
    filter : Column or None
        The condition of a FILTER clause.
    order : tuple of Ordering
        The order of WITHIN GROUP.
    """

    name: str
    arguments: tuple[Column, ...]
    distinct: bool
    alias: str | None
    filter: Column | None = None
    order: tuple[Ordering, ...] = field(default=(), repr=False)


def call_of(column: Column) -> ColumnCall | None:
    """The function that a column expression calls last; nothing is analysed or run.

    Parameters
    ----------
    column : Column
        Classic or Connect. SQL text (`F.expr`) is parsed on classic only: a Connect client has no
        parser.

    Returns
    -------
    ColumnCall or None
        None for an expression that is no plain call below its aliases: a column, a literal, a cast,
        a window, a Python function, an aggregate with a FILTER clause.

    Examples
    --------
    >>> call_of(F.sum("price").alias("total"))
    ColumnCall(name='sum', arguments=(Column<'price'>,), distinct=False, alias='total', filter=None)
    >>> call_of(F.count_distinct("src", "dst")).distinct
    True
    >>> call_of((F.col("a") > 1) & (F.col("b") < 2)).arguments
    (Column<'>(a, 1)'>, Column<'<(b, 2)'>)
    """
    if is_classic(column):
        return _classic_call(node_of(column), type(column))
    return _connect_call(column._expr, type(column))


#: The replacement of a call, from the call and its column; None to visit the parts of the call.
Replacement = Callable[[ColumnCall, Column], Column | None]


def with_calls_replaced(column: Column, replacement: Replacement) -> Column:
    """A column expression with some calls replaced; nothing is analysed or run.

    Parameters
    ----------
    column : Column
        Classic or Connect. SQL text (`F.expr`) is parsed on classic only.
    replacement : callable
        Called for each call outside of replaced ones, also for a call with a FILTER.

    Examples
    --------
    >>> with_calls_replaced(
    ...     F.abs(F.sum("x")), lambda call, _: F.col("s") if call.name == "sum" else None)
    Column<'abs(s)'>
    """
    make: Any = type(column)

    def classic(node: Any) -> Any:
        if kind_of(node) not in ("UnresolvedFunction", "AggregateExpression"):
            return None
        call = _parsed_call(node, make, None, filtered=True)
        whole = column_of(node, make)
        result = None if call is None else replacement(call, whole)
        return None if result is None else expression_of(result)

    def connect(node: Any) -> Any:
        if type(node).__name__ not in ("UnresolvedFunction", "CallFunction"):
            return None
        call = _connect_call(node, make)
        result = None if call is None else replacement(call, make(node))
        return None if result is None else result._expr

    return replaced(column, classic, connect)


#: The new arguments of a function, from its name, whether it has DISTINCT, and its arguments; None
#: to leave them unchanged.
NewArguments = Callable[[str, bool, list[Column]], "list[Column] | None"]


def with_arguments(column: Column, changed: NewArguments) -> Column:
    """A column expression with some arguments replaced; nothing is analysed or run.

    Parameters
    ----------
    column : Column
        Classic or Connect.
    changed : callable
        Called for each function that Python code calls, outer ones first.

    Examples
    --------
    >>> with_arguments(F.abs(F.hash("x")), lambda name, distinct, given:
    ...                [*given, F.col("y")] if name == "hash" else None)
    Column<'abs(hash(x, y))'>
    """
    make: Any = type(column)

    def classic(node: Any) -> Any:
        if kind_of(node) != "UnresolvedFunction":
            return None
        arguments = items_of(node.arguments())
        name = items_of(node.nameParts())[-1].lower()
        new = changed(name, node.isDistinct(), list(columns_of(arguments, make)))
        if new is None:
            return None
        nodes = [expression_of(argument) for argument in new]
        nodes = [classic_replaced(argument, classic) or argument for argument in nodes]
        others = items_of(node.children())[len(arguments):]
        # `withNewChildren` refuses another number of children.
        return node.withNewChildrenInternal(scala_sequence([*nodes, *others]).toIndexedSeq())

    def connect(node: Any) -> Any:
        if type(node).__name__ != "UnresolvedFunction":
            return None
        distinct = bool(getattr(node, "_is_distinct", False))
        new = changed(node._name.lower(), distinct, [make(argument) for argument in node._args])
        if new is None:
            return None
        result = copy(node)
        result._args = [replaced(argument, classic, connect)._expr for argument in new]
        return result

    return replaced(column, classic, connect)


def order_of(column: Column) -> tuple[Column, bool, bool] | None:
    """The order of a column such as ``F.col("x").desc()``; nothing is analysed or run.

    Returns
    -------
    tuple of (Column, bool, bool), or None
        The column, whether it is descending, and whether nulls come last; None without an order.

    Examples
    --------
    >>> order_of(F.col("price").desc())
    (Column<'price'>, True, True)
    """
    make: Any = type(column)
    if is_classic(column):
        node = node_of(column)
        if kind_of(node) != "SortOrder":
            return None
        down, last = node.sortDirection().toString(), node.nullOrdering().toString()
        child = make(sql_class("Column")(node.child()))
        return child, "Descending" in down, "NullsLast" in last
    expression = column._expr
    if type(expression).__name__ != "SortOrder":
        return None
    return make(expression._child), not expression._ascending, not expression._nullsFirst


def _connect_call(top: Any, make: Callable[[Any], Column]) -> ColumnCall | None:
    def kind(node: Any) -> str:
        # Names of classes, as an installation without Connect cannot import the classes.
        return type(node).__name__

    alias = None
    while kind(top) == "ColumnAlias":
        alias = alias or _only(top._alias)
        top = top._child
    if kind(top) not in ("UnresolvedFunction", "CallFunction"):
        return None
    name, arguments = top._name.lower(), list(top._args)
    distinct = getattr(top, "_is_distinct", False)
    if name == "count" and not distinct and len(arguments) == 1:
        counted = arguments[0]
        star = kind(counted) == "UnresolvedStar" and counted._unparsed_target is None
        if star or kind(counted) == "LiteralExpression" and counted._value is not None:
            arguments = []
    return ColumnCall(name, tuple(make(node) for node in arguments), distinct, alias)


def _classic_call(top: Any, make: Callable[[Any], Column]) -> ColumnCall | None:
    alias = None
    while kind_of(top) == "Alias":
        alias = alias or _only(items_of(top.name()))
        top = top.child()
    if kind_of(top) == "SqlExpression":
        parser = sql_class("classic.SparkSession").active().sessionState().sqlParser()
        return _parsed_call(parser.parseExpression(top.expression()), make, alias)
    if kind_of(top) == "ExpressionColumnNode":
        # A part of SQL text, as the arguments of a call.
        return _parsed_call(top.expression(), make, alias)
    if kind_of(top) != "UnresolvedFunction":
        return None
    name, arguments = top.functionName().lower(), items_of(top.arguments())
    distinct = top.isDistinct()
    if name == "count" and not distinct and len(arguments) == 1:
        counted = arguments[0]
        star = kind_of(counted) == "UnresolvedStar" and counted.unparsedTarget().isEmpty()
        if star or kind_of(counted) == "Literal" and counted.value() is not None:
            arguments = []
    columns = tuple(make(sql_class("Column")(node)) for node in arguments)
    return ColumnCall(_CLASSIC_OPERATORS.get(name, name), columns, distinct, alias)


def _parsed_call(
    top: Any, make: Callable[[Any], Column], alias: str | None, *, filtered: bool = False
) -> ColumnCall | None:
    """`call_of` for an expression of the SQL parser, which has classes of its own."""
    condition = None
    while kind_of(top) == "Alias":
        alias = alias or top.name()
        top = top.child()
    name = _SQL_OPERATORS.get(kind_of(top))
    arguments, distinct = items_of(top.children()), False
    order: tuple[Ordering, ...] = ()
    ignored = False
    if kind_of(top) == "UnresolvedFunction":
        # Nulls are a flag in Spark 4.1 and an option later.
        nulls = str(top.ignoreNulls()).lower()
        ignored = "true" in nulls
        plain = nulls in ("false", "none") or ignored
        plain = plain and (filtered or top.filter().isEmpty())
        condition = None if top.filter().isEmpty() else top.filter().get()
        name = ".".join(items_of(top.nameParts())).lower() if plain else None
        arguments, distinct = items_of(top.arguments()), top.isDistinct()
        order = tuple(
            Ordering(
                column_of(item.child(), make), "Descending" in item.direction().toString(),
                "NullsLast" in item.nullOrdering().toString(),
            )
            for item in items_of(top.orderingWithinGroup())
        )
        if order and name in _ORDERED:
            name = _ORDERED[name]
            arguments = [top.orderingWithinGroup().head().child(), *arguments]
        if name and ignored and name not in _ENDS:
            name = f"{name} {IGNORE_NULLS}"
    if kind_of(top) == "AggregateExpression":
        # The grammar has special rules for first, last and any_value.
        function = top.aggregateFunction()
        name, arguments = function.prettyName(), items_of(function.children())
        ignored = name in _ENDS and bool(function.ignoreNulls())
    if name is None:
        return None
    if name == "count" and not distinct and len(arguments) == 1:
        # The parser replaces a star by 1.
        counted = arguments[0]
        star = kind_of(counted) == "UnresolvedStar" and counted.target().isEmpty()
        if star or kind_of(counted) == "Literal" and counted.value() is not None:
            arguments = []
    return ColumnCall(
        _CLASSIC_OPERATORS.get(name, name),
        columns_of(arguments, make) + ((F.lit(True),) if ignored and name in _ENDS else ()),
        distinct,
        alias,
        None if condition is None else column_of(condition, make),
        order,
    )


def _only(names: Any) -> str | None:
    """The single name of a column; generators have several."""
    return names[0] if len(names) == 1 else None
