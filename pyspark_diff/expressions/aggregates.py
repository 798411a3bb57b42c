"""What the columns in `agg` ask for, found without running anything.

    the aggregates of f, in order   ≡  the columns that groupBy(keys).agg(f) adds, names and types
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregate_functions import FUNCTIONS, AggregateFunction
from pyspark_diff.expressions.check import check_deterministic
from pyspark_diff.spark.jvm import ColumnCall, call_of

#: Names that PySpark knows only in a dict.
_DICT_SYNONYMS = {"average": "avg", "size": "count"}

_NO_ORDER = (
    "without an order its result depends on chance; use F.min_by(x, order) or F.max_by(x, order)"
)
_ORDERED = "it is not supported; collect the values with F.collect_list and compute it from them"
_ADVICE = {
    **dict.fromkeys(["first", "first_value", "last", "last_value", "any_value"], _NO_ORDER),
    **dict.fromkeys(
        "median mode percentile percentile_approx approx_percentile percentile_cont "
        "percentile_disc".split(),
        _ORDERED,
    ),
    "approx_count_distinct": "use F.count_distinct, which is exact here",
}
_COMBINE = "give each aggregate a name in agg, and combine them with withColumn"


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of `agg`.

    Parameters
    ----------
    function : AggregateFunction
    arguments : tuple of Column
        Over the columns of the input; none for ``count(*)``. With several, ``count`` counts the
        rows where none of them is null.
    distinct : bool
        Whether equal arguments count once; never where that makes no difference.
    name : str
        Name of the output column, as PySpark names it.
    type : pyspark.sql.types.DataType
        Type of the output column, as Spark gives it.
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
) -> list[Aggregate]:
    """What `template.groupBy(*keys).agg(*exprs)` asks for.

    Parameters
    ----------
    template : DataFrame
        An empty frame with the columns of the input.
    keys : sequence of Column or str
        As `groupBy` takes them.
    exprs : sequence of Column, or one dict
        As `agg` takes them; the dict may also come in a sequence.

    Returns
    -------
    list of Aggregate
        In the order of PySpark's columns, which for a dict is not that of the dict.

    Raises
    ------
    SchemaError
        If something else than a supported aggregate is on top of an expression.
    NonDeterministicError
        If an argument may have another value when it is evaluated again.
    pyspark.errors.AnalysisException
        Whatever Spark itself finds wrong, such as an unknown column.

    Examples
    --------
    >>> sales = spark.createDataFrame([], "shop string, price int")
    >>> for found in parse_aggregates(sales, ["shop"], [F.mean("price"), F.count("*").alias("n")]):
    ...     print(found.function.name, found.arguments, found.name, found.type.simpleString())
    avg (Column<'price'>,) avg(price) double
    count () n bigint
    """
    grouped = template.groupBy(*keys)
    given = [exprs] if isinstance(exprs, Mapping) else list(exprs)
    if len(given) == 1 and isinstance(given[0], Mapping):
        entries = given[0]
        calls = [_supported(_dict_column(*entry)) for entry in entries.items()]
        _check_arguments(template, calls)
        # PySpark hands the dict to the JVM, which puts it into an order of its own.
        order = _last(grouped.agg(dict(entries)), len(calls)).names
        fields = [_last(grouped.agg(dict([entry])), 1)[0] for entry in entries.items()]
        found = [_aggregate(call, field) for call, field in zip(calls, fields)]
        return sorted(found, key=lambda aggregate: order.index(aggregate.name))
    columns = [expr for expr in given if isinstance(expr, Column)]
    if not columns or len(columns) < len(given):
        raise SchemaError(
            "agg takes columns such as F.sum('x'), at least one, or one dict from column names to "
            f"function names; it got {', '.join(type(expr).__name__ for expr in given) or 'none'}"
        )
    calls = [_supported(column) for column in columns]
    _check_arguments(template, calls)
    fields = list(_last(grouped.agg(*columns), len(calls)))
    return [_aggregate(call, field) for call, field in zip(calls, fields)]


def _dict_column(name: str, function: str) -> Column:
    known = _DICT_SYNONYMS.get(function.lower(), function)
    return F.call_function(known, F.col(name))


def _last(frame: DataFrame, n: int) -> T.StructType:
    # Whether the keys come before them is a setting of the session.
    return T.StructType(frame.schema.fields[-n:])


def _aggregate(call: ColumnCall, field: T.StructField) -> Aggregate:
    function = FUNCTIONS[call.name]
    distinct = call.distinct and function.can_be_distinct
    return Aggregate(function, call.arguments, distinct, field.name, field.dataType)


def _supported(column: Column) -> ColumnCall:
    """The call that a column is, if it is one of an aggregate function."""
    call = call_of(column)
    if call is None:
        raise SchemaError(
            f"{column} is not a plain call of an aggregate function; {_COMBINE}, where "
            "casts may be too; on Spark Connect, write F.sum('x') and not F.expr('sum(x)'); "
            f"{_known()}"
        )
    function = FUNCTIONS.get(call.name)
    if function is None:
        advice = _COMBINE if _has_aggregate(call) else _ADVICE.get(call.name, "it is not supported")
        raise SchemaError(f"agg found {call.name} in {column}: {advice}; {_known()}")
    if function.arity is not None and len(call.arguments) > function.arity:
        raise SchemaError(
            f"agg found {call.name} with {len(call.arguments)} arguments, but it supports only "
            f"{function.arity}; collect the values with F.collect_list and select from them"
        )
    return call


def _known() -> str:
    names = sorted({function.name for function in FUNCTIONS.values()})
    return f"the aggregates are {', '.join(names)}"


def _has_aggregate(call: ColumnCall) -> bool:
    inner = [found for found in map(call_of, call.arguments) if found is not None]
    return any(
        found.name in FUNCTIONS or found.name in _ADVICE or _has_aggregate(found)
        for found in inner
    )


def _check_arguments(template: DataFrame, calls: Sequence[ColumnCall]) -> None:
    arguments = [argument for call in calls for argument in call.arguments]
    if not arguments:
        return
    # Before Spark sees the aggregates: it refuses rand() there, but not the clock.
    frame = template.select(*arguments)
    check_deterministic(frame)
    if len(frame.columns) != len(arguments):
        raise SchemaError(
            "a star among the arguments of an aggregate stands for several columns; name the "
            "columns one by one"
        )
