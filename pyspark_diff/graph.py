"""The dataflow graph: the order in which nodes run, and which columns each has to give.

Nothing runs that no sink reads. A column is computed only if a sink or a keyed operator downstream
needs it: ``wanted(n) = union of needs(m, wanted(m)) over the readers m of n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping

from pyspark_diff.operators.node import (
    Arranged,
    Concat,
    Input,
    Inspect,
    Keyed,
    Linear,
    Node,
    Reader,
)
from pyspark_diff.runners.feed import Feed, Stage


@dataclass(frozen=True)
class Graph:
    """The part of a dataflow that is run.

    Parameters
    ----------
    nodes : tuple of Node
        Each behind its inputs.
    wanted : mapping of Node to frozenset of str
        Columns that somebody reads.
    readings : mapping of Node to int
        How many operators evaluate what a node gives.
    readers : mapping of Node to tuple of Reader
        Operators that read a node's arrangement.
    sinks : frozenset of Node
        Nodes that are run for their own sake.
    shared : frozenset of Node
        Expressions that only Spark evaluates and several operators read: evaluated once a step.
    """

    nodes: tuple[Node, ...]
    wanted: Mapping[Node, frozenset[str]]
    readings: Mapping[Node, int]
    readers: Mapping[Node, tuple[Reader, ...]]
    sinks: frozenset[Node]
    shared: frozenset[Node]

    def feeds(self, node: Node, emitted: Mapping[Node, tuple[Feed, ...]]) -> tuple[Feed, ...]:
        """What reaches the readers of a node, given what inputs and keyed operators emitted."""
        if isinstance(node, (Input, Arranged)) or node in emitted:
            return emitted.get(node, ())
        found = [feed for source in node.inputs for feed in self.feeds(source, emitted)]
        if isinstance(node, Linear):
            found = [feed.then(node.stage) for feed in found]
        return tuple(found)


def graph_of(sinks: Iterable[Node]) -> Graph:
    """The graph upstream of some sinks.

    Parameters
    ----------
    sinks : iterable of Node

    Returns
    -------
    Graph
    """
    sinks = list(dict.fromkeys(sinks))
    nodes: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(sink, False) for sink in reversed(sinks)]
    while stack:  # without recursion: chains may be longer than Python's stack
        node, done = stack.pop()
        if done:
            nodes.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((source, False) for source in reversed(node.inputs))
    wanted: dict[Node, frozenset[str]] = {node: frozenset() for node in nodes}
    readings: dict[Node, int] = {node: 0 for node in nodes}
    for sink in sinks:
        wanted[sink] = frozenset(sink.schema.names)
    readers: dict[Node, tuple[Reader, ...]] = {node: () for node in nodes}
    shared: set[Node] = set()
    for node in reversed(nodes):
        evaluates = isinstance(node, (Keyed, Inspect))
        # An inspect shows all columns, and passes on what its readers evaluate once more.
        passed = readings[node] if isinstance(node, (Linear, Concat, Inspect)) else 0
        if passed > 1 and isinstance(node, Linear) and _worth_sharing(node.stage):
            shared.add(node)
            passed = 1
        for number, source in enumerate(node.inputs):
            if isinstance(node, Inspect):
                wanted[source] |= frozenset(source.schema.names)
            else:
                wanted[source] |= node.needs_of(wanted[node], number)
            readings[source] += passed + (1 if evaluates else 0)
            if isinstance(node, Reader) and node not in readers[source]:
                readers[source] += (node,)
    return Graph(
        tuple(nodes), wanted, readings, readers, frozenset(sinks), frozenset(shared)
    )


def _worth_sharing(stage: Stage) -> bool:
    # What needs no Spark costs less than to keep it; and only where times stay what they are can
    # updates be told by time afterwards.
    return not stage.portable and stage.keeps_time_and_diff
