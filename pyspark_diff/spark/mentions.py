"""Columns that an expression names, known without an analysis.

    mentions(c, names)  ==>  c takes a column with one of the names, if a frame has one

A classic session analyses a whole expression in a tenth of a millisecond, so the library asks it. A
Connect server writes a stack trace into its log for each failed analysis, so its client checks
first. Some names need the check on classic too: without a column `user`, Spark reads ``user`` as
the function, and the analysis succeeds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from pyspark_diff.spark.jvm import expression_json, is_classic, is_classic_frame

#: Functions that Spark calls for a name without brackets if no column has the name.
BARE_FUNCTIONS = frozenset(
    "current_catalog current_database current_date current_path current_schema current_time "
    "current_timestamp current_user grouping__id localtime localtimestamp session_user user".split()
)

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
#: A word of SQL text that is no function, and no field of the preceding name.
_WORD = re.compile(r"(?<![\w.`])(?:`((?:[^`]|``)+)`|([A-Za-z_]\w*))(?!\w|\s*\()(\.?)")
#: Words of SQL's expressions, which may also be names of columns: the answer for them is no.
_KEYWORDS = frozenset(
    "all and any array as asc between both by case cast collate date day days desc distinct div "
    "double else end escape exists false filter first float following for from hour hours ignore "
    "in int integer interval is last leading like long map microsecond microseconds minute minutes "
    "month months not null nulls of "
    "or order over partition preceding range regexp respect rlike row rows second seconds some "
    "string struct then time timestamp timestamp_ltz timestamp_ntz to trailing true unbounded "
    "unknown week weeks when where within year years".split()
)


def mentions(column: Column, names: Collection[str]) -> bool:
    """Whether an expression certainly uses a column with one of the names, also under an alias.

    Parameters
    ----------
    column : Column
        The answer for a classic column covers `BARE_FUNCTIONS` only.
    names : collection of str
        Names of columns; with a final dot, names that qualify others, as an alias does.

    Examples
    --------
    >>> mentions(F.lit(1), ["x"]), mentions(F.col("user") == "a", ["user"])
    (False, True)
    """
    wanted = {name.lower() for name in names}
    if is_classic(column):
        wanted &= BARE_FUNCTIONS
        return bool(wanted) and not wanted.isdisjoint(_classic_names(column))
    return bool(wanted) and not wanted.isdisjoint(_names_in(column._expr))


def references(column: Column) -> list[str] | None:
    """The columns in an expression of a Connect client, by the expression's names; None for a
    classic one."""
    return None if is_classic(column) else list(_references(column._expr))


def names_there(frame: DataFrame) -> set[str]:
    """The names of a frame's columns and its aliases; for a classic frame `BARE_FUNCTIONS` only."""
    if is_classic_frame(frame):
        return {name.lower() for name in frame.columns} & BARE_FUNCTIONS
    names = [f"{plan._alias}." for plan in _plans(frame._plan) if _kind(plan) == "SubqueryAlias"]
    for field in frame.schema:
        names.append(field.name)
        if not isinstance(field.dataType, (T.NumericType, T.DatetimeType, T.StringType)):
            names.append(f"{field.name}.")
    return {name.lower() for name in names}


def first_part(name: str) -> tuple[str, bool]:
    """The part of a name before its first dot, without quotes, and whether more parts follow.

    Examples
    --------
    >>> first_part("l.x"), first_part("`a.b`")
    (('l', True), ('a.b', False))
    """
    quoted = re.match(r"`((?:[^`]|``)+)`", name)
    if quoted is None:
        first, dot, _ = name.partition(".")
        return first, bool(dot)
    return quoted.group(1).replace("``", "`"), quoted.end() < len(name)


def _with_dot(name: str, more: bool) -> str:
    return name.lower() + "." * more


def _classic_names(column: Column) -> set[str]:
    """The unqualified names in a classic expression."""
    text = expression_json(column)
    if text is None:
        return set(re.findall(r"\w+", str(column).lower()))
    names, stack = set(), [json.loads(text)]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if str(part.get("class")).endswith(".UnresolvedAttribute"):
                names.add(str(part["nameParts"])[1:-1].lower())
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
    return names


def _references(node: Any) -> Iterator[str]:
    if _kind(node) == "ColumnReference":
        yield node._unparsed_identifier
    for child in _instances(node, "Expression"):
        yield from _references(child)


def _names_in(node: Any) -> Iterator[str]:
    kind = _kind(node)
    if kind == "ColumnReference" and node._plan_id is None:
        first, more = first_part(node._unparsed_identifier)
        yield _with_dot(first, more)
    if kind == "SQLExpression" and "->" not in node._expr:
        for ticked, plain, dot in _WORD.findall(_QUOTED.sub("''", node._expr)):
            if ticked or plain.lower() not in _KEYWORDS:
                yield _with_dot(ticked.replace("``", "`") or plain, bool(dot))
    for child in _instances(node, "Expression"):
        yield from _names_in(child)


def _plans(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _instances(plan, "LogicalPlan"):
        yield from _plans(child)


def _kind(node: Any) -> str:
    # Names of classes, as an installation without Connect cannot import the classes.
    return type(node).__name__


def _instances(value: Any, base: str) -> Iterator[Any]:
    """The attributes of an object that have a class, also in sequences."""
    for item in value if isinstance(value, (list, tuple)) else vars(value).values():
        if isinstance(item, (list, tuple)):
            yield from _instances(item, base)
        elif any(kind.__name__ == base for kind in type(item).__mro__):
            yield item
