"""Grouped collections: what `DiffFrame.groupBy` gives, as PySpark's `GroupedData`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Generic, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.coercion import coerce
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregates import (
    Aggregate,
    Combined,
    check_known,
    fields_of,
    identity,
    is_plain,
    known,
    parse_aggregates,
)
from pyspark_diff.expressions.analysis import suggesting, unlogged
from pyspark_diff.expressions.check import changes_rows, check_row_wise
from pyspark_diff.expressions.handles import handles_in
from pyspark_diff.expressions.names import Entry, Resolver, unused
from pyspark_diff.frame.aggregation import Aggregation
from pyspark_diff.frame.base import FrameT
from pyspark_diff.frame.cogrouped import CogroupedDiff
from pyspark_diff.frame.collection import Collection
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
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.mentions import mentions, names_there
from pyspark_diff.spark.schema import Schema, check_names, without_nullability

_NUMBERS = (T.NumericType,)
#: Types of results that Spark moves to columns of a pivot; for others it has another plan.
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
        "what is kept of a group is up to the operators: agg(...) or reduce(func, schema)",
    ),
}


@dataclass(frozen=True)
class _Pivot:
    """A column, and the values of it that become columns."""

    column: str
    values: tuple[Any, ...]


class GroupedDiff(Generic[FrameT]):
    """Groups of a collection's records. Made by `DiffFrame.groupBy`.

    Every method is lazy and returns a `DiffFrame`: the columns of the group, then the results. A
    group has a row while its records do not add up to none; null is a group like any other.
    """

    def __init__(
        self, frame: FrameT, cols: Sequence[str | Column],
        sets: Sequence[Sequence[int]] | None = None, pivot: _Pivot | None = None,
    ):
        self._frame = frame
        self._cols = tuple(cols)
        #: For `rollup` and the like the groupings, each by some of the columns.
        self._sets = sets
        self._pivot = pivot

    def __repr__(self) -> str:
        return f"GroupedDiff[by {', '.join(map(str, self._cols)) or 'nothing'}; {self._frame!r}]"

    def agg(self, *exprs: Any, empty: bool = False, exact: bool = False) -> FrameT:
        """Aggregates of each group, as PySpark's `agg`, kept up to date.

        Parameters
        ----------
        *exprs : Column or dict
            Over any expressions, with a ``FILTER`` in SQL text, and expressions of aggregates such
            as ``F.sum("a") / F.count("b")``; or one dict from column to function name.

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
            For all records as one group: whether there is a row for an empty collection.
        exact : bool
            Sum doubles exactly, for sums, averages, variances and functions of pairs: 67 whole
            numbers a group and column instead of two doubles. The sum of squares, and that of
            products, has 128 of them.

        Notes
        -----
        Counts, sums, averages and variances are *linear*: a group's state is one row of
        sums, however many records it has, and a change adds to it. Sums of whole numbers
        and decimals are exact, and one that does not fit its type is an error. Sums of
        doubles are kept in pairs of doubles, with a relative error of about 1e-31 an
        update: a retraction leaves at most that error. With ``exact=True`` a retraction
        leaves no error, and sums, averages and variances are the nearest double. A sum that
        leaves the range of doubles is infinite, as in Spark. It is finite again after
        enough retractions, in any order of the updates; an average divides the sum, so it
        may be finite where Spark divides infinity. Variances of doubles are computed from
        such sums: where the mean is more than about 1e13 standard deviations, digits are
        lost. The same holds for functions of pairs. With ``exact=True`` neither loses
        digits. Skewness and kurtosis are always exact, with 399 and 663 whole numbers a
        group. A correlation with a column of equal values divides by zero: an error in ANSI
        mode, as in Spark, else null.

        Minima and maxima keep the values of a group in order, so a change of the largest of ten
        million values costs as much as a change in a small group. Percentiles and medians are
        found by search too, but not those of decimals of more than 18 digits. Lists and modes are
        kept whole: a change costs as much as the group has distinct values.

        A record that was removed more often than it was inserted counts against the others in
        sums. It is absent for extremes, distinct values, lists, ``bool_and`` and ``bool_or``, and
        for `distinct` and `top_k`. If a group has no other records, these are null, a count of
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
                found = self._pivoted(source, cols, self._pivot, exprs, exact)
            elif self._sets is None:
                source, cols = with_sessions(source, cols, exprs)
                found = self._one(source, cols, exprs, empty, exact)
            else:
                found = self._several(source, cols, self._sets, exprs, exact)
        return self._frame._wrap(found)

    def _one(
        self, source: Collection, cols: Sequence[str | Column], exprs: Any, empty: bool,
        exact: bool, outputs: Sequence[tuple[str, Column]] = (), combined: Combined | None = None,
        beside: Sequence[Any] = (),
    ) -> Collection:
        """The aggregates of one grouping.

        Parameters
        ----------
        outputs, combined : optional
            What is computed from aggregates, and these, if that is known already.
        beside : optional
            Keys of other groupings that `changes_rows` is true of.
        """
        rows, shown = source.template(), source.resolver.as_shown
        names = self._names(source, cols)
        given: Any = exprs[0] if len(exprs) == 1 and isinstance(exprs[0], dict) else exprs
        if combined is None and not isinstance(given, dict) and all(
            isinstance(one, Column) for one in given
        ) and not all(map(is_plain, given)):
            known_as = [*cols, *_by_handle(source, cols)]
            fields = fields_of(rows.groupBy(*known_as), given, len(known_as))
            combined = Combined(rows, cols, [*names, source.time_name, source.diff_name])
            outputs = [(shown(f.name, e), combined.over(e)) for f, e in zip(fields, given)]
        if combined is None:
            found = parse_aggregates(rows, cols, given)
        else:
            found = combined.aggregates()
        several = [""] * len(found) if combined is not None or isinstance(given, dict) else given
        found = [replace(one, name=shown(one.name, e)) for one, e in zip(found, several)]
        results = [one.name for one in found] if combined is None else [n for n, _ in outputs]
        check_names([*names, *results])
        node, arguments = self._evaluated(source, cols, names, found, beside)
        plan = Aggregation(node, tuple(names), exact)
        for one, columns in zip(found, arguments):
            plan.add(one, columns)
        node = plan.node()
        if empty:
            node = _with_default(node, found, source.spark)
        keys = [
            entry._replace(lineage=source.resolver.lineage(_plain(source, key) or ""))
            for entry, key in zip(Resolver.plain(names).entries, cols)
        ]
        others = Resolver.plain(node.schema.names[len(names):]).entries
        groups = source.derived(node, resolver=Resolver((*keys, *others)))
        return groups if combined is None else _computed(rows, groups, keys, outputs)

    def _names(self, source: Collection, cols: Sequence[str | Column]) -> list[str]:
        """Names of the columns of the group."""
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
        """The aggregates of several groupings, nulls standing for what one is not grouped by."""
        given = [exprs[0]] if len(exprs) == 1 and isinstance(exprs[0], dict) else list(exprs)
        columns = [one for one in given if isinstance(one, Column)]
        names = self._names(source, keys)
        rows = source.template()
        # Spark evaluates the keys before it forms the groupings: a row without a time window is in
        # none of them, and a row of several windows counts in each for all groupings.
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
            beside = [key for n, key in enumerate(keys) if n in changing and n not in chosen]
            if columns and not all(map(is_plain, columns)):
                combined = Combined(rows, cols, [*names, source.time_name, source.diff_name])
                grouping = _grouping(source, keys, chosen)
                # In the rows of a step everything is nullable, also in lists, structs and maps.
                results = [without_nullability(field.dataType) for field in fields]
                outputs = [
                    (name, combined.over(column, besides=grouping).cast(result))
                    for name, column, result in zip(shown, columns, results)
                ]
                one = self._one(source, cols, (), False, exact, outputs, combined, beside)
            else:
                one = self._one(source, cols, exprs, False, exact, beside=beside)
            others = one.node.schema.struct.fields[len(chosen):]
            padded = [
                (names[number] if number in chosen else None,
                 T.StructField(names[number], without_nullability(kinds[number].dataType)))
                for number in range(len(names))
            ]
            nodes.append(pad(one.node, [*padded, *((f.name, f) for f in others)]))
        return source.derived(nodes[0] if len(nodes) == 1 else Concat(nodes), resolver=Resolver(
            Resolver.plain(nodes[0].schema.names).entries
        ))

    def _pivoted(
        self, source: Collection, keys: Sequence[str | Column], pivot: _Pivot, exprs: Any,
        exact: bool,
    ) -> Collection:
        """The aggregates of each value's records, side by side."""
        given = list(exprs)
        if len(given) == 1 and isinstance(given[0], dict):
            given = [F.call_function(f, F.col(name)) for name, f in given[0].items()]
        if not given or not all(isinstance(one, Column) for one in given):
            raise SchemaError("agg takes columns such as F.sum('x') after pivot, or one dict")
        rows, shown = source.template(), source.resolver.as_shown
        names = self._names(source, keys)
        asked = rows.groupBy(*keys).pivot(pivot.column, list(pivot.values))
        fields = fields_of(asked, given, len(names))
        value = column(pivot.column) if pivot.column in source.columns else F.col(pivot.column)
        kind = rows.select(value).schema.fields[0].dataType
        kinds = [f.dataType for f in fields_of(rows.groupBy(*keys), given, len(names))]
        # Where Spark can, it takes the results of groups by the value too: null where there is no
        # such group. Else it aggregates nulls in the place of what others have.
        by_group = all(isinstance(kind, _PIVOTED) for kind in kinds)
        combined = Combined(rows, keys, [*names, source.time_name, source.diff_name])
        outputs: list[tuple[str, Column]] = []
        for number, wanted in enumerate(pivot.values):
            within = value.eqNullSafe(F.lit(wanted).cast(kind))
            count = combined.part(
                ColumnCall("count", (), False, None), F.count("*"), within
            )
            for place, expression in enumerate(given):
                found = combined.over(expression, within)
                if by_group:
                    found = F.when(count != 0, found)
                name = fields[number * len(given) + place].name
                outputs.append((shown(name, expression), found))
        return self._one(source, keys, (), False, exact, outputs, combined)

    def _evaluated(
        self, collection: Collection, cols: Sequence[str | Column], names: Sequence[str],
        found: Sequence[Aggregate], beside: Sequence[Column] = (),
    ) -> tuple[Node, list[list[str]]]:
        """The node with the group's columns and all arguments, and the arguments' names."""
        rows = collection.template()
        keys = [F.col(c) if isinstance(c, str) and c not in collection.columns else
                column(c) if isinstance(c, str) else c for c in cols]
        wanted: list[tuple[str, Column]] = list(zip(names, keys))
        known: dict[str, str] = {}
        arguments: list[list[str]] = []
        for one in found:
            kinds = [rows.select(a).schema.fields[0].dataType for a in one.arguments]
            named = []
            for argument in one.function.evaluated(one.arguments, kinds, one.distinct):
                shown = identity(argument)
                if shown not in known:
                    taken = [*names, *known.values()]
                    known[shown] = unused("argument", taken)
                    wanted.append((known[shown], argument))
                named.append(known[shown])
            arguments.append(named)
        for key in beside:
            wanted.append((unused("argument", [n for n, _ in wanted]), key))
        plain = [(plain_column(collection, expression), name) for name, expression in wanted]
        pairs = [(old, name) for old, name in plain if old is not None]
        if len(pairs) == len(wanted):
            # Columns as they are need not be computed.
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
        """The aggregates of each of some values of a column, side by side, as PySpark's `pivot`.

        Parameters
        ----------
        pivot_col : str
        values : list
            Their values, which have to be given: the columns of a collection do not change.

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
                f"pivot({pivot_col!r}) has no values, so the columns of its result would depend on "
                "the records, and those of a collection are the same at all times, whatever "
                f"records come. Name the values, pivot({pivot_col!r}, ['x', 'y']), and others are "
                f"left out; or keep a row for each, groupBy(..., {pivot_col!r}).agg(...), of "
                "which a plain pivot turns snapshots"
            )
        if self._pivot is not None or self._sets is not None:
            raise SchemaError("pivot is for groupBy(...), once")
        if not isinstance(pivot_col, str) or not list(values):
            raise SchemaError(f"pivot takes a column's name and values, not {pivot_col!r}")
        return GroupedDiff(self._frame, self._cols, pivot=_Pivot(pivot_col, tuple(values)))

    if not TYPE_CHECKING:  # so that a type checker knows what there is

        def __getattr__(self, name):
            told = _HINTS.get(name)
            if told is None:
                raise AttributeError(
                    f"groups have no {name!r}: say what is wanted of each first, "
                    "with agg(...), count() or reduce(func, schema)"
                )
            raise AttributeError(f"groups have no {name}: {told}")

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
            Of as many columns, of the same types, in the same order; their names may differ.

        Raises
        ------
        SchemaError
            If they are others, or the groups are by expressions.

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
        """The columns of the groups, for what knows no expressions."""
        if self._sets is not None or self._pivot is not None:
            raise SchemaError(f"{kind} is for groupBy(...), without rollup, cube or pivot")
        source, given = self._frame._collection.seeing(list(self._cols))
        visible = {entry.internal: entry.visible for entry in source.resolver.entries}
        names = []
        for col in given:
            if isinstance(col, str) and source.named(col):
                names.append(col)
                continue
            found = plain_column(source, F.col(col) if isinstance(col, str) else col)
            if found is None and not isinstance(col, str):
                with suggesting(source.columns):
                    check_row_wise(source.template().select(col), kind)
                raise SchemaError(
                    f"{kind} groups by columns, and {col} is an expression; add it as a column "
                    "with withColumn first"
                )
            # What is not there is told where it is looked up.
            names.append(str(col) if found is None else visible[found])
        return names

    def _each(self, function: Callable[[Column], Column], cols: Sequence[str]) -> FrameT:
        if not cols:
            # PySpark takes the columns of the group too.
            fields = self._frame.schema.fields
            cols = [f.name for f in fields if isinstance(f.dataType, _NUMBERS)]
        return self.agg(*[function(column(name)) for name in cols])


def _computed(
    rows: DataFrame, groups: Collection, keys: Sequence[Entry],
    outputs: Sequence[tuple[str, Column]],
) -> Collection:
    """What is computed from aggregates of some rows, beside the columns of the group."""

    def refused(reason: str, wrong: Sequence[str]) -> SchemaError:
        return SchemaError(
            "agg computes columns from aggregates and from columns of the group; "
            f"{', '.join(wrong)} has something else: {reason}; {known()}"
        )

    source, _ = groups.seeing([expression for _, expression in outputs])
    kept = [(key.internal, column(key.internal)) for key in keys]
    gone = names_there(rows) - names_there(groups.template())
    others = [name for name, expression in outputs if mentions(expression, gone)]
    try:
        if others:
            raise refused("it takes other columns", others)
        node = computed(source, "agg", [*kept, *outputs])
    except (AnalysisException, SchemaError) as error:
        for name, expression in outputs:
            check_known(rows, name, expression)
        if isinstance(error, SchemaError):
            raise
        # Its suggestions are names that the library gives to aggregates.
        reason = str(error).partition(" Did you mean")[0]
        raise refused(reason, _not_computed(groups.template(), outputs)) from error
    names = Resolver.plain([name for name, _ in outputs]).entries
    entries = groups.resolver.entries[:len(keys)]
    return groups.derived(node, resolver=Resolver((*entries, *names)))


def _not_computed(groups: DataFrame, outputs: Sequence[tuple[str, Column]]) -> list[str]:
    """Names of the columns that Spark cannot compute from columns of the groups."""
    wrong = []
    for name, expression in outputs:
        try:
            with unlogged():
                groups.select(expression).schema
        except AnalysisException:
            wrong.append(name)
    return wrong or [name for name, _ in outputs]


def _grouping(
    source: Collection, keys: Sequence[str | Column], chosen: Sequence[int]
) -> Replacement:
    """What ``grouping`` and ``grouping_id`` are in one of several groupings."""

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
    """A key by its name, where a handle stands for a column that has one."""
    plain = _plain(source, key) if handles_in([key]) else None
    if plain is None:
        return key
    name = next(e.visible for e in source.resolver.entries if e.internal == plain)
    return column(name) if source.resolver.internal(name) == plain else key


def _by_handle(source: Collection, keys: Sequence[str | Column]) -> list[Column]:
    """The handles of an expression that stand for keys, which it may use outside of aggregates."""
    plain = {_plain(source, key) for key in keys}
    return [column(text) for text, internal in source.resolver.bound if internal in plain]


def _plain(source: Collection, key: str | Column) -> str | None:
    """The node's column that a key of a group is, if it is one."""
    return plain_column(source, F.col(key) if isinstance(key, str) else key)


def _there(count: int) -> int:
    return 1 if count else 0


def _with_default(node: Node, found: Sequence[Aggregate], spark: SparkSession) -> Node:
    """The one row of all records, or SQL's row for no records."""
    values = [one.function.empty for one in found]
    schema = Schema(without_nullability(node.schema.struct))
    row = coerce([tuple(values)], schema.struct, "constant", spark)
    default = Constant(schema, node.time_type, rows=row)
    nothing = pick("select", node, [])
    there = over_arrangement(
        threshold(nothing, _there), arrange_by_key(nothing, ()), arranged=True
    )
    missing = semijoin(arrange_by_key(default, ()), there, anti=True)
    return Concat([node, missing])
