"""Sessions as keys of groups: ``groupBy("user", F.session_window("ts", "5 minutes"))``.

Each record has an interval, from its time to its time plus the gap. In the order of their starts,
among the records of the other keys::

    begins(r)  =  start(r) > max of end(q), q before r
    first(r)   =  max of start(q), q up to r with begins(q)
    last(r)    =  max of end(q), q with first(q) = first(r)

The session of a record is ``(first, last)``. Three windows compute it, so a change costs at
most the records of its key. Intervals that touch are one session, as in Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from pyspark.sql import Column, Window
from pyspark.sql import functions as F

from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.aggregates import identity
from pyspark_diff.expressions.check import check_no_sessions, sessions_refused
from pyspark_diff.expressions.handles import Handle, Lineage, Owner
from pyspark_diff.expressions.names import ColumnEntry, unused
from pyspark_diff.frame.collection import Collection
from pyspark_diff.frame.row_wise import computed
from pyspark_diff.frame.windows import with_windows
from pyspark_diff.spark.calls import ColumnCall, call_of
from pyspark_diff.spark.frames import column

_NAME = "session_window"


def with_sessions(
    source: Collection, keys: Sequence[str | Column], exprs: Sequence[Any]
) -> tuple[Collection, list[str | Column]]:
    """A collection with the session of each record as columns, and keys that use them.

    Parameters
    ----------
    source : Collection
        See `Collection.seeing`.
    keys : sequence of str or Column
        Keys of groups, some of which may be calls of ``session_window``.
    exprs : sequence
        The arguments of `agg`.

    Returns
    -------
    source : Collection
        The same collection if no key is a session. Otherwise it has more columns, and lacks the
        records that Spark drops: records without a time or without a positive gap.
    keys : list of str or Column

    Raises
    ------
    SchemaError
        If another key or an argument of `agg` uses ``session_window``, or an argument has a star.
    """
    calls = {number: call for number, key in enumerate(keys) if (call := _call(key))}
    if not calls:
        return source, list(keys)
    if len({tuple(map(identity, call.arguments)) for call in calls.values()}) > 1:
        raise SchemaError(
            "groupBy has several session_window, and a record is in one session of each. "
            "Group by one of them"
        )
    rows = source.template()
    # Spark refuses a time or a gap of another type, and a second window.
    shown = rows.groupBy(*keys).agg(F.count(F.lit(1))).columns
    others = [
        key if isinstance(key, Column) else column(key) if key in source.columns else F.col(key)
        for number, key in enumerate(keys) if number not in calls
    ]
    check_no_sessions(rows.select(*others), "a key of groupBy beside a session")
    if any(isinstance(e, Column) and f"{_NAME}(" in str(e).lower() for e in exprs):
        raise sessions_refused("an expression of agg")
    if source.spreading(exprs)[0].resolver.spread:
        raise SchemaError(
            "an expression of agg has a star, which would take the columns of the session. "
            "Name the columns"
        )
    over, start, end = _with_intervals(source, next(iter(calls.values())).arguments)
    in_order = Window.partitionBy(*others).orderBy(start)
    before = F.max(end).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.when(before.isNull() | (start > before), start)
    # The start identifies the session, so that a new session changes no other one.
    first = F.max(begins).over(in_order)
    last = F.max(end).over(Window.partitionBy(*others, first))
    over, (first_, last_) = with_windows(over, [first, last])
    session = F.struct(_as(first_, "start"), _as(last_, "end"))
    return over, [
        session.alias(source.resolver.as_shown(shown[number], key)) if number in calls else key
        for number, key in enumerate(keys)
    ]


def _call(key: str | Column) -> ColumnCall | None:
    """The call of ``session_window`` in a key, or None for any other key."""
    if not isinstance(key, Column) or _NAME not in str(key).lower():
        return None
    call = call_of(key)
    return call if call is not None and call.name == _NAME else None


def _as(expression: str | Column, name: str) -> Column:
    return (column(expression) if isinstance(expression, str) else expression).alias(name)


def _with_intervals(
    source: Collection, arguments: Sequence[Column]
) -> tuple[Collection, Column, Column]:
    """The collection with the start and the end of each record's interval as columns."""
    own = source.node.schema.names
    start, end = (
        unused(f"session {part}", [*own, *source.columns]) for part in ("start", "end")
    )
    interval = F.call_function(_NAME, *arguments)
    interval_columns = [(start, interval["start"]), (end, interval["end"])]
    unchanged = [(name, column(name)) for name in own]
    node = computed(source, "groupBy", [*unchanged, *interval_columns], intervals=True)
    owner = Owner("session", (start, end))
    entries = [ColumnEntry(None, name, name, Lineage(Handle(name, owner))) for name in (start, end)]
    resolver = replace(source.resolver, entries=(*source.resolver.entries, *entries))
    return replace(source, node=node, resolver=resolver), column(start), column(end)
