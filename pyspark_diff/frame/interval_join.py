"""The condition of `join_interval`: two bounds limit the difference of a value of each side::

    left + lower <= right <= left + upper
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Union

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.analysis import unlogged
from pyspark_diff.frame.collection import Collection
from pyspark_diff.spark.schema import quoted

#: An offset that `join_interval` adds to a value.
Bound = Union[int, float, Decimal, timedelta, str, Column, None]
#: Types that have an addition.
_MEASURED = (T.NumericType, T.DateType, T.TimestampType, T.TimestampNTZType)
#: Words of an interval.
_UNIT = re.compile(r"(?:year|month|week|day|hour|minute|(?:milli|micro|nano)?second)s?|to|interval")


@dataclass(frozen=True)
class IntervalBounds:
    """The condition of `join_interval`: two bounds limit the difference of two values.

    Parameters
    ----------
    left, right : str
        The user's names of the columns.
    lower, upper : number, timedelta, str, Column or None
    """

    left: str
    right: str
    lower: Bound
    upper: Bound

    def conditions(self, left: Collection, right: Collection) -> list[Column]:
        """The comparisons, of columns under the aliases ``l`` and ``r``.

        Raises
        ------
        SchemaError
            If a column is missing, there is no bound, or a bound has a wrong type.
        """
        ours = left.column_name(self.left, "on the left side")
        theirs = right.column_name(self.right, "on the right side")
        if self.lower is None and self.upper is None:
            raise SchemaError("join_interval needs a bound: lower, upper, or both")
        value, other = F.col("l." + quoted(ours)), F.col("r." + quoted(theirs))
        kind = left.node.schema.struct[ours].dataType
        comparisons = []
        for bound, compare in ((self.lower, Column.__ge__), (self.upper, Column.__le__)):
            if bound is not None:
                comparisons.append(compare(other, _moved(value, bound, kind, left.spark)))
        if not all(isinstance(side.node.schema.struct[name].dataType, _MEASURED)
                   for side, name in ((left, ours), (right, theirs))):
            raise SchemaError(
                f"join_interval is for numbers, dates and timestamps, and {self.left!r} is of type "
                f"{kind.simpleString()}, {self.right!r} of type "
                f"{right.node.schema.struct[theirs].dataType.simpleString()}"
            )
        return comparisons


def _interval(text: str, spark: SparkSession) -> Column:
    """The interval of a text such as ``5 minutes``."""
    interval, field = F.expr(f"INTERVAL {text}"), None
    # Spark parses it only if it may be an interval: a server logs a stack trace for each failure.
    if all(_UNIT.fullmatch(word) for word in re.findall("[a-z_]+", text.lower())):
        with unlogged(), suppress(AnalysisException, ParseException, ValueError):
            (field,) = spark.sql("SELECT 1 AS `none`").select(interval).schema
    if field is None or "interval" not in field.dataType.simpleString():
        raise SchemaError(
            f"{text!r} is no interval; one is '5 minutes', '-1 day', or '2 hours 30 minutes'"
        )
    return interval


def _moved(value: Column, bound: Any, kind: T.DataType, spark: SparkSession) -> Column:
    """A value with a bound added to it."""
    if isinstance(bound, str):
        return value + _interval(bound, spark)
    if isinstance(kind, T.DateType):
        # A number of days keeps the type date.
        if isinstance(bound, timedelta) and not bound % timedelta(days=1):
            bound = bound.days
        if isinstance(bound, int) and not isinstance(bound, bool):
            return F.date_add(value, bound)
    if isinstance(bound, bool) or not isinstance(bound, (int, float, Decimal, timedelta, Column)):
        raise SchemaError(
            "a bound of join_interval is a number, a timedelta, text such as '5 minutes', or a "
            f"column of a constant; it is {bound!r}"
        )
    return value + (bound if isinstance(bound, Column) else F.lit(bound))
