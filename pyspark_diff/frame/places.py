"""Conditions on the place of a record in a window, as in ``WHERE row_number = 1``.

A window computes the place of each record, and each insertion or removal changes the places of all
records after it. If a condition keeps first places only, `pyspark_diff.operators.top_k` computes
them without the others::

    with_first_places(n, c) = m  ⟹  n.where(c) = m.where(c)
"""

from __future__ import annotations

import math
from typing import Iterator, Sequence

import pyarrow as pa

from pyspark_diff.kernels.arrow_expression import Apply, ArrowConstant, ArrowExpression, Field
from pyspark_diff.kernels.window_functions import PlaceFunction
from pyspark_diff.operators.linear import DropNull, Expression, Pick
from pyspark_diff.operators.node import Keyed, Linear, Node, Reader
from pyspark_diff.operators.projection import Compute, Filter
from pyspark_diff.operators.top_k import top_k
from pyspark_diff.operators.window import WindowKernel

#: Stages that read one record at a time and know their unchanged columns.
_ROW_WISE = (Pick, Compute, Filter, DropNull, Expression)
#: Places that `top_k` counts.
_PLACES = ("row_number", "rank", "dense_rank")
#: The largest number of first records that `top_k` accepts.
_MOST = 2**31 - 1

#: For each comparison of a place with a constant, how far the largest place is below the constant,
#: if the place is on the left; and if it is on the right.
_LEFT = {"==": 0, "<=>": 0, "<=": 0, "<": 1}
_RIGHT = {"==": 0, "<=>": 0, ">=": 0, ">": 1}


def may_have_places(node: Node) -> bool:
    """Whether a column of a node may be the place of its records in a window."""
    below = _below(node)
    return below is not None and _place(below[1]) is not None


def with_first_places(node: Node, conditions: Sequence[ArrowExpression]) -> Node | None:
    """A node that has the same records wherever some conditions are true.

    Parameters
    ----------
    node : Node
        One that `may_have_places`.
    conditions : sequence of ArrowExpression
        Conditions that all have to be true.

    Returns
    -------
    Node or None
        A node with the columns of ``node``; None if the conditions do not limit the place.
    """
    below = _below(node)
    place = None if below is None else _place(below[1])
    if below is None or place is None:
        return None
    rows, window = below
    name, mode = place
    limits = [
        limit for condition in conditions for part in _conjuncts(condition)
        for column, limit in [_limit(part)]
        if column is not None and _origin(column, rows) == name
    ]
    first = min(limits, default=_MOST + 1)
    if first > _MOST:
        return None
    (arranged,), kernel = window.inputs, window.kernel
    assert isinstance(arranged, Keyed) and isinstance(kernel, WindowKernel)
    result: Node = top_k(arranged, max(first, 1), len(kernel.by), number=name, mode=mode)
    for row_wise in reversed(rows):
        result = row_wise.over([result])
    return result


def _below(node: Node) -> tuple[list[Linear], Reader] | None:
    """The record-wise operators above a reader, the last one first, and the reader."""
    rows: list[Linear] = []
    while isinstance(node, Linear) and isinstance(node.stage, _ROW_WISE):
        rows.append(node)
        (node,) = node.inputs
    return (rows, node) if isinstance(node, Reader) else None


def _place(window: Reader) -> tuple[str, str] | None:
    """The column and the kind of a window's place, if that is its only result."""
    kernel = window.kernel
    if not isinstance(kernel, WindowKernel) or len(kernel.functions) > 1:
        return None
    (function,) = kernel.functions
    if not isinstance(function, PlaceFunction) or function.name not in _PLACES:
        return None
    return window.schema.names[-1], function.name


def _origin(column: str, rows: Sequence[Linear]) -> str | None:
    """The name of a column below some operators; None if they compute it."""
    name: str | None = column
    for node in rows:
        stage = node.stage
        if isinstance(stage, (Pick, Expression)):
            pairs = stage.names if isinstance(stage, Pick) else stage.same
            name = {new: old for old, new in pairs}.get(str(name))
        elif isinstance(stage, Compute):
            formula = dict(stage.outputs).get(str(name))
            name = formula.name if isinstance(formula, Field) else None
    return name


def _conjuncts(condition: ArrowExpression) -> Iterator[ArrowExpression]:
    if isinstance(condition, Apply) and condition.function == "and":
        for argument in condition.arguments:
            yield from _conjuncts(argument)
    else:
        yield condition


def _limit(condition: ArrowExpression) -> tuple[str | None, int]:
    """A column of whole numbers, and the largest number for which a condition may be true; None as
    the column if the condition has no such limit."""
    if isinstance(condition, Apply) and len(condition.arguments) > 1:
        function, (first, *others) = condition.function, condition.arguments
        column, last = _column(first), _column(others[-1])
        if column and function == "in":
            values = [_whole(other) for other in others]
            return (None if None in values else column), max(f or 0 for f in values)
        if column and function in _LEFT:
            limit = _whole(others[0], _LEFT[function])
            return (None if limit is None else column), limit or 0
        if last and function in _RIGHT:
            limit = _whole(first, _RIGHT[function])
            return (None if limit is None else last), limit or 0
    return None, 0


def _column(formula: ArrowExpression) -> str | None:
    """The column that a formula returns, perhaps in another type with the same numbers."""
    while isinstance(formula, Apply) and formula.function in ("cast", "double", "fit"):
        kind = formula.kind
        wide = pa.types.is_integer(kind) and kind.bit_width >= 32 or (
            pa.types.is_decimal(kind) and kind.precision - kind.scale >= 10
        )
        if not wide and not pa.types.is_float64(kind):
            return None
        (formula,) = formula.arguments
    return formula.name if isinstance(formula, Field) else None


def _whole(formula: ArrowExpression, less: int = 0) -> int | None:
    """The largest whole number that is at most a constant; below the constant if `less`."""
    if not isinstance(formula, ArrowConstant) or isinstance(formula.content, (bool, str)):
        return None
    if formula.content is None:
        return 0  # a comparison with null is never true
    if not math.isfinite(formula.content):
        return None
    return math.ceil(formula.content) - 1 if less else math.floor(formula.content)
