"""The functions of users that a plan calls: objects that another registration replaces.

    user_functions(f) == user_functions(g)  ⟸  f and g are one expression, and call the same code

SQL text calls a function by the name under which the session knows it. Spark looks the name up each
time that it analyses the text, so that ``spark.udf.register`` changes later answers.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from pyspark_diff.spark.jvm import (
    analysed_of,
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
