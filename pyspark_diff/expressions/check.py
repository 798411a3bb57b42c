"""The checks of expressions in linear operators: deterministic, and row by row.

An operator ``f`` is linear iff ``f(A + B) = f(A) + f(B)``. So it can apply to each update and keep
its time and diff. Spark expressions that read one row at a time are linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from pyspark_diff.errors import NonDeterministicError, SchemaError
from pyspark_diff.spark import jvm
from pyspark_diff.spark.one_row import not_one_row
from pyspark_diff.spark.pandas_calls import EXACT, pandas_calls
from pyspark_diff.spark.replaced import reads_variables
from pyspark_diff.spark.schema import DIFF, TIME, Schema, TimeType

#: Logical operators that process each row by itself. Expand makes several results of a row, as in a
#: sliding window.
_ROW_WISE = frozenset(
    "Project Filter Generate Expand SubqueryAlias LocalRelation LogicalRDD MapInPandas MapInArrow "
    "Union Repartition RepartitionByExpression RepartitionById RebalancePartitions "
    "ResolvedHint UnresolvedHint View Range OneRowRelation BatchEvalPython ArrowEvalPython "
    "DeserializeToObject SerializeFromObject TypedFilter LocalTableScan Sort".split()
)


#: Operators of a plan, in the user's terms.
_CONSTRUCTS = {
    "Aggregate": "an aggregate (such as sum, or groupBy)",
    "Window": "a window function (over)",
    "GlobalLimit": "a limit", "LocalLimit": "a limit per partition",
    "Deduplicate": "distinct or dropDuplicates", "Distinct": "distinct",
    "Join": "a join", "Sample": "sample", "Except": "exceptAll or subtract",
    "Intersect": "intersect", "Offset": "offset",
}


#: The remedies for an expression of the time of day.
_CLOCK = (
    ". For records of the last seven days write frame.expire_after(\"7 days\", column), and for "
    "the current time as a collection, to join with, flow.clock(\"1 day\")"
)
#: The functions that read the time of day.
_CLOCKS = frozenset(
    "curdate current_date current_time current_timestamp localtimestamp now unix_timestamp".split()
)


def check_deterministic(frame: DataFrame) -> None:
    """Refuse expressions whose value may differ between an insertion and its retraction.

    Raises
    ------
    NonDeterministicError
    """
    _refuse_unstable(jvm.analysed_plan(frame).unstable)


def _refuse_unstable(unstable: Sequence[str]) -> None:
    if unstable:
        raise NonDeterministicError(
            f"{', '.join(unstable)} may give a retracted row another value than the inserted row, "
            "so the two would not cancel. Compute the value before the rows enter the collection"
            + ("" if _CLOCKS.isdisjoint(unstable) else _CLOCK)
        )


def check_own_values(frame: DataFrame) -> jvm.AnalysedPlan:
    """Refuse expressions whose value depends on more than their row.

    Spark binds session variables and subqueries anew for each query, so one collection would mix
    rows of old and new values. An expression that is not known to be a function of one row is
    refused.

    Returns
    -------
    Plan
        The plan of the frame, for further checks.

    Raises
    ------
    NonDeterministicError
        See `check_deterministic`.
    SchemaError
        If an expression has a session variable or a subquery, is not in the list of
        `pyspark_diff.spark.one_row`, or passes whole numbers that may be null to pandas.
    """
    plan = jvm.analysed_plan(frame)
    if plan.outside:
        raise SchemaError(
            f"an expression reads {' and '.join(plan.outside)}. Spark reads it anew at each step, "
            "and rows of old and new values would be mixed. Write the value as a literal, "
            "F.lit(...), or make the rows an input and join with it"
        )
    _refuse_unstable(plan.unstable)
    unknown = not_one_row(frame)
    if unknown:
        raise SchemaError(
            f"an expression uses {', '.join(unknown)}. This library does not know that its value "
            "depends on one row alone. Compute it before the rows enter an input, or write it with "
            "other functions of Spark"
        )
    calls = pandas_calls(frame)
    if calls:
        raise SchemaError(
            f"a pandas function takes a column that may be null: {', '.join(calls)}. A null in "
            "another row of the batch makes whole numbers floats and truth values objects, so a "
            "removal might not cancel its insertion. Pass F.coalesce(column, F.lit(...)), or use "
            "F.udf, F.arrow_udf or map_in_pandas of the collection" + (
                f"; the setting {EXACT} = true makes whole numbers exact"
                if frame.sparkSession.conf.isModifiable(EXACT) else ""
            )
        )
    return plan


def check_no_variables(given: Iterable[str | Column]) -> None:
    """Refuse SQL text with ``${name}``, which Spark's parser replaces by a setting.

    Raises
    ------
    SchemaError
    """
    for expression in given:
        if "${" in expression if isinstance(expression, str) else reads_variables(expression):
            raise SchemaError(
                "an expression has ${name} in its text. Spark replaces it by a setting anew at "
                "each step, and rows of old and new values would be mixed. Write the value as a "
                "literal, F.lit(...)"
            )


def check_no_sessions(frame: DataFrame, what: str) -> None:
    """Refuse ``session_window``: its value for a row depends on other rows.

    Raises
    ------
    SchemaError
    """
    if jvm.analysed_plan(frame).sessions:
        raise sessions_refused(what)


def sessions_refused(what: str) -> SchemaError:
    """The error of a ``session_window`` that is no key of `groupBy`."""
    return SchemaError(
        f"{what} uses session_window, and the end of a session depends on other rows. Only a whole "
        "key of groupBy(...).agg(...) may be a session, without rollup, cube and pivot. Group by "
        "it, and select session_window.start or .end from the result"
    )


def changes_rows(rows: DataFrame, expression: Column) -> bool:
    """Whether an expression may have no value or several values for a row, as time windows do."""
    nodes = jvm.analysed_plan(rows.select(expression)).nodes
    return not {"Filter", "Expand"}.isdisjoint(nodes)


def check_same_columns(before: Sequence[str], filtered: DataFrame, what: str) -> None:
    """Refuse a time window in a condition: Spark adds a column for it to the rows that remain.

    Parameters
    ----------
    before : sequence of str
        The columns of the frame that was filtered.
    what : str
        The operator, for messages.

    Raises
    ------
    SchemaError
    """
    if sorted(before) != sorted(filtered.columns):
        check_no_sessions(filtered, what)
        raise SchemaError(
            f"the condition of {what} has a time window. Spark adds the column of the window to "
            "the rows, leaves out rows without a window, and repeats rows of several windows. "
            "Make the window a column first, withColumn('w', F.window('time', '1 hour')), and "
            "filter by its fields"
        )


def check_row_wise(frame: DataFrame, what: str, *, intervals: bool = False) -> None:
    """Refuse a plan that reads more than one row at a time.

    Parameters
    ----------
    what : str
        The operator, for messages.
    intervals : bool
        Whether ``session_window`` computes the interval of each row, and not its session.

    Raises
    ------
    NonDeterministicError
        See `check_deterministic`.
    SchemaError
        If the plan has an aggregate, a join, a window, a limit or the like; see also
        `check_own_values`.
    """
    plan = check_own_values(frame)
    if plan.sessions and not intervals:
        raise sessions_refused(what)
    others = [node for node in plan.nodes if node not in _ROW_WISE]
    if others:
        instead = "use the operators of DiffFrame for that (count, distinct, threshold, ...)"
        if others == ["Window"]:
            instead = (
                "write windows in select or withColumn; over Spark Connect as columns, "
                "F.row_number().over(...), if this text cannot be parsed"
            )
        raise SchemaError(
            f"{what} may only look at one row at a time, but its plan has "
            f"{', '.join(_CONSTRUCTS.get(node, node) for node in dict.fromkeys(others))}; {instead}"
        )


def data_schema(frame: DataFrame, time_type: TimeType, what: str) -> Schema:
    """Schema of the data columns of a frame of update rows, which must have time and diff.

    Raises
    ------
    SchemaError
        If the time or diff column is missing or has another type.
    """
    struct = frame.schema
    for name, kind in ((TIME, time_type.kind), (DIFF, T.LongType())):
        kinds = [field.dataType for field in struct.fields if field.name == name]
        if kinds != [kind]:
            shown = ", ".join(f.simpleString() for f in kinds) or "nothing"
            raise SchemaError(
                f"{what} must keep the {name.strip('_')} column of type {kind.simpleString()}; "
                f"its result has {shown} there, and the columns {', '.join(struct.names)}"
            )
    return Schema(T.StructType([f for f in struct.fields if f.name not in (TIME, DIFF)]))
