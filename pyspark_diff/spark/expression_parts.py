"""Column expressions as plain values, which another process can compare with its own.

    expression_parts(c) = expression_parts(d)  =>  c and d compute the same

if they call no Python function, which appears by its name only. The converse may be false: ``a +
b`` and ``b + a`` differ.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable

from pyspark.sql import Column

from pyspark_diff.spark.jvm import expression_json, is_classic, sql_of

#: An object of the JVM that is shown by its address only.
_OBJECT = re.compile(r"@[0-9a-f]{5,8}\b")
#: A variable of a function in an expression.
_VARIABLE = re.compile(r"\bx_\d+\b")


def expression_parts(
    column: Column, named: Callable[[str], str] = str
) -> tuple[object, tuple[str, ...]]:
    """A column expression as plain values that are the same in another process; nothing runs.

    The values have no source positions. Columns and variables of functions have numbers in the
    order of their first use.

    Parameters
    ----------
    column : Column
        Classic or Connect.
    named : callable
        The replacement of a column name that Spark has yet to resolve.

    Returns
    -------
    tuple of (object, tuple of str)
        The values, and the names of Python functions, whose types only are known.

    Examples
    --------
    >>> def same(one, other):
    ...     return expression_parts(one) == expression_parts(other)
    >>> same(F.col("n") + 1, F.col("n") + 1), same(F.lit(1), F.lit("1"))
    (True, False)
    """
    walker = _Parts(named)
    if not is_classic(column):
        return walker.connect(column._expr), tuple(walker.functions)
    text = expression_json(column)
    if text is None:
        return walker.sql(column), tuple(walker.functions)
    parts = walker.classic(json.loads(text))
    if walker.hidden:
        parts = [parts, walker.sql(column)]
    return parts, tuple(walker.functions)


class _Parts:
    """The parts of one expression. It has state: the numbers so far."""

    def __init__(self, named: Callable[[str], str]):
        self.functions: list[str] = []
        #: Whether some values are shown by their address.
        self.hidden = False
        self._named = named
        self._numbers: dict[object, int] = {}

    def _number(self, name: object) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def classic(self, part: Any) -> object:
        """A part of Spark's JSON of an expression."""
        if isinstance(part, list):
            return [self.classic(item) for item in part]
        if isinstance(part, str):
            self.hidden |= _OBJECT.search(part) is not None
            return _OBJECT.sub("", part)
        if not isinstance(part, dict):
            return part
        if "jvmId" in part:
            return self._number((part["id"], part["jvmId"]))
        kind = str(part.get("class", "")).rpartition(".")[2]
        fields = {name: self.classic(value) for name, value in part.items()}
        if kind == "PythonUDF":
            self.functions.append(str(part.get("name")))
        if kind == "UnresolvedNamedLambdaVariable":
            fields["nameParts"] = self._number(part["nameParts"])
        if kind == "UnresolvedAttribute":
            fields["nameParts"] = self._attribute(str(part["nameParts"]))
        return fields

    def _attribute(self, parts: str) -> str:
        first, comma, rest = parts[1:-1].partition(", ")
        return f"[{self._named(first)}{comma}{rest}]"

    def sql(self, column: Column) -> object:
        """The expression as SQL, if its JSON is incomplete or absent."""
        text = sql_of(column)
        for name in re.findall(r"`((?:[^`]|``)+#\d+)`", text):
            text = text.replace(f"`{name}`", f"`{self._named(name)}`")
        return _VARIABLE.sub(lambda found: f"x_{self._number(found.group(0))}", text)

    def connect(self, part: Any) -> object:
        if isinstance(part, (list, tuple)):
            return [self.connect(item) for item in part]
        # Names of classes, as an installation without Connect cannot import the classes.
        kinds = {kind.__name__ for kind in type(part).__mro__}
        kind = type(part).__name__
        if not kinds & {"Expression", "PythonUDF", "JavaUDF"}:
            return part
        fields = {
            name: self.connect(value) for name, value in vars(part).items() if name != "origin"
        }
        if fields.get("_plan_id") is not None:
            fields["_plan_id"] = self._number(("plan", part._plan_id))
        if kind == "ColumnReference":
            fields["_unparsed_identifier"] = self._reference(part._unparsed_identifier)
        if kind == "UnresolvedNamedLambdaVariable":
            fields["_name_parts"] = self._number(tuple(part._name_parts))
        return [kind, fields]

    def _reference(self, name: str) -> str:
        if not name.startswith("`"):
            return name
        first = re.match(r"`((?:[^`]|``)+)`", name)
        if first is None:
            return name
        return f"`{self._named(first.group(1).replace('``', '`'))}`{name[first.end():]}"
