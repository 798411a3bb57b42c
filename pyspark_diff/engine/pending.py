"""Pending updates in their smallest form, for a step that was refused.

With ``U`` the updates that a step was to process, ``r`` the meet of the frontiers that it goes up
to, and ``s`` the least of ``r - 1`` and of the users' holds::

    consolidated(U) = consolidate({(record, max(time, s), diff) : (record, time, diff) in U})

So an update and its correction cancel out, and no operator sees either. At ``s`` and later all sums
are those of ``U``. An earlier time cannot be read after the step. If all times stay readable, or
an operator looks at times, no time is changed, and only updates of one time cancel out.
"""

from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.graph import Component
from pyspark_diff.engine.growth import looks_at_times
from pyspark_diff.engine.oscillation import added_up
from pyspark_diff.engine.state import Arrival
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.grouping import group_records
from pyspark_diff.kernels.layout import as_int64, from_int64
from pyspark_diff.kernels.updates import Int64, joined
from pyspark_diff.operators.node import Constant, Input, Linear, Node
from pyspark_diff.operators.upsert import CLEAR, DELETE, INSERT, REMOVE, UPSERT, ChangesInput
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.times import meet_all
from pyspark_diff.trace import storage

Arrivals = Mapping[Node, Sequence[Arrival]]


class Unchanged(Exception):
    """The pending updates of a refused step are in their smallest form already."""


def consolidated(
    context: StepContext, arrivals: Arrivals, moves: bool
) -> dict[Node, tuple[Arrival, ...]]:
    """All that the inputs of a step are to release, consolidated.

    Parameters
    ----------
    context : StepContext
        The context of a step that has begun. If updates cancel out, its `left` becomes the other
        updates, with their original times.
    arrivals : mapping of Node to sequence of Arrival
        The arrivals since the last step.
    moves : bool
        Whether updates move to the last complete time. Else those of one time cancel out only.

    Raises
    ------
    Unchanged
        If a step on them would be the one that was refused.
    """
    least_arrivals: dict[Node, tuple[Arrival, ...]] = {}
    left: dict[Node, tuple[Arrival, ...]] = {}
    folds, rows, cancelled = False, 0, 0
    for part in () if context.settings.open else context.parts:
        last = last_distinct_time(context, part) if moves else None
        before: list[Int64] = []
        after: list[Int64] = []
        for node in part.inputs:
            present = [*context.state.waiting.get(node, ()), *arrivals.get(node, ())]
            if isinstance(node, Constant) or not present:
                continue
            rows += sum(arrival.source.rows or 0 for arrival in present)
            if rows > thresholds.current.pending_rows_max:
                raise Unchanged
            table = pa.concat_tables([_table(context, node, arrival) for arrival in present])
            times = as_int64(joined([table[TIME]])).to_numpy()
            moved = table
            if last is not None:
                before.append(times)
                after.append(np.maximum(times, last))
                column = from_int64(pa.array(after[-1]), table[TIME].type)
                moved = table.set_column(table.column_names.index(TIME), TIME, column)
            if isinstance(node, ChangesInput):
                places = _last_changes(node, moved)
                least, others = moved.take(places), table.take(places)
            else:
                least = added_up(node.schema, moved)
                others = _of_records(node, table, least)
            cancelled += table.num_rows - others.num_rows
            least_arrivals[node], left[node] = _arrivals(node, least), _arrivals(node, others)
        if before:
            folds |= _count(after) < _count(before)
    if not folds and not cancelled:
        raise Unchanged
    context.left = left if cancelled else None
    return least_arrivals


def _count(times: list[Int64]) -> int:
    return int(np.unique(np.concatenate(times)).size)


def _arrivals(node: Input, table: pa.Table) -> tuple[Arrival, ...]:
    if not table.num_rows:
        return ()
    times = as_int64(joined([table[TIME]])).to_numpy()
    source = UpdateRows(node.schema, table=table, rows=table.num_rows)
    return (Arrival(source, int(times.max())),)


def _of_records(node: Input, table: pa.Table, least: pa.Table) -> pa.Table:
    """The updates of the records that have not cancelled out."""
    if least.num_rows == table.num_rows:
        return table
    ours, others = (
        node.schema.layout().encode(
            [joined([some[name]]) for name in node.schema.names],
            np.zeros(some.num_rows, np.int64), np.ones(some.num_rows, np.int64),
        ).key64
        for some in (table, least)
    )
    return table.filter(pa.array(np.isin(ours, others)))


def last_distinct_time(context: StepContext, part: Component) -> int | None:
    """The least time of a part that can be read after the step; None if all of them can."""
    if context.settings.keep_history or context.settings.open:
        return None
    if any(isinstance(node, Linear) and looks_at_times(node.stage) for node in part.nodes):
        return None
    fed = [context.upper[node] for node in part.inputs if not isinstance(node, Constant)]
    end = meet_all(fed).bound
    if end is None:
        return None
    user_holds = (context.settings.user_holds.get(node) for node in part.arranged)
    holds = [hold.bound for hold in user_holds if hold is not None]
    return min([int(end) - 1, *(hold for hold in holds if hold is not None)])


def _table(context: StepContext, node: Input, arrival: Arrival) -> pa.Table:
    """The updates of an arrival that no step has released."""
    source = arrival.source
    if source.frame is not None:
        source = context.evaluation.materialised(source.as_listed())
    tables = [] if source.table is None else [source.table]
    tables += [storage.read_table(path) for path in source.paths]
    feed = Feed(source, lower=arrival.start, upper=arrival.until)
    kinds = pa.schema([
        *node.schema.arrow(), (TIME, node.time_type.arrow), (DIFF, pa.int64())
    ])
    parts = [feed.in_interval(table).select(kinds.names).cast(kinds) for table in tables]
    return pa.concat_tables([kinds.empty_table(), *parts])


def _last_changes(node: ChangesInput, table: pa.Table) -> pa.Array:
    """The places of changes by key that no later change of the same time corrects."""
    if node.sequence:
        return pa.array(np.arange(len(table)))  # a later change may be an older version
    code = joined([table[node.change]]).to_numpy()
    number = joined([table[node.number]]).to_numpy()
    time = as_int64(joined([table[TIME]])).to_numpy()
    keys = [joined([table[name]]) for name in node.key]
    ones = np.ones(len(table), np.int64)
    key64 = node.record.only(node.key).layout().encode(keys, time, ones).key64
    group, _ = group_records(key64, keys)
    group[code == CLEAR] = -1  # it is of all keys
    order = np.lexsort((number, time, group))
    group, time, number, code = group[order], time[order], number[order], code[order]
    cleared = np.full(len(table), np.iinfo(np.int64).min)
    for at, last in zip(time[code == CLEAR], number[code == CLEAR]):
        cleared[time == at] = np.maximum(cleared[time == at], last)
    keep = (number >= cleared) | (code == CLEAR)
    # The result of an upsert or a delete does not depend on the row before it.
    starts = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (time[1:] != time[:-1])))
    whole = np.where(np.isin(code, (UPSERT, DELETE)), number, np.iinfo(np.int64).min)
    if len(table):
        last = np.maximum.reduceat(whole, starts)
        lengths = np.diff(starts, append=len(table))
        keep &= number >= np.repeat(last, lengths)
    order, group, time, code = order[keep], group[keep], time[keep], code[keep]
    columns = [joined([table[name]]) for name in node.record.names]
    while True:
        places = _without_pairs(columns, order, group, time, code)
        if places.size == order.size:
            return pa.array(np.sort(order))
        order, group, time, code = order[places], group[places], time[places], code[places]


def _without_pairs(
    columns: Sequence[pa.Array], order: Int64, group: Int64, time: Int64, code: Int64
) -> Int64:
    """The places of changes that are no insertion of a record before its removal."""
    pair = np.flatnonzero(
        (group[1:] == group[:-1]) & (time[1:] == time[:-1])
        & (code[:-1] == INSERT) & (code[1:] == REMOVE)
    )
    pair = pair[rows_equal(columns, order[pair], order[pair + 1])]
    return np.delete(np.arange(order.size), np.concatenate([pair, pair + 1]))
