"""The dataflow graph: the order in which nodes run, and which columns each has to give.

Nothing runs that no sink reads. A column is computed only if a sink or a keyed operator downstream
needs it: ``wanted(n) = union of needs(m, wanted(m)) over the readers m of n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping

from pyspark_diff.engine.subgraph import Item, Subgraph, flat, order_of, result_of, sources_of
from pyspark_diff.operators.contract import Stage
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.loop import Enter, Leave, Variable
from pyspark_diff.operators.node import (
    Arranged,
    Concat,
    Constant,
    Input,
    Keyed,
    Linear,
    Node,
    Reader,
)
from pyspark_diff.runners.feed import Feed
from pyspark_diff.times import Antichain, meet_all

#: What has no work of its own: its readers evaluate what it is made of.
_PASSED = (Linear, Concat, Inspect, Variable, Enter, Leave)
#: Nodes that give what they have emitted, and nothing else.
_SOURCES = (Input, Arranged, Variable, Enter, Leave)


@dataclass(frozen=True)
class Graph:
    """The part of a dataflow that is run.

    Parameters
    ----------
    order : tuple of (Node or Subgraph)
        What runs, one after the other; a loop is one item.
    nodes : tuple of Node
        All of them, in that order.
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

    order: tuple[Item, ...]
    nodes: tuple[Node, ...]
    wanted: Mapping[Node, frozenset[str]]
    readings: Mapping[Node, int]
    readers: Mapping[Node, tuple[Reader, ...]]
    sinks: frozenset[Node]
    shared: frozenset[Node]

    def feeds(
        self, node: Node, emitted: Mapping[Node, tuple[Feed, ...]], seen: int = 0
    ) -> tuple[Feed, ...]:
        """What reaches the readers of a node, given what inputs and keyed operators emitted.

        Parameters
        ----------
        node : Node
        emitted : mapping of Node to tuple of Feed
        seen : int
            In a loop, nodes with fewer loops around them give nothing: it was all there when the
            loop began.
        """
        if node.depth < seen:
            return ()
        if node in emitted or isinstance(node, _SOURCES):
            return emitted.get(node, ())
        found = [f for source in sources_of(node) for f in self.feeds(source, emitted, seen)]
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
    order = order_of(sinks)
    nodes = flat(order)
    wanted: dict[Node, frozenset[str]] = {node: frozenset() for node in nodes}
    readings: dict[Node, int] = {node: 0 for node in nodes}
    for sink in sinks:
        wanted[sink] = frozenset(sink.schema.names)
    for node in nodes:
        if isinstance(node, Variable):
            # What goes round goes round whole, so that no circle has to be followed here.
            result = result_of(node)
            wanted[result] = frozenset(result.schema.names)
            readings[result] += 1
    readers: dict[Node, tuple[Reader, ...]] = {node: () for node in nodes}
    shared: set[Node] = set()
    for node in reversed(nodes):
        evaluates = isinstance(node, (Keyed, Inspect))
        # An inspect shows all columns, and passes on what its readers evaluate once more.
        passed = readings[node] if isinstance(node, _PASSED) else 0
        if isinstance(node, Variable):
            passed *= 2  # what it starts with is there at first, and taken back then
        if passed > 1 and isinstance(node, Linear) and _worth_sharing(node.stage):
            shared.add(node)
            passed = 1
        if isinstance(node, Keyed) and node.stand_in in sources_of(node):
            # Another does its work.
            wanted[node.stand_in] |= wanted[node]
            readings[node.stand_in] += max(readings[node], 1)
            continue
        for number, source in enumerate(sources_of(node)):
            if isinstance(node, Inspect):
                wanted[source] |= frozenset(source.schema.names)
            else:
                wanted[source] |= node.needs_of(wanted[node], number)
            readings[source] += passed + (1 if evaluates else 0)
            if isinstance(node, Reader) and node not in readers[source]:
                readers[source] += (node,)
    return Graph(
        order, tuple(nodes), wanted, readings, readers, frozenset(sinks), frozenset(shared)
    )


def starts_of(
    graph: Graph, begins: Mapping[Node, Antichain], start: Antichain
) -> dict[Node, Antichain]:
    """The first frontier of each node, given those of the inputs that are fed, and of constants."""
    starts: dict[Node, Antichain] = {}
    for item in graph.order:
        if isinstance(item, Subgraph):
            first = meet_all(starts[node] for node in item.outside)
            starts.update(dict.fromkeys(item.nodes(), first))
        elif isinstance(item, Constant):
            starts[item] = start
        elif isinstance(item, Input):
            starts[item] = begins[item]
        else:
            starts[item] = meet_all(starts[node] for node in item.inputs)
    return starts


def _worth_sharing(stage: Stage) -> bool:
    # What needs no Spark costs less than to keep it; and only where times stay what they are can
    # updates be told by time afterwards.
    return not stage.portable and stage.keeps_time_and_diff
