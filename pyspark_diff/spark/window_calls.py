"""The windows in column expressions: their functions and rows.

    windows_replaced(f(x).over(w) + 1, g)  =  g(f, x, w) + 1

The result is the same for a column of Python code, on classic or on Connect, and for SQL text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.spark.jvm import column_of, columns_of, expression_of, items_of, kind_of
from pyspark_diff.spark.replaced import replaced
from pyspark_diff.spark.window_text import WindowText
from pyspark_diff.spark.window_text import with_windows_replaced as of_text


@dataclass(frozen=True)
class WindowCall:
    """A function over a window.

    Parameters
    ----------
    name : str
        The function in lower case.
    arguments : tuple of Column
        The arguments; empty for ``count(*)`` and ``count(1)``.
    nulls_ignored : bool
        Whether the call has IGNORE NULLS. An argument may have that meaning as well.
    filter : Column or None
        The condition of a FILTER clause.
    order : tuple of (Column, bool, bool)
        The columns of the order, whether each is descending, and whether its nulls come last.
    frame : tuple of (bool, Column or None, Column or None), or None
        Whether limits count rows, and both limits, with None for no limit. None without a frame.
    """

    name: str
    arguments: tuple[Column, ...]
    distinct: bool
    nulls_ignored: bool
    filter: Column | None
    partition: tuple[Column, ...]
    order: tuple[tuple[Column, bool, bool], ...]
    frame: tuple[bool, Column | None, Column | None] | None

    def mapped(self, change: Callable[[Column], Column]) -> WindowCall:
        """The call with each expression changed."""
        return replace(
            self,
            arguments=tuple(map(change, self.arguments)),
            filter=None if self.filter is None else change(self.filter),
            partition=tuple(map(change, self.partition)),
            order=tuple((change(column), down, last) for column, down, last in self.order),
        )


def may_have_windows(column: object) -> bool:
    """Whether an expression may have windows; if the answer is no, it has none."""
    shown = str(column).lower() if isinstance(column, Column) else ""
    return "over" in shown or "windowexpression" in shown  # Connect's name


def windows_replaced(
    column: Column, replacement: Callable[[WindowCall, Column], Column]
) -> Column:
    """A column expression with its windows replaced; nothing is analysed or run.

    Parameters
    ----------
    replacement : callable
        From a window and its column to its replacement: a column by its name.

    Examples
    --------
    >>> from pyspark.sql import Window
    >>> row = F.row_number().over(Window.partitionBy("k").orderBy("v"))
    >>> windows_replaced(F.abs(row), lambda call, _: F.col(call.name))
    Column<'abs(row_number)'>
    """
    make: Any = type(column)

    def classic(node: Any) -> Any:
        if kind_of(node) != "WindowExpression":
            return None
        return expression_of(replacement(_classic_call(node, make), column_of(node, make)))

    def by_name(call: WindowText, whole: str) -> str:
        column: Any = replacement(_call_of_text(call), F.expr(whole))
        name: str = column._expr._unparsed_identifier
        return name

    def connect(node: Any) -> Any:
        # Names of classes, as an installation without Connect cannot import the classes.
        if type(node).__name__ == "SQLExpression":
            text = of_text(node._expr, by_name)
            new: Any = F.expr(text)
            return None if text == node._expr else new._expr
        if type(node).__name__ != "WindowExpression":
            return None
        new = replacement(_connect_call(node, make), make(node))
        return new._expr

    return replaced(column, classic, connect)


def _classic_call(node: Any, make: Callable[[Any], Column]) -> WindowCall:
    function, spec = node.windowFunction(), node.windowSpec()
    name, arguments, condition = kind_of(function).lower(), [], None
    distinct = ignored = False
    if kind_of(function) == "UnresolvedFunction":
        name = ".".join(items_of(function.nameParts())).lower()
        arguments, distinct = items_of(function.arguments()), function.isDistinct()
        # Nulls are a flag in Spark 4.1 and an option later.
        ignored = str(function.ignoreNulls()).lower() in ("true", "some(true)")
        condition = None if function.filter().isEmpty() else function.filter().get()
    if name == "count" and not distinct and len(arguments) == 1:
        counted = arguments[0]
        star = kind_of(counted) == "UnresolvedStar" and counted.target().isEmpty()
        if star or kind_of(counted) == "Literal" and counted.value() is not None:
            arguments = []
    order = []
    for item in items_of(spec.orderSpec()):
        down, last = item.direction().toString(), item.nullOrdering().toString()
        order.append((column_of(item.child(), make), "Desc" in down, "Last" in last))
    frame = None
    if kind_of(spec.frameSpecification()) == "SpecifiedWindowFrame":
        rows = spec.frameSpecification()
        frame = (
            kind_of(rows.frameType()) == "RowFrame$", _limit(rows.lower(), make),
            _limit(rows.upper(), make),
        )
    return WindowCall(
        name, columns_of(arguments, make), distinct, ignored,
        None if condition is None else column_of(condition, make),
        columns_of(items_of(spec.partitionSpec()), make), tuple(order), frame,
    )


def _limit(node: Any, make: Callable[[Any], Column]) -> Column | None:
    if kind_of(node) == "CurrentRow$":
        return F.lit(0)
    return None if kind_of(node).startswith("Unbounded") else column_of(node, make)


def _connect_call(node: Any, make: Callable[[Any], Column]) -> WindowCall:
    function, spec = node._windowFunction, node._windowSpec
    arguments = list(getattr(function, "_args", ()))
    name = getattr(function, "_name", type(function).__name__).lower()
    distinct = getattr(function, "_is_distinct", False)
    if name == "count" and not distinct and len(arguments) == 1:
        counted = type(arguments[0]).__name__
        if counted == "UnresolvedStar" or (
            counted == "LiteralExpression" and arguments[0]._value is not None
        ):
            arguments = []
    order = [
        (make(item._child), not item._ascending, not item._nullsFirst) for item in spec._orderSpec
    ]
    frame = None
    if spec._frame is not None:
        low, high = (
            None if abs(limit) >= 2**63 - 1 else F.lit(limit)
            for limit in (spec._frame._start, spec._frame._end)
        )
        frame = (spec._frame._isRowFrame, low, high)
    return WindowCall(
        name, tuple(map(make, arguments)), distinct, False, None,
        tuple(map(make, spec._partitionSpec)), tuple(order), frame,
    )


#: The name of a column in SQL text, and no constant or function.
_NAMES = re.compile(
    r"(?!(?:true|false|null|current_\w+)$)[a-z_]\w*(?:\.[a-z_]\w*)*$", re.IGNORECASE
)
_QUOTED_NAMES = re.compile(r"`(?:[^`]|``)*`$")


def _call_of_text(call: WindowText) -> WindowCall:
    arguments = call.arguments
    if call.name == "count" and not call.distinct and len(arguments) == 1:
        # The count of a number or a star counts all rows.
        arguments = () if re.fullmatch(r"\*|\d+", arguments[0]) else arguments
    frame = None
    if call.frame is not None:
        rows, *limits = call.frame
        low, high = (None if limit is None else F.expr(limit) for limit in limits)
        frame = (rows, low, high)
    return WindowCall(
        call.name, tuple(map(_of_text, arguments)), call.distinct, call.nulls_ignored,
        None if call.filter is None else F.expr(call.filter),
        tuple(map(_of_text, call.partition)),
        tuple((_of_text(part), down, last) for part, down, last in call.order), frame,
    )


def _of_text(part: str) -> Column:
    plain = _NAMES.match(part) or _QUOTED_NAMES.match(part)
    return F.col(part) if plain else F.expr(part)
