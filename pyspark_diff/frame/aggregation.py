"""The plan of `agg`: which operators give the aggregates that a user asks for.

Linear aggregates share one vector of sums, and those of one argument's distinct values another one.
Minima and maxima are the first and the last records of one arrangement in order, percentiles are
found at places of it, and collected lists are kept per group. Several such parts, all found by the
group, are put side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Hashable, Sequence

from pyspark.sql import types as T

from pyspark_diff.expressions.aggregate_forms import (
    RECORD,
    Argument,
    CollectedFunction,
    LinearFunction,
    OrderedFunction,
)
from pyspark_diff.expressions.aggregate_functions import Percentile
from pyspark_diff.expressions.aggregates import Aggregate
from pyspark_diff.expressions.names import unused
from pyspark_diff.kernels.results import Result
from pyspark_diff.operators.aggregate import accumulators_of, aggregate, arrange_sums
from pyspark_diff.operators.arrange import arrange_by_key, arrange_in_order
from pyspark_diff.operators.codes import coded
from pyspark_diff.operators.collate import First, Kept, Part, Places, Sums, collate
from pyspark_diff.operators.cross import salt
from pyspark_diff.operators.linear import drop_null, pick
from pyspark_diff.operators.node import Arranged, Keyed, Node
from pyspark_diff.operators.reduce import reduce
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.operators.top_k import top_k
from pyspark_diff.spark.schema import Schema


@dataclass
class _Vectors:
    """Linear aggregates of one collection: they share one vector of sums."""

    source: Node
    key: tuple[str, ...]
    columns: list[str] = field(default_factory=list)
    results: list[tuple[T.StructField, Result]] = field(default_factory=list)

    def add(
        self, function: LinearFunction, out: T.StructField, arguments: Sequence[str], exact: bool,
        *, nullable: bool = True,
    ) -> None:
        """One more result."""
        given = []
        for name in arguments:
            if name not in self.columns:
                self.columns.append(name)
            kind = self.source.schema.struct[name].dataType
            given.append(Argument(self.columns.index(name), kind, nullable=nullable))
        self.results.append(
            (out, function.result(given or [RECORD], out.dataType, exact=exact))
        )

    def part(self, side: int) -> Part:
        """The results as a part of more, that are found in this arrangement."""
        results = tuple((out.name, result) for out, result in self.results)
        return Sums(side, accumulators_of([result for _, result in results]), results)

    def arranged(self, source: Node) -> Arranged:
        """The arrangement of the vectors, over the collection or what became of it."""
        held = accumulators_of([result for _, result in self.results])
        return arrange_sums(source, self.key, self.columns, held)


class Aggregation:
    """The aggregates over one collection, being put together.

    Parameters
    ----------
    source : Node
        Columns of the key, then arguments.
    key : tuple of str
    exact : bool
        Sum floats exactly.
    """

    def __init__(self, source: Node, key: tuple[str, ...], exact: bool):
        self._source, self._key, self._exact = source, key, exact
        self._linear = _Vectors(source, key)
        #: What is read, and for each part which of it and how.
        self._sides: list[Arranged | _Vectors] = [self._linear]
        self._parts: list[tuple[int, Callable[[int], Part]]] = [(0, self._linear.part)]
        #: For each output column its part (0 is the linear one), name, default and field.
        self._outputs: list[tuple[int, str, Any, T.StructField]] = []
        #: Values of records, by the columns that they are.
        self._nodes: dict[Hashable, Node] = {}
        #: By what they are made of, the numbers of sides and of parts that others may share.
        self._known: dict[Hashable, int] = {}

    def add(self, found: Aggregate, arguments: Sequence[str]) -> None:
        """One more output column, over columns of the source."""
        out, function = T.StructField(found.name, found.type), found.function
        part, name = 0, found.name
        if isinstance(function, OrderedFunction):
            part, name = self._ordered(function, arguments)
        elif isinstance(function, CollectedFunction):
            part, name = self._placed(function, found, arguments) or self._collected(
                function, found, arguments
            )
        elif not isinstance(function, LinearFunction):
            raise TypeError(f"{function.name} has none of the forms of an aggregate")
        elif found.distinct:
            part = self._distinct(function, out, arguments)
        else:
            self._linear.add(function, out, arguments, self._exact)
        self._outputs.append((part, name, function.empty if part else None, out))

    def node(self) -> Node:
        """The node of all aggregates together."""
        linear = self._linear
        if len(self._parts) == 1:
            return aggregate(self._source, self._key, linear.columns, linear.results)
        sides = [s if isinstance(s, Arranged) else s.arranged(self._seen(s)) for s in self._sides]
        return collate(sides, [make(side) for side, make in self._parts], self._outputs)

    def _seen(self, vectors: _Vectors) -> Node:
        """What vectors are sums over: all records, or each value of a group once."""
        source = vectors.source
        if vectors is self._linear:
            return source
        # Where values are kept by the group they are found there, each in few reads. They are not
        # kept so for this alone: all values of a large group would be in one bucket.
        kept = source.loop is None and any(
            isinstance(side, Keyed) and side.plain and side.inputs[0] is source
            for side in self._sides
        )
        return threshold(source, None, self._key if kept else None)

    def _values(
        self, arguments: Sequence[str], valid: Sequence[int] | None = None
    ) -> tuple[Node, list[str]]:
        """The key and some columns, of which those with some numbers, or all, are not null.

        They have names of their own, as one may be of the key as well.
        """
        made = [unused(f"argument{i}", self._key) for i in range(len(arguments))]
        dropped = made if valid is None else [made[i] for i in valid]
        name = (*arguments, *dropped)
        if name not in self._nodes:
            pairs = [(k, k) for k in self._key] + list(zip(arguments, made))
            self._nodes[name] = drop_null(pick("select", self._source, pairs), dropped)
        return self._nodes[name], made

    def _once(self, name: Hashable, make: Callable[[], int]) -> int:
        """The number of a side or of a part, which is made when it is asked for first."""
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]

    def _side(self, side: Arranged | _Vectors) -> int:
        self._sides.append(side)
        return len(self._sides) - 1

    def _part(self, side: int, make: Callable[[int], Part]) -> int:
        self._parts.append((side, make))
        return len(self._parts) - 1

    def _distinct(
        self, function: LinearFunction, out: T.StructField, arguments: Sequence[str]
    ) -> int:
        """The part that is linear over distinct values."""

        def make() -> int:
            found = _Vectors(self._values(arguments)[0], self._key)
            return self._part(self._side(found), found.part)

        part = self._once(("distinct", *arguments), make)
        vectors = self._sides[self._parts[part][0]]
        assert isinstance(vectors, _Vectors)
        made = self._values(arguments)[1]
        vectors.add(function, out, made, self._exact, nullable=False)
        return part

    def _ordered(
        self, function: OrderedFunction, arguments: Sequence[str]
    ) -> tuple[int, str]:
        """The part with the first of each group, and its column."""
        first = function.order[0][0]
        values, made = self._values(arguments, [first])
        # Any of several equal values is right, also of a type without an order.
        values.schema.check_compared([made[first]], "order")
        order = [(made[number], down, False) for number, down in function.order]
        back = function.from_back
        like: tuple[Hashable, ...] = (*arguments, *order)
        if not self._key:
            # All records are one group: each of many parts of it has a first, and one is the first
            # of these, so that no task has to hold all.
            salted = unused("salt", values.schema.names)
            parts = arrange_in_order(salt(values, salted), [salted], order, any_order=True)
            some = top_k(parts, 1, len(order), from_back=back)
            values = pick("select", some, [(n, n) for n in values.schema.names])
            like = (*like, back)

        def arranged() -> int:
            return self._side(self._in_order(values, order))

        side = self._once(like, arranged)
        part = self._once(("first", back, side), lambda: self._part(side, lambda s: First(s, back)))
        return part, made[0]

    def _in_order(self, values: Node, order: Sequence[tuple[str, bool, bool]]) -> Arranged:
        """The values of each group in order: numbers are so in any case, for others to read too."""
        others = [n for n in values.schema.names if n not in self._key]
        if self._key and len(order) == len(others) == 1 and not order[0][1]:
            if values.schema.layout(others).exact:
                return arrange_by_key(values, self._key)
        return arrange_in_order(values, self._key, order, any_order=True)

    def _placed(
        self, function: CollectedFunction, found: Aggregate, arguments: Sequence[str]
    ) -> tuple[int, str] | None:
        """The part with what is made of values at places in order, and its column; None for what is
        made of all values."""
        if not isinstance(function, Percentile):
            return None
        values, (value,) = self._values(arguments)
        wanted = function.quantiles(values.schema.struct[value].dataType, found.type)
        if wanted is None:
            return None

        def arranged() -> int:
            node = threshold(values, None) if found.distinct else values
            if not values.schema.layout([value]).exact:
                node = coded(node, value)  # else they are numbers
            return self._side(arrange_by_key(node, self._key))

        side = self._once(("places", *arguments, found.distinct), arranged)
        name = unused("value", self._key)
        return self._part(side, lambda s: Places(s, value, ((name, wanted),))), name

    def _collected(
        self, function: CollectedFunction, found: Aggregate, arguments: Sequence[str]
    ) -> tuple[int, str]:
        """The part with a function of all values of each group, and its column."""
        values = self._values(arguments, [0])[0]
        if found.distinct:
            values = threshold(values, None)
        name = unused("value", self._key)
        out = T.StructField(name, found.type)
        # An accumulation below zero comes from the input, and is told where that is read.
        lists = reduce(
            arrange_by_key(values, self._key), function, Schema(T.StructType([out])),
            form="rows", diff="diff", allow_negative=True,
        )
        return self._part(self._side(lists), Kept), name
