"""The dataflow graph: a lowered program in the order in which it runs, and who needs what of it.

Nothing runs that no sink reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Mapping

import pyarrow as pa

from pyspark_diff.engine.demand import readings_of, wanted_of
from pyspark_diff.engine.loop_plan import Planned, planned
from pyspark_diff.engine.lowering import Standing, lowered
from pyspark_diff.engine.program import Program, written
from pyspark_diff.engine.subgraph import Item, Subgraph, flat, order_of
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.operators.contract import BilinearKernel, Stage
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.loop import Enter, EnterAt, Leave, Move, Variable
from pyspark_diff.operators.node import (
    Arranged,
    Constant,
    Input,
    Keyed,
    Linear,
    LoopScope,
    Node,
    Reader,
    Shared,
)
from pyspark_diff.runners.feed import Feed
from pyspark_diff.runners.work import Output
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.times import Antichain, meet_all

#: Nodes that give what they have emitted, and nothing else.
SOURCES = (Input, Imported, Arranged, Shared, Variable, Enter, EnterAt, Move, Leave)


@dataclass(frozen=True)
class Component:
    """Nodes of a graph that have nothing to do with all others.

    Parameters
    ----------
    items : tuple of (int, Item)
        What runs, and its place among all that runs.
    nodes : tuple of Node
        All of them.
    """

    items: tuple[tuple[int, Item], ...]
    nodes: tuple[Node, ...]

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs among them, constants too."""
        return tuple(node for node in self.nodes if isinstance(node, Input))

    @cached_property
    def arranged(self) -> tuple[Arranged, ...]:
        """Those that may keep an arrangement."""
        return tuple(node for node in self.nodes if isinstance(node, Arranged))

    @cached_property
    def plain(self) -> bool:
        """Whether there is no loop among them, no constant, and nothing that falls due by itself.
        """
        return not any(isinstance(item, Subgraph) for _, item in self.items) and not any(
            isinstance(node, Constant) or isinstance(node, Reader) and node.kernel.by_time
            for node in self.nodes
        )


@dataclass(frozen=True)
class Form:
    """What follows from a node, and from the columns of it that somebody reads.

    Parameters
    ----------
    node : Node
    wanted : frozenset of str
    """

    node: Node
    wanted: frozenset[str]

    @cached_property
    def gives(self) -> Schema:
        """The wanted columns."""
        names = self.node.schema.names
        if self.wanted.issuperset(names):
            return self.node.schema
        return self.node.schema.only(name for name in names if name in self.wanted)

    @cached_property
    def output(self) -> Output:
        """The form in which an operator gives its updates: the columns that somebody reads."""
        node, names = self.node, self.node.schema.names
        positions = tuple(i for i, name in enumerate(names) if name in self.wanted)
        # Pairs of a join are many, and what takes them in adds up equal ones anyway.
        pruned = len(positions) < len(names) and not (
            isinstance(node, Reader) and isinstance(node.kernel, BilinearKernel)
        )
        wanted = [names[i] for i in positions]
        return Output(node.schema.arrow(wanted), positions, node.time_type.arrow, pruned=pruned)

    @cached_property
    def table(self) -> pa.Schema:
        """Update rows with all columns."""
        return pa.schema([
            *self.node.schema.arrow(), (TIME, self.node.time_type.arrow), (DIFF, pa.int64())
        ])

    @cached_property
    def layout(self) -> Layout:
        """How the records of an arrangement are held."""
        return self._arranged.layout(self.wanted)

    @cached_property
    def stored(self) -> tuple[str, ...]:
        """The columns of an arrangement, in order."""
        return self._arranged.stored(self.wanted)

    @cached_property
    def taken(self) -> Schema:
        """The columns of its input that a node takes in by key."""
        schema = self.node.inputs[0].schema
        if isinstance(self.node, Keyed) and self.node.kernel is not None:
            return schema
        return schema.only(self.stored)

    @property
    def _arranged(self) -> Arranged:
        if not isinstance(self.node, Arranged):
            raise TypeError(f"{self.node!r} keeps nothing")
        return self.node


@dataclass(frozen=True)
class Graph:
    """The part of a dataflow that is run.

    Parameters
    ----------
    program : Program
        What runs.
    lowered : mapping of Node to Node
        For each node as it was written the one that runs.
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
    origins : mapping of Node to tuple of Node
        For each node that runs those as they were written that it comes from.
    """

    program: Program
    lowered: Mapping[Node, Node]
    order: tuple[Item, ...]
    nodes: tuple[Node, ...]
    wanted: Mapping[Node, frozenset[str]]
    readings: Mapping[Node, int]
    readers: Mapping[Node, tuple[Reader, ...]]
    sinks: frozenset[Node]
    origins: Mapping[Node, tuple[Node, ...]]

    @cached_property
    def connected(self) -> tuple[Component, ...]:
        """The nodes in parts that have nothing to do with each other."""
        parts: dict[Node, list[Node]] = {}
        items: dict[int, list[tuple[int, Item]]] = {}

        def together(nodes: Iterable[Node]) -> None:
            found: dict[int, list[Node]] = {}
            for node in nodes:
                part = parts.setdefault(node, [node])
                found[id(part)] = part
            whole = [node for part in found.values() for node in part]
            parts.update(dict.fromkeys(whole, whole))

        for item in self.order:
            if isinstance(item, Subgraph):
                together((*item.nodes(), *item.outside))
            else:
                together((item, *item.inputs))
        for place, item in enumerate(self.order):
            node = item if isinstance(item, Node) else item.nodes()[0]
            items.setdefault(id(parts[node]), []).append((place, item))
        found = {id(part): part for part in parts.values()}
        return tuple(Component(tuple(items[number]), tuple(part)) for number, part in found.items())

    @cached_property
    def _forms(self) -> dict[Node, Form]:
        return {}

    def form(self, node: Node) -> Form:
        """How a node's records are held and given: made once, and asked for in each step."""
        found = self._forms.get(node)
        if found is None:
            found = self._forms[node] = Form(node, self.wanted[node])
        return found

    @cached_property
    def places(self) -> Mapping[Node, int]:
        """The place of each node in the order in which they run."""
        return {node: place for place, node in enumerate(self.nodes)}

    @cached_property
    def part_of(self) -> dict[Node, Component]:
        """For each input the part that it is in."""
        return {node: part for part in self.connected for node in part.inputs}

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """The constants among its nodes."""
        return tuple(node for node in self.nodes if isinstance(node, Constant))

    @cached_property
    def _plans(self) -> dict[LoopScope, Planned | None]:
        return {}

    def on_numbers(self, subgraph: Subgraph) -> Planned | None:
        """The form of a loop on numbers, worked out once; None where it has none."""
        if subgraph.loop not in self._plans:
            self._plans[subgraph.loop] = planned(subgraph, self.wanted, self.sinks)
        return self._plans[subgraph.loop]

    def arrangement(self, sink: Node) -> Arranged:
        """The arrangement that a sink became."""
        found = self.lowered[sink]
        if not isinstance(found, Arranged):
            raise TypeError(f"{sink!r} keeps no collection")
        return found

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
        if node in emitted or isinstance(node, SOURCES):
            return emitted.get(node, ())
        found = [f for source in node.inputs for f in self.feeds(source, emitted, seen)]
        if isinstance(node, Linear):
            found = [feed.then(self._stages[node]) for feed in found]
        return tuple(found)

    @cached_property
    def _stages(self) -> Mapping[Node, Stage]:
        """What linear operators do, for the columns that are read: one object each, by which what
        it makes of few rows is found again."""
        return {
            node: node.stage.giving(self.wanted[node])
            for node in self.nodes if isinstance(node, Linear)
        }


def graph_of(sinks: Iterable[Node], standing: Standing = Standing()) -> Graph:
    """The graph upstream of some sinks.

    Parameters
    ----------
    sinks : iterable of Node
    standing : Standing, optional
        What has run of it, and stays as it is.

    Returns
    -------
    Graph
    """
    found = lowered(written(sinks), standing)
    origins = {node: standing.origins.get(node, ()) for node in found.program.nodes}
    for node, to in found.nodes.items():
        if to in origins and node not in origins[to]:
            origins[to] += (node,)
    for node, of in list(origins.items()):
        if isinstance(node, Shared) and not origins[node.inputs[0]]:
            origins[node.inputs[0]] = of
    return graph_from(found.program, found.nodes, origins, standing.wanted)


def graph_from(
    program: Program,
    nodes: Mapping[Node, Node],
    origins: Mapping[Node, tuple[Node, ...]],
    wanted: Mapping[Node, frozenset[str]],
) -> Graph:
    """The graph of a program that is lowered.

    Parameters
    ----------
    program : Program
    nodes : mapping of Node to Node
        For each node as it was written the one that runs.
    origins : mapping of Node to tuple of Node
        For each node that runs those as they were written that it comes from.
    wanted : mapping of Node to frozenset of str
        Columns that nodes give in any case.
    """
    order = order_of(program)
    readers: dict[Node, tuple[Reader, ...]] = {node: () for node in program.nodes}
    for node in program.nodes:
        if isinstance(node, Reader):
            for source in dict.fromkeys(node.arranged):
                readers[source] += (node,)
    return Graph(
        program, nodes, order, tuple(flat(order)), wanted_of(program, wanted),
        readings_of(program), readers, frozenset(program.sinks), origins,
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
