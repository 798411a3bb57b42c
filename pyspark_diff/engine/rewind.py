"""Rewinding: rolls back updates that steps have processed but that wait for another input.

With ``r`` the least frontier of some connected inputs, or a later frontier if the state cannot be
rolled back so far::

    rewound(S) = the state without the inputs' updates at r or beyond:
                 operators know the updates before r, and all others wait for their release

A step from there without some of the updates has the same result as if they had never come. While
an input lags, compaction does not advance times from ``r`` on. Raw updates, and outputs for
consumers, are then kept. If all inputs are at one time, nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Callable, Iterable, Mapping, Sequence, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_diff import thresholds
from pyspark_diff.engine.graph import Component, Graph
from pyspark_diff.engine.oscillation import added_up
from pyspark_diff.engine.state import Arrival, Shown, State
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.operators.node import Constant, Input, Node
from pyspark_diff.runners.feed import Feed
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.times import Antichain, meet_all
from pyspark_diff.trace.batch import Batch, BatchFile
from pyspark_diff.trace.spine import Trace

#: Writes the rows of a file before a time; returns None if there are none.
Cut = Callable[[BatchFile, Node, int, int], BatchFile | None]


@dataclass(frozen=True)
class Rewindable:
    """The updates that can be rolled back after a step.

    Parameters
    ----------
    floors : mapping of Node to Antichain
        The frontier from which on the updates of each input can be rolled back.
    nodes : mapping of Node to Antichain
        The same for each node that is connected to inputs at different frontiers.
    still : frozenset of Node
        Nodes with the same floor as before the step, so that all their old updates remain.
    """

    floors: dict[Node, Antichain] = field(default_factory=dict)
    nodes: Mapping[Node, Antichain] = field(default_factory=dict)
    still: frozenset[Node] = frozenset()

    def recent(
        self, node: Node, old: tuple[Arrival, ...], released: tuple[Arrival, ...], upper: Antichain
    ) -> tuple[Arrival, ...]:
        """The released arrivals of an input, old and new, that can be rolled back."""
        floor = self.nodes.get(node)
        start = None if floor is None or upper.precedes(floor) else floor.bound
        if start is None:
            return ()
        if node not in self.still:
            old, released = (), (*old, *released)
        recent = list(old)
        for arrival in released:
            begin = start if arrival.start is None else max(start, arrival.start)
            until = arrival.until
            if cast(int, arrival.last) >= begin and (until is None or until > begin):
                recent.append(replace(arrival, start=begin))
        return tuple(recent)

    def shown(self, old: Iterable[Shown], new: Iterable[Shown]) -> tuple[Shown, ...]:
        """The outputs for consumers, old and new, of updates that can be rolled back."""
        left = []
        for update in old:
            if update.node in self.still:
                left.append(update)
            else:
                left += self._beyond_floor([update])
        return (*left, *self._beyond_floor(new))

    def _beyond_floor(self, shown: Iterable[Shown]) -> list[Shown]:
        left = []
        for update in shown:
            floor = self.nodes.get(update.node)
            table = None if floor is None else _part(update.table, floor.bound)
            if table is not None and table.num_rows:
                left.append(replace(update, table=table))
        return left


def rewindable_after(
    parts: Sequence[Component], state: State, upper: Mapping[Node, Antichain], others: bool
) -> Rewindable:
    """The updates that can be rolled back after a step to some frontiers of inputs.

    Parameters
    ----------
    state : State
        The state before the step.
    others : bool
        Whether there are other parts, which do not change.
    """
    floors: dict[Node, Antichain] = dict(state.floors) if others else {}
    nodes: dict[Node, Antichain] = dict(state.lagging or {}) if others else {}
    for part in parts if nodes else ():
        for node in part.nodes:
            nodes.pop(node, None)
    still = set(nodes)
    for part in parts:
        inputs = part.inputs
        fed = [upper[node] for node in inputs if not isinstance(node, Constant)]
        floor = least = meet_all(fed)
        lags = any(frontier != least for frontier in fed)
        if lags:
            # A source that is released in several steps is kept once.
            sources = {
                id(arrival.source): arrival.source
                for node in inputs for arrival in state.recent.get(node, ())
            }
            rows = sum(source.rows or 0 for source in sources.values())
            if rows > thresholds.current.rewind_rows_max:
                for frontier in fed:
                    floor = floor.join(frontier)
                lags = False
            else:
                for node in inputs:
                    floor = floor.join(state.floors.get(node, state.frontiers[node]))
        floors.update(dict.fromkeys(inputs, floor))
        if lags and not floor.is_empty:
            nodes.update(dict.fromkeys(part.nodes, floor))
            if all(state.floors.get(node) == floor for node in inputs):
                still.update(part.nodes)
    return Rewindable(floors, nodes, frozenset(still))


def rewound(state: State, nodes: frozenset[Node], cut: Cut) -> State:
    """The state without the updates of some inputs that can be rolled back.

    Parameters
    ----------
    nodes : frozenset of Node
        Inputs; connected inputs are rolled back too.
    cut : callable
    """
    if state.graph is None or not nodes:
        return replace(state, rewinds=frozenset())
    frontiers, traces = dict(state.frontiers), dict(state.traces)
    pending, waiting, recent = dict(state.pending), dict(state.waiting), dict(state.recent)
    for part in state.graph.connected:
        if nodes.isdisjoint(part.nodes):
            continue
        inputs = part.inputs
        floor = state.floors[inputs[0]]
        at = floor.bound
        if at is None:
            continue
        back = {node for node in inputs if node in nodes or recent.get(node)}
        for source in inputs:
            again = map(_released_again, recent.pop(source, ()))
            waiting[source] = (*again, *waiting.get(source, ()))
        for node in _downstream(state.graph, back):
            if frontiers[node].precedes(floor):
                continue
            frontiers[node] = floor
            if node in traces:
                traces[node] = _cut(traces[node], node, at, cut)
        for node in part.nodes:
            feeds = (_before(feed, floor) for feed in pending.get(node, ()))
            pending[node] = tuple(feed for feed in feeds if feed is not None)
    return replace(
        state, frontiers=frontiers, traces=traces, pending=pending, waiting=waiting, recent=recent,
        rewinds=frozenset(),
    )


def _released_again(arrival: Arrival) -> Arrival:
    """An arrival as it waited before its release up to a time."""
    if arrival.until is None:
        return arrival
    return replace(arrival, last=min(arrival.last, arrival.until - 1))


def _downstream(graph: Graph, inputs: set[Input]) -> list[Node]:
    """The nodes downstream of some inputs, with the inputs."""
    reached: set[Node] = set(inputs)
    order: list[Node] = []
    for item in graph.order:
        sources = item.inputs if isinstance(item, Node) else item.outside
        if item in reached or not reached.isdisjoint(sources):
            nodes = [item] if isinstance(item, Node) else item.nodes()
            reached.update(nodes)
            order += nodes
    return order


def _cut(trace: Trace, node: Node, at: int, cut: Cut) -> Trace:
    """The updates of a trace before a time."""
    upper = trace.lower.join(Antichain([at]))
    batches = []
    for batch in trace.batches:
        interval = batch.description
        if not interval.upper.precedes(upper):
            if not interval.lower.precedes(upper) or interval.lower == upper:
                continue
            files = {
                bucket: tuple(
                    file for old in old_files if (file := cut(old, node, bucket, at)) is not None
                )
                for bucket, old_files in batch.files.items()
            }
            files = {bucket: old_files for bucket, old_files in files.items() if old_files}
            batch = Batch(replace(interval, upper=upper), files)
        if batch.files:
            batches.append(batch)
    # The trace of a node without readers has no updates up to its frontier, so `since` moves back.
    return replace(trace, upper=upper, since=trace.since.meet(upper), batches=tuple(batches))


def _before(feed: Feed, floor: Antichain) -> Feed | None:
    """The updates of a feed before a time; None if there are none."""
    at = floor.bound
    if feed.until.precedes(floor) or at is None:
        return feed
    if feed.lower is not None and feed.lower >= at:
        return None
    return replace(feed, upper=at if feed.upper is None else min(at, feed.upper), until=floor)


def shown_retractions(state: State) -> list[Shown]:
    """The retractions of outputs that consumers received from updates that are rolled back.

    A node that only passes updates on shows them on arrival, also beyond its own frontier. So the
    times of updates decide, whether the frontier of the node moves or not.

    Parameters
    ----------
    state : State
        The state before it is rewound.
    """
    retractions = []
    for update in state.shown:
        table = _part(update.table, _start(state, update.node))
        if table.num_rows:
            place = table.column_names.index(DIFF)
            negative = table.set_column(place, DIFF, pc.negate_checked(table[DIFF]))
            retractions.append(replace(update, table=negative))
    return retractions


def _start(state: State, node: Node) -> int | None:
    """The time from which on the outputs of a node are rolled back, or None."""
    graph = state.graph
    for part in graph.connected if graph is not None and state.rewinds else ():
        if node in part.nodes and not state.rewinds.isdisjoint(part.nodes):
            return state.floors[part.inputs[0]].bound
    return None


def difference(schema: Schema, tables: list[pa.Table]) -> list[pa.Table]:
    """The sum of updates and of retractions of some of them."""
    return [added_up(schema, pa.concat_tables(tables))]


def _part(table: pa.Table, start: int | None) -> pa.Table:
    if start is None:
        return table.slice(0, 0)
    times = as_int64(table[TIME].combine_chunks()).to_numpy()
    return table.filter(pa.array(times >= start, pa.bool_())) if np.size(times) else table
