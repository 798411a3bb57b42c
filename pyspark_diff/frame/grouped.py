"""Grouped collections: what `DiffFrame.groupBy` gives, as PySpark's `GroupedData`."""

from __future__ import annotations

from typing import Any, Callable, Generic, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregates import Aggregate, parse_aggregates
from pyspark_diff.expressions.names import Resolver, unused
from pyspark_diff.frame.aggregation import Aggregation
from pyspark_diff.frame.base import FrameT
from pyspark_diff.frame.keys import reduced
from pyspark_diff.frame.row_wise import computed, plain_column
from pyspark_diff.operators.arrange import arrange_by_key
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.join import semijoin
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Concat, Constant, Node
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import Schema, check_names, without_nullability

_NUMBERS = (T.NumericType,)


class GroupedDiff(Generic[FrameT]):
    """Groups of a collection's records. Made by `DiffFrame.groupBy`.

    Every method is lazy and returns a `DiffFrame`: the columns of the group, then the results. A
    group has a row while its records do not add up to none; null is a group like any other.
    """

    def __init__(self, frame: FrameT, cols: Sequence[str | Column]):
        self._frame = frame
        self._cols = tuple(cols)

    def __repr__(self) -> str:
        return f"GroupedDiff[by {', '.join(map(str, self._cols)) or 'nothing'}; {self._frame!r}]"

    def agg(self, *exprs: Any, empty: bool = False, exact: bool = False) -> FrameT:
        """Aggregates of each group, as PySpark's `agg`, kept up to date.

        Parameters
        ----------
        *exprs : Column or dict
            ``F.sum``, ``count``, ``count_distinct``, ``count_if``, ``avg``, ``var_*``,
            ``stddev_*``, ``min``, ``max``, ``min_by``, ``max_by``, ``bool_and``, ``bool_or``,
            ``collect_list`` and ``collect_set`` (both sorted), over any expressions; or one dict
            from column to function name. The first or last value by an order is `min_by` or
            `max_by`.
        empty : bool
            For all records as one group: whether there is a row for an empty collection.
        exact : bool
            Sum and average doubles exactly: 67 whole numbers a group and column instead of two
            doubles.

        Notes
        -----
        Counts, sums, averages and variances are *linear*: a group's state is one row of sums,
        however many records it has, and a change adds to it. Sums of whole numbers and decimals are
        exact, and one that does not fit its type is an error. Sums of doubles are kept in pairs of
        doubles, with a relative error of about 1e-31 an update: taking a value back leaves at most
        that of it behind. With ``exact=True`` nothing is left behind, and sums and averages are the
        nearest double. A sum that leaves the range of doubles is infinite, as in Spark, and finite
        again once enough is taken back, whatever came first; an average is that of what was summed,
        so it may be finite where Spark divides infinity. Variances of doubles are computed from
        such sums: where the mean is more than about 1e13 standard deviations, digits are lost.

        Minima and maxima keep the values of a group in order; a change of the largest of ten
        million costs what a change in a small group costs. Lists are kept whole: a change in a
        group costs as much as the group has distinct values.

        A record that was removed more often than it was inserted counts against the others where
        records are added up. To all else - extremes, distinct values, lists, ``bool_and`` and
        ``bool_or`` - it is absent, as to `distinct` and `top_k`: where only such records stand,
        these are null, or a count of zero, or an empty list.

        Examples
        --------
        >>> rows = [("a", 0.5, 0, 1), ("a", 1.5, 0, 1), ("b", None, 0, 1)]
        >>> frame = spark.createDataFrame(rows, "k string, x double, time int, diff int")
        >>> found = DiffFrame(frame).groupBy("k").agg(F.count("x").alias("n"), F.avg("x"))
        >>> sorted(found.at(0).collect())
        [Row(k='a', n=2, avg(x)=1.0), Row(k='b', n=0, avg(x)=None)]
        """
        if empty and self._cols:
            raise SchemaError("empty=True is for all records as one group, without groupBy")
        collection = self._frame._collection
        rows = collection.template()
        given: Any = exprs[0] if len(exprs) == 1 and isinstance(exprs[0], dict) else exprs
        found = parse_aggregates(rows, self._cols, given)
        names = rows.groupBy(*self._cols).agg(F.count("*")).columns[:-1]
        check_names([*names, *(one.name for one in found)])
        source, arguments = self._evaluated(names, found)
        plan = Aggregation(source, tuple(names), exact)
        for one, columns in zip(found, arguments):
            plan.add(one, columns)
        node = plan.node()
        if empty:
            node = _with_default(node, found)
        return self._frame._derived(node, resolver=Resolver.plain(node.schema.names))

    def _evaluated(
        self, names: Sequence[str], found: Sequence[Aggregate]
    ) -> tuple[Node, list[list[str]]]:
        """The node with the group's columns and all arguments, and the arguments' names."""
        collection = self._frame._collection
        rows = collection.template()
        keys = [F.col(c) if isinstance(c, str) and c not in collection.columns else
                column(c) if isinstance(c, str) else c for c in self._cols]
        wanted: list[tuple[str, Column]] = list(zip(names, keys))
        known: dict[str, str] = {}
        arguments: list[list[str]] = []
        for one in found:
            kinds = [rows.select(a).schema.fields[0].dataType for a in one.arguments]
            named = []
            for argument in one.function.evaluated(one.arguments, kinds, one.distinct):
                shown = str(argument)
                if shown not in known:
                    taken = [*names, *known.values()]
                    known[shown] = unused("argument", taken)
                    wanted.append((known[shown], argument))
                named.append(known[shown])
            arguments.append(named)
        plain = [(plain_column(collection, expression), name) for name, expression in wanted]
        pairs = [(old, name) for old, name in plain if old is not None]
        if len(pairs) == len(wanted):
            # Columns as they are need not be computed.
            return pick("select", collection.node, pairs), arguments
        return computed(collection, "groupBy", wanted), arguments

    def count(self) -> FrameT:
        """The number of records of each group, in a column ``count``."""
        return self.agg(F.count("*").alias("count"))

    def sum(self, *cols: str) -> FrameT:
        """Sums of columns, all numbers if none is named, as PySpark's `sum`."""
        return self._each(F.sum, cols)

    def avg(self, *cols: str) -> FrameT:
        """Averages of columns, all numbers if none is named, as PySpark's `avg`."""
        return self._each(F.avg, cols)

    mean = avg

    def min(self, *cols: str) -> FrameT:
        """Minima of columns, all numbers if none is named, as PySpark's `min`."""
        return self._each(F.min, cols)

    def max(self, *cols: str) -> FrameT:
        """Maxima of columns, all numbers if none is named, as PySpark's `max`."""
        return self._each(F.max, cols)

    def reduce(
        self,
        func: Callable[..., Any],
        schema: str | T.StructType,
        *,
        form: str = "rows",
        allow_negative: bool = False,
        check: bool = False,
    ) -> FrameT:
        """A Python function of each group's values: see `DiffFrame.reduce`."""
        names = [str(c) for c in self._cols if isinstance(c, str)]
        if len(names) < len(self._cols):
            raise SchemaError("reduce groups by columns; add expressions with withColumn first")
        return self._frame._wrap(reduced(
            self._frame._collection, func, schema, names, form=form, allow_negative=allow_negative,
            check=check,
        ))

    def _each(self, function: Callable[[Column], Column], cols: Sequence[str]) -> FrameT:
        named = [c for c in self._cols if isinstance(c, str)]
        if not cols:
            fields = self._frame.schema.fields
            cols = [
                f.name for f in fields
                if isinstance(f.dataType, _NUMBERS) and f.name not in named
            ]
        return self.agg(*[function(column(name)) for name in cols])


def _there(count: int) -> int:
    return 1 if count else 0


def _with_default(node: Node, found: Sequence[Aggregate]) -> Node:
    """The one row of all records, or SQL's row for no records."""
    values = [one.function.empty for one in found]
    schema = Schema(without_nullability(node.schema.struct))
    default = Constant(schema, node.time_type, [tuple(values)])
    nothing = pick("select", node, [])
    there = over_arrangement(
        threshold(nothing, _there), arrange_by_key(nothing, ()), arranged=True
    )
    missing = semijoin(arrange_by_key(default, ()), there, anti=True)
    return Concat([node, missing])
