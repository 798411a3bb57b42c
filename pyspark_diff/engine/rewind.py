"""Rewinding: what steps have taken in, and what waits somewhere for another input, is taken back.

With ``r`` the least frontier of some inputs that have to do with each other, or where they cannot
be taken back further than that, a later one::

    rewound(S) = the state in which of these inputs no update at r or beyond has been processed:
                 each operator knows what lies before r, and all the rest is to be released again

so a step from there, with some of the updates left out, gives what it would have given, had they
never come. While inputs lag behind each other, times from ``r`` on are not advanced, and raw
updates, and what was shown of them, are kept. Where they are all at one time there is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Callable, Iterable, Mapping, Sequence, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

#: Of more rows than this that wait, none can be taken back: history would grow without end where
#: an input is never advanced.
KEPT_ROWS = 1_000_000

#: Writes the rows of a file that lie before a time; None where there are none.
Cut = Callable[[BatchFile, Node, int, int], BatchFile | None]


@dataclass(frozen=True)
class Rewindable:
    """What can be taken back when a step is done.

    Parameters
    ----------
    floors : mapping of Node to Antichain
        From when on updates of each input can be taken back.
    nodes : mapping of Node to Antichain
        The same of each node that has to do with inputs that lag behind each other.
    still : frozenset of Node
        Those of them where that is as it was before the step, so that nothing of before goes.
    """

    floors: dict[Node, Antichain] = field(default_factory=dict)
    nodes: Mapping[Node, Antichain] = field(default_factory=dict)
    still: frozenset[Node] = frozenset()

    def recent(
        self, node: Node, old: tuple[Arrival, ...], released: tuple[Arrival, ...], upper: Antichain
    ) -> tuple[Arrival, ...]:
        """Of what an input released before and in this step, that which can be taken back."""
        floor = self.nodes.get(node)
        start = None if floor is None or upper.precedes(floor) else floor.bound
        if start is None:
            return ()
        if node not in self.still:
            old, released = (), (*old, *released)
        found = list(old)
        for one in released:
            taken = start if one.taken is None else max(start, one.taken)
            if cast(int, one.last) >= taken and (one.until is None or one.until > taken):
                found.append(replace(one, taken=taken))
        return tuple(found)

    def shown(self, old: Iterable[Shown], new: Iterable[Shown]) -> tuple[Shown, ...]:
        """Of what was shown before and in this step, that which is made of updates that can be
        taken back."""
        found = []
        for one in old:
            if one.node in self.still:
                found.append(one)
            else:
                found += self._within([one])
        return (*found, *self._within(new))

    def _within(self, shown: Iterable[Shown]) -> list[Shown]:
        found = []
        for one in shown:
            floor = self.nodes.get(one.node)
            table = None if floor is None else _part(one.table, floor.bound)
            if table is not None and table.num_rows:
                found.append(replace(one, table=table))
        return found


def kept(
    parts: Sequence[Component], state: State, upper: Mapping[Node, Antichain], others: bool
) -> Rewindable:
    """What can be taken back when a step has gone up to some frontiers of inputs.

    Parameters
    ----------
    parts : sequence of Component
    state : State
        Before the step.
    upper : mapping of Node to Antichain
    others : bool
        Whether there are other parts, which stay as they are.
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
            # One that is released bit by bit is kept once.
            sources = {
                id(one.source): one.source for n in inputs for one in state.recent.get(n, ())
            }
            if sum(source.rows or 0 for source in sources.values()) > KEPT_ROWS:
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
    """The state in which what can be taken back of some inputs has not been processed.

    Parameters
    ----------
    state : State
    nodes : frozenset of Node
        Inputs; those that have to do with them are taken back too.
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
    """An arrival that was released up to a time."""
    if arrival.until is None:
        return arrival
    return replace(arrival, last=min(arrival.last, arrival.until - 1))


def _downstream(graph: Graph, inputs: set[Input]) -> list[Node]:
    """The nodes that some inputs reach, these too."""
    found: set[Node] = set(inputs)
    order: list[Node] = []
    for item in graph.order:
        around = item.inputs if isinstance(item, Node) else item.outside
        if item in found or not found.isdisjoint(around):
            reached = [item] if isinstance(item, Node) else item.nodes()
            found.update(reached)
            order += reached
    return order


def _cut(trace: Trace, node: Node, at: int, cut: Cut) -> Trace:
    """What a trace holds before a time."""
    upper = trace.lower.join(Antichain([at]))
    batches = []
    for batch in trace.batches:
        interval = batch.description
        if not interval.upper.precedes(upper):
            if not interval.lower.precedes(upper) or interval.lower == upper:
                continue
            files = {
                bucket: tuple(
                    file for old in held if (file := cut(old, node, bucket, at)) is not None
                )
                for bucket, held in batch.files.items()
            }
            files = {bucket: held for bucket, held in files.items() if held}
            batch = Batch(replace(interval, upper=upper), files)
        if batch.files:
            batches.append(batch)
    # One that nobody has to look into holds nothing, up to where it was processed.
    return replace(trace, upper=upper, since=trace.since.meet(upper), batches=tuple(batches))


def _before(feed: Feed, floor: Antichain) -> Feed | None:
    """What of a feed lies before a time."""
    at = floor.bound
    if feed.until.precedes(floor) or at is None:
        return feed
    if feed.lower is not None and feed.lower >= at:
        return None
    return replace(feed, upper=at if feed.upper is None else min(at, feed.upper), until=floor)


def taken_back(state: State) -> list[Shown]:
    """What was shown of updates that are taken back, with the other sign.

    What is only passed on is shown as it comes, also beyond the frontier of where it is shown: so
    it is taken back by its times, whether that frontier moves or not.

    Parameters
    ----------
    state : State
        Before it is rewound.
    """
    found = []
    for one in state.shown:
        table = _part(one.table, _start(state, one.node))
        if table.num_rows:
            place = table.column_names.index(DIFF)
            negative = table.set_column(place, DIFF, pc.negate_checked(table[DIFF]))
            found.append(replace(one, table=negative))
    return found


def _start(state: State, node: Node) -> int | None:
    """From when on what is made at a node is taken back, or None."""
    graph = state.graph
    for part in graph.connected if graph is not None and state.rewinds else ():
        if node in part.nodes and not state.rewinds.isdisjoint(part.nodes):
            return state.floors[part.inputs[0]].bound
    return None


def difference(schema: Schema, tables: list[pa.Table]) -> list[pa.Table]:
    """Updates and others that take some of them back, as what remains."""
    return [added_up(schema, pa.concat_tables(tables))]


def _part(table: pa.Table, start: int | None) -> pa.Table:
    """Rows from a time on."""
    if start is None:
        return table.slice(0, 0)
    times = as_int64(table[TIME].combine_chunks()).to_numpy()
    return table.filter(pa.array(times >= start, pa.bool_())) if np.size(times) else table
