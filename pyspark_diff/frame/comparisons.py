"""Comparisons with an aggregate of all records, as in ``value > (SELECT avg(value) ...)``.

As a cross join with one record and a condition on the pairs, each change of that record would read
all of the other side. With ranges of values (`pyspark_diff.operators.ranges`) it reads only the
records near the compared value::

    (sure, near) = compared(n, c)  ⟹  n.where(c) = sure + near.where(c)
"""

from __future__ import annotations

import pyarrow as pa

from pyspark_diff.expressions.names import unused
from pyspark_diff.kernels.arrow_expression import Apply, ArrowExpression, Field
from pyspark_diff.operators.arrange import arrange_by_key
from pyspark_diff.operators.cross import Salt
from pyspark_diff.operators.join import JoinKernel, join
from pyspark_diff.operators.node import Concat, Keyed, Linear, Node, Reader
from pyspark_diff.operators.ranges import Beyond, Near, Within, with_blocks

#: For each comparison whether the left value is the larger one.
_LARGER = {">": True, ">=": True, "<": False, "<=": False}


def may_be_compared(node: Node) -> bool:
    """Whether a node is a cross join with an aggregate of all records."""
    if not isinstance(node, Reader) or not isinstance(node.kernel, JoinKernel):
        return False
    left, right = (side.inputs[0] for side in node.inputs)
    salted = isinstance(left, Linear) and isinstance(left.stage, Salt) and left.stage.hot is None
    return salted and _is_one(right.inputs[0])


def compared(node: Node, condition: ArrowExpression) -> tuple[Node, Node] | None:
    """The pairs of a cross join for which a comparison holds, found by ranges.

    Parameters
    ----------
    node : Node
        One that `may_be_compared`.

    Returns
    -------
    pair of Node, or None
        Pairs for which the comparison holds, and all others for which it may hold; None unless the
        condition compares a column of one side with a column of the other.
    """
    assert isinstance(node, Reader) and isinstance(node.kernel, JoinKernel)
    if not isinstance(condition, Apply) or condition.function not in _LARGER:
        return None
    fields = [field.name for field in map(_plain, condition.arguments) if field is not None]
    origin = dict(zip(node.schema.names, node.kernel.columns))
    if sorted(origin[name][0] for name in fields) != [0, 1]:
        return None
    larger = _LARGER[condition.function] == (origin[fields[0]][0] == 0)
    name, value = (there for _, there in sorted(origin[name] for name in fields))
    left, right = (side.inputs[0].inputs[0] for side in node.inputs)
    block = unused("block", [*left.schema.names, *right.schema.names])
    # Decimals with too many digits are rounded before the comparison, which can make them equal.
    kind = condition.arguments[0].kind
    scale = kind.scale if pa.types.is_decimal(kind) else None
    ours = arrange_by_key(with_blocks(left, Within(block, name, scale)), [block])
    columns = [(at, there, name) for name, (at, there) in origin.items()]
    sure, near = (
        join(ours, arrange_by_key(with_blocks(right, stage), [block]), columns)
        for stage in (Beyond(block, value, scale, larger), Near(block, value, scale))
    )
    return sure, near


def _plain(formula: ArrowExpression) -> Field | None:
    """The column that a formula returns, perhaps in another numeric type; None for any other
    formula.

    A cast to text on the way would change the order.
    """
    while _has_order(formula.kind) and isinstance(formula, Apply):
        if formula.function not in ("cast", "fit"):
            return None
        (formula,) = formula.arguments
    return formula if isinstance(formula, Field) and _has_order(formula.kind) else None


def _has_order(kind: pa.DataType) -> bool:
    """Whether values of a type have the order of numbers that doubles approximate."""
    return (
        pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


def _is_one(node: Node) -> bool:
    """Whether a collection is a single record, the aggregate of all records without a key."""
    if isinstance(node, (Linear, Concat)):
        return all(map(_is_one, node.inputs))
    return isinstance(node, (Keyed, Reader)) and not node.key
