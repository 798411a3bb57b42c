"""The aggregates in the columns of `agg`, parsed without a job.

    the aggregates of f, in order   ≡  the columns that groupBy(keys).agg(f) adds, names and types

An expression of aggregates, such as ``sum(x) / count(y)``, is a row-wise expression over the
groups, with the aggregates as columns::

    agg(e(a1, a2, ...))  ≡  agg(a1, a2, ...).select(keys, e)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregate_forms import AggregateFunction
from pyspark_diff.expressions.aggregate_functions import FUNCTIONS
from pyspark_diff.expressions.analysis import unlogged
from pyspark_diff.expressions.check import check_no_sessions, check_own_values
from pyspark_diff.expressions.names import unused
from pyspark_diff.expressions.record_functions import AnyRecord
from pyspark_diff.spark.calls import (
    ColumnCall,
    Replacement,
    call_of,
    with_calls_replaced,
)
from pyspark_diff.spark.frames import column as column_of
from pyspark_diff.spark.jvm import analysed_plan, expression_json
from pyspark_diff.spark.settings import ANSI, is_on

#: Names that PySpark accepts only in a dict.
_DICT_SYNONYMS = {"average": "avg", "size": "count"}

_ADVICE = {
    "percentile_cont": "use F.percentile or F.median",
    "histogram_numeric": (
        "its bins depend on the order in which Spark reads the rows. Count the rows of each bin, "
        "groupBy(..., F.floor(x / width))"
    ),
}


@dataclass(frozen=True)
class AggregateColumn:
    """One aggregate of `agg`.

    Parameters
    ----------
    arguments : tuple of Column
        Expressions over the columns of the input; empty for ``count(*)``. With several arguments,
        ``count`` counts the rows without a null argument.
    distinct : bool
        Whether equal arguments count once; always false if that makes no difference.
    name : str
        PySpark's name of the output column.
    type : pyspark.sql.types.DataType
        Spark's type of the output column.
    """

    function: AggregateFunction
    arguments: tuple[Column, ...]
    distinct: bool
    name: str
    type: T.DataType


def parse_aggregates(
    template: DataFrame,
    keys: Sequence[Column | str],
    exprs: Mapping[str, str] | Sequence[Column | Mapping[str, str]],
) -> list[AggregateColumn]:
    """The aggregates of `template.groupBy(*keys).agg(*exprs)`.

    Parameters
    ----------
    template : DataFrame
        An empty frame with the columns of the input.
    keys : sequence of Column or str
        As `groupBy` takes them.
    exprs : sequence of Column, or one dict
        The arguments of `agg`; the dict may also be in a sequence.

    Returns
    -------
    list of AggregateColumn
        The aggregates in the order of PySpark's columns, which may differ from that of a dict.

    Raises
    ------
    SchemaError
        If an expression is not a call of a supported aggregate.
    NonDeterministicError
        If an argument may have another value when it is evaluated again.
    pyspark.errors.AnalysisException
        The errors of Spark's analysis, such as an unknown column.

    Examples
    --------
    >>> sales = spark.createDataFrame([], "shop string, price int")
    >>> for found in parse_aggregates(sales, ["shop"], [F.mean("price"), F.count("*").alias("n")]):
    ...     print(found.function.name, found.arguments, found.name, found.type.simpleString())
    avg (Column<'price'>,) avg(price) double
    count () n bigint
    """
    grouped = template.groupBy(*keys)
    listed = [exprs] if isinstance(exprs, Mapping) else list(exprs)
    if len(listed) == 1 and isinstance(listed[0], Mapping):
        odd = [f for f in listed[0].values() if not isinstance(f, str)]
        if odd:
            raise SchemaError(
                f"a dict for agg has names of functions, such as {{'x': 'sum'}}, and not {odd[0]!r}"
            )
        # A server lacks the synonyms of a dict.
        entries = {
            name: _DICT_SYNONYMS.get(function.lower(), function)
            for name, function in listed[0].items()
        }
        calls = [_supported(_dict_column(*entry)) for entry in entries.items()]
        _check_arguments(template, calls)
        # PySpark passes the dict to the JVM, which chooses the order.
        order = _last(grouped.agg(entries), len(calls)).names
        fields = [_last(grouped.agg(dict([entry])), 1)[0] for entry in entries.items()]
        parsed = [_aggregate(template, call, field) for call, field in zip(calls, fields)]
        return _of_one_record(sorted(parsed, key=lambda aggregate: order.index(aggregate.name)))
    columns = [expr for expr in listed if isinstance(expr, Column)]
    if not columns or len(columns) < len(listed):
        raise SchemaError(
            "agg takes columns such as F.sum('x'), at least one, or one dict from column names to "
            f"function names; it got {', '.join(type(expr).__name__ for expr in listed) or 'none'}"
        )
    calls = [_supported(column) for column in columns]
    _check_arguments(template, calls)
    fields = list(_last(grouped.agg(*columns), len(calls)))
    return _of_one_record(
        [_aggregate(template, call, field) for call, field in zip(calls, fields)]
    )


@dataclass
class Combined:
    """A builder of aggregates and of the columns that are computed from them.

    Parameters
    ----------
    template : DataFrame
        An empty frame with the columns of the input.
    keys : sequence of Column or str
        As `groupBy` takes them.
    names : sequence of str
        Names that no aggregate may have.
    """

    template: DataFrame
    keys: Sequence[Column | str]
    names: Sequence[str]
    _calls: dict[object, tuple[str, ColumnCall, Column]] = field(default_factory=dict)

    def part(self, call: ColumnCall, whole: Column, within: Column | None = None) -> Column:
        """The column of the groups for an aggregate.

        Parameters
        ----------
        whole : Column
            The call as a column.
        within : Column, optional
            A condition on its input records.
        """
        conditions = [condition for condition in (call.filter, within) if condition is not None]
        call = replace(call, filter=None)
        for condition in conditions:
            call = filtered_call(call, condition)
        left = [] if call.filter is None else [identity(call.filter)]
        order = [(identity(o.column), o.descending, o.nulls_last) for o in call.order]
        same = (call.name, call.distinct, *map(identity, call.arguments), *left, *order)
        if same not in self._calls:
            name = unused("aggregate", [*self.names, *(n for n, _, _ in self._calls.values())])
            self._calls[same] = (name, call, whole)
        return column_of(self._calls[same][0])

    def over(
        self, column: Column, within: Column | None = None, besides: Replacement | None = None
    ) -> Column:
        """An expression of aggregates, rewritten over the columns of the groups.

        Parameters
        ----------
        within : Column, optional
            See `part`.
        besides : callable, optional
            The replacement of calls of other functions.
        """

        def replacement(call: ColumnCall, whole: Column) -> Column | None:
            if call.name in FUNCTIONS:
                _check_arity(call, whole)
                return self.part(call, whole, within)
            if call.name in _ADVICE:
                raise SchemaError(
                    f"agg found {call.name} in {column}: {_ADVICE[call.name]}; {known()}"
                )
            return None if besides is None else besides(call, whole)

        return with_calls_replaced(column, replacement)

    def aggregates(self) -> list[AggregateColumn]:
        """The aggregates to compute, under generated names."""
        if not self._calls:
            # A group has a row also without aggregates of its records.
            count = F.count("*")
            self.part(ColumnCall("count", (), False, None), count)
        entries = list(self._calls.values())
        calls = [call for _, call, _ in entries]
        _check_arguments(self.template, calls)
        grouped = self.template.groupBy(*self.keys)
        columns = [whole.alias(name) for name, _, whole in entries]
        fields = _last(grouped.agg(*columns), len(columns))
        return _of_one_record(
            [_aggregate(self.template, call, f) for call, f in zip(calls, fields)]
        )


def is_plain(column: object) -> bool:
    """Whether a column is a single aggregate, without further computation."""
    call = call_of(column) if isinstance(column, Column) else None
    return call is not None and call.name in FUNCTIONS


def fields_of(grouped: GroupedData, columns: Sequence[Column], keys: int) -> list[T.StructField]:
    """Names and types of the columns that `agg` adds to those of a group; PySpark raises its
    errors."""
    try:
        frame = grouped.agg(*columns)
        count = len(frame.columns) - keys
        fields = frame.schema.fields
    except AnalysisException as error:
        if error.getCondition() != "UNRESOLVED_ROUTINE":
            raise
        raise SchemaError(f"agg found a function that Spark does not know: {error}") from error
    return fields[-count:] if count else []


def identity(column: Column) -> str:
    """A text that is equal for equal expressions only."""
    # The display of a column equals that of a text.
    return expression_json(column) or str(column)


def filtered_call(call: ColumnCall, condition: Column) -> ColumnCall:
    """The aggregate of the records with a true condition: nulls do not count."""
    if not call.arguments:
        return ColumnCall("count_if", (condition,), False, call.alias)
    if FUNCTIONS[call.name].counts_nulls:
        return replace(call, filter=condition if call.filter is None else call.filter & condition)
    place = FUNCTIONS[call.name].decisive
    arguments = list(call.arguments)
    arguments[place] = F.when(condition, arguments[place])
    return replace(call, arguments=tuple(arguments), filter=None)


def _dict_column(name: str, function: str) -> Column:
    return F.call_function(function, F.col(name))


def _last(frame: DataFrame, n: int) -> T.StructType:
    # A setting of the session decides whether the keys come first.
    return T.StructType(frame.schema.fields[-n:])


def _aggregate(template: DataFrame, call: ColumnCall, field: T.StructField) -> AggregateColumn:
    function, arguments = FUNCTIONS[call.name], call.arguments
    if function.constants and function.arity is not None:
        constants = arguments[function.arity:]
        if constants:
            function = function.with_constants(*constants_of(template, call.name, constants))
        arguments = arguments[:function.arity]
    function = function.in_session(is_on(template.sparkSession, ANSI))
    if call.order:
        columns = [item.column for item in call.order]
        kinds = [column.dataType for column in template.select(*columns).schema]
        function = function.ordered(call.order, kinds)
        arguments = (*arguments, *columns) if function.takes_order else arguments
    if isinstance(function, AnyRecord):
        counts = F.lit(True)
        if function.nulls_ignored:
            counts = arguments[0].isNotNull()
        if call.filter is not None:
            counts = call.filter & counts
        arguments = (arguments[0], F.when(counts, True))
    distinct = (call.distinct or function.counts_once) and function.can_be_distinct
    return AggregateColumn(function, arguments, distinct, field.name, field.dataType)


def _of_one_record(aggregates: list[AggregateColumn]) -> list[AggregateColumn]:
    """The aggregates, in which all functions of any record take the same record, by the order of
    their arguments."""
    values = {
        identity(aggregate.arguments[0]): aggregate.arguments[0]
        for aggregate in aggregates if isinstance(aggregate.function, AnyRecord)
    }
    return [
        replace(
            aggregate, function=replace(aggregate.function, others=len(values)),
            arguments=(*aggregate.arguments, *values.values()),
        )
        if isinstance(aggregate.function, AnyRecord) else aggregate for aggregate in aggregates
    ]


def constants_of(template: DataFrame, name: str, constants: Sequence[Column]) -> list[object]:
    """The values of constants, without a job."""
    one_row = template.sparkSession.sql("SELECT * FROM VALUES (0) AS t(`none`)")
    try:
        return list(one_row.select(*constants).collect()[0])
    except AnalysisException as error:
        shown = ", ".join(map(str, constants))
        raise SchemaError(f"{name} takes constants after its first argument: {shown}") from error


def _supported(column: Column) -> ColumnCall:
    """The call of an aggregate function that a column is."""
    call = call_of(column)
    if call is None:
        raise SchemaError(
            f"{column} is not a plain call of an aggregate function; on Spark Connect, write "
            f"F.sum('x') and not F.expr('sum(x)'); {known()}"
        )
    if call.name not in FUNCTIONS:
        advice = _ADVICE.get(call.name, "it is not supported")
        raise SchemaError(f"agg found {call.name} in {column}: {advice}; {known()}")
    _check_arity(call, column)
    return call


def _check_arity(call: ColumnCall, column: Column) -> None:
    function = FUNCTIONS[call.name]
    if function.arity is None:
        return
    most = function.arity + function.constants
    if len(call.arguments) > most:
        raise SchemaError(
            f"agg found {call.name} with {len(call.arguments)} arguments, but it supports only "
            f"{most}; collect the values with F.collect_list and select from them"
        )


def check_known(template: DataFrame, name: str, expression: Column) -> None:
    """Refuse a column that is computed from an aggregate that `agg` does not have.

    Parameters
    ----------
    template : DataFrame
        An empty frame with the columns of the input.
    name : str
        Name of the column.
    expression : Column
        The expression, in which columns that the template lacks may replace aggregates.

    Raises
    ------
    SchemaError
    """
    for wrong in _unknown(template, expression):
        advice = _ADVICE.get(wrong, "it is not supported")
        raise SchemaError(
            f"agg found the aggregate {wrong} in column {name!r}: {advice}; {known()}"
        )


def _unknown(template: DataFrame, expression: Column) -> list[str]:
    """Names of the aggregates that are left in an expression."""
    names: list[str] = []

    def replacement(call: ColumnCall, whole: Column) -> Column | None:
        try:
            with unlogged():
                nodes = analysed_plan(template.select(whole)).nodes
        except AnalysisException:
            return None
        if "Aggregate" not in nodes:
            return whole
        inner = [name for argument in call.arguments for name in _unknown(template, argument)]
        names.extend(inner or [call.name])
        return whole

    with_calls_replaced(expression, replacement)
    return names


def known() -> str:
    """The supported aggregates, for messages."""
    names = sorted({function.name for function in FUNCTIONS.values()})
    return f"the aggregates are {', '.join(names)}"


def _check_arguments(template: DataFrame, calls: Sequence[ColumnCall]) -> None:
    arguments = [argument for call in calls for argument in call.arguments]
    arguments += [item.column for call in calls for item in call.order]
    arguments += [call.filter for call in calls if call.filter is not None]
    if not arguments:
        return
    # This check comes before Spark analyses the aggregates: Spark refuses rand() in them, but not
    # the clock.
    frame = template.select(*arguments)
    check_own_values(frame)
    check_no_sessions(frame, "an argument of an aggregate")
    if len(frame.columns) != len(arguments):
        raise SchemaError(
            "a star among the arguments of an aggregate means several columns; name the columns "
            "one by one"
        )
