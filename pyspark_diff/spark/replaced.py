"""Column expressions in which others stand in the place of some of their nodes.

    replaced(c, f)  =  c, where every node n, from the top down, for which f(n) is not None is f(n)

A classic column has Spark's own expressions as nodes, and one of a Connect client objects of
Python; there is a function for each, and nothing is analysed or run.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Callable

from pyspark.sql import Column

from pyspark_diff.spark.jvm import (
    class_called,
    column_of,
    expression_of,
    is_classic,
    items_of,
    node_of,
)


def replaced(
    column: Column, classic: Callable[[Any], Any], connect: Callable[[Any], Any]
) -> Column:
    """A column expression in which some nodes are others; either function says None of the rest."""
    make: Any = type(column)
    if is_classic(column):
        found = classic_replaced(expression_of(column), classic)
        return column if found is None else column_of(found, make)
    found = _connect_replaced(column._expr, connect)
    return column if found is None else make(found)


def reads_variables(column: Column) -> bool:
    """Whether an expression has SQL text with ``${name}``, which Spark replaces by a setting.

    Examples
    --------
    >>> reads_variables(F.expr("x * ${my.rate}").alias("y")), reads_variables(F.lit("${my.rate}"))
    (True, False)
    """
    if is_classic(column):
        shown = str(node_of(column).toString())
        return "SqlExpression(" in shown and "${" in shown
    texts: list[str] = []

    def visit(node: Any) -> None:
        if type(node).__name__ == "SQLExpression":
            texts.append(node._expr)

    replaced(column, visit, visit)
    return any("${" in text for text in texts)


def classic_replaced(node: Any, visited: Callable[[Any], Any]) -> Any:
    """The expression with nodes replaced; None if there was none."""
    found = visited(node)
    if found is not None:
        return found
    children = items_of(node.children())
    made = [classic_replaced(child, visited) for child in children]
    if all(child is None for child in made):
        return None
    both = [old if new is None else new for old, new in zip(children, made)]
    return node.withNewChildren(class_called("org.apache.spark.api.python.PythonUtils").toSeq(both))


def _connect_replaced(node: Any, visited: Callable[[Any], Any]) -> Any:
    found = visited(node)
    if found is not None:
        return found

    def changed(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            made = [changed(one) for one in value]
            kept = [old if new is None else new for old, new in zip(value, made)]
            return None if all(one is None for one in made) else type(value)(kept)
        # The classes themselves cannot be imported where Connect is not installed.
        known = any(kind.__name__ == "Expression" for kind in type(value).__mro__)
        return _connect_replaced(value, visited) if known else None

    made = {name: changed(value) for name, value in vars(node).items()}
    if all(value is None for value in made.values()):
        return None
    result = copy(node)
    for name, value in made.items():
        if value is not None:
            setattr(result, name, value)
    return result
