"""Columns that were taken from Spark frames, as in ``df["x"]``, and their columns in other frames.

    df["x"] is the same column in a derived frame, also if other columns there have its name

On classic, Spark's ids of columns identify them; on Connect, the ids of plans.
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

#: The text of a classic column that has Spark's own expression as a part, as ``df["x"]``.
_EXPRESSION_NODE = "ExpressionColumnNode("

#: The key of a column's name in its metadata.
_SAID = "__pyspark_diff_column"

#: The key of the part in ``df["column.part"]``, by the class of Spark's expression.
_PARTS: dict[str, Callable[[Any], Any]] = {
    "GetStructField": lambda node: expression_of(F.lit(node.extractFieldName())),
    "GetArrayStructFields": lambda node: expression_of(F.lit(node.field().name())),
    "GetMapValue": lambda node: node.key(),
}


@dataclass(frozen=True)
class TakenColumn:
    """A column that was taken from a Spark frame, as in ``df["x"]``, at any place of an expression.

    Parameters
    ----------
    name : str
        Its name in that expression.
    column : Column
        The column alone.
    """

    name: str
    column: Column

    def found_in(self, frame: DataFrame) -> tuple[str, str] | None:
        """The column of a frame that is the same, and the part taken from it, such as ``.field``.

        The column may come from an earlier frame, as long as no operator changed it.
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
            # Absent names are not looked up, as a server logs a stack trace for each failure.
            wanted = set(map(_plain, [start] if name == start else parts))
            if not wanted & there:
                continue
            part = copy(reference)
            part._unparsed_identifier = name
            try:
                selected = frame.select(type(self.column)(part)).columns[0]
            except AnalysisException:
                continue
            # The result has the spelling of the expression, which may differ in case.
            own = [name for name in frame.columns if name.lower() == selected.lower()]
            return (own or [selected])[0], rest
        return None


def with_taken_replaced(
    column: Column, replacement: Callable[[TakenColumn], Column],
    spread: Callable[[Column], list[Column]],
) -> Column:
    """A column expression in which other columns replace those of Spark frames.

    Parameters
    ----------
    column : Column
        Classic or Connect; nothing is analysed or run.
    spread : callable
        The columns that replace an argument that is the star of a frame; empty for any other
        argument.

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
            # The part has a position, which Spark cannot use for an unresolved column.
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
        stars = [spread(argument) if is_star(argument) else [] for argument in given]
        if not any(stars):
            return None
        if function == "count" and not distinct and len(given) == 1:
            return [F.lit(1)]
        return [column for own, several in zip(given, stars) for column in several or [own]]

    # The function checks every expression of a program, and most have no such column.
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
    """A function from another frame to its columns that ``df["*"]`` contains; None for any other
    column."""
    make: Any = type(column)
    if not is_star(column):
        return None
    if is_classic(column):
        parts = columns_of(items_of(expression_of(column).expressions()), make)

        def classic(frame: DataFrame) -> list[str]:
            columns = [TakenColumn("", part).found_in(frame) for part in parts]
            return [name for name, _ in filter(None, columns)]

        return classic

    def connect(frame: DataFrame) -> list[str]:
        there = column._expr._plan_id in _plan_ids(frame._plan)
        return frame.select(column).columns if there else []

    return connect


def same_columns(source: DataFrame, apply: Callable[[DataFrame], DataFrame]) -> list[str]:
    """The columns of a frame that a function of frames leaves unchanged.

    Examples
    --------
    >>> df = spark.createDataFrame([], "x int, s string")
    >>> same_columns(df, lambda frame: frame.fillna("none"))
    ['x']
    """
    # A computed column loses the metadata.
    marked = [
        F.col(quoted(name)).alias(name, metadata={_SAID: name}) for name in source.columns
    ]
    schema = apply(source.select(*marked)).schema
    return [field.name for field in schema if field.metadata.get(_SAID) == field.name]


def _plain(part: str) -> str:
    return (part[1:-1].replace("``", "`") if part.startswith("`") else part).lower()


def _shown(column: Column) -> str:
    return node_of(column).toString()


def _plan_ids(plan: Any) -> set[int]:
    """The ids of plans by which Connect's columns identify a frame: its own, and those of its
    inputs."""
    ids = {plan._root_plan_id, plan._plan_id}
    for value in vars(plan).values():
        for part in value if isinstance(value, (list, tuple)) else [value]:
            # The test is by class, as a column returns every attribute.
            if any(kind.__name__ == "LogicalPlan" for kind in type(part).__mro__):
                ids |= _plan_ids(part)
    return ids
