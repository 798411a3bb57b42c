"""Aggregates that depend on an order of the records: an order of their own, or one that Spark
leaves open.

Without an order in the query any order is right. Here it is always the ascending order of the
values, so that the result does not depend on the order of arrival.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregate_forms import (
    AggregateFunction,
    CollectedFunction,
    OrderedFunction,
)
from pyspark_diff.spark.calls import Ordering

#: Types whose values Python sorts as Spark does.
_SORTED = (
    T.BooleanType, T.NumericType, T.StringType, T.BinaryType, T.DateType, T.TimestampType,
    T.TimestampNTZType, T.DayTimeIntervalType,
)


@dataclass(frozen=True)
class AnyRecord(OrderedFunction):
    """The value of the least or of the greatest record: `first`, `last` and `any_value`.

    The order of records is by the arguments of all these functions in one `agg`, in their order
    there, so that all functions take the same record.

    Parameters
    ----------
    nulls_ignored : bool
        Whether records with a null argument do not count.
    others : int
        The number of arguments in the order.
    """

    nulls_ignored: bool = False
    others: int = 0
    constants = 1
    decisive = 1
    counts_nulls = True

    def with_constants(self, *constants: Any) -> AggregateFunction:
        return replace(self, nulls_ignored=bool(constants[0]))

    @property
    def order(self) -> tuple[tuple[int, bool], ...]:
        return tuple((number, False) for number in range(1, 2 + self.others))

    @property
    def from_back(self) -> bool:
        return self.greatest


@dataclass(frozen=True)
class ListAgg(CollectedFunction):
    """All non-null values as one text, in an order.

    Parameters
    ----------
    separator : str, bytes or None
        The text between two values.
    directions : tuple of (bool, bool)
        For each column of the order, whether it is descending and whether nulls come last. Ties are
        in ascending order of the values.
    """

    name: str = "listagg"
    synonyms: tuple[str, ...] = ("string_agg",)
    separator: Any = None
    directions: tuple[tuple[bool, bool], ...] = ()
    constants = 1
    takes_order = True

    def with_constants(self, *constants: Any) -> AggregateFunction:
        (separator,) = constants
        text = bytes(separator) if isinstance(separator, (bytes, bytearray)) else separator
        return replace(self, separator=text)

    def ordered(
        self, order: Sequence[Ordering], types: Sequence[T.DataType]
    ) -> AggregateFunction:
        for kind in types:
            plain = not isinstance(kind, T.StringType) or kind == T.StringType()
            if not isinstance(kind, _SORTED) or not plain:
                raise SchemaError(
                    f"{self.name} has an order of type {kind.simpleString()}. Lists are sorted by "
                    "numbers, texts, bytes, dates and times. Cast the column"
                )
        return replace(self, directions=tuple((o.descending, o.nulls_last) for o in order))

    def evaluated(
        self, arguments: Sequence[Column], types: Sequence[T.DataType], distinct: bool
    ) -> list[Column]:
        value, *order = arguments
        if not isinstance(types[0], (T.StringType, T.BinaryType)):
            value = value.cast("string")
        return [value, *order]

    def __call__(self, key: Any, values: list[tuple[tuple[Any, ...], int]]) -> list[tuple[Any]]:
        rows = [(row, count) for row, count in values if count > 0]
        rows.sort(key=lambda item: item[0][0])
        for place in range(len(self.directions) - 1, -1, -1):
            descending, nulls_last = self.directions[place]
            rows.sort(key=functools.partial(_rank, place + 1), reverse=descending)
            # Nulls are the least values; a stable sort moves them to the requested end.
            rows.sort(key=lambda item: (item[0][place + 1] is None) == nulls_last)
        return [(self.collect([(row[0], count) for row, count in rows]),)]

    def collect(self, values: Sequence[tuple[Any, int]]) -> Any:
        if not values:
            return None
        empty = b"" if isinstance(values[0][0], (bytes, bytearray)) else ""
        separator = empty if self.separator is None else self.separator
        return separator.join(value for value, count in values for _ in range(count))


def _rank(place: int, item: tuple[tuple[Any, ...], int]) -> tuple[bool, bool, Any]:
    """The rank of a row by a column: nulls first, NaN last."""
    value = item[0][place]
    if value is None or value != value:
        return value is not None, True, 0
    return True, False, value
