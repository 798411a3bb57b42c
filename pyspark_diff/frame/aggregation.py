"""The plan of `agg`: the operators that compute the aggregates.

Linear aggregates share one vector of sums, and aggregates of one argument's distinct values share
another one. Minima and maxima are the first and the last records of one arrangement in order. A
search finds percentiles at their places in it. Collected lists are kept per group. The operator
`collate` looks the group up in every part and puts the results side by side.
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
from pyspark_diff.expressions.aggregates import AggregateColumn
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
        """Add a result."""
        terms = []
        for name in arguments:
            if name not in self.columns:
                self.columns.append(name)
            kind = self.source.schema.struct[name].dataType
            terms.append(Argument(self.columns.index(name), kind, nullable=nullable))
        self.results.append(
            (out, function.result(terms or [RECORD], out.dataType, exact=exact))
        )

    def part(self, side: int) -> Part:
        """The results as one part of several, read from this arrangement."""
        results = tuple((out.name, result) for out, result in self.results)
        return Sums(side, accumulators_of([result for _, result in results]), results)

    def arranged(self, source: Node) -> Arranged:
        """The arrangement of the vectors, over the collection or its distinct values."""
        accumulators = accumulators_of([result for _, result in self.results])
        return arrange_sums(source, self.key, self.columns, accumulators)


class Aggregation:
    """A builder of the aggregates over one collection.

    Parameters
    ----------
    source : Node
        Columns of the key, then arguments.
    exact : bool
        Sum floats exactly.
    """

    def __init__(self, source: Node, key: tuple[str, ...], exact: bool):
        self._source, self._key, self._exact = source, key, exact
        self._linear = _Vectors(source, key)
        #: The arrangements that are read, and for each part the number of its arrangement and its
        #: maker.
        self._sides: list[Arranged | _Vectors] = [self._linear]
        self._parts: list[tuple[int, Callable[[int], Part]]] = [(0, self._linear.part)]
        #: For each output column its part (0 is the linear part), name, default and field.
        self._outputs: list[tuple[int, str, Any, T.StructField]] = []
        #: Nodes of values, by their columns.
        self._nodes: dict[Hashable, Node] = {}
        #: The numbers of sides and parts that aggregates may share, by their sources.
        self._known: dict[Hashable, int] = {}

    def add(self, wanted: AggregateColumn, arguments: Sequence[str]) -> None:
        """Add an output column, computed from columns of the source."""
        out, function = T.StructField(wanted.name, wanted.type), wanted.function
        part, name = 0, wanted.name
        if isinstance(function, OrderedFunction):
            part, name = self._ordered(function, arguments)
        elif isinstance(function, CollectedFunction):
            part, name = self._placed(function, wanted, arguments) or self._collected(
                function, wanted, arguments
            )
        elif not isinstance(function, LinearFunction):
            raise TypeError(f"{function.name} has none of the forms of an aggregate")
        elif wanted.distinct:
            part = self._distinct(function, out, arguments)
        else:
            self._linear.add(function, out, arguments, self._exact)
        self._outputs.append((part, name, function.empty if part else None, out))

    def node(self) -> Node:
        """The node of all aggregates together."""
        linear = self._linear
        if len(self._parts) == 1:
            return aggregate(self._source, self._key, linear.columns, linear.results)
        sides = [s if isinstance(s, Arranged) else s.arranged(self._summed(s)) for s in self._sides]
        return collate(sides, [make(side) for side, make in self._parts], self._outputs)

    def _summed(self, vectors: _Vectors) -> Node:
        """The records that vectors sum: all records, or each distinct value of a group once."""
        source = vectors.source
        if vectors is self._linear:
            return source
        # If an operator arranges the values by group already, the distinct values are read from
        # that arrangement. Otherwise they are arranged by whole record: an arrangement by group
        # would put all values of a large group into one bucket.
        arranged_by_group = source.loop is None and any(
            isinstance(side, Keyed) and side.plain and side.inputs[0] is source
            for side in self._sides
        )
        return threshold(source, None, self._key if arranged_by_group else None)

    def _values(
        self, arguments: Sequence[str], valid: Sequence[int] | None = None
    ) -> tuple[Node, list[str]]:
        """The key and some columns, without the records that have a null in any column listed in
        `valid`.

        The columns get new names, as a column of the key may be an argument as well.
        """
        renamed = [unused(f"argument{i}", self._key) for i in range(len(arguments))]
        dropped = renamed if valid is None else [renamed[i] for i in valid]
        name = (*arguments, *dropped)
        if name not in self._nodes:
            pairs = [(k, k) for k in self._key] + list(zip(arguments, renamed))
            self._nodes[name] = drop_null(pick("select", self._source, pairs), dropped)
        return self._nodes[name], renamed

    def _once(self, name: Hashable, make: Callable[[], int]) -> int:
        """The number of a side or of a part, which the first call for its name makes."""
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
        """Add a result to the part that is linear over distinct values, and return that part."""

        def make() -> int:
            vectors = _Vectors(self._values(arguments)[0], self._key)
            return self._part(self._side(vectors), vectors.part)

        part = self._once(("distinct", *arguments), make)
        vectors = self._sides[self._parts[part][0]]
        assert isinstance(vectors, _Vectors)
        renamed = self._values(arguments)[1]
        vectors.add(function, out, renamed, self._exact, nullable=False)
        return part

    def _ordered(
        self, function: OrderedFunction, arguments: Sequence[str]
    ) -> tuple[int, str]:
        """The part with the first value of each group, and its column."""
        first = function.order[0][0]
        values, renamed = self._values(arguments, [first])
        # Any of several equal values is right, also of a type without an order.
        values.schema.check_compared([renamed[first]], "order")
        order = [(renamed[number], down, False) for number, down in function.order]
        back = function.from_back
        like: tuple[Hashable, ...] = (*arguments, *order)
        if not self._key:
            # All records are one group. The operators find the first record of many parts, then the
            # first record among these results, so that no task has to hold all records.
            salted = unused("salt", values.schema.names)
            parts = arrange_in_order(salt(values, salted), [salted], order, any_order=True)
            some = top_k(parts, 1, len(order), from_back=back)
            values = pick("select", some, [(n, n) for n in values.schema.names])
            like = (*like, back)

        def arranged() -> int:
            return self._side(self._in_order(values, order))

        side = self._once(like, arranged)
        part = self._once(("first", back, side), lambda: self._part(side, lambda s: First(s, back)))
        return part, renamed[0]

    def _in_order(self, values: Node, order: Sequence[tuple[str, bool, bool]]) -> Arranged:
        """The values of each group in order. Numbers use the arrangement by key, which has that
        order anyway and which other operators can share."""
        others = [n for n in values.schema.names if n not in self._key]
        if self._key and len(order) == len(others) == 1 and not order[0][1]:
            if values.schema.layout(others).exact:
                return arrange_by_key(values, self._key)
        return arrange_in_order(values, self._key, order, any_order=True)

    def _placed(
        self, function: CollectedFunction, wanted: AggregateColumn, arguments: Sequence[str]
    ) -> tuple[int, str] | None:
        """The part that is computed from values at places in order, and its column; None if the
        function needs all values."""
        if not isinstance(function, Percentile):
            return None
        values, (value,) = self._values(arguments)
        quantiles = function.quantiles(values.schema.struct[value].dataType, wanted.type)
        if quantiles is None:
            return None

        def arranged() -> int:
            node = threshold(values, None) if wanted.distinct else values
            if not values.schema.layout([value]).exact:
                node = coded(node, value)  # else they are numbers
            return self._side(arrange_by_key(node, self._key))

        side = self._once(("places", *arguments, wanted.distinct), arranged)
        name = unused("value", self._key)
        return self._part(side, lambda s: Places(s, value, ((name, quantiles),))), name

    def _collected(
        self, function: CollectedFunction, wanted: AggregateColumn, arguments: Sequence[str]
    ) -> tuple[int, str]:
        """The part that is computed from all values of each group, and its column."""
        values = self._values(arguments, [0])[0]
        if wanted.distinct:
            values = threshold(values, None)
        name = unused("value", self._key)
        out = T.StructField(name, wanted.type)
        # An accumulation below zero comes from the input; the operator that reads the input reports
        # it.
        lists = reduce(
            arrange_by_key(values, self._key), function, Schema(T.StructType([out])),
            form="rows", diff="diff", allow_negative=True,
        )
        return self._part(self._side(lists), Kept), name
