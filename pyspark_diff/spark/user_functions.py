"""The functions of users that a plan calls: objects that another registration replaces.

    user_functions(f) == user_functions(g)  ⟸  f and g are one expression, and call the same code

SQL text calls a function by its name in the session. Spark looks the name up at each analysis of
the text, so ``spark.udf.register`` changes later results.
"""

from __future__ import annotations

from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame

from pyspark_diff.spark.jvm import (
    analysed_of,
    bytes_of,
    is_classic_frame,
    items_of,
    kind_of,
    scala_sequence,
    sql_class,
)

#: Kinds of nodes that call such a function, with the method that returns it.
_CALLS = {"PythonUDF": "func", "ScalaUDF": "function", "SQLScalarFunction": "function"}
#: Marks of a plan that has such a node. A version of Spark may lack some.
_MARKS = ("PYTHON_UDF", "SCALA_UDF", "SQL_SCALAR_FUNCTION")


def user_functions(frame: DataFrame) -> tuple[Any, ...]:
    """The functions of users in a plan, as objects of the JVM; none over Connect.

    Examples
    --------
    >>> user_functions(spark.range(1).select(F.abs("id")))
    ()
    >>> len(user_functions(spark.range(1).select(F.udf(abs, "long")("id"))))
    1
    """
    functions: list[Any] = []
    for expression in calling_expressions(frame):
        called = _CALLS.get(kind_of(expression))
        if called is not None:
            functions.append(getattr(expression, called)())
    return tuple(functions)


def calling_expressions(frame: DataFrame) -> list[Any]:
    """All expressions of a classic plan, as objects of the JVM; none if it calls no function of a
    user."""
    if not is_classic_frame(frame):
        return []
    analysed = analysed_of(frame)
    patterns = sql_class("catalyst.trees.TreePattern")
    marks = [getattr(patterns, mark)() for mark in _MARKS if hasattr(patterns, mark)]
    if not analysed.containsAnyPattern(scala_sequence(marks)):
        return []
    expressions: list[Any] = []
    nodes = [analysed]
    while nodes:  # without recursion: plans may be deeper than Python's stack
        plan = nodes.pop()
        nodes.extend(items_of(plan.children()))
        parts = items_of(plan.expressions())
        while parts:
            expression = parts.pop()
            expressions.append(expression)
            parts.extend(items_of(expression.children()))
    return expressions


def code_of(function: Any) -> object:
    """The code of one of `user_functions`, by which another process can compare it.

    Parameters
    ----------
    function : object of the JVM

    Returns
    -------
    object
        For a Python function the function and its type of result, for a SQL function its parameters
        and text. Any other function is returned unchanged.

    Examples
    --------
    >>> (function,) = user_functions(spark.range(1).select(F.udf(abs, "long")("id")))
    >>> code_of(function)
    (<built-in function abs>, LongType())
    """
    kind = kind_of(function)
    if kind == "SQLFunction":
        parts = function.inputParam(), function.returnType(), function.exprText()
        return tuple(part.toString() for part in (*parts, function.queryText()))
    if kind != "SimplePythonFunction":
        return function
    pickled = bytes_of(function.command())
    try:
        return CloudPickleSerializer().loads(pickled)
    except Exception:  # Spark sends a large function as a broadcast variable
        return function
