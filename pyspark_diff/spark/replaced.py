"""Column expressions with some of their nodes replaced.

    replaced(c, f)  =  c with f(n) in place of every node n, from the top down, unless f(n) is None

The nodes of a classic column are Spark's own expressions, and those of a Connect client's column
are objects of Python. Each kind has its own function, and nothing is analysed or run.
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
    """A column expression with some nodes replaced; either function returns None for the other
    nodes."""
    make: Any = type(column)
    if is_classic(column):
        expression = classic_replaced(expression_of(column), classic)
        return column if expression is None else column_of(expression, make)
    expression = _connect_replaced(column._expr, connect)
    return column if expression is None else make(expression)


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
    """The expression with nodes replaced; None if no node was."""
    new_node = visited(node)
    if new_node is not None:
        return new_node
    children = items_of(node.children())
    new_children = [classic_replaced(child, visited) for child in children]
    if all(child is None for child in new_children):
        return None
    both = [old if new is None else new for old, new in zip(children, new_children)]
    return node.withNewChildren(class_called("org.apache.spark.api.python.PythonUtils").toSeq(both))


def _connect_replaced(node: Any, visited: Callable[[Any], Any]) -> Any:
    new_node = visited(node)
    if new_node is not None:
        return new_node

    def changed(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            parts = [changed(part) for part in value]
            both = [old if new is None else new for old, new in zip(value, parts)]
            return None if all(part is None for part in parts) else type(value)(both)
        # Names of classes, as an installation without Connect cannot import the classes.
        known = any(kind.__name__ == "Expression" for kind in type(value).__mro__)
        return _connect_replaced(value, visited) if known else None

    attributes = {name: changed(value) for name, value in vars(node).items()}
    if all(value is None for value in attributes.values()):
        return None
    result = copy(node)
    for name, value in attributes.items():
        if value is not None:
            setattr(result, name, value)
    return result
