"""Calls of functions of pandas whose argument depends on other rows of its batch.

    an argument is a whole number or a truth value, and may be null  =>  its call is in the result

PySpark makes whole numbers floats, and truth values objects, if any row of the batch has a null. So
such a function may compute one value for an inserted row and another value for its removal.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.util import PythonEvalType

from pyspark_diff.spark.jvm import is_classic_frame, items_of, kind_of
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.spark.sent import messages_in
from pyspark_diff.spark.user_functions import calling_expressions

#: The setting by which PySpark passes whole numbers with nulls as ``Int64``, from Spark 4.2 on.
EXACT = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"
#: The setting by which ``F.udf(useArrow=True)`` receives its arguments by way of pandas.
LEGACY = "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled"
_SCALAR = (PythonEvalType.SQL_SCALAR_PANDAS_UDF, PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF)
_CALLED = (*_SCALAR, PythonEvalType.SQL_MAP_PANDAS_ITER_UDF)


def pandas_calls(frame: DataFrame) -> tuple[str, ...]:
    """The calls in a frame, in words.

    Over Connect the client does not know whether an argument may be null, so all calls of pandas
    functions count. Functions that are called by their registered name do not.

    Examples
    --------
    >>> same = F.pandas_udf(lambda s: s, "string")
    >>> pandas_calls(spark.range(1).select(same(F.lit("a")), F.udf(abs, "long")("id")))
    ()
    """
    if not is_classic_frame(frame):
        sent = _sent(frame)
        return () if sent and _is_set(frame, EXACT) else sent
    expressions = calling_expressions(frame)
    if not expressions:
        return ()
    exact = _is_set(frame, EXACT)
    called: tuple[int, ...] = _CALLED
    if _is_set(frame, LEGACY):
        called = (*_CALLED, PythonEvalType.SQL_ARROW_BATCHED_UDF)
    # Times and diffs are never null, also under other names.
    never = {TIME, DIFF}
    for expression in expressions:
        if kind_of(expression) == "Alias" and expression.child().sql().strip("`") in (TIME, DIFF):
            never.add(expression.exprId().id())
    calls: dict[str, None] = {}
    for expression in expressions:
        if kind_of(expression) != "PythonUDF" or expression.evalType() not in called:
            continue
        for argument in items_of(expression.children()):
            if kind_of(argument) == "AttributeReference" and not never.isdisjoint(
                (argument.name(), argument.exprId().id())
            ):
                continue
            kind = T._parse_datatype_json_string(argument.dataType().json())
            if _varies(kind, argument.nullable(), exact and expression.evalType() in _SCALAR):
                shown = f"{argument.sql()}, {kind.simpleString()}"
                calls[f"{expression.name()} of {shown}"] = None
    return tuple(calls)


def _is_set(frame: DataFrame, name: str) -> bool:
    """Whether this version of Spark has a setting, and it is true."""
    settings = frame.sparkSession.conf
    return settings.isModifiable(name) and str(settings.get(name, "false")).lower() == "true"


def _varies(kind: T.DataType, nullable: bool, exact: bool = False) -> bool:
    """Whether the form of a value in pandas depends on nulls in other rows."""
    if isinstance(kind, T.BooleanType):
        return nullable
    if isinstance(kind, T.IntegralType):
        return nullable and not exact
    if isinstance(kind, T.ArrayType):
        return _varies(kind.elementType, kind.containsNull)
    if isinstance(kind, T.MapType):
        return _varies(kind.keyType, False) or _varies(kind.valueType, kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        return any(_varies(field.dataType, nullable or field.nullable) for field in kind.fields)
    return False


def _sent(frame: DataFrame) -> tuple[str, ...]:
    plan: Any = frame
    return tuple(dict.fromkeys(
        message.function_name or "the function of mapInPandas"
        for message in messages_in(plan._plan.plan(plan._session.client))
        if message.DESCRIPTOR.name == "CommonInlineUserDefinedFunction"
        and message.python_udf.eval_type in _CALLED
    ))
