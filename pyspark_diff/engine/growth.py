"""Growth: new operators in a program that has run, and their backfill from kept collections.

Nodes that have run do not change. A new operator reads a kept collection: it shares an arrangement
with earlier readers, or reads through an `Imported` node. For every new node ``n``, with ``since``
the frontier from which on the past of its inputs is kept::

    accumulate(n, t) = the value of a node that ran from the beginning, at t beyond since

If times are structs, a collection is in a loop for each field except the first. Its arrangement is
outside the loops, and has the fields as columns. By these columns its past enters the loops
again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Iterable, Mapping, Sequence

from pyspark_diff.engine.graph import Graph, graph_of, starts_of
from pyspark_diff.engine.lowering import Existing
from pyspark_diff.engine.state import State
from pyspark_diff.errors import NotReadableError
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.due import Due, Later, Waiting
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.linear import Expression, MapInArrow, MapInPandas
from pyspark_diff.operators.loop import EnterAt, Leave, revealed, time_scope
from pyspark_diff.operators.node import (
    Arranged,
    Constant,
    Input,
    Keyed,
    Linear,
    Node,
    Passing,
    Reader,
)
from pyspark_diff.times import Antichain
from pyspark_diff.trace.spine import Trace

#: Stages that may depend on times.
_TIME_AWARE = (Expression, MapInArrow, MapInPandas)


@dataclass(frozen=True)
class Past:
    """A source of a collection's past.

    Parameters
    ----------
    node : Arranged or Constant
        The arrangement or the constant with the past.
    chain : tuple of Stage
        The stages from there to the collection.
    fields : tuple of str
        If times are structs, the columns with all their fields except the first. Without such
        columns these fields are 0.
    """

    node: Arranged | Constant
    chain: tuple[Stage, ...] = ()
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Growth:
    """A graph, and its nodes that have not run yet.

    Parameters
    ----------
    late : frozenset of Node
        New nodes of the program; empty if nothing has run.
    since : Antichain
        The frontier from which on new nodes know their past.
    pasts : mapping of Imported to tuple of Past
        The sources of each backfill.
    bases : tuple of Arranged
        Arrangements that the backfill reads.
    """

    graph: Graph
    late: frozenset[Node] = frozenset()
    since: Antichain = Antichain()
    pasts: Mapping[Imported, tuple[Past, ...]] = field(default_factory=dict)
    bases: tuple[Arranged, ...] = ()

    @property
    def constants(self) -> frozenset[Constant]:
        """Constants that new operators read, and that earlier operators have read."""
        nodes = (past.node for pasts in self.pasts.values() for past in pasts)
        return frozenset(node for node in nodes if isinstance(node, Constant))

    def extended(
        self, state: State, begins: Mapping[Node, Antichain], start: Antichain
    ) -> State:
        """The state with the first frontiers of all new nodes.

        Parameters
        ----------
        begins : mapping of Node to Antichain
            The first frontiers of inputs.
        start : Antichain
            The first frontier of constants.
        """
        start = start.join(self.since) if self.bases else start
        starts = starts_of(self.graph, begins, start)
        # Nodes that the program no longer has are dropped.
        runs = self.graph.program.numbers
        frontiers = {**starts, **{n: at for n, at in state.frontiers.items() if n in runs}}
        traces = {node: trace for node, trace in state.traces.items() if node in runs}
        pending = {node: feeds for node, feeds in state.pending.items() if node in runs}
        for node in self.late:
            if isinstance(node, Arranged) and node.keeps:
                since = starts[node].join(self.since) if self.bases else starts[node]
                traces[node] = Trace(starts[node], starts[node], since)
        return replace(state, frontiers=frontiers, traces=traces, pending=pending)


def grown(sinks: Iterable[Node], old: Graph | None, state: State) -> Growth:
    """The graph of some sinks after some of them have run.

    Parameters
    ----------
    sinks : iterable of Node
        The sinks, those that have run first.
    old : Graph or None
        The graph that has run.
    state : State
        The state after its last step.

    Raises
    ------
    NotReadableError
        If a new operator needs a past that was not kept.
    """
    sinks = tuple(sinks)
    if old is None:
        return Growth(graph_of(sinks))
    whole, gone = _whole(old, state), frozenset[Node]()
    while True:
        try:
            growth = _grown(sinks, old, state, whole, gone)
            # If parts of the past have different `since` frontiers, all move to the latest one.
            early = {node for node in growth.bases if state.traces[node].since != growth.since}
            if not early & whole:
                return growth
            whole -= early
        except _GoneError as error:
            # Nodes downstream of a kept past can be created again.
            copies = error.path - gone
            if not copies or any(_in_user_loop(n) or isinstance(n, (Input, Leave)) for n in copies):
                raise _unkept(error.node) from None
            gone |= copies


class _GoneError(Exception):
    """The past of a node is gone, and the past of the nodes on the path to it."""

    def __init__(self, node: Node):
        self.node = node
        self.path: frozenset[Node] = frozenset([node])


def _grown(
    sinks: Sequence[Node], old: Graph, state: State, whole: frozenset[Node],
    gone: frozenset[Node], bases: tuple[Node, ...] = (),
) -> Growth:
    """The growth with some shared arrangements, some new copies of nodes, and some nodes of an
    earlier program that continue."""
    existing = Existing(old.program, old.lowered, whole, gone, old.wanted, old.origins, bases)
    graph = graph_of(sinks, existing)
    late = frozenset(graph.nodes) - frozenset(old.nodes)
    pasts: dict[Imported, tuple[Past, ...]] = {}
    read: dict[Arranged, None] = {}
    for node in graph.nodes:
        if node in late and isinstance(node, Imported):
            pasts[node] = tuple(_past(old, state, node.inputs[0], graph.wanted[node]))
            read.update(
                (past.node, None) for past in pasts[node] if isinstance(past.node, Arranged)
            )
        elif node in late and isinstance(node, Reader):
            shared = [source for source in node.arranged if source not in late]
            for source in shared:
                # It may have dropped records that fell due, or have the updates of a loop.
                unfit = isinstance(source, Waiting) or source.loop is not None
                if unfit or not _has_updates(state, source):
                    raise _GoneError(source)
            read.update(dict.fromkeys(shared))
    for node in old.nodes:
        if isinstance(node, Arranged) and node.keeps and node in graph.wanted:
            if node.stored(graph.wanted[node]) != node.stored(old.wanted[node]):
                raise _GoneError(node)  # it lacks columns that new readers need
    extra = [node for node in read if node not in graph.wanted]
    if extra:
        return _grown(sinks, old, state, whole, gone, (*bases, *extra))
    if any(state.traces[base].since != state.traces[base].lower for base in read):
        stages = [node.stage for node in late if isinstance(node, Linear)]
        stages += [stage for group in pasts.values() for past in group for stage in past.chain]
        if any(map(_goes_by_arrival, stages)):
            raise NotReadableError(
                "delay, and expire_after without a column, depend on when each record arrived, and "
                "compaction has merged those times. Add it before the first step, name a column "
                "with the time: expire_after(interval, column), or keep all times: "
                "Dataflow(keep_history=True)"
            )
        if any(map(looks_at_times, stages)):
            raise NotReadableError(
                "transform, mapInPandas and mapInArrow may look at the times of updates, and "
                "compaction has merged past times. Add it before the first step, or keep all "
                "times: Dataflow(keep_history=True)"
            )
    return Growth(graph, late, _since(read, state), pasts, tuple(read))


def _goes_by_arrival(stage: Stage) -> bool:
    """Whether the result of a stage depends on when each record arrived."""
    return isinstance(stage, (Due, Later)) and stage.column is None


def looks_at_times(stage: Stage) -> bool:
    """Whether other times of updates, before the readable times, may change a stage's results."""
    seeing = isinstance(stage, _TIME_AWARE) and not stage.keeps_time_and_diff
    return seeing or _goes_by_arrival(stage)


def _since(bases: Iterable[Arranged], state: State) -> Antichain:
    """The frontier from which on all of some arrangements are known."""
    sinces = [state.traces[node].since for node in bases]
    return reduce(Antichain.join, sinces) if sinces else Antichain([-(2**63)])


def _has_updates(state: State, node: Node) -> bool:
    """Whether an arrangement contains its updates; it drops them if it will have no reader."""
    return node in state.traces and not state.traces[node].since.is_empty


def _whole(graph: Graph, state: State) -> frozenset[Node]:
    """The arrangements with all of their collections, which new operators may read."""
    whole = set()
    for node in graph.nodes:
        if _collection_of(node) is not None and _has_updates(state, node):
            assert isinstance(node, Arranged)
            if set(node.stored(graph.wanted[node])) >= set(node.schema.names):
                whole.add(node)
    return frozenset(whole)


def _collection_of(node: Node) -> Node | None:
    """The node with the collection that an arrangement outside of all loops contains, if any."""
    if node.loop is not None:
        return None
    if isinstance(node, Keyed) and node.kernel is None and node.diff_columns is None:
        return None if isinstance(node, Waiting) else node.inputs[0]
    return node if isinstance(node, Reader) and node.keeps else None


def _in_user_loop(node: Node) -> bool:
    """Whether a node is in a loop of the user, and not only in the loops of its times."""
    return node.loop is not time_scope(node)


def _past(
    graph: Graph, state: State, node: Node, wanted: frozenset[str]
) -> list[Past]:
    """The sources of a node's past, with all wanted columns."""
    if isinstance(node, Constant):
        return [Past(node)]
    if isinstance(node, Input) and node not in state.fed:
        return []
    for candidate in graph.nodes:
        collection = None if _in_user_loop(node) else _collection_of(candidate)
        fields = None if collection is None else revealed(node, collection)
        if fields is not None and _has_updates(state, candidate):
            assert isinstance(candidate, Arranged)
            if set(candidate.stored(graph.wanted[candidate])) >= wanted.union(fields):
                return [Past(candidate, fields=fields)]
    passes = isinstance(node, (Linear, Passing, Inspect, EnterAt)) and not isinstance(node, Leave)
    if _in_user_loop(node) or not passes:
        raise _GoneError(node)
    pasts_above: list[Past] = []
    for number, source in enumerate(node.inputs):
        try:
            pasts = _past(graph, state, source, node.needs_of(wanted, number))
        except _GoneError as error:
            error.path |= {node}
            raise
        stages = (node.stage,) if isinstance(node, Linear) else ()
        pasts_above += [replace(past, chain=(*past.chain, *stages)) for past in pasts]
    if pasts_above and isinstance(node, EnterAt):
        raise _GoneError(node)  # it can be created again, since its input is kept
    return pasts_above


def _unkept(node: Node) -> NotReadableError:
    collection = f"{node!r}"
    if isinstance(node, Input):
        collection = f"input {node.name!r}"
    elif isinstance(node, Leave) and (loop := node.inputs[0].loop) is not None:
        collection = f"the output of {loop.name}"
    return NotReadableError(
        f"this cannot be added after the first step: the past of {collection} was not kept. Add it "
        "before the first step, or keep() its inputs from then on"
    )
