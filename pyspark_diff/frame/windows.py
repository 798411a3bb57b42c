"""The plan of windows: the operators that compute ``function.over(window)``.

    select(e(f(x).over(w)))  ≡  the window operator of f over w, then select(e(its column))

Windows over one partition and one order share an operator; the operators of different ones follow
one another.
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
from pyspark_diff.expressions.names import ColumnEntry, unused
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.row_wise import computed, plain_column, row_wise
from pyspark_diff.kernels import window_functions as kernels
from pyspark_diff.kernels.window_functions import (
    Function,
    Listed,
    Nth,
    Offset,
    Picked,
    PlaceFunction,
    Summed,
    SummedPairs,
)
from pyspark_diff.kernels.window_reach import WindowFrame
from pyspark_diff.operators.arrange import arrange_in_order
from pyspark_diff.operators.linear import pick
from pyspark_diff.operators.node import Node
from pyspark_diff.operators.window import window
from pyspark_diff.spark.calls import ColumnCall
from pyspark_diff.spark.data_types import arrow_type
from pyspark_diff.spark.frames import column
from pyspark_diff.spark.schema import check_names
from pyspark_diff.spark.settings import ANSI, is_on
from pyspark_diff.spark.values import to_array
from pyspark_diff.spark.window_calls import WindowCall, may_have_windows, windows_replaced

#: Functions that pick the first or the last of a frame.
_ENDS = {
    "first": "first", "first_value": "first", "any_value": "first", "last": "last",
    "last_value": "last",
}
_OFFSETS = {"lag": -1, "lead": 1}

#: Types of an order that has distances, and the largest number of digits of a decimal.
_DISTANT = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType,
            T.DateType, T.TimestampType, T.TimestampNTZType)
_DIGITS = 18

#: The preliminary name of a result.
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
        Expressions, some with windows. Expressions with windows keep their names.
    names : sequence of str
        Names that no result may have.

    Returns
    -------
    source : Collection
        The same collection if there is no window. Otherwise the results follow its own columns.
    given : list of str or Column
    """
    over, replaced = _replaced(source, given, names)
    if over is source:
        return source, list(given)
    if source.resolver.spread:
        raise SchemaError(
            "a star in an expression and a window are in one call, and the star would include the "
            "window's result. Add the windows with withColumn in a call of their own"
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
    """As `with_windows`, without keeping the names of expressions."""
    windows: dict[str, tuple[WindowCall, Column, str]] = {}
    occupied = [*source.node.schema.names, *source.columns, *names]

    def replacement(call: WindowCall, whole: Column) -> Column:
        shown = identity(whole)
        if shown not in windows:
            name = unused(_RESULT, [*occupied, *(n for _, _, n in windows.values())])
            windows[shown] = (call, whole, name)
        return column(windows[shown][2])

    replaced = [
        windows_replaced(expression, replacement)
        if isinstance(expression, Column) and may_have_windows(expression) else expression
        for expression in given
    ]
    if not windows:
        return source, list(given)
    calls, wholes, results = zip(*windows.values())
    with suggesting(source.columns):
        typed = source.template().select(*wholes)
        kinds = [f.dataType for f in typed.schema.fields]
    check_own_values(typed)
    check_no_sessions(typed, "a window")
    # Windows of windows: the inner ones are computed first and become columns.
    inner: dict[str, Column] = {}

    def noted(part: Column) -> Column:
        if may_have_windows(part):
            inner.setdefault(identity(part), part)
        return part

    for call in calls:
        call.mapped(noted)
    over, inner_columns = _replaced(source, list(inner.values()), [*names, *results])
    columns: dict[str, Any] = dict(zip(inner, inner_columns))
    plan = _Plan(over)
    for call, name, kind in zip(calls, results, kinds):
        plan.add(call.mapped(lambda part: columns.get(identity(part), part)), name, kind)
    owner = Owner("window", results)
    entries = [ColumnEntry(None, name, name, Lineage(Handle(name, owner))) for name in results]
    resolver = replace(over.resolver, entries=(*over.resolver.entries, *entries))
    return replace(over, node=plan.node(), resolver=resolver), replaced


def with_columns(given: Collection, kind: str, expressions: dict[str, Column]) -> Collection:
    """A collection with columns added or replaced; their expressions may have windows.

    Parameters
    ----------
    kind : str
        The operator's name, for messages.
    """
    check_names(list(expressions))
    source, expressions = given.spreading(expressions)
    resolver = source.resolver
    for name in expressions:
        replaced = source.named(name)
        if set(replaced) & set(resolver.ambiguous):
            source.check_unambiguous(kind)
        resolver = resolver.with_column(name, replaced)
    entries = resolver.entries
    over, columns = with_windows(source, list(expressions.values()), list(expressions))
    outputs: dict[str, Any] = dict(zip(expressions, columns))
    results = over.resolver.entries[len(source.resolver.entries):]

    def apply(frame: DataFrame) -> DataFrame:
        # Each of PySpark's methods has its own error for a value that is no column.
        if kind == "withColumn":
            return frame.withColumn(*next(iter(outputs.items())))
        return frame.withColumns(outputs)

    result = row_wise(
        over, kind, apply,
        resolver=replace(resolver, entries=(*entries, *results)), outputs=outputs,
    )
    if not results:
        return result
    node = pick(kind, result.node, [(entry.internal, entry.internal) for entry in entries])
    own = result.resolver.entries[:len(entries)]
    return result.derived(node, resolver=resolver.restricted(own))


@dataclass(frozen=True)
class _Spec:
    """A partition and its order, by the names of columns."""

    partition: tuple[str, ...]
    order: tuple[tuple[str, bool, bool], ...]


class _Plan:
    """A builder of the windows over one collection."""

    def __init__(self, source: Collection):
        self._source, self._rows = source, source.template()
        #: Names of the computed columns, by the identity of their expressions.
        self._names: dict[str, str] = {}
        self._made: dict[str, Column] = {}
        self._specs: dict[_Spec, list[tuple[T.StructField, Function]]] = {}

    def add(self, call: WindowCall, name: str, kind: T.DataType) -> None:
        partition = tuple(dict.fromkeys(self._column(key) for key in call.partition))
        order: dict[str, tuple[str, bool, bool]] = {}
        for expression, down, last in call.order:
            ordered = self._column(expression, partition)
            order.setdefault(ordered, (ordered, down, last))
        spec = _Spec(partition, tuple(order.values()))
        function = self._function(call, kind)
        self._specs.setdefault(spec, []).append((T.StructField(name, kind), function))

    def node(self) -> Node:
        """The node with the columns of the collection, then the results."""
        source = self._source
        node = source.node
        own = list(node.schema.names)
        if self._made:
            unchanged = [(name, column(name)) for name in own]
            node = computed(
                source, "window", [*unchanged, *self._made.items()], outputs=dict(self._made)
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
        """The column of an expression, different from all columns in `apart`."""
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
            return PlaceFunction(arrow, name, *parts)
        if name in _OFFSETS:
            return self._offset(call, kind)
        frame = self._frame(call)
        ignored = call.nulls_ignored
        if name in _ENDS:
            ignored = ignored or any(self._constants(call, call.arguments[1:]))
            argument = self._column(call.arguments[0])
            return Picked(arrow, _ENDS[name], argument, frame, argument if ignored else None)
        if name == "nth_value":
            number, *others = self._constants(call, call.arguments[1:])
            argument = self._column(call.arguments[0])
            return Nth(arrow, argument, number, frame, argument if ignored or any(others) else None)
        function = FUNCTIONS.get(name)
        if isinstance(function, Extreme) and not ignored:
            argument = self._column(call.arguments[0])
            return Picked(arrow, name, argument, frame, argument)
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
            call.arguments, [self._type(part) for part in call.arguments], False
        )
        function = function.in_session(is_on(self._rows.sparkSession, ANSI))
        assert isinstance(function, LinearFunction)
        terms = [Argument(n, self._type(part)) for n, part in enumerate(arguments)]
        columns = [self._column(part) for part in arguments]
        result = function.result(terms or [RECORD], kind, exact=False)
        if len(columns) == 2:
            return SummedPairs(arrow, columns[0], result, frame, columns[1])
        return Summed(arrow, columns[0] if columns else None, result, frame)

    def _offset(self, call: WindowCall, kind: T.DataType) -> Function:
        """The function of `lag` and `lead`."""
        value, *others = call.arguments
        # A default has the type of the value, by Spark's analysis.
        typed = [part.cast(kind) if number == 1 else part for number, part in enumerate(others)]
        constants = self._constants(call, typed)
        rows = constants[0] if constants else 1
        default = constants[1] if len(constants) > 1 else None
        ignored = len(constants) > 2 and constants[2]
        arrow = arrow_type(kind)
        if default is not None:
            # Arrow adds the time zone to a timestamp.
            default = to_array([default], arrow)[0].as_py()
        further, source = rows * _OFFSETS[call.name], self._column(value)
        if further and (ignored or call.nulls_ignored):
            frame = WindowFrame(True, None, -1) if further < 0 else WindowFrame(True, 1, None)
            return Nth(arrow, source, further, frame, source, default)
        return Offset(arrow, source, further, default)

    def _frame(self, call: WindowCall) -> WindowFrame:
        if call.frame is None:
            return WindowFrame(False, None, 0) if call.order else WindowFrame(True, None, None)
        rows, *limits = call.frame
        if not rows:
            self._check_distances([limit for limit in limits if limit is not None])
        low, high = (
            None if limit is None else self._constants(call, [limit])[0] for limit in limits
        )
        if low is None and high is None:
            return WindowFrame(True, None, None)
        if not rows and any(limit for limit in (low, high)):
            kind = self._type(call.order[0][0])
            low, high = (None if limit is None else _distance(limit, kind) for limit in (low, high))
        return WindowFrame(rows, low, high)

    def _check_distances(self, limits: Sequence[Column]) -> None:
        """Refuse limits of a range whose type has no Python object."""
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
    number = limit
    if isinstance(limit, datetime.timedelta):
        unit = datetime.timedelta(
            days=isinstance(kind, T.DateType), microseconds=not isinstance(kind, T.DateType)
        )
        if limit % unit:
            raise SchemaError(
                f"a range of {limit} is no whole number of units of the order; the unit is {unit}"
            )
        number = limit // unit
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return float(number)
    if isinstance(kind, T.DecimalType):
        return number
    if number != int(number):
        raise SchemaError(
            f"a range of {limit} is no whole number, and the order is of type "
            f"{kind.simpleString()}; take a whole number"
        )
    return int(number)


def _known() -> set[str]:
    """The names of the supported functions, for messages."""
    linear = {
        function.name for function in FUNCTIONS.values()
        if isinstance(function, Extreme)
        or isinstance(function, LinearFunction)
        and function.over_windows and not function.counts_once
    }
    return {*linear, *kernels.PLACES, *_OFFSETS, "first", "last", "nth_value", "collect_list"}
