"""The joins of `DiffFrame`.

A join is linear in each of its inputs, so a step joins what is new on each side with all of the
other, and nothing else is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.conditions import Condition, parse_condition
from pyspark_diff.expressions.names import Resolver, unused
from pyspark_diff.frame.linear_methods import LinearMethods
from pyspark_diff.operators.arrange import arrange_by_key, arrange_by_self
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.cross import replicate, salt
from pyspark_diff.operators.join import join, pad, semijoin
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Arranged, Concat, Node
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.spark.frames import quoted
from pyspark_diff.spark.schema import without_nullability

if TYPE_CHECKING:
    from pyspark_diff.frame.diffframe import DiffFrame

_HOW = {
    "inner": "inner", "cross": "cross",
    "outer": "full", "full": "full", "fullouter": "full",
    "left": "left", "leftouter": "left",
    "right": "right", "rightouter": "right",
    "semi": "semi", "leftsemi": "semi",
    "anti": "anti", "leftanti": "anti",
}


class JoinMethods(LinearMethods):
    """What `DiffFrame` inherits."""

    def join(
        self,
        other: "DiffFrame",
        on: str | Column | Sequence[str] | Sequence[Column] | None = None,
        how: str = "inner",
    ) -> "DiffFrame":
        """Pairs of matching records, as PySpark's `join`, kept up to date.

        Parameters
        ----------
        other : DiffFrame
        on : str, list of str, Column, or list of Column
            Names of columns that are on both sides and come once in the result, or a condition. A
            condition must have at least one equality between the two sides; whatever else it asks
            is checked on the pairs that this gives. Where a name is on both sides, tell them apart
            with `alias`: ``a.alias("l").join(b.alias("r"), F.col("l.x") == F.col("r.y"))``.
        how : str
            ``inner``, ``left``, ``right``, ``full``, ``left_semi``, ``left_anti``, ``cross``, and
            PySpark's other names for these.

        Raises
        ------
        SchemaError
            If columns are missing, or there is nothing to find matches by.

        Notes
        -----
        Both sides become arrangements; one that is there already (the same collection by the same
        key) is shared. A null key matches nothing. ``left_semi`` and ``left_anti`` ask whether the
        other side has a match, however many.

        Examples
        --------
        >>> a = spark.createDataFrame([(1, "a", 0, 1)], "k int, x string, time int, diff int")
        >>> b = spark.createDataFrame([(1, "b", 3, 1)], "k int, y string, time int, diff int")
        >>> a, b = DiffFrame(a), DiffFrame(b)
        >>> a.join(b, "k").to_df().collect()
        [Row(k=1, x='a', y='b', time=3, diff=1)]
        >>> for row in a.join(b, "k", "left").to_df().orderBy("time", "diff").collect():
        ...     print(*row)
        1 a None 0 1
        1 a None 3 -1
        1 a b 3 1
        """
        self._check_alike(other)
        kind = _HOW.get(how.lower().replace("_", ""))
        if kind is None:
            raise SchemaError(
                f"{how!r} is not a way to join; there are inner, left, right, full, left_semi, "
                "left_anti and cross"
            )
        if kind == "cross" or on is None:
            if on is not None:
                raise SchemaError("a cross join has no condition; leave out `on`")
            if kind not in ("cross", "inner"):
                raise SchemaError(f"a {how} join needs `on`: column names or a condition")
            return self.crossJoin(other)
        return _Join(self, other, on, kind).result()

    def crossJoin(self, other: "DiffFrame") -> "DiffFrame":  # noqa: N802
        """All pairs of records, as PySpark's `crossJoin`, with a small collection.

        Parameters
        ----------
        other : DiffFrame
            Declared small with ``other.hint("broadcast")``: it is copied to all buckets.

        Raises
        ------
        SchemaError
            If ``other`` was not declared small: each change of either side meets all of the other.

        Examples
        --------
        >>> n = DiffFrame(spark.createDataFrame([(1, 0, 1)], "n int, time int, diff int"))
        >>> m = DiffFrame(spark.createDataFrame([(2, 0, 1)], "m int, time int, diff int"))
        >>> n.crossJoin(m.hint("broadcast")).at(0).collect()
        [Row(n=1, m=2)]
        """
        self._check_alike(other)
        if not other._small:
            raise SchemaError(
                "a cross join pairs every record with every other one; declare the right side "
                'small with other.hint("broadcast"), or give `on` an equality to join by'
            )
        resolver = self._resolver.beside(other._resolver)
        name = unused("salt", [*self._node.schema.names, *other._node.schema.names])
        left = arrange_by_key(salt(self._node, name), [name])
        right = arrange_by_key(replicate(other._node, name), [name])
        columns = [(o.side, o.source, o.internal) for o in resolver.sources]
        return self._with(join(left, right, columns), resolver=resolver)

    def semijoin(self, other: "DiffFrame", on: str | Sequence[str] | None = None) -> "DiffFrame":
        """The records whose key is in another collection: ``join(other, on, "left_semi")``.

        Parameters
        ----------
        other : DiffFrame
        on : str or list of str, optional
            All columns of ``other`` if not given.

        Examples
        --------
        >>> columns = "k int, time int, diff int"
        >>> a = DiffFrame(spark.createDataFrame([(1, 0, 1), (2, 0, 1)], columns))
        >>> b = DiffFrame(spark.createDataFrame([(1, 0, 5)], columns))
        >>> a.semijoin(b).at(0).collect(), a.antijoin(b).at(0).collect()
        ([Row(k=1)], [Row(k=2)])
        """
        return self.join(other, other.columns if on is None else on, "left_semi")

    def antijoin(self, other: "DiffFrame", on: str | Sequence[str] | None = None) -> "DiffFrame":
        """The records whose key is not in another collection: ``join(other, on, "left_anti")``.

        Right whatever the multiplicities of the other side, which need not be distinct.
        """
        return self.join(other, other.columns if on is None else on, "left_anti")

    def alias(self, alias: str) -> "DiffFrame":
        """The same collection under a name that conditions and `select` can tell it by.

        Examples
        --------
        >>> e = DiffFrame(spark.createDataFrame(
        ...     [(1, 2, 0, 1), (2, 3, 0, 1)], "src int, dst int, time int, diff int"))
        >>> pairs = e.alias("a").join(e.alias("b"), F.col("a.dst") == F.col("b.src"))
        >>> pairs.select("a.src", "b.dst").at(0).collect()
        [Row(src=1, dst=3)]
        """
        return self._with(self._node, resolver=self._resolver.named(alias))

    def hint(self, name: str, *parameters: Any) -> "DiffFrame":
        """The same collection, declared small by ``hint("broadcast")``; other hints do nothing."""
        frame = self._with(self._node, resolver=self._resolver)
        frame._small = self._small or name.lower() in ("broadcast", "broadcastjoin", "mapjoin")
        return frame


def _present(count: int) -> int:
    return 1 if count else 0


class _Join:
    """One join, put together from operators."""

    def __init__(self, left: JoinMethods, right: JoinMethods, on: Any, kind: str):
        self.sides = (left, right)
        self.on, self.kind = on, kind
        listed = list(on) if isinstance(on, (list, tuple)) else [on]
        named = [isinstance(o, str) for o in listed]
        if not listed or any(named) != all(named) or not all(
            isinstance(o, (str, Column)) for o in listed
        ):
            raise SchemaError(
                f"`on` must be one or more column names, or a condition; it is {on!r}"
            )
        #: The columns that are given by name, as each side has them.
        self.using: tuple[list[str], list[str]] = ([], [])
        self.residual: tuple[Column, ...] = ()
        self.null_safe = False
        if all(named):
            self._by_names(listed)
        else:
            self._by_condition(listed)

    def _by_names(self, names: list[str]) -> None:
        self.using = tuple(  # type: ignore[assignment]
            [side._column_name(name, f"on the {which} side") for name in names]
            for side, which in zip(self.sides, ("left", "right"))
        )
        self.nodes = [side._node for side in self.sides]
        self.keys = list(self.using)
        ours, theirs = (
            [without_nullability(node.schema.struct[n].dataType) for n in key]
            for node, key in zip(self.nodes, self.using)
        )
        if ours != theirs:
            scopes = [Resolver.plain(n.schema.names).named(a) for n, a in zip(self.nodes, "lr")]
            on = [
                F.col("l." + quoted(a)) == F.col("r." + quoted(b)) for a, b in zip(*self.using)
            ]
            found = self._parse(scopes, on)
            if self.kind == "full":
                # The key may come from either side, so it has the type of both.
                self.sides = tuple(  # type: ignore[assignment]
                    side._replaced(resolver, key, expressions)
                    for side, resolver, key, expressions
                    in zip(self.sides, scopes, self.using, (found.left, found.right))
                )
                self._by_names(names)

    def _by_condition(self, on: list[Column]) -> None:
        found = self._parse([side._resolver for side in self.sides], on)
        if not found.left:
            raise SchemaError(
                "the condition has no equality between a column of the left side and one of the "
                "right side, so there is nothing to find matches by; for all pairs with a small "
                'collection use crossJoin(other.hint("broadcast")) and where(condition)'
            )
        if any(found.null_safe) and not all(found.null_safe):
            raise SchemaError(
                "equalities with == and with eqNullSafe cannot be mixed in one condition; filter "
                "the nulls out of one side instead"
            )
        self.null_safe = any(found.null_safe)
        self.residual = found.residual

    def _parse(self, scopes: Sequence[Resolver], on: list[Column]) -> Condition:
        frames = [side._template(resolver) for side, resolver in zip(self.sides, scopes)]
        found = parse_condition(frames[0], frames[1], on)
        made = [
            side._keyed(resolver, expressions)
            for side, resolver, expressions in zip(self.sides, scopes, (found.left, found.right))
        ]
        self.nodes, self.keys = [node for node, _ in made], [key for _, key in made]
        return found

    def result(self) -> "DiffFrame":
        """The frame of the join."""
        left, right = self.sides
        if self.kind in ("semi", "anti"):
            return left._with(self._matched(0, anti=self.kind == "anti"), resolver=left._resolver)
        resolver = left._resolver.beside(right._resolver, *self.using)
        parts: list[Node] = [self._inner(resolver)]
        parts += [self._padded(resolver, 0)] if self.kind in ("left", "full") else []
        parts += [self._padded(resolver, 1)] if self.kind in ("right", "full") else []
        return left._with(parts[0] if len(parts) == 1 else Concat(parts), resolver=resolver)

    def _inner(self, resolver: Resolver) -> Node:
        ours, theirs = (arrange_by_key(node, key) for node, key in zip(self.nodes, self.keys))
        renamed = dict(zip(*self.using)) if self.kind == "right" else {}
        columns = [
            (1, renamed[o.source], o.internal) if o.side == 0 and o.source in renamed
            else (o.side, o.source, o.internal)
            for o in resolver.sources
        ]
        found: Node = join(ours, theirs, columns, null_safe=self.null_safe)
        if self.residual:
            frame = self.sides[0]._with(found, resolver=resolver)
            for condition in self.residual:
                frame = frame.where(condition)
            found = frame._node
        return found

    def _padded(self, resolver: Resolver, side: int) -> Node:
        """The records of one side that have no match, with nulls for the other's columns."""
        renamed = dict(zip(*self.using)) if side == 1 else {}
        names: list[tuple[str | None, T.StructField]] = []
        for origin in resolver.sources:
            kind = self.sides[origin.side]._node.schema.struct[origin.source].dataType
            source: str | None = origin.source if origin.side == side else None
            if origin.side == 0 and origin.source in renamed:
                source = renamed[origin.source]
                kind = self.sides[1]._node.schema.struct[source].dataType
            names.append((source, T.StructField(origin.internal, without_nullability(kind))))
        return pad(self._matched(side, anti=True), names)

    def _matched(self, side: int, *, anti: bool) -> Node:
        """The records of one side that have a match on the other, or that have none."""
        node, key = self.nodes[side], self.keys[side]
        frame = self.sides[side]
        if not self.residual:
            found = semijoin(
                arrange_by_key(node, key),
                _distinct(self.nodes[1 - side], self.keys[1 - side]),
                anti=anti,
                null_safe=self.null_safe,
            )
            # Without the columns that were made to find matches by.
            return pick("select", found, [(name, name) for name in frame._node.schema.names])
        # With more to a match than the key, whole records are looked up among those that matched.
        once = frame._with(threshold(frame._node, _present), resolver=frame._resolver)
        pair = (once, self.sides[1]) if side == 0 else (self.sides[0], once)
        resolver = pair[0]._resolver.beside(pair[1]._resolver)
        pairs = _Join(pair[0], pair[1], self.on, "inner")._inner(resolver)
        ours = [(o.internal, o.source) for o in resolver.sources if o.side == side]
        keys = _distinct(pick("select", pairs, ours), [name for _, name in ours])
        return semijoin(arrange_by_self(frame._node), keys, anti=anti, null_safe=True)


def _distinct(source: Node, key: Sequence[str]) -> Arranged:
    """The distinct keys of a collection, arranged."""
    keys = pick("select", source, [(name, name) for name in key])
    node = threshold(keys, None)
    return over_arrangement(node, arrange_by_self(keys), arranged=True)
