"""The parts of a join condition, parsed without a job.

    c is true  ⟺  all pairs of c are equal and all of its residual is true
    c is true  ⟹  the value of c lies in the interval of c
    c is never true  ⟸  the only pair of c is two nulls
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.analysis import unlogged
from pyspark_diff.expressions.bands import band_comparisons
from pyspark_diff.expressions.check import check_own_values, sessions_refused
from pyspark_diff.expressions.comparisons import (
    COMPARISONS,
    Comparison,
    comparison_of,
    type_over,
)
from pyspark_diff.expressions.intervals import (
    Interval,
    Overlap,
    containing_interval,
    overlap_of,
)
from pyspark_diff.spark.calls import ColumnCall, call_of, with_calls_replaced
from pyspark_diff.spark.jvm import analysed_plan
from pyspark_diff.spark.mentions import names_there


@dataclass(frozen=True)
class Condition:
    """The parts of a join condition.

    Parameters
    ----------
    left, right : tuple of Column
        Pairwise equal expressions of the same type, each over one frame only.
    null_safe : tuple of bool
        For each pair, whether two nulls are equal.
    residual : tuple of Column
        The other conditions, over both frames, which all have to be true.
    interval : Interval, optional
        An interval that follows from the residual.
    overlap : Overlap, optional
        An overlap that follows from the residual; None if the interval has both ends.
    """

    left: tuple[Column, ...]
    right: tuple[Column, ...]
    null_safe: tuple[bool, ...]
    residual: tuple[Column, ...]
    interval: Interval | None = None
    overlap: Overlap | None = None

    def unmixed(self) -> "Condition":
        """The condition with equalities of one kind: if kinds are mixed, null-safe ones compare
        structs.

        A struct is not null, and two structs are equal if their fields are equal, nulls included.
        """
        if all(self.null_safe) or not any(self.null_safe):
            return self
        left, right = (
            tuple(F.struct(key.alias("value")) if safe else key
                  for key, safe in zip(keys, self.null_safe))
            for keys in (self.left, self.right)
        )
        return replace(self, left=left, right=right, null_safe=(False,) * len(left))


def _refuse_time_windows(rows: DataFrame, conditions: Sequence[Column]) -> None:
    """Name a time window in a condition that Spark refused: its own error is an internal one.

    Parameters
    ----------
    rows : DataFrame
        All pairs of rows of both sides.
    """
    names = {name for condition in conditions for name in _windows_in(rows, condition)}
    if "session_window" in names:
        raise sessions_refused("a join condition")
    if "window" in names:
        raise SchemaError(
            "a join condition uses a time window, and Spark computes these only in a list of "
            "columns. Add the window as a column, by withColumn, and join by that column"
        )


def _windows_in(rows: DataFrame, condition: Column) -> set[str]:
    """The names of the functions of time windows in a condition."""
    names: set[str] = set()

    def note(call: ColumnCall, whole: Column) -> Column | None:
        if call.name in ("window", "session_window"):
            names.add(call.name)
            return whole
        return None

    with_calls_replaced(condition, note)
    if names:
        return names
    # A client of Connect does not parse SQL text, but Spark computes a window in a list of columns.
    # A row has no window if its time is null: Spark adds a filter, or copies of rows.
    try:
        with unlogged():
            before = analysed_plan(rows)
            selected = rows.select(condition.alias("condition"))
            plan = analysed_plan(selected)
    except AnalysisException:
        return names
    # A subquery brings a filter, too, and is refused by its own name.
    if plan.outside:
        check_own_values(selected)
    if plan.sessions and not before.sessions:
        names.add("session_window")
    if {"Filter", "Expand"} & (set(plan.nodes) - set(before.nodes)):
        names.add("window")
    return names


def parse_condition(
    left: DataFrame, right: DataFrame, on: Column | Sequence[Column]
) -> Condition:
    """Equal pairs and the rest of a join condition.

    Parameters
    ----------
    left, right : DataFrame
        Empty frames, made independently, with the aliases of the condition.
    on : Column or sequence of Column
        Conditions that all have to be true.

    Raises
    ------
    SchemaError
        If there is no condition, it is no column, or it has a time window.
    NonDeterministicError
        If the condition reads the clock.
    pyspark.errors.AnalysisException
        The errors of Spark's analysis, such as an ambiguous column.

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
    try:
        joined = left.join(right, reduce(and_, conditions))
        # Connect analyses the condition only for the schema.
        joined.schema
    except Exception:
        _refuse_time_windows(left.crossJoin(right), conditions)
        raise
    check_own_values(joined)
    pairs: list[Comparison] = []
    residual: list[Column] = []
    unequal: list[Comparison] = []
    for conjunct in (part for condition in conditions for part in conjuncts(condition)):
        pair = comparison_of(left, right, conjunct)
        if pair is not None and pair.name in ("==", "<=>"):
            pairs.append(pair)
            continue
        residual.append(conjunct)
        if pair is not None:
            unequal.append(pair)
    unequal += band_comparisons(left, right, residual)
    interval = containing_interval(left, right, unequal)
    whole = interval is not None and interval.lower is not None and interval.upper is not None
    if not pairs and interval is None and any(_is_null(left, right, part) for part in residual):
        nothing = F.lit(None).cast("int")
        return Condition((nothing,), (nothing,), (False,), ())
    return Condition(
        tuple(pair.left for pair in pairs),
        tuple(pair.right for pair in pairs),
        tuple(pair.name == "<=>" for pair in pairs),
        tuple(residual),
        interval,
        None if whole else overlap_of(unequal),
    )


def _is_null(left: DataFrame, right: DataFrame, conjunct: Column) -> bool:
    """Whether a condition compares with a constant that is null, and so is null."""
    call = call_of(conjunct)
    if call is None or call.name not in COMPARISONS or call.name == "<=>":
        return False
    nothing, there = left.sparkSession.sql("SELECT 1 AS `none`"), names_there(left)
    there |= names_there(right)
    return any(
        type_over(nothing, argument, there) is not None
        and nothing.select(argument.isNull()).collect()[0][0] for argument in call.arguments
    )


def conjuncts(condition: Column) -> list[Column]:
    """The conjuncts of a condition."""
    call = call_of(condition)
    if call is not None and call.name == "between" and len(call.arguments) == 3:
        value, lower, upper = call.arguments
        return [value >= lower, value <= upper]
    if call is None or call.name != "and":
        return [condition]
    return [part for argument in call.arguments for part in conjuncts(argument)]
