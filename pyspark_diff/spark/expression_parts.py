"""Column expressions as plain values, by which another process finds the same ones again.

    expression_parts(c) = expression_parts(d)  =>  c and d compute the same

where they call no Python function, of which only the name is told. It may not be so the other way
round: ``a + b`` and ``b + a`` differ.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable

from pyspark.sql import Column

from pyspark_diff.spark.jvm import expression_json, is_classic, sql_of

#: An object of the JVM that has nothing to show but its address.
_OBJECT = re.compile(r"@[0-9a-f]{5,8}\b")
#: A variable of a function in an expression.
_VARIABLE = re.compile(r"\bx_\d+\b")


def expression_parts(
    column: Column, named: Callable[[str], str] = str
) -> tuple[object, tuple[str, ...]]:
    """A column expression as plain values that another process finds again; nothing is run.

    Without the places where it was written, and with the numbers of columns and of variables of
    functions in the order in which they come.

    Parameters
    ----------
    column : Column
        Classic or Connect.
    named : callable
        What is told of the name of a column that Spark has yet to look up.

    Returns
    -------
    tuple of (object, tuple of str)
        The values, and the names of Python functions of which nothing but their types is known.

    Examples
    --------
    >>> def same(one, other):
    ...     return expression_parts(one) == expression_parts(other)
    >>> same(F.col("n") + 1, F.col("n") + 1), same(F.lit(1), F.lit("1"))
    (True, False)
    """
    found = _Parts(named)
    if not is_classic(column):
        return found.connect(column._expr), tuple(found.functions)
    text = expression_json(column)
    if text is None:
        return found.sql(column), tuple(found.functions)
    parts = found.classic(json.loads(text))
    if found.hidden:
        parts = [parts, found.sql(column)]
    return parts, tuple(found.functions)


class _Parts:
    """What is found in one expression. It holds state: which numbers have come."""

    def __init__(self, named: Callable[[str], str]):
        self.functions: list[str] = []
        #: Whether there are values that are shown by their address.
        self.hidden = False
        self._named = named
        self._numbers: dict[object, int] = {}

    def _number(self, name: object) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def classic(self, part: Any) -> object:
        """A part of the JSON that Spark has for an expression."""
        if isinstance(part, list):
            return [self.classic(one) for one in part]
        if isinstance(part, str):
            self.hidden |= _OBJECT.search(part) is not None
            return _OBJECT.sub("", part)
        if not isinstance(part, dict):
            return part
        if "jvmId" in part:
            return self._number((part["id"], part["jvmId"]))
        kind = str(part.get("class", "")).rpartition(".")[2]
        found = {name: self.classic(value) for name, value in part.items()}
        if kind == "PythonUDF":
            self.functions.append(str(part.get("name")))
        if kind == "UnresolvedNamedLambdaVariable":
            found["nameParts"] = self._number(part["nameParts"])
        if kind == "UnresolvedAttribute":
            found["nameParts"] = self._attribute(str(part["nameParts"]))
        return found

    def _attribute(self, parts: str) -> str:
        first, comma, rest = parts[1:-1].partition(", ")
        return f"[{self._named(first)}{comma}{rest}]"

    def sql(self, column: Column) -> object:
        """The expression as SQL, for those that Spark has no other text for."""
        text = sql_of(column)
        for name in re.findall(r"`((?:[^`]|``)+#\d+)`", text):
            text = text.replace(f"`{name}`", f"`{self._named(name)}`")
        return _VARIABLE.sub(lambda found: f"x_{self._number(found.group(0))}", text)

    def connect(self, part: Any) -> object:
        """A part of an expression on Connect."""
        if isinstance(part, (list, tuple)):
            return [self.connect(one) for one in part]
        # The classes themselves cannot be imported where Connect is not installed.
        kinds = {kind.__name__ for kind in type(part).__mro__}
        kind = type(part).__name__
        if not kinds & {"Expression", "PythonUDF", "JavaUDF"}:
            return part
        found = {
            name: self.connect(value) for name, value in vars(part).items() if name != "origin"
        }
        if found.get("_plan_id") is not None:
            found["_plan_id"] = self._number(("plan", part._plan_id))
        if kind == "ColumnReference":
            found["_unparsed_identifier"] = self._reference(part._unparsed_identifier)
        if kind == "UnresolvedNamedLambdaVariable":
            found["_name_parts"] = self._number(tuple(part._name_parts))
        return [kind, found]

    def _reference(self, name: str) -> str:
        if not name.startswith("`"):
            return name
        first = re.match(r"`((?:[^`]|``)+)`", name)
        if first is None:
            return name
        return f"`{self._named(first.group(1).replace('``', '`'))}`{name[first.end():]}"
