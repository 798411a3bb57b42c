"""The functions of users that a plan calls: objects that another registration replaces.

    user_functions(f) == user_functions(g)  ⟸  f and g are one expression, and call the same code

SQL text calls a function by the name under which the session knows it. Spark looks the name up each
time that it analyses the text, so that ``spark.udf.register`` changes later answers.
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

#: Kinds of nodes that call one, with the method that returns it.
_CALLS = {"PythonUDF": "func", "ScalaUDF": "function", "SQLScalarFunction": "function"}
#: Marks of a plan that has such a node. Not each version of Spark has all.
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
    if not is_classic_frame(frame):
        return ()
    analysed = analysed_of(frame)
    patterns = sql_class("catalyst.trees.TreePattern")
    marks = [getattr(patterns, mark)() for mark in _MARKS if hasattr(patterns, mark)]
    if not analysed.containsAnyPattern(scala_sequence(marks)):
        return ()
    found: list[Any] = []
    nodes = [analysed]
    while nodes:  # without recursion: plans may be deeper than Python's stack
        plan = nodes.pop()
        nodes.extend(items_of(plan.children()))
        expressions = items_of(plan.expressions())
        while expressions:
            one = expressions.pop()
            expressions.extend(items_of(one.children()))
            called = _CALLS.get(kind_of(one))
            if called is not None:
                found.append(getattr(one, called)())
    return tuple(found)


def code_of(function: Any) -> object:
    """The code of one of `user_functions`, by which another process can compare it.

    Parameters
    ----------
    function : object of the JVM

    Returns
    -------
    object
        Of a Python function the function and its type of result, of a SQL function its parameters
        and text. Any other function comes back as it is.

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
