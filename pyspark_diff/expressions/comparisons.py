"""Comparisons of a join condition: an expression of each side, in the type of the comparison.

    a comparison has the operands l and r and the name o  ⟹  its conjunct is true iff l o r is true

Spark analyses the expressions over frames without rows, so no job runs.
"""

from __future__ import annotations

from typing import Callable, Collection, Iterator, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.expressions.analysis import unlogged
from pyspark_diff.spark.calls import call_of
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.mentions import mentions, names_there

#: Digits of the decimals into which Spark converts whole numbers of a type before it compares them
#: with decimals.
_DIGITS: dict[T.DataType, int] = {
    T.ByteType(): 3, T.ShortType(): 5, T.IntegerType(): 10, T.LongType(): 20,
}

#: Comparisons, and the comparisons with swapped arguments.
COMPARISONS: dict[str, tuple[str, Callable[[Column, Column], Column]]] = {
    "==": ("==", Column.__eq__), "<=>": ("<=>", Column.eqNullSafe),
    "<": (">", Column.__lt__), "<=": (">=", Column.__le__),
    ">": ("<", Column.__gt__), ">=": ("<=", Column.__ge__),
}


class Comparison(NamedTuple):
    """A comparison of expressions of both sides: converted to one type, and in their original
    form."""

    name: str
    left: Column
    right: Column
    original: tuple[Column, Column]
    kind: T.DataType


def comparison_of(left: DataFrame, right: DataFrame, conjunct: Column) -> Comparison | None:
    """A conjunct as a comparison of both sides; None for another conjunct, or if the type of the
    comparison is unknown."""
    call = call_of(conjunct)
    if call is None or call.name not in COMPARISONS:
        return None
    a, b = call.arguments
    lefts, rights = names_there(left), names_there(right)
    a_left, b_left = (type_over(left, operand, rights - lefts) for operand in (a, b))
    a_right, b_right = (type_over(right, operand, lefts - rights) for operand in (a, b))
    turned, compare = COMPARISONS[call.name]
    # An expression with a value in both frames, such as a literal, belongs to neither.
    if a_left and b_right and not a_right and not b_left:
        name, operands = call.name, (a, b)
        same = _of_one_type(left, right, (a, a_left), (b, b_right), compare)
    elif b_left and a_right and not a_left and not b_right:
        name, operands = turned, (b, a)
        same = _of_one_type(
            left, right, (b, b_left), (a, a_right), lambda x, y: compare(y, x)
        )
    else:
        return None
    return None if same is None else Comparison(name, *same[:2], operands, same[2])


def type_over(
    frame: DataFrame, expr: Column, elsewhere: Collection[str] = ()
) -> T.DataType | None:
    """The type of an expression over a frame; None if the frame lacks its columns, or if it
    mentions a column from elsewhere."""
    if mentions(expr, elsewhere):
        return None
    try:
        with unlogged():
            (field,) = frame.select(expr).schema
    except (AnalysisException, ValueError):
        return None
    return without_nullability(field.dataType)


def _of_one_type(
    left: DataFrame,
    right: DataFrame,
    a: tuple[Column, T.DataType],
    b: tuple[Column, T.DataType],
    compare: Callable[[Column, Column], Column],
) -> tuple[Column, Column, T.DataType] | None:
    """Two expressions with Spark's casts for their comparison; None if unknown.

    Spark has special rules for each comparison, and they depend on settings. So the function tries
    each likely type. A type is right iff Spark plans the same join with and without the casts to
    it.
    """
    (x, x_type), (y, y_type) = a, b
    if x_type == y_type:
        return x, y, x_type
    plain = left.join(right, compare(x, y))

    def kinds() -> Iterator[T.DataType | None]:
        yield from (y_type, x_type)
        yield type_over(left.join(right), F.coalesce(x, y))
        yield from (T.DoubleType(), T.LongType())

    for kind in kinds():
        if kind is None:
            continue
        u, v = _cast(x, x_type, kind), _cast(y, y_type, kind)
        if left.join(right, compare(u, v)).sameSemantics(plain):
            return u, v, kind
    return None


def _cast(expr: Column, kind: T.DataType, wanted: T.DataType) -> Column:
    if isinstance(wanted, T.DecimalType) and kind in _DIGITS:
        whole = T.DecimalType(_DIGITS[kind], 0)
        return _cast(expr.cast(whole), whole, wanted)
    return expr if kind == wanted else expr.cast(wanted)
