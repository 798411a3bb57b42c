"""Growth: operators that are added to a program that has run, and the past that they are given.

What has run stays as it is. Something new that is made of it reads what is kept: an arrangement
shared with those that read it already, or by way of an `Imported` node. For every new node ``n``,
where ``since`` is the frontier from which on the past that it was made of is kept::

    accumulate(n, t) = what it would be, had it been there from the beginning, at t beyond since

Where times are structs a collection is in a loop for each field but the first, and what is kept of
it is outside of them, with these fields in columns. By them its past enters the loops again.
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

#: Stages that may look at times.
_SEEING = (Expression, MapInArrow, MapInPandas)


@dataclass(frozen=True)
class Past:
    """Where the past of a collection is found.

    Parameters
    ----------
    node : Arranged or Constant
        What holds it.
    chain : tuple of Stage
        What is made of that.
    fields : tuple of str
        Where times are structs, the columns that have all fields of them but the first. Without
        them all fields are 0.
    """

    node: Arranged | Constant
    chain: tuple[Stage, ...] = ()
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Growth:
    """A graph, and what in it has not run yet.

    Parameters
    ----------
    graph : Graph
    late : frozenset of Node
        Nodes that the program has grown by; empty where nothing has run.
    since : Antichain
        From when on the new ones know their past.
    pasts : mapping of Imported to tuple of Past
        What they are given.
    bases : tuple of Arranged
        Arrangements that their past is read from.
    """

    graph: Graph
    late: frozenset[Node] = frozenset()
    since: Antichain = Antichain()
    pasts: Mapping[Imported, tuple[Past, ...]] = field(default_factory=dict)
    bases: tuple[Arranged, ...] = ()

    @property
    def constants(self) -> frozenset[Constant]:
        """Constants that new operators are made of, and that others were given already."""
        found = (past.node for pasts in self.pasts.values() for past in pasts)
        return frozenset(node for node in found if isinstance(node, Constant))

    def extended(
        self, state: State, begins: Mapping[Node, Antichain], start: Antichain
    ) -> State:
        """The state with the beginnings of all nodes that it does not know.

        Parameters
        ----------
        state : State
        begins : mapping of Node to Antichain
            The first frontiers of inputs.
        start : Antichain
            That of constants.
        """
        start = start.join(self.since) if self.bases else start
        starts = starts_of(self.graph, begins, start)
        # What a program of before had besides is forgotten.
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
    """The graph of some sinks, where that of some of them has run.

    Parameters
    ----------
    sinks : iterable of Node
        Those that have run first.
    old : Graph or None
        What has run.
    state : State
        After its last step.

    Raises
    ------
    NotReadableError
        If the past of something is not kept that new operators are made of.
    """
    sinks = tuple(sinks)
    if old is None:
        return Growth(graph_of(sinks))
    whole, gone = _whole(old, state), frozenset[Node]()
    while True:
        try:
            found = _grown(sinks, old, state, whole, gone)
            # Where some of the past is known from later on than the rest, all is brought there.
            early = {node for node in found.bases if state.traces[node].since != found.since}
            if not early & whole:
                return found
            whole -= early
        except _GoneError as error:
            # What is made of something of which the past is kept can be made again.
            made = error.path - gone
            if not made or any(_within(n) or isinstance(n, (Input, Leave)) for n in made):
                raise _unkept(error.node) from None
            gone |= made


class _GoneError(Exception):
    """The past of a node is gone, and so is that of those on the way to it."""

    def __init__(self, node: Node):
        self.node = node
        self.path: frozenset[Node] = frozenset([node])


def _grown(
    sinks: Sequence[Node], old: Graph, state: State, whole: frozenset[Node],
    gone: frozenset[Node], bases: tuple[Node, ...] = (),
) -> Growth:
    """The growth in which some arrangements are shared, some nodes made again, and some that a
    program of before had besides go on."""
    standing = Existing(old.program, old.lowered, whole, gone, old.wanted, old.origins, bases)
    graph = graph_of(sinks, standing)
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
                # Or it has dropped what was done; or holds each coordinate's updates of a loop.
                unfit = isinstance(source, Waiting) or source.loop is not None
                if unfit or not _alive(state, source):
                    raise _GoneError(source)
            read.update(dict.fromkeys(shared))
    for node in old.nodes:
        if isinstance(node, Arranged) and node.keeps and node in graph.wanted:
            if node.stored(graph.wanted[node]) != node.stored(old.wanted[node]):
                raise _GoneError(node)  # it has not kept all columns that are wanted now
    beside = [node for node in read if node not in graph.wanted]
    if beside:
        return _grown(sinks, old, state, whole, gone, (*bases, *beside))
    if any(state.traces[base].since != state.traces[base].lower for base in read):
        stages = [node.stage for node in late if isinstance(node, Linear)]
        stages += [stage for found in pasts.values() for past in found for stage in past.chain]
        if any(map(_goes_by_arrival, stages)):
            raise NotReadableError(
                "delay, and expire_after without a column, go by when each record came, and the "
                "times of what has been processed are no longer known one by one; add it before "
                "the first step, name a column with the time: expire_after(interval, column), or "
                "keep all times: Dataflow(keep_history=True)"
            )
        if any(map(looks_at_times, stages)):
            raise NotReadableError(
                "transform, mapInPandas and mapInArrow may look at the times of updates, and those "
                "of what has been processed are no longer known one by one; add it before the "
                "first step, or keep all of them: Dataflow(keep_history=True)"
            )
    return Growth(graph, late, _since(read, state), pasts, tuple(read))


def _goes_by_arrival(stage: Stage) -> bool:
    """Whether what a stage does depends on when each record came."""
    return isinstance(stage, (Due, Later)) and stage.column is None


def looks_at_times(stage: Stage) -> bool:
    """Whether other times of updates, before those that can be read, may change its results."""
    seeing = isinstance(stage, _SEEING) and not stage.keeps_time_and_diff
    return seeing or _goes_by_arrival(stage)


def _since(bases: Iterable[Arranged], state: State) -> Antichain:
    """From when on all of some arrangements are known."""
    sinces = [state.traces[node].since for node in bases]
    return reduce(Antichain.join, sinces) if sinces else Antichain([-(2**63)])


def _alive(state: State, node: Node) -> bool:
    """Whether an arrangement holds what it was given: one that nobody will read holds nothing."""
    return node in state.traces and not state.traces[node].since.is_empty


def _whole(graph: Graph, state: State) -> frozenset[Node]:
    """The arrangements that new operators may read: they hold all of their collections."""
    found = set()
    for node in graph.nodes:
        if _holds(node) is not None and _alive(state, node):
            assert isinstance(node, Arranged)
            if set(node.stored(graph.wanted[node])) >= set(node.schema.names):
                found.add(node)
    return frozenset(found)


def _holds(node: Node) -> Node | None:
    """The node whose collection an arrangement outside of all loops holds, if it does."""
    if node.loop is not None:
        return None
    if isinstance(node, Keyed) and node.kernel is None and node.diff_columns is None:
        return None if isinstance(node, Waiting) else node.inputs[0]
    return node if isinstance(node, Reader) and node.keeps else None


def _within(node: Node) -> bool:
    """Whether a node is in a loop that somebody wrote, and not only in those of its times."""
    return node.loop is not time_scope(node)


def _past(
    graph: Graph, state: State, node: Node, wanted: frozenset[str]
) -> list[Past]:
    """Where the past of a node is found, all columns that are wanted of it."""
    if isinstance(node, Constant):
        return [Past(node)]
    if isinstance(node, Input) and node not in state.fed:
        return []
    for kept in graph.nodes:
        held = None if _within(node) else _holds(kept)
        fields = None if held is None else revealed(node, held)
        if fields is not None and _alive(state, kept):
            assert isinstance(kept, Arranged)
            if set(kept.stored(graph.wanted[kept])) >= wanted.union(fields):
                return [Past(kept, fields=fields)]
    if _within(node) or not isinstance(node, (Linear, Passing, Inspect, EnterAt)) or isinstance(
        node, Leave
    ):
        raise _GoneError(node)
    found: list[Past] = []
    for number, source in enumerate(node.inputs):
        try:
            pasts = _past(graph, state, source, node.needs_of(wanted, number))
        except _GoneError as error:
            error.path |= {node}
            raise
        stages = (node.stage,) if isinstance(node, Linear) else ()
        found += [replace(past, chain=(*past.chain, *stages)) for past in pasts]
    if found and isinstance(node, EnterAt):
        raise _GoneError(node)  # it can be made again: what it is made of is kept
    return found


def _unkept(node: Node) -> NotReadableError:
    what = f"{node!r}"
    if isinstance(node, Input):
        what = f"input {node.name!r}"
    elif isinstance(node, Leave) and (loop := node.inputs[0].loop) is not None:
        what = f"what comes out of {loop.name}"
    return NotReadableError(
        f"this cannot be added after the first step: the past of {what} was not kept, so that it "
        "is gone. Add it before the first step, or keep() what it is made of from then on"
    )
