"""The plan of a join: the operators that compute it.

A join is linear in each of its inputs. So a step joins the new updates of each side with all of the
other side, and reads nothing else. All other kinds of joins are sums of collections::

    left(a, b) = inner(a, b) + anti(a, b) with nulls for the columns of b
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.conditions import Condition, parse_condition
from pyspark_diff.expressions.handles import handles_in, lineage_of
from pyspark_diff.expressions.intervals import Interval, Overlap
from pyspark_diff.expressions.names import ColumnEntry, Resolver, unused
from pyspark_diff.frame.collection import Collection, Given, none_of, with_frame_handles, two_of
from pyspark_diff.frame.interval_join import IntervalBounds
from pyspark_diff.frame.row_wise import filtered, with_keys, with_replaced
from pyspark_diff.operators import ranges
from pyspark_diff.operators.arrange import arrange_by_key, arrange_by_self
from pyspark_diff.operators.blocks import OfInterval, OfValue, with_block
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.cross import Hot, replicate, salt
from pyspark_diff.operators.join import join, pad, semijoin
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Arranged, Concat, Node
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.spark.data_types import arrow_type, without_nullability
from pyspark_diff.spark.frames import quoted

#: Types whose equal values are identical.
_EXACT = frozenset(
    "boolean tinyint smallint int bigint string date timestamp timestamp_ntz".split()
)


def cross_joined(left: Collection, right: Collection) -> Collection:
    """All pairs of the records of two collections; the right one is small."""
    if not right.small:
        raise SchemaError(
            "a cross join pairs every record with every other one. Declare the right side "
            'small with other.hint("broadcast"), or give `on` an equality to join by'
        )
    resolver = left.resolver.joined_with(right.resolver)
    name = unused("salt", [*left.node.schema.names, *right.node.schema.names])
    ours = arrange_by_key(salt(left.node, name), [name])
    theirs = arrange_by_key(replicate(right.node, name), [name])
    columns = [(o.side, o.source, o.internal) for o in resolver.sources]
    return left.derived(join(ours, theirs, columns), resolver=resolver)


def hot_keys(source: Collection, columns: Any, values: Any = (), *more: Any) -> Hot:
    """The hot keys in the parameters of a hint ``skew``.

    Raises
    ------
    SchemaError
        If the parameters are no columns and values of this collection.
    """
    if more:
        raise SchemaError(
            "the hint skew takes a column, or a list of columns, and their hot values"
        )
    names = [columns] if isinstance(columns, str) else columns
    if not isinstance(names, (list, tuple)) or not names or not all(
        isinstance(name, str) for name in names
    ):
        raise SchemaError(f"the hint skew takes names of columns, and this is {columns!r}")
    internal = tuple(source.column_name(name, "for the hint skew") for name in names)
    keys = list(values) if isinstance(values, (list, set, frozenset)) else [values]
    if isinstance(values, tuple):
        # For one column a tuple has several values. For several columns it is one key, or has
        # several keys.
        single = len(names) > 1 and not any(isinstance(value, (list, tuple)) for value in values)
        keys = [values] if single and values else list(values)
    if len(names) == 1:
        keys = [key if isinstance(key, tuple) else (key,) for key in keys]
    hot: list[list[Any]] = []
    for key in keys:
        if not isinstance(key, (list, tuple)) or len(key) != len(names):
            raise SchemaError(
                f"a hot key has a value for each of {', '.join(names)}, and this is {key!r}"
            )
        hot.append(list(key))
    for position, (name, at) in enumerate(zip(names, internal)):
        kind = without_nullability(source.node.schema.struct[at].dataType)
        if kind.simpleString() not in _EXACT:
            raise SchemaError(
                f"the hint skew is for columns of whole numbers, texts, booleans, dates and "
                f"timestamps, and {name!r} is of type {kind.simpleString()}"
            )
        for key in hot:
            value = key[position]
            try:
                key[position] = pa.scalar(value, arrow_type(kind)).as_py()
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                key[position] = None
            if key[position] is None:
                raise SchemaError(
                    f"{value!r} is no value of {name!r}, which is of type {kind.simpleString()}"
                )
    return Hot(internal, tuple(map(tuple, hot)))


def seeing_both(
    left: Collection, right: Collection, on: Given
) -> tuple[Collection, Collection, Given]:
    """The two sides of a join, in which its condition finds the columns of its handles, and the
    condition; see `Collection.seeing`.

    A side's own handle refers to that side, also if the other side derives from it.

    Raises
    ------
    SchemaError
        If a handle refers to no column of either side, or to more than one.
    """
    both = left.resolver.joined_with(right.resolver)
    on = with_frame_handles(on, both, [left, right])
    handles = handles_in([on])
    resolvers = [left.resolver, right.resolver]
    for handle in handles:
        matches = both.entries_of(handle)
        if len(matches) > 1:
            raise two_of(handle)
        if not matches:
            raise none_of(handle.name, handle.owner, [left, right])
        origin = next(o for o in both.sources if o.internal == matches[0].internal)
        entry = next(
            e for e in resolvers[origin.side].entries if e.internal == origin.source
        )
        resolvers[origin.side] = resolvers[origin.side].binding({handle: entry})
    return replace(left, resolver=resolvers[0]), replace(right, resolver=resolvers[1]), on


def _present(count: int) -> int:
    return 1 if count else 0


class JoinPlan:
    """A builder of the operators of one join.

    Parameters
    ----------
    on : str, Column, or list of them
    kind : {"inner", "left", "right", "full", "semi", "anti"}
    near : IntervalBounds, optional
        A condition in addition to the equality of the columns in `on`, which are names then.
    """

    #: The two sides; in a full join with the key in the common type of both.
    sides: tuple[Collection, Collection]
    #: The columns that `on` names, as each side has them.
    using: tuple[list[str], list[str]]
    #: The two nodes with the columns of their keys, and these columns.
    nodes: tuple[Node, Node]
    keys: tuple[list[str], list[str]]

    def __init__(
        self, left: Collection, right: Collection, on: Any, kind: str,
        near: IntervalBounds | None = None,
    ):
        self.sides = (left, right)
        self.on, self.kind, self.near = on, kind, near
        listed = list(on) if isinstance(on, (list, tuple)) else [on]
        named = [isinstance(o, str) for o in listed]
        if not listed and near is None or listed and any(named) != all(named) or not all(
            isinstance(o, (str, Column)) for o in listed
        ):
            raise SchemaError(
                f"`on` must be one or more column names, or a condition; it is {on!r}"
            )
        self.using = ([], [])
        self.residual: tuple[Column, ...] = ()
        self.null_safe = False
        #: Pairs of inputs of two joins that split the matches between them, each match being in
        #: exactly one. For a comparison: surely larger or smaller values, and near values. For
        #: intervals: the side that begins first.
        self.ways: list[tuple[Node, Node]] = []
        #: Whether ranges find the records of hot keys, which so lie in many buckets.
        self.in_ranges = False
        #: For each way a condition that filters its pairs; empty if there is none.
        self.asked: list[Column] = []
        if all(named):
            self._by_names(listed)
        else:
            self._by_condition(listed)
        for node, key in zip(self.nodes, self.keys):
            node.schema.check_compared(key, "join")

    def _by_names(self, names: list[str]) -> None:
        left, right = self.sides
        self.using = self.keys = (
            [left.column_name(name, "on the left side") for name in names],
            [right.column_name(name, "on the right side") for name in names],
        )
        if len(set(self.using[0])) < len(names):
            raise SchemaError(
                f"join was given a column twice in `on`: {', '.join(names)}; name each once"
            )
        self.nodes = (left.node, right.node)
        ours, theirs = (
            [without_nullability(node.schema.struct[name].dataType) for name in key]
            for node, key in zip(self.nodes, self.using)
        )
        same = ours == theirs
        if same and self.near is None:
            return
        left, right = (
            replace(side, resolver=Resolver.plain(side.node.schema.names).named(alias))
            for side, alias in zip(self.sides, "lr")
        )
        on = [F.col("l." + quoted(a)) == F.col("r." + quoted(b)) for a, b in zip(*self.using)]
        if self.near is not None:
            on += self.near.conditions(*self.sides)
        condition = self._parse(left, right, on)
        self.residual = condition.residual
        if self.kind == "full" and not same:
            # The key may come from either side, so it has the common type.
            whole = (
                with_replaced(left, self.using[0], condition.left),
                with_replaced(right, self.using[1], condition.right),
            )
            left, right = (
                side.derived(node, resolver=side.resolver)
                for side, node in zip(self.sides, whole)
            )
            self.sides = (left, right)
            self._by_names(names)

    def _by_condition(self, on: list[Column]) -> None:
        condition = self._parse(*self.sides, on)
        if not self.keys[0]:
            raise SchemaError(
                "the condition has no equality between a column of the left side and one of the "
                "right side. It also has no comparison or band of numbers, texts, dates or "
                "timestamps of both, so there is nothing to find matches by. "
                + self._without_matches()
            )
        self.null_safe = any(condition.null_safe)
        self.residual = condition.residual

    def _without_matches(self) -> str:
        """The remedy for a condition that finds no matches, for this kind of join."""
        pairs = 'pairs = a.crossJoin(b.hint("broadcast")).where(condition)'
        if self.kind == "inner":
            return f"For all pairs with a small collection use {pairs}"
        recipe = (
            f"Take {pairs}.select(*[a[n] for n in a.columns]).distinct(), b being small, and then "
            "a.join(pairs, [a[n].eqNullSafe(pairs[n]) for n in a.columns], "
        )
        if self.kind in ("semi", "anti"):
            not_in = "; for NOT IN see the notes of join" if self.kind == "anti" else ""
            return f'{recipe}"left_{self.kind}"){not_in}'
        return (
            f'{recipe}"left_anti") has the records without a match; add them to all pairs with '
            "unionByName(..., allowMissingColumns=True)"
        )

    def _parse(self, left: Collection, right: Collection, on: list[Column]) -> Condition:
        """Parse the condition of a join, and set the nodes and the keys that it needs."""
        condition = parse_condition(left.template(), right.template(), on).unmixed()
        ours, our_key = with_keys(left, condition.left)
        theirs, their_key = with_keys(right, condition.right)
        self.nodes, self.keys = (ours, theirs), (our_key, their_key)
        interval = condition.interval
        # A key has few records unless a hint says that some keys have many. Then ranges within the
        # key find the matches, at the price of some records for each record.
        hot = any(
            side.hot is not None and set(side.hot.columns) <= set(known or key)
            for side, known, key in zip((left, right), self.using, self.keys)
        )
        whole = interval is not None and interval.lower is not None and interval.upper is not None
        self.in_ranges = hot and (whole or condition.overlap is not None)
        if condition.overlap is not None and (hot or not our_key):
            self._find_overlapping((left, right), condition.overlap)
        elif interval is not None and (
            interval.length is not None or not our_key or self.in_ranges
        ):
            self._find_within((left, right), interval)
        return condition

    def _find_overlapping(
        self, sides: tuple[Collection, Collection], overlap: Overlap
    ) -> None:
        """Find matches by the blocks of two intervals: either the right side's interval begins
        within the left side's, or the left side's begins later, within the right side's."""
        nodes, ends = list(self.nodes), []
        for number, (side, wanted) in enumerate(zip(sides, (overlap.left, overlap.right))):
            whole = replace(side, node=nodes[number])
            nodes[number], names = with_keys(whole, wanted)
            ends.append(names)
        block = unused("block", [name for node in nodes for name in node.schema.names])
        self.keys = [*self.keys[0], block], [*self.keys[1], block]
        for at in (1, 0):
            pair = list(nodes)
            pair[at] = with_block(nodes[at], OfValue(block, None, ends[at][0]))
            pair[1 - at] = with_block(nodes[1 - at], OfInterval(block, None, *ends[1 - at]))
            self.ways.append((pair[0], pair[1]))
        self.nodes = self.ways[0]
        (ours, _), (theirs, _) = overlap.left, overlap.right
        self.asked = [theirs >= ours, ours > theirs]

    def _find_within(self, sides: tuple[Collection, Collection], interval: Interval) -> None:
        """Find matches by the blocks of an interval, in addition to the key."""
        at = interval.side
        ends = [end for end in (interval.lower, interval.upper) if end is not None]
        nodes, keys = list(self.nodes), [list(key) for key in self.keys]
        key_names: list[list[str]] = []
        for side, wanted in ((at, [interval.value]), (1 - at, ends)):
            # This collection keeps the columns of its handles, which a derived one would lose.
            whole = replace(sides[side], node=nodes[side])
            nodes[side], names = with_keys(whole, wanted)
            key_names.append(names)
        (value,), others = key_names
        block = unused("block", [name for node in nodes for name in node.schema.names])
        self.keys = keys[0] + [block], keys[1] + [block]
        if len(ends) == 2:
            nodes[at] = with_block(nodes[at], OfValue(block, interval.length, value))
            nodes[1 - at] = with_block(nodes[1 - at], OfInterval(block, interval.length, *others))
            self.nodes = nodes[0], nodes[1]
            return
        # The side whose records have many blocks should have few records.
        larger = interval.lower is not None
        (end,) = others
        if sides[at].small:
            at, larger, value, end = 1 - at, not larger, end, value
        ours = ranges.with_blocks(nodes[at], ranges.Within(block, value, None))
        for stage in (ranges.Beyond(block, end, None, larger), ranges.Near(block, end, None)):
            theirs = ranges.with_blocks(nodes[1 - at], stage)
            self.ways.append((theirs, ours) if at else (ours, theirs))
        self.nodes = self.ways[0]

    def joined(self, *, in_place: bool = False) -> Collection:
        """The collection of the join.

        Parameters
        ----------
        in_place : bool
            Whether a semi or anti join by names leaves the columns in their order. PySpark puts the
            columns of the key first.
        """
        left, right = self.sides
        if self.kind in ("semi", "anti"):
            node = self._matched(0, anti=self.kind == "anti")
            entries = left.resolver.entries
            first = [] if in_place else self.using[0]
            ordered = [e for name in first for e in entries if e.internal == name]
            ordered += [e for e in entries if e.internal not in first]
            if ordered != list(entries):
                node = pick("select", node, [(e.internal, e.internal) for e in ordered])
            return left.derived(node, resolver=left.resolver.restricted(ordered))
        resolver = self._resolver()
        parts: list[Node] = [self._inner(resolver)]
        parts += [self._padded(resolver, 0)] if self.kind in ("left", "full") else []
        parts += [self._padded(resolver, 1)] if self.kind in ("right", "full") else []
        return left.derived(parts[0] if len(parts) == 1 else Concat(parts), resolver=resolver)

    def _resolver(self) -> Resolver:
        """The columns of the join. A key that occurs once has the lineage of each side whose values
        it has."""
        left, right = self.sides
        # As in PySpark, the key takes its name from the side that all its rows come from.
        named_by = {"right": 1, "full": None}.get(self.kind, 0)
        resolver = left.resolver.joined_with(right.resolver, *self.using, named_by=named_by)
        entries = list(resolver.entries)
        for number, (ours, theirs) in enumerate(zip(*self.using)):
            lineages = [left.resolver.lineage(ours), right.resolver.lineage(theirs)]
            kinds = {
                side.node.schema.struct[name].dataType.simpleString()
                for side, name in zip(self.sides, (ours, theirs))
            }
            # Equal numbers may differ, as 0.0 and -0.0.
            same = len(kinds) == 1 and kinds <= _EXACT
            sources = {
                "left": lineages[:1], "right": lineages[1:], "full": [],
                "inner": lineages if same else lineages[:1],
            }[self.kind]
            handles = [handle for lineage in sources for handle in lineage or ()]
            entries[number] = entries[number]._replace(lineage=lineage_of(handles))
        return replace(resolver, entries=tuple(entries))

    def _inner(self, resolver: Resolver) -> Node:
        ways = [self._joined(resolver, nodes) for nodes in self.ways or [self.nodes]]
        for number, condition in enumerate(self.asked):
            derived = self.sides[0].derived(ways[number], resolver=resolver)
            ways[number] = filtered(derived, condition).node
        pairs = ways[0] if len(ways) == 1 else Concat(ways)
        if self.residual:
            matches = self.sides[0].derived(pairs, resolver=resolver)
            if self.near is not None:
                # Its condition uses the aliases l and r and not the user's names.
                resolver = Resolver(tuple(
                    ColumnEntry("lr"[o.side], o.source, o.internal) for o in resolver.sources
                ))
            for condition in self.residual:
                matches = filtered(replace(matches, resolver=resolver), condition)
            pairs = matches.node
        return pairs

    def _joined(self, resolver: Resolver, pair: tuple[Node, Node]) -> Node:
        side, hot, name = self._spread()
        nodes, added = list(pair), []
        if hot is not None:
            names = tuple(nodes[side].schema.names)
            nodes[side] = salt(nodes[side], name, names, hot[side])
            nodes[1 - side] = replicate(nodes[1 - side], name, hot[1 - side])
            added = [name]
        ours, theirs = (
            arrange_by_key(node, [*key, *added]) for node, key in zip(nodes, self.keys)
        )
        renamed = dict(zip(*self.using)) if self.kind == "right" else {}
        columns = [
            (1, renamed[o.source], o.internal) if o.side == 0 and o.source in renamed
            else (o.side, o.source, o.internal)
            for o in resolver.sources
        ]
        return join(ours, theirs, columns, null_safe=self.null_safe)

    def _spread(self, only: int | None = None) -> tuple[int, tuple[Hot, Hot] | None, str]:
        """The side whose hot keys are spread over the buckets, the hot keys of either side, and a
        name for the salt. The keys are None if no side has hot keys.

        Parameters
        ----------
        only : int, optional
            The only side with keys that may be spread.
        """
        name = unused("salt", [n for node in self.nodes for n in node.schema.names])
        if self.in_ranges:
            return 0, None, name
        for side in (0, 1) if only is None else (only,):
            hot = self.sides[side].hot
            known = self.using[side] or self.keys[side]
            if hot is not None and set(hot.columns) <= set(known):
                at = [known.index(column) for column in hot.columns]
                ours, theirs = (tuple(key[i] for i in at) for key in self.keys)
                compared = self._as_compared(hot, side, (ours, theirs)[side])
                if compared is not None:
                    return side, (compared.named(ours), compared.named(theirs)), name
        return 0, None, name

    def _as_compared(self, hot: Hot, side: int, key: tuple[str, ...]) -> Hot | None:
        """Hot keys in the types of the comparison between the two sides; None if only Spark can
        convert the values, as dates in a time zone."""
        own, compared = self.sides[side].node.schema.struct, self.nodes[side].schema.struct
        keys = [list(values) for values in hot.keys]
        for position, names in enumerate(zip(hot.columns, key)):
            before, after = (
                without_nullability(struct[name].dataType)
                for struct, name in zip((own, compared), names)
            )
            if before == after or not keys:
                continue
            if not isinstance(before, T.IntegralType):
                return None
            try:
                for values in keys:
                    values[position] = pa.scalar(values[position], arrow_type(after)).as_py()
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                return None
        return replace(hot, keys=tuple(map(tuple, keys)))

    def _padded(self, resolver: Resolver, side: int) -> Node:
        """The records of one side without a match, with nulls for the other side's columns."""
        renamed = dict(zip(*self.using)) if side == 1 else {}
        names: list[tuple[str | None, T.StructField]] = []
        for origin in resolver.sources:
            kind = self.sides[origin.side].node.schema.struct[origin.source].dataType
            source: str | None = origin.source if origin.side == side else None
            if origin.side == 0 and origin.source in renamed:
                source = renamed[origin.source]
                kind = self.sides[1].node.schema.struct[source].dataType
            names.append((source, T.StructField(origin.internal, without_nullability(kind))))
        return pad(self._matched(side, anti=True), names)

    def _matched(self, side: int, *, anti: bool) -> Node:
        """The records of one side that have a match on the other, or that have none."""
        whole = self.sides[side]
        if not self.residual:
            records, key = self.nodes[side], self.keys[side]
            matches = _distinct(self.nodes[1 - side], self.keys[1 - side])
            _, hot, name = self._spread(side)
            if hot is not None:
                records = salt(records, name, tuple(records.schema.names), hot[side])
                key = [*key, name]
                matches = arrange_by_self(replicate(matches, name, hot[1 - side]))
            result = semijoin(
                arrange_by_key(records, key), matches, anti=anti, null_safe=self.null_safe
            )
            # The computed columns of the key are dropped.
            return pick("select", result, [(name, name) for name in whole.node.schema.names])
        # If a match needs more than the key, whole records are looked up among the matched records.
        records = threshold(whole.node, _present, by_bytes=True)
        once = replace(whole, node=records, small=False, key=None)
        left, right = (once, self.sides[1]) if side == 0 else (self.sides[0], once)
        resolver = left.resolver.joined_with(right.resolver)
        pairs = JoinPlan(left, right, self.on, "inner", self.near)._inner(resolver)
        ours = [(o.internal, o.source) for o in resolver.sources if o.side == side]
        keys = _distinct(pick("select", pairs, ours), [name for _, name in ours])
        return semijoin(arrange_by_self(whole.node), keys, anti=anti, null_safe=True)


def _distinct(source: Node, key: Sequence[str]) -> Arranged:
    """The distinct keys of a collection, arranged."""
    keys = pick("select", source, [(name, name) for name in key])
    node = threshold(keys, None, by_bytes=True)  # the types of the keys were checked
    return over_arrangement(node, arrange_by_self(keys), arranged=True)
