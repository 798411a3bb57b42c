"""Discarding: updates that have entered leave a state again, and are returned.

For some inputs, and a condition (without one, every update meets it)::

    updates of the state  =  updates of the state after  +  returned updates

    an update is returned  ⟺  it meets the condition, and
                              no step has processed it, or the step can be taken back

An update for which the condition is null stays. A state is a value, so this module changes none:
the next step takes back the processed updates (`pyspark_diff.engine.rewind`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from pyspark_diff.dataflow.input_session import BaseSession, Discarded
from pyspark_diff.engine.state import Arrival, State
from pyspark_diff.errors import SchemaError
from pyspark_diff.expressions.check import check_deterministic, check_same_columns
from pyspark_diff.operators.node import Node
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.spark.data_types import without_nullability
from pyspark_diff.spark.frames import column, frame_of_table, update_struct
from pyspark_diff.spark.jobs import run_job
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.trace import storage

#: The column that identifies an update, next to the user's columns.
WHOLE = "__whole"


def check_condition(where: object) -> None:
    """Refuse a value that is no condition."""
    if where is not None and not isinstance(where, (Column, str)):
        raise SchemaError(f"discard takes a condition as a Column or as SQL text, not {where!r}")


def without(
    state: State, sessions: Iterable[BaseSession], where: Column | str | None, waiting: bool
) -> tuple[State, dict[Node, Discarded]]:
    """A state without the discarded updates of some inputs, and these in the user's form.

    Parameters
    ----------
    where : Column or str or None
        Discard only updates that meet this condition.
    waiting : bool
        Also discard updates that steps have processed and can take back.
    """
    left, counts, recent = dict(state.waiting), dict(state.arrival_counts), dict(state.recent)
    rewinds = state.rewinds
    discarded: dict[Node, Discarded] = {}
    for session in sessions:
        node = session._node
        entered = session._entered(counts.get(node, 0))
        rest, dropped = _split(session, (*left.get(node, ()), *entered), where)
        if waiting:
            recent[node], more = _split(session, recent.get(node, ()), where)
            rewinds |= {node} if more else frozenset()
            dropped = (*more, *dropped)
        discarded[node] = _user_form(session, dropped)
        left[node], counts[node] = rest, counts.get(node, 0) + len(entered)
    after = replace(state, waiting=left, arrival_counts=counts, recent=recent, rewinds=rewinds)
    return after, discarded


def _split(
    session: BaseSession, arrivals: tuple[Arrival, ...], where: Column | str | None
) -> tuple[tuple[Arrival, ...], tuple[Arrival, ...]]:
    """Arrivals of the updates that do not meet a condition, and arrivals of the others."""
    if where is None:
        return (), arrivals
    spark, time_type, named = session._spark, session._node.time_type, session._named
    condition = F.expr(where) if isinstance(where, str) else where
    holds = F.coalesce(condition, F.lit(False))
    left: list[Arrival] = []
    dropped: list[Arrival] = []

    def append(arrivals: list[Arrival], arrival: Arrival, **changes: Any) -> None:
        schema = arrival.source.schema
        arrivals.append(replace(arrival, source=UpdateRows(schema, **changes)))

    for arrival in arrivals:
        source = arrival.source
        if source.frame is not None:
            whole = SparkRunner(spark, time_type).frame(source)
            whole = whole.withColumn(WHOLE, F.struct(*map(column, whole.columns)))
            # Spark evaluates the condition twice: for the dropped updates, and for the others.
            filtered = named(whole).where(holds)
            check_deterministic(filtered)
            check_same_columns(named(whole).columns, filtered, "discard")
            for part, which in (dropped, holds), (left, ~holds):
                frame = named(whole).where(which).select(f"{WHOLE}.*")
                append(part, arrival, frame=frame)
            continue
        others, before = [], 0
        for table in _updates(session, arrival):
            if not table.num_rows:
                continue
            before += table.num_rows
            rows = np.arange(table.num_rows)
            struct = without_nullability(update_struct(source.schema, time_type))
            frame = frame_of_table(
                spark, table.append_column(WHOLE, pa.array(rows)), struct.add(WHOLE, "long")
            )
            filtered = named(frame).where(holds)
            check_same_columns(named(frame).columns, filtered, "discard")
            job = filtered.select(WHOLE).toArrow
            chosen = np.isin(rows, run_job(spark, job)[WHOLE].to_numpy())
            others.append(table.filter(pa.array(~chosen)))
            if chosen.any():
                matches = table.filter(pa.array(chosen))
                append(dropped, arrival, table=matches, rows=matches.num_rows)
        if others and sum(table.num_rows for table in others) == before:
            left.append(arrival)  # unchanged, so that files stay files
        elif others:
            rest = pa.concat_tables(others)
            append(left, arrival, table=rest, rows=rest.num_rows)
    return tuple(left), tuple(dropped)


def _user_form(session: BaseSession, arrivals: Sequence[Arrival]) -> Discarded:
    """The updates of arrivals under the user's names."""
    node = session._node
    tables = [table for arrival in arrivals for table in _updates(session, arrival)]
    names = [*node.schema.names, *session._names]
    discarded: Discarded = []
    if tables:
        discarded.append(pa.concat_tables(tables).combine_chunks().rename_columns(names))
    for arrival in arrivals:
        if arrival.source.frame is not None:
            frame = SparkRunner(session._spark, node.time_type).frame(arrival.source)
            frame = frame.select(*map(column, [*node.schema.names, TIME, DIFF]))
            discarded.append(frame.toDF(*names))
    return session._shown(discarded)


def _updates(session: BaseSession, arrival: Arrival) -> list[pa.Table]:
    """The updates of an arrival that no step has released; none for a frame."""
    source = arrival.source
    tables = [] if source.table is None else [source.table]
    tables += [storage.read_table(path) for path in source.paths]
    names = [*source.schema.names, TIME, DIFF]
    feed = Feed(source, lower=arrival.start, upper=arrival.until)
    moment = (TIME, session._node.time_type.arrow)
    kinds = pa.schema([*source.schema.arrow(), moment, (DIFF, pa.int64())])
    return [feed.in_interval(table).select(names).cast(kinds) for table in tables]
