"""The plan of windows: which operators give what ``function.over(window)`` asks for.

    select(e(f(x).over(w)))  ≡  the window operator of f over w, then select(e(its column))

Windows over one partition and one order share an operator, and others stand behind each other.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import Any, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregate_forms import RECORD, Argument, LinearFunction
from pyspark_diff.expressions.aggregate_functions import FUNCTIONS, Extreme
from pyspark_diff.expressions.aggregates import constants_of, filtered_call, identity
from pyspark_diff.expressions.analysis import suggesting
from pyspark_diff.expressions.check import check_no_sessions, check_own_values
from pyspark_diff.expressions.handles import Handle, Lineage, Owner
from pyspark_diff.expressions.names import Entry, unused
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.row_wise import computed, plain_column, row_wise
from pyspark_diff.kernels import window_functions as kernels
from pyspark_diff.kernels.window_functions import (
    Function,
    Listed,
    Nth,
    Offset,
    Picked,
    Place,
    Summed,
    SummedPairs,
)
from pyspark_diff.kernels.window_reach import Frame
from pyspark_diff.operators.arrange import arrange_in_order
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Node
from pyspark_diff.operators.window import window
from pyspark_diff.spark.calls import ColumnCall
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import arrow_type, check_names
from pyspark_diff.spark.settings import ANSI, is_on
from pyspark_diff.spark.values import to_array
from pyspark_diff.spark.window_calls import WindowCall, may_have_windows, windows_replaced

#: Functions that pick the first or the last of a frame.
_ENDS = {
    "first": "first", "first_value": "first", "any_value": "first", "last": "last",
    "last_value": "last",
}
_OFFSETS = {"lag": -1, "lead": 1}

#: Types in which distances are counted, and those of so many digits at most.
_DISTANT = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType,
            T.DateType, T.TimestampType, T.TimestampNTZType)
_DIGITS = 18

#: The name of a result until it has one.
_RESULT = "window result"


def with_windows(
    source: Collection, given: Sequence[str | Column], names: Sequence[str] = ()
) -> tuple[Collection, list[str | Column]]:
    """A collection with the results of windows as columns, and expressions over these columns.

    Parameters
    ----------
    source : Collection
        See `Collection.seeing`.
    given : sequence of str or Column
        Expressions, some of which may have windows; those that do keep the names that they have.
    names : sequence of str
        Names that no result may have.

    Returns
    -------
    source : Collection
        As it was, if there is no window. The columns that come after its own are the results.
    given : list of str or Column
    """
    over, replaced = _replaced(source, given, names)
    if over is source:
        return source, list(given)
    if source.resolver.spread:
        raise SchemaError(
            "a star in an expression and a window are in one call, and the star would take the "
            "window's result; add the windows with withColumn in a call of their own"
        )
    with suggesting(source.columns):
        rows = source.template()
        shown = [
            new.alias(source.resolver.as_shown(rows.select(old).columns[0], old))
            if isinstance(new, Column) and new is not old else new
            for old, new in zip(given, replaced)
        ]
    return over, shown


def _replaced(
    source: Collection, given: Sequence[str | Column], names: Sequence[str]
) -> tuple[Collection, list[str | Column]]:
    """As `with_windows`, but that expressions have no names of their own."""
    found: dict[str, tuple[WindowCall, Column, str]] = {}
    taken = [*source.node.schema.names, *source.columns, *names]

    def replacement(call: WindowCall, whole: Column) -> Column:
        shown = identity(whole)
        if shown not in found:
            name = unused(_RESULT, [*taken, *(n for _, _, n in found.values())])
            found[shown] = (call, whole, name)
        return column(found[shown][2])

    replaced = [
        windows_replaced(one, replacement)
        if isinstance(one, Column) and may_have_windows(one) else one for one in given
    ]
    if not found:
        return source, list(given)
    calls, wholes, results = zip(*found.values())
    with suggesting(source.columns):
        typed = source.template().select(*wholes)
        kinds = [f.dataType for f in typed.schema.fields]
    check_own_values(typed)
    check_no_sessions(typed, "a window")
    # Windows over windows: those inside come first, and are columns then.
    inner: dict[str, Column] = {}

    def noted(part: Column) -> Column:
        if may_have_windows(part):
            inner.setdefault(identity(part), part)
        return part

    for call in calls:
        call.mapped(noted)
    over, made = _replaced(source, list(inner.values()), [*names, *results])
    columns: dict[str, Any] = dict(zip(inner, made))
    plan = _Plan(over)
    for call, name, kind in zip(calls, results, kinds):
        plan.add(call.mapped(lambda part: columns.get(identity(part), part)), name, kind)
    owner = Owner("window", results)
    entries = [Entry(None, name, name, Lineage(Handle(name, owner))) for name in results]
    resolver = replace(over.resolver, entries=(*over.resolver.entries, *entries))
    return replace(over, node=plan.node(), resolver=resolver), replaced


def with_columns(given: Collection, kind: str, made: dict[str, Column]) -> Collection:
    """A collection with columns more, or in the place of others, which may be of windows.

    Parameters
    ----------
    given : Collection
    kind : str
        The operator's name, for messages.
    made : dict of str to Column
    """
    check_names(list(made))
    source, made = given.spreading(made)
    resolver = source.resolver
    for name in made:
        replaced = source.named(name)
        if set(replaced) & set(resolver.ambiguous):
            source.check_unambiguous(kind)
        resolver = resolver.with_column(name, replaced)
    kept = resolver.entries
    over, columns = with_windows(source, list(made.values()), list(made))
    outputs: dict[str, Any] = dict(zip(made, columns))
    results = over.resolver.entries[len(source.resolver.entries):]

    def apply(frame: DataFrame) -> DataFrame:
        # PySpark says what is no column, for either of its methods.
        if kind == "withColumn":
            return frame.withColumn(*next(iter(outputs.items())))
        return frame.withColumns(outputs)

    found = row_wise(
        over, kind, apply,
        resolver=replace(resolver, entries=(*kept, *results)), outputs=outputs,
    )
    if not results:
        return found
    node = pick(kind, found.node, [(entry.internal, entry.internal) for entry in kept])
    return found.derived(node, resolver=resolver.restricted(found.resolver.entries[:len(kept)]))


@dataclass(frozen=True)
class _Spec:
    """A partition and its order, by the names of columns."""

    partition: tuple[str, ...]
    order: tuple[tuple[str, bool, bool], ...]


class _Plan:
    """Windows over one collection, being put together."""

    def __init__(self, source: Collection):
        self._source, self._rows = source, source.template()
        #: Expressions that are columns of the node, or will be: by identity, the name.
        self._names: dict[str, str] = {}
        self._made: dict[str, Column] = {}
        self._specs: dict[_Spec, list[tuple[T.StructField, Function]]] = {}

    def add(self, call: WindowCall, name: str, kind: T.DataType) -> None:
        """One more window, and the name and type of its result."""
        partition = tuple(dict.fromkeys(self._column(one) for one in call.partition))
        order: dict[str, tuple[str, bool, bool]] = {}
        for one, down, last in call.order:
            ordered = self._column(one, partition)
            order.setdefault(ordered, (ordered, down, last))
        spec = _Spec(partition, tuple(order.values()))
        function = self._function(call, kind)
        self._specs.setdefault(spec, []).append((T.StructField(name, kind), function))

    def node(self) -> Node:
        """The node with the results behind the columns of the collection."""
        source = self._source
        node = source.node
        own = list(node.schema.names)
        if self._made:
            kept = [(name, column(name)) for name in own]
            node = computed(
                source, "window", [*kept, *self._made.items()], outputs=dict(self._made)
            )
        results: list[str] = []
        for spec, functions in self._specs.items():
            order = list(spec.order)
            rest = [n for n in node.schema.names if n not in spec.partition]
            if not order and rest:
                order = [(rest[0], False, False)]
            arranged = arrange_in_order(node, spec.partition, order)
            node = window(arranged, [(name, down) for name, down, _ in spec.order], functions)
            results += [field.name for field, _ in functions]
        return pick("window", node, [(name, name) for name in (*own, *results)])

    def _column(self, expression: Column, apart: Sequence[str] = ()) -> str:
        """The column that an expression is, and that is none of some others."""
        plain = plain_column(self._source, expression)
        if plain is not None and plain not in apart:
            return plain
        shown = f"{identity(expression)} {bool(plain)}"
        if shown not in self._names:
            name = unused("window argument", [*self._source.node.schema.names, *self._made])
            self._names[shown], self._made[name] = name, expression
        return self._names[shown]

    def _type(self, expression: Column) -> T.DataType:
        return self._rows.select(expression).schema.fields[0].dataType

    def _constants(self, call: WindowCall, given: Sequence[Column]) -> list[Any]:
        return constants_of(self._rows, call.name, given) if given else []

    def _function(self, call: WindowCall, kind: T.DataType) -> Function:
        name, arrow = call.name, arrow_type(kind)
        if call.filter is not None:
            if not isinstance(FUNCTIONS.get(name), (LinearFunction, Extreme)):
                raise SchemaError(f"{name} over a window takes no FILTER here")
            plain = ColumnCall(name, call.arguments, call.distinct, None)
            only = filtered_call(plain, call.filter)
            call = replace(call, name=only.name, arguments=only.arguments, filter=None)
            return self._function(call, kind)
        if name in kernels.PLACES:
            parts = self._constants(call, call.arguments)
            return Place(arrow, name, *parts)
        if name in _OFFSETS:
            return self._offset(call, kind)
        frame = self._frame(call)
        ignored = call.nulls_ignored
        if name in _ENDS:
            ignored = ignored or any(self._constants(call, call.arguments[1:]))
            found = self._column(call.arguments[0])
            return Picked(arrow, _ENDS[name], found, frame, found if ignored else None)
        if name == "nth_value":
            number, *others = self._constants(call, call.arguments[1:])
            found = self._column(call.arguments[0])
            return Nth(arrow, found, number, frame, found if ignored or any(others) else None)
        function = FUNCTIONS.get(name)
        if isinstance(function, Extreme) and not ignored:
            found = self._column(call.arguments[0])
            return Picked(arrow, name, found, frame, found)
        if function is FUNCTIONS["collect_list"] and not (ignored or call.distinct):
            return Listed(arrow, self._column(call.arguments[0]), frame)
        if (
            not isinstance(function, LinearFunction) or not function.over_windows
            or function.counts_once or ignored or call.distinct
        ):
            raise SchemaError(
                f"{name} is not maintained over a window"
                + (" with DISTINCT" if call.distinct else " with IGNORE NULLS" if ignored else "")
                + f"; the functions are {', '.join(sorted(_known()))}"
            )
        arguments = function.evaluated(
            call.arguments, [self._type(one) for one in call.arguments], False
        )
        function = function.in_session(is_on(self._rows.sparkSession, ANSI))
        assert isinstance(function, LinearFunction)
        given = [Argument(n, self._type(one)) for n, one in enumerate(arguments)]
        columns = [self._column(one) for one in arguments]
        result = function.result(given or [RECORD], kind, exact=False)
        if len(columns) == 2:
            return SummedPairs(arrow, columns[0], result, frame, columns[1])
        return Summed(arrow, columns[0] if columns else None, result, frame)

    def _offset(self, call: WindowCall, kind: T.DataType) -> Function:
        """What `lag` and `lead` are."""
        value, *others = call.arguments
        # The type of a default is that of the value, as Spark has found.
        given = [one.cast(kind) if number == 1 else one for number, one in enumerate(others)]
        constants = self._constants(call, given)
        rows = constants[0] if constants else 1
        default = constants[1] if len(constants) > 1 else None
        ignored = len(constants) > 2 and constants[2]
        arrow = arrow_type(kind)
        if default is not None:
            # Times of a zone are told as such.
            default = to_array([default], arrow)[0].as_py()
        further, found = rows * _OFFSETS[call.name], self._column(value)
        if further and (ignored or call.nulls_ignored):
            frame = Frame(True, None, -1) if further < 0 else Frame(True, 1, None)
            return Nth(arrow, found, further, frame, found, default)
        return Offset(arrow, found, further, default)

    def _frame(self, call: WindowCall) -> Frame:
        if call.frame is None:
            return Frame(False, None, 0) if call.order else Frame(True, None, None)
        rows, *limits = call.frame
        if not rows:
            self._check_distances([limit for limit in limits if limit is not None])
        low, high = (
            None if limit is None else self._constants(call, [limit])[0] for limit in limits
        )
        if low is None and high is None:
            return Frame(True, None, None)
        if not rows and any(limit for limit in (low, high)):
            kind = self._type(call.order[0][0])
            low, high = (None if limit is None else _distance(limit, kind) for limit in (low, high))
        return Frame(rows, low, high)

    def _check_distances(self, limits: Sequence[Column]) -> None:
        """Refuse the limits of a range that no Python object has."""
        for limit in limits:
            kind = self._type(limit)
            if isinstance(kind, (T.YearMonthIntervalType, T.CalendarIntervalType)):
                raise SchemaError(
                    f"a range of {kind.simpleString()} is not maintained, as months have different "
                    "lengths: take a number of days, or rows"
                )


def _distance(limit: Any, kind: T.DataType) -> Any:
    """A limit as a number in the units of a type."""
    wide = isinstance(kind, T.DecimalType) and kind.precision > _DIGITS
    if wide or not isinstance(kind, (*_DISTANT, T.DecimalType)):
        raise SchemaError(
            f"a range of a distance is not maintained over an order of type {kind.simpleString()}: "
            "cast it to a number of 64 bits, or take rows"
        )
    found = limit
    if isinstance(limit, datetime.timedelta):
        unit = datetime.timedelta(
            days=isinstance(kind, T.DateType), microseconds=not isinstance(kind, T.DateType)
        )
        if limit % unit:
            raise SchemaError(f"a range of {limit} is none of whole days, as those of an order are")
        found = limit // unit
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return float(found)
    if isinstance(kind, T.DecimalType):
        return found
    if found != int(found):
        raise SchemaError(f"a range of {limit} is none of an order of {kind.simpleString()}")
    return int(found)


def _known() -> set[str]:
    """What there is, for messages."""
    linear = {
        function.name for function in FUNCTIONS.values()
        if isinstance(function, Extreme)
        or isinstance(function, LinearFunction)
        and function.over_windows and not function.counts_once
    }
    return {*linear, *kernels.PLACES, *_OFFSETS, "first", "last", "nth_value", "collect_list"}
