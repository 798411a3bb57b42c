"""As-of joins: each record with the nearest record of another collection in an order.

    join_asof(A, B)  =  each record of A with the last record of B before it, by key
                     =  last(B's columns, ignoring nulls) over (partition by key order by time)

computed over the records of both sides and restricted to those of A.

So a window keeps the join up to date. A change of B reads the records of A up to the next record of
B, and changes only these. The nearest record is the nearer one of the last record before and the
first record after; a window over the result of another window finds both.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.names import Resolver, unused
from pyspark_diff.frame.base import Frame
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.constants import Plain
from pyspark_diff.frame.keys import Names, key_columns
from pyspark_diff.frame.row_wise import computed, filtered
from pyspark_diff.kernels.window_functions import Function, Picked
from pyspark_diff.kernels.window_reach import UP_TO_HERE
from pyspark_diff.operators.arrange import arrange_in_order
from pyspark_diff.operators.join import pad
from pyspark_diff.operators.linear import drop_null, pick
from pyspark_diff.operators.node import Concat, Node
from pyspark_diff.operators.window import window
from pyspark_diff.spark.data_types import arrow_type, without_nullability
from pyspark_diff.spark.frames import column

if TYPE_CHECKING:
    from typing_extensions import Self

#: For each window whether it looks before a record.
_DIRECTIONS = {"backward": (True,), "forward": (False,), "nearest": (True, False)}
_HOW = ("left", "inner")


class AsofMethods(Frame):
    """Joins with the nearest record in an order."""

    def join_asof(
        self,
        other: Self | Plain,
        on: str | tuple[str, str],
        by: Names = (),
        *,
        direction: str = "backward",
        tolerance: Any = None,
        exact: bool = True,
        how: str = "left",
    ) -> Self:
        """Each record with the last one of another collection before it, kept up to date.

        Parameters
        ----------
        other : DiffFrame, or a plain table
        on : str, or tuple of (str, str)
            The column of the order: one name for both sides, or the names here and there. Its type
            is a number, date or timestamp. If both names are equal, the result has the column once,
            with the values of this side. A null has no match.
        by : str or list of str
            Columns of both sides whose values have to be equal. The result has them once. A null
            matches nothing.
        direction : {"backward", "forward", "nearest"}
            The match is the last record before, the first record after, or the nearer of these two.
            If both are equally far away, it is the record before. Distances between doubles are
            doubles.
        tolerance : int, float, Decimal or timedelta, optional
            The largest distance of a match.
        exact : bool
            Whether a match may be at the same place.
        how : {"left", "inner"}
            Whether the result has records without a match, with nulls.

        Raises
        ------
        SchemaError
            If columns are missing, or have different types on the two sides.

        Notes
        -----
        If several records of `other` are at one place, the match is the record with the greatest
        other columns, the first of these columns counting most. The result is right at every time,
        also if either side is corrected late: a change costs the records up to the next record of
        `other`.

        Examples
        --------
        >>> trades = DiffFrame(spark.createDataFrame(
        ...     [("a", 5, 0, 1), ("a", 9, 0, 1)], "stock string, at int, time int, diff int"))
        >>> quotes = DiffFrame(spark.createDataFrame(
        ...     [("a", 4, 1.5, 0, 1), ("a", 8, 2.5, 1, 1)],
        ...     "stock string, at int, price double, time int, diff int"))
        >>> found = trades.join_asof(quotes, "at", by="stock")
        >>> [row.price for row in sorted(found.at(0).collect())]
        [1.5, 1.5]
        >>> sorted(found.at(1).collect())
        [Row(stock='a', at=5, price=1.5), Row(stock='a', at=9, price=2.5)]
        """
        if direction not in _DIRECTIONS:
            raise SchemaError(
                f"direction must be one of {', '.join(_DIRECTIONS)}, not {direction!r}"
            )
        if how not in _HOW:
            raise SchemaError(f"an as-of join is one of {', '.join(_HOW)}, not {how!r}")
        if isinstance(tolerance, (int, float)) and tolerance < 0 or (
            isinstance(tolerance, datetime.timedelta) and tolerance < datetime.timedelta()
        ):
            raise SchemaError(
                "tolerance is the largest distance of a match, zero or more, and not "
                f"{tolerance!r}"
            )
        ours, theirs = self._collection, self._peer(other)
        ours.check_unambiguous("join_asof")
        theirs.check_unambiguous("join_asof")
        here, there = (on, on) if isinstance(on, str) else on
        places = ours.column_name(here, "for join_asof"), theirs.column_name(
            there, "for join_asof, on the other side"
        )
        keys = key_columns(ours, by, "join_asof"), key_columns(theirs, by, "join_asof")
        for a, b in [places, *zip(*keys)]:
            kinds = [
                without_nullability(c.node.schema.field(name).dataType)
                for c, name in ((ours, a), (theirs, b))
            ]
            if kinds[0] != kinds[1]:
                raise SchemaError(
                    f"join_asof compares {a!r} of type {kinds[0].simpleString()} with {b!r} of "
                    f"type {kinds[1].simpleString()}: cast one"
                )
        sides = _DIRECTIONS[direction]
        return self._wrap(_joined(ours, theirs, places, keys, sides, tolerance, exact, how))


def _joined(
    ours: Collection, theirs: Collection, places: tuple[str, str],
    keys: tuple[Sequence[str], Sequence[str]], sides: Sequence[bool], tolerance: Any, exact: bool,
    how: str,
) -> Collection:
    here, there = places
    gone = [*keys[1]]
    if here.lower() == there.lower():
        gone.append(there)
    resolver = ours.resolver.joined_with(theirs.resolver, keys=gone)
    mine = [(o.source, o.internal) for o in resolver.sources if o.side == 0]
    yours = [(o.source, o.internal) for o in resolver.sources if o.side == 1]
    ours_of = dict(mine)
    occupied = [internal for _, internal in (*mine, *yours)]
    place = unused("place", occupied)
    # Both sides get all columns: they share the columns of the key and the order, and have nulls in
    # the columns of the other side.
    at = ours_of[here]
    shared = {ours_of[a]: b for a, b in zip(keys[0], keys[1])} | {at: there}
    left: list[tuple[str | None, T.StructField]] = []
    right: list[tuple[str | None, T.StructField]] = []
    for source, internal in mine:
        kind = without_nullability(ours.node.schema.field(source).dataType)
        left.append((source, T.StructField(internal, kind)))
        right.append((shared.get(internal), T.StructField(internal, kind)))
    extra = [(there, place)]
    for source, internal in (*yours, *extra):
        kind = without_nullability(theirs.node.schema.field(source).dataType)
        left.append((None, T.StructField(internal, kind)))
        right.append((source, T.StructField(internal, kind)))
    # The place is null exactly in the records of our side, so it identifies the side of a record.
    valid = drop_null(theirs.node, [there, *keys[1]])
    both = Concat([pad(ours.node, left), pad(valid, right)])
    partition = [ours_of[name] for name in keys[0]]
    node: Node = both
    ways: list[_Way] = []
    for back in sides:
        # At one place, records of the other side sort first if they are matches.
        order = [(at, not back, False), (place, False, exact)]
        occupied += node.schema.names
        matches = {
            name: unused(f"found {name}", occupied) for name in (*(n for _, n in yours), place)
        }
        functions: list[tuple[T.StructField, Function]] = []
        for name, result in matches.items():
            kind = both.schema.field(name).dataType
            picked = Picked(arrow_type(kind), "last", name, UP_TO_HERE[0], place)
            functions.append((T.StructField(result, kind), picked))
        arranged = arrange_in_order(node, partition, order)
        node = window(arranged, [(name, down) for name, down, _ in order], functions)
        own, match = (
            _wide(column(name), both.schema.field(at).dataType) for name in (at, matches[place])
        )
        first, second = (own, match) if back else (match, own)
        near = column(matches[place]).isNotNull()
        if tolerance is not None:
            near = near & (second >= first - F.lit(tolerance))
        ways.append(_Way(matches, near, first - second))
    whole = replace(ours, node=node, resolver=Resolver.plain(node.schema.names), flow=ours.flow)
    condition = column(place).isNull()
    if how == "inner":
        condition = condition & reduce(or_, (way.near for way in ways))
    ours_only = filtered(whole, condition)
    joined: Node
    if len(ways) == 1 and (tolerance is None or how == "inner"):
        pairs = [(n, n) for _, n in mine] + [(ways[0].columns[n], n) for _, n in yours]
        joined = pick("join_asof", ours_only.node, pairs)
    else:
        columns = [(internal, column(internal)) for _, internal in mine]
        columns += [(name, _nearest(ways, name)) for _, name in yours]
        joined = computed(ours_only, "join_asof", columns)
    return ours.derived(joined, resolver=replace(resolver, sources=()))


class _Way(NamedTuple):
    """The match of each record in one direction: its columns by name, whether it is near enough,
    and its distance."""

    columns: dict[str, str]
    near: Column
    away: Column


def _nearest(ways: Sequence[_Way], name: str) -> Column:
    """A column of the match; if two matches are equally far away, that of the first way."""
    first = ways[0]
    value = F.when(first.near, column(first.columns[name]))
    if len(ways) == 1:
        return value
    second = ways[1]
    nearer = second.near & ~(first.near & (first.away <= second.away))
    return F.when(nearer, column(second.columns[name])).otherwise(value)


def _wide(place: Column, kind: T.DataType) -> Column:
    """A place in a type that has room for distances."""
    if isinstance(kind, T.LongType):
        return place.cast("decimal(20, 0)")
    if isinstance(kind, T.IntegralType):
        return place.cast("long")
    return place.cast("double") if isinstance(kind, T.FloatType) else place
