"""Columns that were taken of Spark frames, as in ``df["x"]``, and which those of others they are.

    df["x"] is the column of a frame that is the same, whatever else is called as it is

On classic they are told by the ids that Spark gives to columns, on Connect by those of the plans.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from typing import Any, Callable

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pyspark_diff.spark.calls import with_arguments
from pyspark_diff.spark.jvm import (
    attributes_by_id,
    column_of,
    columns_of,
    expression_of,
    is_classic,
    is_classic_frame,
    items_of,
    kind_of,
    node_of,
    sql_class,
)
from pyspark_diff.spark.replaced import classic_replaced, replaced
from pyspark_diff.spark.schema import quoted

#: How a classic column shows that a part of it is Spark's own expression, as of ``df["x"]``.
_EXPRESSION_NODE = "ExpressionColumnNode("

#: By this the metadata of a column say what it is.
_SAID = "__pyspark_diff_column"

#: What is taken of a column in ``df["column.part"]``, by the class that Spark has for it.
_PARTS: dict[str, Callable[[Any], Any]] = {
    "GetStructField": lambda node: expression_of(F.lit(node.extractFieldName())),
    "GetArrayStructFields": lambda node: expression_of(F.lit(node.field().name())),
    "GetMapValue": lambda node: node.key(),
}


@dataclass(frozen=True)
class TakenColumn:
    """A column that was taken of a Spark frame, as in ``df["x"]``, wherever it stands.

    Parameters
    ----------
    name : str
        As it was written there.
    column : Column
        It by itself.
    """

    name: str
    column: Column

    def found_in(self, frame: DataFrame) -> tuple[str, str] | None:
        """The column of a frame that it is, and what is taken of that, such as ``.field``.

        It may have been taken of an earlier frame, if it is the same column still.
        """
        if is_classic_frame(frame):
            place = attributes_by_id(frame).indexOf(expression_of(self.column).exprId())
            return None if place < 0 else (frame.columns[place], "")
        reference: Any = self.column._expr
        if reference._plan_id not in _plan_ids(frame._plan):
            return None
        parts = re.findall(r"`(?:[^`]|``)+`|[^`.]+", self.name)
        start = parts[0] if parts else self.name
        there = {own.lower() for own in frame.columns}
        # A struct and its field, or a name under an alias.
        for name, rest in ((start, self.name[len(start):]), (self.name, "")):
            # What cannot be there is not asked for: a server's log has a stack trace for it then.
            wanted = {_plain(one) for one in ([start] if name == start else parts)}
            if not wanted & there:
                continue
            part = copy(reference)
            part._unparsed_identifier = name
            try:
                found = frame.select(type(self.column)(part)).columns[0]
            except AnalysisException:
                continue
            # It is called there as it was written, which may be in another case.
            return next((own for own in frame.columns if own.lower() == found.lower()), found), rest
        return None


def with_taken_replaced(
    column: Column, replacement: Callable[[TakenColumn], Column],
    spread: Callable[[Column], list[Column]],
) -> Column:
    """A column expression in which other columns replace the columns of Spark frames.

    Parameters
    ----------
    column : Column
        Classic or Connect; nothing is analysed or run.
    replacement : callable
    spread : callable
        The columns in the place of an argument that is the star of a frame; none for others.

    Examples
    --------
    >>> df = spark.createDataFrame([], "x int")
    >>> with_taken_replaced(F.upper(df["x"]), lambda taken: F.col("z"), lambda star: [])
    Column<'upper(z)'>
    """
    make: Any = type(column)

    def classic(node: Any) -> Any:
        kind = kind_of(node)
        if kind in _PARTS:
            # A part by its place, which Spark cannot find in a column that it has yet to resolve.
            whole = classic_replaced(node.child(), classic)
            part = _PARTS[kind](node)
            extract = sql_class("catalyst.analysis.UnresolvedExtractValue")
            return None if whole is None else extract(whole, part)
        if kind != "AttributeReference":
            return None
        whole = column_of(node, make)
        return expression_of(replacement(TakenColumn(node.name(), whole)))

    def connect(node: Any) -> Any:
        if type(node).__name__ != "ColumnReference" or node._plan_id is None:
            return None
        return replacement(TakenColumn(node._unparsed_identifier, make(node)))._expr

    def arguments(function: str, distinct: bool, given: list[Column]) -> list[Column] | None:
        stars = [spread(one) if is_star(one) else [] for one in given]
        if not any(stars):
            return None
        if function == "count" and not distinct and len(given) == 1:
            return [F.lit(1)]
        return [column for one, many in zip(given, stars) for column in many or [one]]

    # Asked of every expression that a program has, most of which have none.
    if is_classic(column) and _EXPRESSION_NODE not in _shown(column):
        return column
    return replaced(with_arguments(column, arguments), classic, connect)


def is_star(column: Column) -> bool:
    """Whether a column is ``df["*"]``."""
    if not is_classic(column):
        star = column._expr
        return type(star).__name__ == "UnresolvedStar" and star._plan_id is not None
    return _EXPRESSION_NODE in _shown(column) and kind_of(expression_of(column)) == "ResolvedStar"


def star_taken(column: Column) -> Callable[[DataFrame], list[str]] | None:
    """Of ``df["*"]``, which columns of another frame it is; None if it is no such star."""
    make: Any = type(column)
    if not is_star(column):
        return None
    if is_classic(column):
        parts = columns_of(items_of(expression_of(column).expressions()), make)

        def classic(frame: DataFrame) -> list[str]:
            found = [TakenColumn("", part).found_in(frame) for part in parts]
            return [name for name, _ in filter(None, found)]

        return classic

    def connect(frame: DataFrame) -> list[str]:
        there = column._expr._plan_id in _plan_ids(frame._plan)
        return frame.select(column).columns if there else []

    return connect


def same_columns(source: DataFrame, apply: Callable[[DataFrame], DataFrame]) -> list[str]:
    """The columns of a frame that a function of frames leaves as they are.

    Examples
    --------
    >>> df = spark.createDataFrame([], "x int, s string")
    >>> same_columns(df, lambda frame: frame.fillna("none"))
    ['x']
    """
    # What is computed of a column does not have what is said of it.
    told = [
        F.col(quoted(name)).alias(name, metadata={_SAID: name}) for name in source.columns
    ]
    made = apply(source.select(*told)).schema
    return [field.name for field in made if field.metadata.get(_SAID) == field.name]


def _plain(part: str) -> str:
    return (part[1:-1].replace("``", "`") if part.startswith("`") else part).lower()


def _shown(column: Column) -> str:
    return node_of(column).toString()


def _plan_ids(plan: Any) -> set[int]:
    """The numbers that columns on Connect tell a frame by: its own, and of all it is made of."""
    found = {plan._root_plan_id, plan._plan_id}
    for value in vars(plan).values():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            # Columns have every attribute that they are asked for.
            if any(kind.__name__ == "LogicalPlan" for kind in type(one).__mro__):
                found |= _plan_ids(one)
    return found
