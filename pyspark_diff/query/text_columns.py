"""Columns of texts of SQL. A client of Connect takes no text apart, so it gets trees of columns.

The operators look for the two sides of a comparison in the condition of a join, and for the
argument of an aggregate.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, is_remote
from pyspark.sql import functions as F

from pyspark_diff.errors import UnsupportedQueryError
from pyspark_diff.query import refusals
from pyspark_diff.query.refusals import Refusal

_BEFORE = "SELECT "
_OPERATORS: dict[str, Any] = {
    "and": operator.and_, "or": operator.or_, "eq": operator.eq, "gt": operator.gt,
    "gte": operator.ge, "lt": operator.lt, "lte": operator.le,
    "nullsafeeq": lambda left, right: left.eqNullSafe(right),
}
#: Aggregates of one argument that skip NULL: a FILTER may turn the others into NULL.
_SKIP_NULLS = frozenset("""
    any avg bool_and bool_or count count_if every max mean min some std stddev stddev_pop
    stddev_samp sum try_avg try_sum var_pop var_samp variance
""".split())
#: Aggregates that DISTINCT does not change.
_OF_SETS = frozenset({"any", "bool_and", "bool_or", "collect_set", "every", "max", "min", "some"})


def condition_of(text: str, remote: bool | None = None) -> Column:
    """The column of a condition.

    Examples
    --------
    >>> str(condition_of("a = 1"))
    "Column<'a = 1'>"
    """
    return _column_of(text, _condition, remote)


def call_column(text: str, remote: bool | None = None) -> Column:
    """The column of an aggregate.

    Raises
    ------
    UnsupportedQueryError
        If no tree of columns has the meaning of the text.

    Examples
    --------
    >>> str(call_column("sum(a)"))
    "Column<'sum(a)'>"
    """
    return _column_of(text, _call, remote)


def _column_of(text: str, build: Callable[[Any, str], Column], remote: bool | None) -> Column:
    """A classic session reads the text; a function builds the tree for a client of Connect."""
    if not (is_remote() if remote is None else remote):
        return F.expr(text)
    from pyspark_diff.query.text_parser import parsed

    source = _BEFORE + text
    tree: Any = parsed(source)
    return build(tree.selects[0], source)


def _text(node: Any, source: str) -> str:
    from pyspark_diff.query.text_parser import place_of

    place = place_of(node)
    if place is None:
        raise _refused(node.sql("spark"))
    return source[slice(*place)]


def _condition(node: Any, source: str) -> Column:
    if node.key == "paren":
        return _condition(node.this, source)
    if node.key in _OPERATORS:
        left, right = (_condition(side, source) for side in (node.this, node.expression))
        result: Column = _OPERATORS[node.key](left, right)
        return result
    return _value(node, source)


def _value(node: Any, source: str) -> Column:
    if node.key == "column" and len(node.parts) == 1:
        return F.col(node.name)
    return F.expr(_text(node, source))


def _call(node: Any, source: str) -> Column:
    """The call of an aggregate as a function of columns."""
    only = None
    function = node
    if node.key == "filter":
        only, function = _text(node.expression.this, source), node.this
    if function.key != "anonymous":
        raise _refused(_text(node, source))
    name = str(getattr(function.this, "name", function.this)).lower()
    arguments, distinct = function.expressions, False
    if len(arguments) == 1 and arguments[0].key == "distinct":
        arguments, distinct = arguments[0].expressions, name not in _OF_SETS
    if len(arguments) == 1 and arguments[0].key == "star":
        columns = [F.lit(1) if only is None else F.expr(f"CASE WHEN {only} THEN 1 END")]
    else:
        columns = [_value(item, source) for item in arguments]
        if only is not None:
            if name not in _SKIP_NULLS or len(arguments) != 1:
                raise _refused(_text(node, source))
            columns = [F.expr(f"CASE WHEN {only} THEN {_text(arguments[0], source)} END")]
    if not distinct:
        return F.call_function(name, *columns)
    if name == "count":
        return F.count_distinct(*columns)
    if name == "sum":
        return F.sum_distinct(*columns)
    raise _refused(_text(node, source))


def _refused(construct: str) -> UnsupportedQueryError:
    return refusals.refused([Refusal(refusals.OPERATOR, construct, detail=(
        "over Spark Connect no function of columns has the meaning of this aggregate. Remedy: "
        "aggregate a subquery in FROM that has the rows and values"
    ))])
