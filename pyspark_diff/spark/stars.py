"""Stars in column expressions, each an abbreviation of several columns.

    spread(e, a)  =  e, in which ``a.*`` replaces each star without a target

Spark analyses expressions over frames that also have time and diff. A star with the alias of the
data columns as its target does not include these two. The star of ``count(*)`` means rows and
stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.spark.calls import with_arguments
from pyspark_diff.spark.jvm import expression_of, is_classic, items_of, kind_of
from pyspark_diff.spark.replaced import replaced
from pyspark_diff.spark.schema import quoted

#: A star in SQL text that is no multiplication, and the star of ``count(*)``.
_STAR_IN_TEXT = re.compile(r"(?:^|[(,.])\s*\*")
#: The name of a star as an argument of a function.
_PARSED = "'unresolvedstar()'>"
_COUNT = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)


def star_of(column: Column) -> str | None:
    """The target of a star: empty if it has none; None for any other expression.

    Examples
    --------
    >>> star_of(F.col("*")), star_of(F.col("l.*")), star_of(F.expr("l.*")), star_of(F.col("n"))
    ('', 'l', 'l', None)
    """
    if not is_classic(column):
        star: Any = column._expr
        text = getattr(star, "_expr", None) if type(star).__name__ == "SQLExpression" else None
        if isinstance(text, str):
            return text[:-1].rstrip(".") if re.fullmatch(r"(\w+\.)*\*", text) else None
        if type(star).__name__ != "UnresolvedStar" or star._plan_id is not None:
            return None
        return (star._unparsed_target or "").removesuffix(".*")
    if not str(column).endswith(("*'>", _PARSED)):
        return None
    parsed = expression_of(column)
    if kind_of(parsed) != "UnresolvedStar":
        return None
    target = parsed.target()
    return ".".join(map(str, items_of(target.get()))) if target.isDefined() else ""


def spread(column: Column, alias: str, names: Sequence[str]) -> tuple[Column, set[bool]]:
    """An expression whose stars take the columns of an alias.

    The second result has one entry for stars with, and one for stars without a target; it is empty
    without a star.

    Parameters
    ----------
    names : sequence of str
        The columns of the alias, which replace a star that is an argument of a function.

    Raises
    ------
    SchemaError
        Over Connect, for a star in SQL text.
    """
    stars: set[bool] = set()

    def arguments(function: str, distinct: bool, given: list[Column]) -> list[Column] | None:
        """The arguments of an aggregate with its stars replaced by columns."""
        rows = function == "count" and not distinct and len(given) == 1
        if rows or not (distinct or len(names) == 1) or "" not in map(star_of, given):
            return None
        stars.add(False)
        all_columns = [F.col(f"{quoted(alias)}.{quoted(name)}") for name in names]
        return [part for c in given for part in (all_columns if star_of(c) == "" else [c])]

    def classic(node: Any) -> Any:
        kind = kind_of(node)
        if kind == "UnresolvedFunction" and _is_count(items_of(node.nameParts())[-1]):
            (*arguments,) = items_of(node.arguments())
            if list(map(kind_of, arguments)) == ["UnresolvedStar"]:
                return node
        if not kind.startswith("UnresolvedStar"):
            return None
        stars.add(node.target().isDefined())
        if node.target().isDefined():
            return None
        whole = expression_of(F.col(f"{quoted(alias)}.*"))
        if kind == "UnresolvedStar":
            return whole
        return node.copy(whole.target(), node.excepts(), node.replacements())

    def connect(node: Any) -> Any:
        kind = type(node).__name__
        if kind == "UnresolvedFunction" and _is_count(node._name):
            if [type(argument).__name__ for argument in node._args] == ["UnresolvedStar"]:
                return node
        if kind == "SQLExpression" and _STAR_IN_TEXT.search(_COUNT.sub("", node._expr)):
            raise SchemaError(
                f"the SQL text {node._expr!r} has a star, which would take time and diff over "
                "Connect. Name the columns, or write the expression with functions, as in "
                "F.struct('*')"
            )
        if kind != "UnresolvedStar" or node._plan_id is not None:
            return None
        stars.add(node._unparsed_target is not None)
        if node._unparsed_target is not None:
            return None
        star = copy(node)
        star._unparsed_target = f"{quoted(alias)}.*"
        return star

    if is_classic(column) and "*" not in str(column):
        return column, stars
    result = replaced(with_arguments(column, arguments), classic, connect)
    return (result if False in stars else column), stars


def _is_count(name: str) -> bool:
    return name.lower() == "count"
