"""The plan of `agg`: which operators give the aggregates that a user asks for.

Linear aggregates share one vector of sums. Minima and maxima are the first records of an
arrangement in order, distinct aggregates are linear over distinct values, and collected lists are
kept per group. Several such parts, all arranged by the group, are put side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError, UnsupportedTypeError
from pyspark_diff.expressions.aggregates import Aggregate
from pyspark_diff.expressions.names import unused
from pyspark_diff.operators.aggregate import Formula, aggregate, formula
from pyspark_diff.operators.arrange import arrange_by_key, arrange_in_order
from pyspark_diff.operators.collate import collate
from pyspark_diff.operators.cross import salt
from pyspark_diff.operators.linear import drop_null, pick
from pyspark_diff.operators.node import Arranged, Node
from pyspark_diff.operators.reduce import reduce
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.operators.top_k import top_k
from pyspark_diff.spark.schema import Schema

_LINEAR = frozenset(
    "count count_if sum avg bool_and bool_or var_samp var_pop stddev_samp stddev_pop".split()
)
#: Variances are computed in doubles of everything but whole numbers, as Spark does of all.
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


def collected_list(key: Any, values: list[tuple[tuple[Any, ...], int]]) -> list[tuple[Any]]:
    """All values, in order, each as often as it occurs."""
    return [([v for (v,), count in values for _ in range(count)],)]


def collected_set(key: Any, values: list[tuple[tuple[Any, ...], int]]) -> list[tuple[Any]]:
    """All values, in order, each once."""
    return [([v for (v,), count in values if count > 0],)]


def arguments_of(found: Aggregate, argument_types: Sequence[T.DataType]) -> list[Column]:
    """The expressions to evaluate for an aggregate: for some others than those it names."""
    if found.function == "count" and len(found.arguments) > 1 and not found.distinct:
        # Rows in which none is null.
        condition = F.lit(True)
        for argument in found.arguments:
            condition = condition & argument.isNotNull()
        return [F.when(condition, True)]
    if found.function.startswith(("var_", "stddev_")) and not isinstance(
        argument_types[0], (*_WHOLE, T.FloatType, T.DoubleType)
    ):
        return [found.arguments[0].cast("double")]
    return list(found.arguments)


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
    _linear: list[tuple[T.StructField, Formula]] = field(default_factory=list)
    _columns: list[str] = field(default_factory=list)
    _parts: list[Arranged] = field(default_factory=list)
    #: For each output column its part (0 is the linear one), name, default and field.
    _outputs: list[tuple[int, str, Any, T.StructField]] = field(default_factory=list)

    def add(self, found: Aggregate, arguments: Sequence[str]) -> None:
        """One more output column, over columns of the source."""
        out = T.StructField(found.name, found.type)
        kinds = [self.source.schema.struct[name].dataType for name in arguments]
        if found.function in _LINEAR and not found.distinct:
            self._linear.append((out, self._formula(found, arguments, kinds)))
            self._outputs.append((0, found.name, None, out))
            return
        part, name, default = self._part(found, list(arguments), kinds)
        self._parts.append(part)
        self._outputs.append((len(self._parts), name, default, out))

    def node(self) -> Node:
        """The node of all aggregates together."""
        alone = not self._parts
        first = aggregate(
            self.source, self.key, self._columns, self._linear, arranged=not alone
        )
        return first if alone else collate([first, *self._parts], self._outputs)

    def _formula(
        self, found: Aggregate, arguments: Sequence[str], kinds: Sequence[T.DataType]
    ) -> Formula:
        if not arguments:
            return formula("count", None, -1, found.type)
        _check_summable(found, kinds[0])
        if arguments[0] not in self._columns:
            self._columns.append(arguments[0])
        number = self._columns.index(arguments[0])
        return formula(found.function, kinds[0], number, found.type, exact=self.exact)

    def _part(
        self, found: Aggregate, arguments: list[str], kinds: list[T.DataType]
    ) -> tuple[Arranged, str, Any]:
        """An arranged part: its node, its column, and what stands where a group has no row."""
        # Under names of its own, since an argument may be a column of the key as well.
        made = [unused(f"argument{i}", self.key) for i in range(len(arguments))]
        pairs = [(k, k) for k in self.key] + list(zip(arguments, made))
        values = pick("select", self.source, pairs)
        name = unused("value", self.key)
        if found.distinct:
            once = threshold(drop_null(values, made), None)
            default = 0 if found.function == "count" else None
            if found.function == "count":
                sums = formula("count", None, -1, found.type)
            else:
                _check_summable(found, kinds[0])
                sums = formula(found.function, kinds[0], 0, found.type, exact=self.exact)
            out = [(T.StructField(name, found.type), sums)]
            return aggregate(once, self.key, made, out, arranged=True), name, default
        if found.function in ("min", "max"):
            order = [(made[0], False, False)]
            least = self._first(drop_null(values, made), order, found.function == "max")
            return least, made[0], None
        if found.function in ("min_by", "max_by"):
            order = [(made[1], found.function == "max_by", False), (made[0], False, False)]
            return self._first(drop_null(values, made[1:]), order, False), made[0], None
        if found.function in ("collect_list", "collect_set"):
            function = collected_list if found.function == "collect_list" else collected_set
            schema = Schema(T.StructType([T.StructField(name, found.type)]))
            source = arrange_by_key(drop_null(values, made), self.key)
            # An accumulation below zero comes from the input, and is told where that is read.
            lists = reduce(
                source, function, schema, form="rows", diff="diff", allow_negative=True
            )
            return lists, name, []
        raise SchemaError(f"the aggregate {found.function} is not supported")

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


def _check_summable(found: Aggregate, kind: T.DataType) -> None:
    if found.function in ("sum", "avg") and not isinstance(
        kind, (*_WHOLE, T.DecimalType, T.FloatType, T.DoubleType)
    ):
        raise UnsupportedTypeError(
            f"{found.function} of a column of type {kind.simpleString()} is not supported; cast it "
            "to a number"
        )
