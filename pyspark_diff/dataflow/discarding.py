"""Discarding: updates that have entered are taken out of a state again, and handed back.

For some inputs, and a condition (or none, which holds for all)::

    state of updates  =  state after  +  what is handed back
    an update is handed back  ⟺  the condition holds for it, and
                                 no step has processed it, or those that have can be taken back

What holds for neither true nor false stays. Nothing changes here: a state is a value, and what
steps have processed is taken back by the next one (`pyspark_diff.engine.rewind`).
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
from pyspark_diff.expressions.check import check_deterministic
from pyspark_diff.operators.node import Node
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.spark.frames import column, frame_of_table, update_struct
from pyspark_diff.spark.jobs import run_job
from pyspark_diff.spark.schema import DIFF, TIME, without_nullability
from pyspark_diff.trace import storage

#: A column that says which update one is, beside those that the user knows.
WHOLE = "__whole"


def check_condition(where: object) -> None:
    """Refuse what is no condition."""
    if where is not None and not isinstance(where, (Column, str)):
        raise SchemaError(f"discard takes a condition as a Column or as SQL text, not {where!r}")


def without(
    state: State, sessions: Iterable[BaseSession], where: Column | str | None, waiting: bool
) -> tuple[State, dict[Node, Discarded]]:
    """A state without what has entered some inputs, and that, as users have it.

    Parameters
    ----------
    state : State
    sessions : iterable of BaseSession
    where : Column or str or None
        Only updates that this holds for.
    waiting : bool
        Also what steps have processed and can take back.
    """
    left, taken, recent = dict(state.waiting), dict(state.taken), dict(state.recent)
    rewinds = state.rewinds
    found: dict[Node, Discarded] = {}
    for session in sessions:
        node = session._node
        entered = session._entered(taken.get(node, 0))
        rest, dropped = _split(session, (*left.get(node, ()), *entered), where)
        if waiting:
            recent[node], more = _split(session, recent.get(node, ()), where)
            rewinds |= {node} if more else frozenset()
            dropped = (*more, *dropped)
        found[node] = _given(session, dropped)
        left[node], taken[node] = rest, taken.get(node, 0) + len(entered)
    after = replace(state, waiting=left, taken=taken, recent=recent, rewinds=rewinds)
    return after, found


def _split(
    session: BaseSession, arrivals: tuple[Arrival, ...], where: Column | str | None
) -> tuple[tuple[Arrival, ...], tuple[Arrival, ...]]:
    """Arrivals without the updates for which a condition holds, and those updates."""
    if where is None:
        return (), arrivals
    spark, time_type, named = session._spark, session._node.time_type, session._named
    condition = F.expr(where) if isinstance(where, str) else where
    holds = F.coalesce(condition, F.lit(False))
    left: list[Arrival] = []
    dropped: list[Arrival] = []

    def put(held: list[Arrival], arrival: Arrival, **changes: Any) -> None:
        schema = arrival.source.schema
        held.append(replace(arrival, source=UpdateRows(schema, **changes)))

    for arrival in arrivals:
        source = arrival.source
        if source.frame is not None:
            whole = SparkRunner(spark, time_type).frame(source)
            whole = whole.withColumn(WHOLE, F.struct(*map(column, whole.columns)))
            # It is evaluated more than once: for what is dropped, and for what stays.
            check_deterministic(named(whole).where(holds))
            for held, which in (dropped, holds), (left, ~holds):
                frame = named(whole).where(which).select(f"{WHOLE}.*")
                put(held, arrival, frame=frame)
            continue
        kept, before = [], 0
        for table in _updates(session, arrival):
            if not table.num_rows:
                continue
            before += table.num_rows
            rows = np.arange(table.num_rows)
            struct = without_nullability(update_struct(source.schema, time_type))
            frame = frame_of_table(
                spark, table.append_column(WHOLE, pa.array(rows)), struct.add(WHOLE, "long")
            )
            job = named(frame).where(holds).select(WHOLE).toArrow
            chosen = np.isin(rows, run_job(spark, job)[WHOLE].to_numpy())
            kept.append(table.filter(pa.array(~chosen)))
            if chosen.any():
                part = table.filter(pa.array(chosen))
                put(dropped, arrival, table=part, rows=part.num_rows)
        if kept and sum(table.num_rows for table in kept) == before:
            left.append(arrival)  # it may be in files, and stays there
        elif kept:
            rest = pa.concat_tables(kept)
            put(left, arrival, table=rest, rows=rest.num_rows)
    return tuple(left), tuple(dropped)


def _given(session: BaseSession, arrivals: Sequence[Arrival]) -> Discarded:
    """The updates of arrivals as users have them."""
    node = session._node
    tables = [table for arrival in arrivals for table in _updates(session, arrival)]
    names = [*node.schema.names, *session._names]
    given: Discarded = []
    if tables:
        given.append(pa.concat_tables(tables).combine_chunks().rename_columns(names))
    for arrival in arrivals:
        if arrival.source.frame is not None:
            frame = SparkRunner(session._spark, node.time_type).frame(arrival.source)
            frame = frame.select(*map(column, [*node.schema.names, TIME, DIFF]))
            given.append(frame.toDF(*names))
    return session._shown(given)


def _updates(session: BaseSession, arrival: Arrival) -> list[pa.Table]:
    """The updates of an arrival that no step has released, but those of a frame."""
    source = arrival.source
    tables = [] if source.table is None else [source.table]
    tables += [storage.read_table(path) for path in source.paths]
    names = [*source.schema.names, TIME, DIFF]
    feed = Feed(source, lower=arrival.taken, upper=arrival.until)
    moment = (TIME, session._node.time_type.arrow)
    kinds = pa.schema([*source.schema.arrow(), moment, (DIFF, pa.int64())])
    return [feed.within(table).select(names).cast(kinds) for table in tables]
