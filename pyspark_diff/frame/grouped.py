"""Grouped collections: the result of `DiffFrame.groupBy`, as PySpark's `GroupedData`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Generic, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.coercion import coerce
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregates import (
    AggregateColumn,
    Combined,
    fields_of,
    identity,
    is_plain,
    parse_aggregates,
)
from pyspark_diff.expressions.analysis import suggesting
from pyspark_diff.expressions.check import changes_rows, check_row_wise
from pyspark_diff.expressions.handles import handles_in
from pyspark_diff.expressions.names import Resolver, unused
from pyspark_diff.frame.aggregation import Aggregation
from pyspark_diff.frame.base import FrameT
from pyspark_diff.frame.cogrouped import CogroupedDiff
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.computed_aggregates import computed_from_aggregates
from pyspark_diff.frame.keys import key_columns, reduced
from pyspark_diff.frame.row_wise import computed, plain_column
from pyspark_diff.frame.session_windows import with_sessions
from pyspark_diff.operators.arrange import arrange_by_key
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.join import pad, semijoin
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Concat, Constant, Node
from pyspark_diff.operators.threshold import threshold
from pyspark_diff.spark.calls import ColumnCall, Replacement
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import Schema, check_names

_NUMBERS = (T.NumericType,)
#: Types of results that Spark moves to columns of a pivot; for other types it has another plan.
_PIVOTED = (T.NumericType, T.BooleanType)

_REDUCED = (
    "reduce(func, schema, form={form}) calls a function with the records of each group whose "
    "records have changed"
)
_HINTS = {
    "applyInPandas": _REDUCED.format(form="'pandas'"),
    "apply": _REDUCED.format(form="'pandas'"),
    "applyInArrow": _REDUCED.format(form="'arrow'"),
    **dict.fromkeys(
        ["applyInPandasWithState", "transformWithState", "transformWithStateInPandas"],
        "operators keep the state of a group themselves: agg(...) or reduce(func, schema)",
    ),
}


@dataclass(frozen=True)
class _Pivot:
    """A column, and its values that become columns."""

    column: str
    values: tuple[Any, ...]


class GroupedDiff(Generic[FrameT]):
    """Groups of a collection's records. Made by `DiffFrame.groupBy`.

    Every method is lazy and returns a `DiffFrame`: the columns of the group, then the results. A
    group has a row unless the multiplicities of its records add up to zero. Null is a group like
    any other.
    """

    def __init__(
        self, frame: FrameT, cols: Sequence[str | Column],
        sets: Sequence[Sequence[int]] | None = None, pivot: _Pivot | None = None,
    ):
        self._frame = frame
        self._cols = tuple(cols)
        #: For `rollup`, `cube` and `groupingSets`: the groupings, as numbers of columns.
        self._sets = sets
        self._pivot = pivot

    def __repr__(self) -> str:
        return f"GroupedDiff[by {', '.join(map(str, self._cols)) or 'nothing'}; {self._frame!r}]"

    def agg(self, *exprs: Any, empty: bool = False, exact: bool = False) -> FrameT:
        """Aggregates of each group, as PySpark's `agg`, kept up to date.

        Parameters
        ----------
        *exprs : Column or dict
            Aggregates over any expressions, with a ``FILTER`` in SQL text, and expressions of
            aggregates such as ``F.sum("a") / F.count("b")``; or one dict from column to function
            name.

            * Sums: ``F.sum``, ``avg``, ``count``, ``count_if``, ``var_*``, ``stddev_*``,
              ``try_sum`` and ``try_avg`` (null beyond the range of the type), ``bool_and``,
              ``bool_or``, ``bit_and``, ``bit_or``, ``bit_xor``, ``skewness``, ``kurtosis``.
            * Pairs: ``corr``, ``covar_pop``, ``covar_samp``, ``regr_avgx``, ``regr_avgy``,
              ``regr_count``, ``regr_intercept``, ``regr_r2``, ``regr_slope``, ``regr_sxx``,
              ``regr_sxy``, ``regr_syy``.
            * Values in order: ``min``, ``max``, ``min_by``, ``max_by``, ``median``,
              ``percentile``, ``percentile_approx`` (exact), ``percentile_cont`` and
              ``percentile_disc`` (SQL text), ``mode`` (the least of several).
            * Distinct values: ``count_distinct``, ``approx_count_distinct`` (exact).
            * Lists: ``collect_list`` and ``collect_set`` (both sorted), ``listagg`` (in the order
              of WITHIN GROUP, else sorted).
            * Any record: ``first``, ``last`` and ``any_value`` take one record for all of them. It
              is the least by their arguments, for ``last`` the greatest. The first or last value
              by an order is `min_by` or `max_by`.
        empty : bool
            For all records as one group: whether an empty collection has a row.
        exact : bool
            Sum doubles exactly, for sums, averages, variances and functions of pairs: 67 whole
            numbers a group and column instead of two doubles. The sum of squares, and that of
            products, has 128 of them.

        Notes
        -----
        Counts, sums, averages and variances are *linear*: the state of a group is one row of sums,
        however many records it has, and a change adds to it. Sums of whole numbers and decimals are
        exact. A sum that does not fit its type is an error.

        Sums of doubles:

        * The state is a pair of doubles, with a relative error of about 1e-31 an update. A
          retraction leaves at most that error.
        * With ``exact=True`` a retraction leaves no error, and sums, averages and variances are the
          nearest double.
        * A sum beyond the range of doubles is infinite, as in Spark. It is finite again after
          enough retractions, in any order of the updates. An average divides the sum, so it may be
          finite when Spark divides infinity.
        * Variances and functions of pairs lose digits if the mean is more than about 1e13 standard
          deviations. With ``exact=True`` they lose none.
        * Skewness and kurtosis are always exact, with 399 and 663 whole numbers a group.
        * A correlation with a column of equal values divides by zero: an error in ANSI mode, as in
          Spark, else null.

        Minima and maxima keep the values of a group in order, so a change of the largest of ten
        million values costs as much as a change in a small group. Percentiles and medians are
        found by search too, but not those of decimals of more than 18 digits. Lists and modes are
        kept whole: a change costs as much as the group has distinct values.

        A record that was removed more often than it was inserted counts against the others in sums.
        It is absent for extremes, distinct values, lists, ``bool_and`` and ``bool_or``, and for
        `distinct` and `top_k`. If a group has no other records, the result is null, a count of
        zero, or an empty list.

        Examples
        --------
        >>> rows = [("a", 0.5, 0, 1), ("a", 1.5, 0, 1), ("b", None, 0, 1)]
        >>> frame = spark.createDataFrame(rows, "k string, x double, time int, diff int")
        >>> found = DiffFrame(frame).groupBy("k").agg(F.count("x").alias("n"), F.avg("x"))
        >>> sorted(found.at(0).collect())
        [Row(k='a', n=2, avg(x)=1.0), Row(k='b', n=0, avg(x)=None)]
        >>> share = F.sum("x") / F.count("*")
        >>> sorted(DiffFrame(frame).groupBy("k").agg(share.alias("share")).at(0).collect())
        [Row(k='a', share=1.0), Row(k='b', share=None)]
        """
        if empty and self._cols:
            raise SchemaError("empty=True is for all records as one group, without groupBy")
        source, (keys, exprs) = self._frame._collection.seeing((self._cols, exprs))
        source, exprs = source.spreading(exprs)
        cols = [_by_name(source, c) for c in keys]
        with suggesting(source.columns):
            if self._pivot is not None:
                groups = self._pivoted(source, cols, self._pivot, exprs, exact)
            elif self._sets is None:
                source, cols = with_sessions(source, cols, exprs)
                groups = self._grouped_once(source, cols, exprs, empty, exact)
            else:
                groups = self._several(source, cols, self._sets, exprs, exact)
        return self._frame._wrap(groups)

    def _grouped_once(
        self, source: Collection, cols: Sequence[str | Column], exprs: Any, empty: bool,
        exact: bool, outputs: Sequence[tuple[str, Column]] = (), combined: Combined | None = None,
        others: Sequence[Any] = (),
    ) -> Collection:
        """The aggregates of one grouping.

        Parameters
        ----------
        outputs, combined : optional
            The columns that are computed from aggregates, and the aggregates, if the caller has
            parsed them.
        others : optional
            Keys of other groupings for which `changes_rows` is true.
        """
        rows, shown = source.template(), source.resolver.as_shown
        names = self._names(source, cols)
        expressions: Any = exprs[0] if len(exprs) == 1 and isinstance(exprs[0], dict) else exprs
        if combined is None and not isinstance(expressions, dict) and all(
            isinstance(expression, Column) for expression in expressions
        ) and not all(map(is_plain, expressions)):
            known_as = [*cols, *_by_handle(source, cols)]
            fields = fields_of(rows.groupBy(*known_as), expressions, len(known_as))
            combined = Combined(rows, cols, [*names, source.time_name, source.diff_name])
            outputs = [(shown(f.name, e), combined.over(e)) for f, e in zip(fields, expressions)]
        if combined is None:
            parsed = parse_aggregates(rows, cols, expressions)
        else:
            parsed = combined.aggregates()
        plain = combined is None and not isinstance(expressions, dict)
        shown_as = expressions if plain else [""] * len(parsed)
        parsed = [replace(a, name=shown(a.name, e)) for a, e in zip(parsed, shown_as)]
        results = [a.name for a in parsed] if combined is None else [n for n, _ in outputs]
        check_names([*names, *results])
        node, arguments = self._evaluated(source, cols, names, parsed, others)
        plan = Aggregation(node, tuple(names), exact)
        for aggregate, columns in zip(parsed, arguments):
            plan.add(aggregate, columns)
        node = plan.node()
        if empty:
            node = _with_default(node, parsed, source.spark)
        keys = [
            entry._replace(lineage=source.resolver.lineage(_plain(source, key) or ""))
            for entry, key in zip(Resolver.plain(names).entries, cols)
        ]
        values = Resolver.plain(node.schema.names[len(names):]).entries
        groups = source.derived(node, resolver=Resolver((*keys, *values)))
        return groups if combined is None else computed_from_aggregates(rows, groups, keys, outputs)

    def _names(self, source: Collection, cols: Sequence[str | Column]) -> list[str]:
        rows = source.template()
        try:
            frame = rows.groupBy(*cols).agg(F.count(F.lit(1)))
            names = frame.columns
        except AnalysisException as error:
            if error.getCondition() == "GROUP_EXPRESSION_TYPE_IS_NOT_ORDERABLE":
                # Spark's error names no remedy.
                Schema(rows.select(*cols).schema).check_compared()
            raise
        return [source.resolver.as_shown(n, c) for n, c in zip(names, cols)]

    def _several(
        self, source: Collection, keys: Sequence[str | Column], sets: Sequence[Sequence[int]],
        exprs: Any, exact: bool,
    ) -> Collection:
        """The aggregates of several groupings; each has nulls in the columns that it does not group
        by."""
        listed = [exprs[0]] if len(exprs) == 1 and isinstance(exprs[0], dict) else list(exprs)
        columns = [expression for expression in listed if isinstance(expression, Column)]
        names = self._names(source, keys)
        rows = source.template()
        # Spark evaluates the keys before it forms the groupings. A row without a time window is in
        # no grouping, and a row of several windows counts once per window in every grouping.
        changing = [
            n for n, key in enumerate(keys) if isinstance(key, Column) and changes_rows(rows, key)
        ]
        kinds = rows.groupBy(*keys).agg(F.count(F.lit(1))).schema.fields
        known_as = [*keys, *_by_handle(source, keys)]
        fields = fields_of(rows.rollup(*known_as), columns, len(known_as)) if columns else []
        shown = [source.resolver.as_shown(f.name, c) for f, c in zip(fields, columns)]
        nodes: list[Node] = []
        for chosen in sets:
            cols = [keys[number] for number in chosen]
            absent = [key for n, key in enumerate(keys) if n in changing and n not in chosen]
            if columns and not all(map(is_plain, columns)):
                combined = Combined(rows, cols, [*names, source.time_name, source.diff_name])
                grouping = _grouping(source, keys, chosen)
                # The rows of a step have nullable columns and nullable elements of lists, structs
                # and maps.
                results = [without_nullability(field.dataType) for field in fields]
                outputs = [
                    (name, combined.over(column, besides=grouping).cast(result))
                    for name, column, result in zip(shown, columns, results)
                ]
                groups = self._grouped_once(
                    source, cols, (), False, exact, outputs, combined, absent
                )
            else:
                groups = self._grouped_once(source, cols, exprs, False, exact, others=absent)
            others = groups.node.schema.struct.fields[len(chosen):]
            padded = [
                (names[number] if number in chosen else None,
                 T.StructField(names[number], without_nullability(kinds[number].dataType)))
                for number in range(len(names))
            ]
            nodes.append(pad(groups.node, [*padded, *((f.name, f) for f in others)]))
        return source.derived(nodes[0] if len(nodes) == 1 else Concat(nodes), resolver=Resolver(
            Resolver.plain(nodes[0].schema.names).entries
        ))

    def _pivoted(
        self, source: Collection, keys: Sequence[str | Column], pivot: _Pivot, exprs: Any,
        exact: bool,
    ) -> Collection:
        """The aggregates over the records of each value, in columns of one row."""
        expressions = list(exprs)
        if len(expressions) == 1 and isinstance(expressions[0], dict):
            expressions = [F.call_function(f, F.col(name)) for name, f in expressions[0].items()]
        if not expressions or not all(isinstance(expression, Column) for expression in expressions):
            raise SchemaError("agg takes columns such as F.sum('x') after pivot, or one dict")
        rows, shown = source.template(), source.resolver.as_shown
        names = self._names(source, keys)
        asked = rows.groupBy(*keys).pivot(pivot.column, list(pivot.values))
        fields = fields_of(asked, expressions, len(names))
        value = column(pivot.column) if pivot.column in source.columns else F.col(pivot.column)
        kind = rows.select(value).schema.fields[0].dataType
        kinds = [f.dataType for f in fields_of(rows.groupBy(*keys), expressions, len(names))]
        # For these types Spark groups by the value too, and the result is null for an absent group.
        # For others it aggregates nulls in the place of the other values' arguments.
        by_group = all(isinstance(kind, _PIVOTED) for kind in kinds)
        combined = Combined(rows, keys, [*names, source.time_name, source.diff_name])
        outputs: list[tuple[str, Column]] = []
        for number, wanted in enumerate(pivot.values):
            matches = value.eqNullSafe(F.lit(wanted).cast(kind))
            count = combined.part(
                ColumnCall("count", (), False, None), F.count("*"), matches
            )
            for place, expression in enumerate(expressions):
                result = combined.over(expression, matches)
                if by_group:
                    result = F.when(count != 0, result)
                name = fields[number * len(expressions) + place].name
                outputs.append((shown(name, expression), result))
        return self._grouped_once(source, keys, (), False, exact, outputs, combined)

    def _evaluated(
        self, collection: Collection, cols: Sequence[str | Column], names: Sequence[str],
        aggregates: Sequence[AggregateColumn], others: Sequence[Column] = (),
    ) -> tuple[Node, list[list[str]]]:
        """The node with the group's columns and all arguments, and the arguments' names."""
        rows = collection.template()
        keys = [F.col(c) if isinstance(c, str) and c not in collection.columns else
                column(c) if isinstance(c, str) else c for c in cols]
        wanted: list[tuple[str, Column]] = list(zip(names, keys))
        known: dict[str, str] = {}
        arguments: list[list[str]] = []
        for aggregate in aggregates:
            kinds = [rows.select(a).schema.fields[0].dataType for a in aggregate.arguments]
            named = []
            for argument in aggregate.function.evaluated(
                aggregate.arguments, kinds, aggregate.distinct
            ):
                shown = identity(argument)
                if shown not in known:
                    known[shown] = unused("argument", [*names, *known.values()])
                    wanted.append((known[shown], argument))
                named.append(known[shown])
            arguments.append(named)
        for key in others:
            wanted.append((unused("argument", [n for n, _ in wanted]), key))
        plain = [(plain_column(collection, expression), name) for name, expression in wanted]
        pairs = [(old, name) for old, name in plain if old is not None]
        if len(pairs) == len(wanted):
            # Unchanged columns need no evaluation.
            return pick("select", collection.node, pairs), arguments
        return computed(collection, "groupBy", wanted), arguments

    def count(self) -> FrameT:
        """The number of records of each group, in a column ``count``."""
        return self.agg(F.count(F.lit(1)).alias("count"))

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

    def pivot(
        self, pivot_col: str, values: Sequence[Any] | None = None
    ) -> GroupedDiff[FrameT]:
        """The aggregates for each given value of a column, in columns of one row, as PySpark's
        `pivot`.

        Parameters
        ----------
        pivot_col : str
        values : list
            The values that become columns. They are required, as the columns of a collection do not
            change.

        Examples
        --------
        >>> rows = [("a", "x", 1, 0, 1), ("a", "y", 2, 0, 1), ("b", "x", 3, 0, 1)]
        >>> sales = DiffFrame(spark.createDataFrame(
        ...     rows, "shop string, what string, n int, time int, diff int"))
        >>> sorted(sales.groupBy("shop").pivot("what", ["x", "y"]).sum("n").at(0).collect())
        [Row(shop='a', x=1, y=2), Row(shop='b', x=3, y=None)]
        """
        if values is None:
            raise SchemaError(
                f"pivot({pivot_col!r}) has no values, so its columns would depend on the records, "
                "and those of a collection never change. Name the values, "
                f"pivot({pivot_col!r}, ['x', 'y']), which leaves out all others. Or keep a row for "
                f"each, groupBy(..., {pivot_col!r}).agg(...), and pivot its snapshots"
            )
        if self._pivot is not None or self._sets is not None:
            raise SchemaError("pivot is for groupBy(...), once")
        if not isinstance(pivot_col, str) or not list(values):
            raise SchemaError(f"pivot takes a column's name and values, not {pivot_col!r}")
        return GroupedDiff(self._frame, self._cols, pivot=_Pivot(pivot_col, tuple(values)))

    if not TYPE_CHECKING:  # so that a type checker knows what there is

        def __getattr__(self, name):
            advice = _HINTS.get(name)
            if advice is None:
                raise AttributeError(
                    f"groups have no {name!r}: compute a result of each group first, "
                    "with agg(...), count() or reduce(func, schema)"
                )
            raise AttributeError(f"groups have no {name}: {advice}")

    def reduce(
        self,
        func: Callable[..., Any],
        schema: str | T.StructType,
        *,
        form: str = "rows",
        allow_negative: bool = False,
        check: bool = False,
    ) -> FrameT:
        """A Python function of the values of each group: see `DiffFrame.reduce`."""
        names = self._plain_names("reduce")
        return self._frame._wrap(reduced(
            self._frame._collection, func, schema, names, form=form, allow_negative=allow_negative,
            check=check,
        ))

    def cogroup(self, other: GroupedDiff[FrameT]) -> CogroupedDiff[FrameT]:
        """The groups of two collections side by side, as PySpark's `cogroup`.

        Parameters
        ----------
        other : GroupedDiff
            Groups by as many columns, of the same types, in the same order; their names may differ.

        Raises
        ------
        SchemaError
            If the types differ, or the groups are by expressions.

        Examples
        --------
        >>> columns = "k int, n int, time int, diff int"
        >>> a = DiffFrame(spark.createDataFrame([(1, 2, 0, 1)], columns))
        >>> b = DiffFrame(spark.createDataFrame([(2, 3, 0, 1)], columns))
        >>> both = a.groupBy("k").cogroup(b.groupBy("k"))
        >>> found = both.reduce(lambda key, left, right: [(len(left), len(right))], "l int, r int")
        >>> sorted(found.at(0).collect())
        [Row(k=1, l=1, r=0), Row(k=2, l=0, r=1)]
        """
        if not isinstance(other, GroupedDiff):
            raise SchemaError(
                "cogroup takes the groups of another collection, b.groupBy(...), and this is a "
                f"{type(other).__name__}"
            )
        sides = self._frame._collection, self._frame._peer(other._frame)
        ours, theirs = (
            key_columns(side, grouped._plain_names("cogroup"), "cogroup")
            for side, grouped in zip(sides, (self, other))
        )
        return CogroupedDiff(self._frame, sides, (ours, theirs))

    def _plain_names(self, kind: str) -> list[str]:
        """The columns of the groups, for operators that take no expressions."""
        if self._sets is not None or self._pivot is not None:
            raise SchemaError(f"{kind} is for groupBy(...), without rollup, cube or pivot")
        source, columns = self._frame._collection.seeing(list(self._cols))
        visible = {entry.internal: entry.visible for entry in source.resolver.entries}
        names = []
        for col in columns:
            if isinstance(col, str) and source.named(col):
                names.append(col)
                continue
            plain = plain_column(source, F.col(col) if isinstance(col, str) else col)
            if plain is None and not isinstance(col, str):
                with suggesting(source.columns):
                    check_row_wise(source.template().select(col), kind)
                raise SchemaError(
                    f"{kind} groups by columns, and {col} is an expression; add it as a column "
                    "with withColumn first"
                )
            # The look-up of an absent name raises the error.
            names.append(str(col) if plain is None else visible[plain])
        return names

    def _each(self, function: Callable[[Column], Column], cols: Sequence[str]) -> FrameT:
        if not cols:
            # PySpark includes the columns of the group.
            fields = self._frame.schema.fields
            cols = [f.name for f in fields if isinstance(f.dataType, _NUMBERS)]
        return self.agg(*[function(column(name)) for name in cols])


def _grouping(
    source: Collection, keys: Sequence[str | Column], chosen: Sequence[int]
) -> Replacement:
    """The values of ``grouping`` and ``grouping_id`` in one of several groupings."""

    def number_of(column: Column) -> int:
        wanted = _plain(source, column) or identity(column)
        for number, key in enumerate(keys):
            mine = F.col(key) if isinstance(key, str) else key
            if wanted in (_plain(source, mine), identity(mine)):
                return number
        raise SchemaError(f"grouping is of a column of the group, not of {column}")

    def replacement(call: ColumnCall, _: Column) -> Column | None:
        if call.name == "grouping":
            (column,) = call.arguments
            return F.lit(0 if number_of(column) in chosen else 1)
        if call.name == "grouping_id":
            asked = [number_of(c) for c in call.arguments] or list(range(len(keys)))
            bits = ["0" if number in chosen else "1" for number in asked]
            return F.lit(int("".join(bits), 2))
        return None

    return replacement


def _by_name(source: Collection, key: str | Column) -> str | Column:
    """A key by its name, if it is a handle of a column that has one."""
    plain = _plain(source, key) if handles_in([key]) else None
    if plain is None:
        return key
    name = next(e.visible for e in source.resolver.entries if e.internal == plain)
    return column(name) if source.resolver.internal(name) == plain else key


def _by_handle(source: Collection, keys: Sequence[str | Column]) -> list[Column]:
    """The handles of keys, which an expression may use outside of aggregates."""
    plain = {_plain(source, key) for key in keys}
    return [column(text) for text, internal in source.resolver.bound if internal in plain]


def _plain(source: Collection, key: str | Column) -> str | None:
    """The node's column that a key of a group is, or None for an expression."""
    return plain_column(source, F.col(key) if isinstance(key, str) else key)


def _there(count: int) -> int:
    return 1 if count else 0


def _with_default(node: Node, aggregates: Sequence[AggregateColumn], spark: SparkSession) -> Node:
    """The row of all records, or SQL's row for an empty collection."""
    values = [aggregate.function.empty for aggregate in aggregates]
    schema = Schema(without_nullability(node.schema.struct))
    row = coerce([tuple(values)], schema.struct, "constant", spark)
    default = Constant(schema, node.time_type, rows=row)
    nothing = pick("select", node, [])
    there = over_arrangement(
        threshold(nothing, _there), arrange_by_key(nothing, ()), arranged=True
    )
    missing = semijoin(arrange_by_key(default, ()), there, anti=True)
    return Concat([node, missing])
