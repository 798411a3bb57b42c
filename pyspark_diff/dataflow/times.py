"""Struct times of users: a product of orders, compared field by field.

    (a1, …, an) ≤ (b1, …, bn)  ⟺  ai ≤ bi for every i

The first field is the time of the engine, which is totally ordered, and the others are the
coordinates of loops around the program: see `pyspark_diff.operators.loop`. Frontiers consist of
whole structs.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, cast

from pyspark.sql import types as T

from pyspark_diff.errors import InvalidTimeError, NotReadableError, SchemaError
from pyspark_diff.expressions.names import unused
from pyspark_diff.operators.loop import time_scope
from pyspark_diff.operators.node import Node
from pyspark_diff.spark.schema import TimeType, parse_schema, parse_time_type
from pyspark_diff.times import Antichain, Coordinate, Time, as_time


def first_type(kind: T.DataType) -> T.DataType:
    """The type of times, or of their first field.

    Raises
    ------
    SchemaError
        If it is a struct of other than integers.
    """
    if not isinstance(kind, T.StructType):
        return kind
    others = [f for f in kind.fields if not isinstance(f.dataType, T.IntegralType)]
    if others or len(kind.fields) < 2:
        raise SchemaError(
            "a time column that is a struct has two or more fields, all of them integers, not "
            f"{kind.simpleString()}. Cast them, or give one field as the time itself"
        )
    return kind.fields[0].dataType


def time_columns(kind: T.StructType, used: Iterable[str]) -> list[str]:
    """Unused names of columns for all fields of times but the first."""
    names: list[str] = []
    for field in kind.fields[1:]:
        names.append(unused(f"time_{field.name}", [*used, *names]))
    return names


def time_kind(node: Node) -> T.DataType:
    """The user's type of a collection's times."""
    scope = time_scope(node)
    return node.time_type.kind if scope is None else scope.times


def coordinate(value: Any, kind: T.StructType) -> Coordinate:
    """A user's time as a tuple of fields.

    Raises
    ------
    InvalidTimeError
        If the value is no such time.

    Examples
    --------
    >>> coordinate([3, 0], T.StructType.fromDDL("day int, known int"))
    (3, 0)
    """
    try:
        time = as_time(value)
        if isinstance(time, tuple) and len(time) == len(kind.fields):
            return time
    except InvalidTimeError:
        pass
    example = ", ".join(["3", *["0"] * (len(kind.fields) - 1)])
    raise InvalidTimeError(
        f"{value!r} is not a time of this collection, whose times are {kind.simpleString()}: give "
        f"an integer for each field, such as ({example})"
    )


def interval_of(value: Any, kind: T.StructType, what: str) -> Coordinate:
    """A user's interval of times as a tuple of fields.

    Raises
    ------
    InvalidTimeError
        If the value is no interval, is zero, or is negative in a field.

    Examples
    --------
    >>> interval_of((7, 0), T.StructType.fromDDL("day int, known int"), "delay")
    (7, 0)
    """
    example = ", ".join(["7", *["0"] * (len(kind.fields) - 1)])
    wanted = (
        f"{what} takes an interval, which for times {kind.simpleString()} is an integer for each "
        f"field, such as ({example})"
    )
    if not isinstance(value, (tuple, list)):
        raise InvalidTimeError(f"{wanted}; not {value!r}")
    if len(value) != len(kind.fields):
        raise InvalidTimeError(f"{wanted}; {value!r} has {len(value)}")
    if any(isinstance(part, bool) or not hasattr(part, "__index__") for part in value):
        raise InvalidTimeError(f"{wanted}; not {value!r}")
    interval = tuple(int(part.__index__()) for part in value)
    if min(interval) < 0:
        raise InvalidTimeError(f"the interval of {what} is negative in no field, not {value!r}")
    if not any(interval):
        raise InvalidTimeError(
            f"the interval of {what} is positive in some field, not {value!r}"
        )
    return interval


def frontier_of(value: Any, kind: T.StructType) -> Antichain:
    """A user's frontier: a time, or a list of times.

    Raises
    ------
    InvalidTimeError
        If an element is no time.

    Examples
    --------
    >>> frontier_of([(3, 0), (0, 2), (4, 1)], T.StructType.fromDDL("day int, known int"))
    Antichain([(0, 2), (3, 0)])
    """
    if isinstance(value, Antichain):
        value = list(value)
    several = isinstance(value, list) and bool(value) and not isinstance(value[0], int)
    frontier = Antichain([coordinate(time, kind) for time in (value if several else [value])])
    if any(part < 0 for time in frontier for part in _rest(time)):
        raise InvalidTimeError(
            f"{value!r} is no frontier of times {kind.simpleString()}: all fields but the first "
            "are never negative"
        )
    return frontier


def frontier_text(frontier: Antichain, time_type: TimeType) -> str:
    """The times of a frontier in the user's types, as text.

    Examples
    --------
    >>> day = TimeType(T.DateType())
    >>> frontier_text(Antichain([0]), day), frontier_text(Antichain([(3, 0), (1, 2)]), day)
    ('datetime.date(1970, 1, 1)', '(1, 2), (3, 0)')
    """
    return ", ".join(repr(time_type.decode(t) if isinstance(t, int) else t) for t in frontier)


def single_time(frontier: Antichain) -> Coordinate | None:
    """The only time of a frontier; None if the frontier is empty.

    Raises
    ------
    InvalidTimeError
        If the frontier has several times.
    """
    if len(frontier.elements) > 1:
        raise InvalidTimeError(
            f"the frontier has several times, {list(frontier)!r}, and none comes before all "
            "others: ask for frontier()"
        )
    return cast("Coordinate | None", next(iter(frontier), None))


def readable(
    time: Coordinate | None, frontier: Antichain, since: Antichain, kind: T.StructType,
    next_to_do: Callable[[], str],
) -> Coordinate:
    """A readable time of a collection; for None the last one whose first field alone makes it
    complete.

    Parameters
    ----------
    time : tuple of int or None
    frontier, since : Antichain
        The frontiers of the collection.
    next_to_do : callable
        Returns a sentence with the call that advances the collection.

    Raises
    ------
    NotReadableError
        If the time is incomplete or was compacted away.
    """
    fields = len(kind.fields)
    if time is None:
        last = 2**63 - 1
        first = frontier.bound
        time = (last if first is None else first - 1, *[last] * (fields - 1))
        if not since.less_equal(time):
            raise NotReadableError(
                f"no time is complete by its first field alone: the collection is processed up to "
                f"{list(frontier)!r}. Give a time that is before each of these in some field. "
                f"{next_to_do()}"
            )
    if frontier.less_equal(time):
        raise NotReadableError(
            f"time {time!r} is not complete: the collection is processed up to, and not including, "
            f"times beyond {list(frontier)!r}. {next_to_do()}"
        )
    if not since.less_equal(time):
        raise NotReadableError(
            f"time {time!r} was compacted away: the collection can be read at times that are "
            f"beyond {list(since)!r}. Hold earlier ones, hold(), or all: keep_history=True"
        )
    return time


def _rest(time: Time) -> Coordinate:
    return time[1:] if isinstance(time, tuple) else ()


def parse_times(kind: str | T.DataType) -> tuple[T.StructType | None, TimeType]:
    """The type of a dataflow's times if it is a struct, and the type of the engine's times."""
    if isinstance(kind, str) and kind.lower().lstrip().startswith("struct"):
        kind = parse_schema(f"t {kind}").struct.fields[0].dataType
    if isinstance(kind, T.StructType):
        return kind, TimeType(first_type(kind))
    return None, parse_time_type(kind)
