"""The plan of `agg`: which operators give the aggregates that a user asks for.

Linear aggregates share one vector of sums. Minima and maxima are the first records of an
arrangement in order, distinct aggregates are linear over distinct values, and collected lists are
kept per group. Several such parts, all arranged by the group, are put side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from pyspark.sql import types as T

from pyspark_diff.expressions.aggregate_functions import (
    RECORD,
    Argument,
    CollectedFunction,
    LinearFunction,
    OrderedFunction,
)
from pyspark_diff.expressions.aggregates import Aggregate
from pyspark_diff.expressions.names import unused
from pyspark_diff.kernels.results import Result
from pyspark_diff.operators.aggregate import aggregate
from pyspark_diff.operators.arrange import arrange_by_key, arrange_in_order
from pyspark_diff.operators.collate import collate
from pyspark_diff.operators.cross import salt
from pyspark_diff.operators.linear import drop_null, pick
from pyspark_diff.operators.node import Arranged, Node
from pyspark_diff.operators.reduce import reduce
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.operators.top_k import top_k
from pyspark_diff.spark.schema import Schema


@dataclass
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

    source: Node
    key: tuple[str, ...]
    exact: bool
    _results: list[tuple[T.StructField, Result]] = field(default_factory=list)
    _columns: list[str] = field(default_factory=list)
    _parts: list[Arranged] = field(default_factory=list)
    #: For each output column its part (0 is the linear one), name, default and field.
    _outputs: list[tuple[int, str, Any, T.StructField]] = field(default_factory=list)

    def add(self, found: Aggregate, arguments: Sequence[str]) -> None:
        """One more output column, over columns of the source."""
        out = T.StructField(found.name, found.type)
        if isinstance(found.function, LinearFunction) and not found.distinct:
            result = found.function.result(
                self._argument(arguments), found.type, exact=self.exact
            )
            self._results.append((out, result))
            self._outputs.append((0, found.name, None, out))
            return
        part, name = self._part(found, arguments)
        self._parts.append(part)
        self._outputs.append((len(self._parts), name, found.function.empty, out))

    def node(self) -> Node:
        """The node of all aggregates together."""
        alone = not self._parts
        first = aggregate(
            self.source, self.key, self._columns, self._results, arranged=not alone
        )
        return first if alone else collate([first, *self._parts], self._outputs)

    def _argument(self, arguments: Sequence[str]) -> Argument:
        if not arguments:
            return RECORD
        name = arguments[0]
        if name not in self._columns:
            self._columns.append(name)
        return Argument(self._columns.index(name), self.source.schema.struct[name].dataType)

    def _part(self, found: Aggregate, arguments: Sequence[str]) -> tuple[Arranged, str]:
        """An arranged part, and its column."""
        # Under names of its own, since an argument may be a column of the key as well.
        made = [unused(f"argument{i}", self.key) for i in range(len(arguments))]
        pairs = [(k, k) for k in self.key] + list(zip(arguments, made))
        values: Node = pick("select", self.source, pairs)
        function = found.function
        if isinstance(function, OrderedFunction):
            order = [(made[number], down, False) for number, down in function.order]
            values = drop_null(values, [order[0][0]])
            return self._first(values, order, function.from_back), made[0]
        name = unused("value", self.key)
        out = T.StructField(name, found.type)
        values = drop_null(values, made)
        if found.distinct:
            values = threshold(values, None)
        if isinstance(function, LinearFunction):
            argument = Argument(0, values.schema.struct[made[0]].dataType, nullable=False)
            result = function.result(argument, found.type, exact=self.exact)
            return aggregate(values, self.key, made, [(out, result)], arranged=True), name
        if isinstance(function, CollectedFunction):
            # An accumulation below zero comes from the input, and is told where that is read.
            lists = reduce(
                arrange_by_key(values, self.key), function, Schema(T.StructType([out])),
                form="rows", diff="diff", allow_negative=True,
            )
            return lists, name
        raise TypeError(f"{function.name} has none of the forms of an aggregate")

    def _first(
        self, values: Node, order: list[tuple[str, bool, bool]], from_back: bool
    ) -> Arranged:
        """The first record of each group, as a part."""
        if not self.key:
            # All records are one group: each of many parts of it has a first, and one is the first
            # of these, so that no task has to hold all.
            name = unused("salt", values.schema.names)
            parts = arrange_in_order(salt(values, name), [name], order)
            some = top_k(parts, 1, len(order), from_back=from_back)
            values = pick("select", some, [(n, n) for n in values.schema.names])
        source = arrange_in_order(values, self.key, order)
        return top_k(source, 1, len(order), from_back=from_back, arranged=True)
