"""Times that are structs, as users have them: a product of orders, compared field by field.

    (a1, …, an) ≤ (b1, …, bn)  ⟺  ai ≤ bi for every i

The first field is the time of the engine, which is totally ordered, and the others are the
coordinates of loops around the program: see `pyspark_diff.operators.loop`. Frontiers are of whole
times.
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
            f"{kind.simpleString()}; cast them, or give one field as the time itself"
        )
    return kind.fields[0].dataType


def time_columns(kind: T.StructType, taken: Iterable[str]) -> list[str]:
    """Names of columns for the fields of times besides the first, none of those that are taken."""
    found: list[str] = []
    for field in kind.fields[1:]:
        # What begins with underscores is the library's.
        found.append(unused(f"time_{field.name}", [*taken, *found]))
    return found


def time_kind(node: Node) -> T.DataType:
    """The type of a collection's times, as users have them."""
    scope = time_scope(node)
    return node.time_type.kind if scope is None else scope.times


def coordinate(value: Any, kind: T.StructType) -> Coordinate:
    """A time that a user gives, field by field.

    Raises
    ------
    InvalidTimeError
        If it is none.

    Examples
    --------
    >>> coordinate([3, 0], T.StructType.fromDDL("day int, known int"))
    (3, 0)
    """
    try:
        found = as_time(value)
        if isinstance(found, tuple) and len(found) == len(kind.fields):
            return found
    except InvalidTimeError:
        pass
    example = ", ".join(["3", *["0"] * (len(kind.fields) - 1)])
    raise InvalidTimeError(
        f"{value!r} is not a time of this collection, whose times are {kind.simpleString()}: give "
        f"an integer for each field, such as ({example})"
    )


def interval_of(value: Any, kind: T.StructType, what: str) -> Coordinate:
    """An interval of times that a user gives, field by field.

    Raises
    ------
    InvalidTimeError
        If it is none, or moves nothing, or back.

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
    if any(isinstance(one, bool) or not hasattr(one, "__index__") for one in value):
        raise InvalidTimeError(f"{wanted}; not {value!r}")
    found = tuple(int(one.__index__()) for one in value)
    if min(found) < 0:
        raise InvalidTimeError(f"the interval of {what} is negative in no field, not {value!r}")
    if not any(found):
        raise InvalidTimeError(
            f"the interval of {what} is positive in some field, not {value!r}"
        )
    return found


def frontier_of(value: Any, kind: T.StructType) -> Antichain:
    """A frontier that a user gives: a time, or a list of some.

    Raises
    ------
    InvalidTimeError
        If one of them is no time, or there is none.

    Examples
    --------
    >>> frontier_of([(3, 0), (0, 2), (4, 1)], T.StructType.fromDDL("day int, known int"))
    Antichain([(0, 2), (3, 0)])
    """
    if isinstance(value, Antichain):
        value = list(value)
    several = isinstance(value, list) and bool(value) and not isinstance(value[0], int)
    found = Antichain([coordinate(one, kind) for one in (value if several else [value])])
    if any(part < 0 for time in found for part in _rest(time)):
        raise InvalidTimeError(
            f"{value!r} is no frontier of times {kind.simpleString()}: all fields but the first "
            "are never negative"
        )
    return found


def told(frontier: Antichain, time_type: TimeType) -> str:
    """The times of a frontier as users write them.

    Examples
    --------
    >>> day = TimeType(T.DateType())
    >>> told(Antichain([0]), day), told(Antichain([(3, 0), (1, 2)]), day)
    ('datetime.date(1970, 1, 1)', '(1, 2), (3, 0)')
    """
    return ", ".join(repr(time_type.decode(t) if isinstance(t, int) else t) for t in frontier)


def one_of(frontier: Antichain) -> Coordinate | None:
    """The one time of a frontier; None where it has none.

    Raises
    ------
    InvalidTimeError
        If it has several.
    """
    if len(frontier.elements) > 1:
        raise InvalidTimeError(
            f"the frontier has several times, {list(frontier)!r}, none of which comes before all "
            "others: ask for frontier()"
        )
    return cast("Coordinate | None", next(iter(frontier), None))


def readable(
    time: Coordinate | None, frontier: Antichain, since: Antichain, kind: T.StructType,
    next_to_do: Callable[[], str],
) -> Coordinate:
    """A time at which a collection can be read, or the last of those that are complete by their
    first field, whatever they are in the others.

    Parameters
    ----------
    time : tuple of int or None
    frontier, since : Antichain
        Of the collection.
    kind : StructType
    next_to_do : callable
        Tells what brings the collection further.

    Raises
    ------
    NotReadableError
        If it is not complete, or no longer known.
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
            f"what is beyond {list(frontier)!r}. {next_to_do()}"
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
    """The type of a dataflow's times if it is a struct, and that of times, or of their first field.
    """
    if isinstance(kind, str) and kind.lower().lstrip().startswith("struct"):
        kind = parse_schema(f"t {kind}").struct.fields[0].dataType
    if isinstance(kind, T.StructType):
        return kind, TimeType(first_type(kind))
    return None, parse_time_type(kind)
