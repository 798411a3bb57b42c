"""What a join condition asks for, found without running anything.

    the pairs and the residual of c  ⟹  all pairs equal and all of the residual true  ⟺  c is true
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.analysis import unlogged
from pyspark_diff.expressions.check import check_deterministic
from pyspark_diff.spark.calls import call_of
from pyspark_diff.spark.schema import without_nullability

#: Digits of each type of whole numbers: Spark compares them with decimals as decimals of these.
_DIGITS: dict[T.DataType, int] = {
    T.ByteType(): 3, T.ShortType(): 5, T.IntegerType(): 10, T.LongType(): 20,
}


@dataclass(frozen=True)
class Condition:
    """A join condition, taken apart.

    Parameters
    ----------
    left, right : tuple of Column
        Pairwise equal expressions of the same type, each over one frame only.
    null_safe : tuple of bool
        For each pair, whether two nulls are equal.
    residual : tuple of Column
        What else has to be true, over both frames.
    """

    left: tuple[Column, ...]
    right: tuple[Column, ...]
    null_safe: tuple[bool, ...]
    residual: tuple[Column, ...]

    def unmixed(self) -> "Condition":
        """The same with equalities of one kind: null-safe ones beside others are of structs.

        A struct is not null, and two are equal where what is in them is, nulls included.
        """
        if all(self.null_safe) or not any(self.null_safe):
            return self
        left, right = (
            tuple(F.struct(key.alias("value")) if safe else key
                  for key, safe in zip(keys, self.null_safe))
            for keys in (self.left, self.right)
        )
        return replace(self, left=left, right=right, null_safe=(False,) * len(left))


def parse_condition(
    left: DataFrame, right: DataFrame, on: Column | Sequence[Column]
) -> Condition:
    """Equal pairs and the rest of a join condition.

    Parameters
    ----------
    left, right : DataFrame
        Empty frames, made independently of each other, with the aliases that the condition uses.
    on : Column or sequence of Column
        All of them have to be true.

    Raises
    ------
    SchemaError
        If there is no condition, or it is no column.
    NonDeterministicError
        If the condition reads the clock.
    pyspark.errors.AnalysisException
        Whatever Spark itself finds wrong, such as an ambiguous column.

    Examples
    --------
    >>> left = spark.createDataFrame([], "id int, price int").alias("l")
    >>> right = spark.createDataFrame([], "id long, limit int").alias("r")
    >>> on = (F.col("r.id") == F.col("l.id")) & (F.col("price") < F.col("limit"))
    >>> found = parse_condition(left, right, on)
    >>> found.left, found.right
    ((Column<'CAST(l.id AS BIGINT)'>,), (Column<'r.id'>,))
    >>> found.residual
    (Column<'<(price, limit)'>,)
    """
    conditions = [on] if isinstance(on, Column) else list(on)
    if not conditions or not all(isinstance(condition, Column) for condition in conditions):
        raise SchemaError(
            "a join condition is a column such as F.col('l.x') == F.col('r.x'), or a list of them; "
            f"it got {on!r}"
        )
    joined = left.join(right, reduce(and_, conditions))
    # Connect looks at the condition only when it is asked for something.
    joined.schema
    check_deterministic(joined)
    pairs, residual = [], []
    for conjunct in (part for condition in conditions for part in _conjuncts(condition)):
        pair = _pair(left, right, conjunct)
        if pair is None:
            residual.append(conjunct)
        else:
            pairs.append(pair)
    return Condition(
        tuple(pair[0] for pair in pairs),
        tuple(pair[1] for pair in pairs),
        tuple(pair[2] for pair in pairs),
        tuple(residual),
    )


def _conjuncts(condition: Column) -> list[Column]:
    call = call_of(condition)
    if call is None or call.name != "and":
        return [condition]
    return [part for argument in call.arguments for part in _conjuncts(argument)]


def _pair(
    left: DataFrame, right: DataFrame, conjunct: Column
) -> tuple[Column, Column, bool] | None:
    call = call_of(conjunct)
    if call is None or call.name not in ("==", "<=>"):
        return None
    a, b = call.arguments
    a_left, a_right = _type_in(left, a), _type_in(right, a)
    b_left, b_right = _type_in(left, b), _type_in(right, b)
    null_safe = call.name == "<=>"
    # What has a value in both frames, such as a literal, belongs to neither.
    if a_left and b_right and not a_right and not b_left:
        same = _of_one_type(left, right, (a, a_left), (b, b_right), False)
    elif b_left and a_right and not a_left and not b_right:
        same = _of_one_type(left, right, (b, b_left), (a, a_right), True)
    else:
        return None
    return None if same is None else (*same, null_safe)


def _type_in(frame: DataFrame, expr: Column) -> T.DataType | None:
    """The type of an expression over a frame; None if the frame does not have its columns."""
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
    swapped: bool,
) -> tuple[Column, Column] | None:
    """Two expressions with the casts that Spark puts into their comparison; None if unknown.

    Spark has rules of its own for each comparison, and they depend on settings. So each type that
    is likely is tried, and one is right iff Spark then plans the same join as without our casts.
    """
    (x, x_type), (y, y_type) = a, b
    if x_type == y_type:
        return x, y
    plain = left.join(right, y == x if swapped else x == y)
    common = _type_in(left.join(right), F.coalesce(x, y))
    for kind in (y_type, x_type, common, T.DoubleType(), T.LongType()):
        if kind is None:
            continue
        u, v = _cast(x, x_type, kind), _cast(y, y_type, kind)
        if left.join(right, v == u if swapped else u == v).sameSemantics(plain):
            return u, v
    return None


def _cast(expr: Column, kind: T.DataType, wanted: T.DataType) -> Column:
    if isinstance(wanted, T.DecimalType) and kind in _DIGITS:
        whole = T.DecimalType(_DIGITS[kind], 0)
        return _cast(expr.cast(whole), whole, wanted)
    return expr if kind == wanted else expr.cast(wanted)
