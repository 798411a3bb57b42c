"""The dataflow graph: a lowered program in the order of its nodes, with the needs of each node.

Every node is a sink, or upstream of a sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Mapping

import pyarrow as pa

from pyspark_diff.engine.demand import readings_of, wanted_of
from pyspark_diff.engine.loop_plan import Planned, planned
from pyspark_diff.engine.lowering import Existing, lowered
from pyspark_diff.engine.program import Program, written
from pyspark_diff.engine.subgraph import Item, Subgraph, flat, order_of
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.operators.contract import BilinearKernel, Stage
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.loop import Enter, EnterAt, Leave, Move, Variable
from pyspark_diff.operators.node import (
    Arranged,
    Concat,
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
from pyspark_diff.runners.work import OutputForm
from pyspark_diff.spark.schema import DIFF, TIME, Schema
from pyspark_diff.times import Antichain, meet_all

#: Nodes whose output is only the updates that they have emitted.
SOURCES = (Input, Imported, Arranged, Shared, Variable, Enter, EnterAt, Move, Leave)


@dataclass(frozen=True)
class Component:
    """The nodes of a connected part of a graph.

    Parameters
    ----------
    items : tuple of (int, Item)
        The items of the part, with their places among all items.
    nodes : tuple of Node
        The nodes of all items.
    """

    items: tuple[tuple[int, Item], ...]
    nodes: tuple[Node, ...]

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the part, with constants."""
        return tuple(node for node in self.nodes if isinstance(node, Input))

    @cached_property
    def arranged(self) -> tuple[Arranged, ...]:
        """The nodes that may keep an arrangement."""
        return tuple(node for node in self.nodes if isinstance(node, Arranged))

    @cached_property
    def plain(self) -> bool:
        """Whether the part has no loop, no constant, and no operator that emits updates later."""
        return not any(isinstance(item, Subgraph) for _, item in self.items) and not any(
            isinstance(node, Constant) or isinstance(node, Reader) and node.kernel.by_time
            for node in self.nodes
        )


@dataclass(frozen=True)
class Form:
    """The properties that follow from a node and from its columns with a reader."""

    node: Node
    wanted: frozenset[str]

    @cached_property
    def output_schema(self) -> Schema:
        """The wanted columns."""
        names = self.node.schema.names
        if self.wanted.issuperset(names):
            return self.node.schema
        return self.node.schema.only(name for name in names if name in self.wanted)

    @cached_property
    def output(self) -> OutputForm:
        """The form of an operator's output: the columns with a reader."""
        node, names = self.node, self.node.schema.names
        positions = tuple(i for i, name in enumerate(names) if name in self.wanted)
        # The output of a join is large, and its reader adds equal rows up in any case.
        pruned = len(positions) < len(names) and not (
            isinstance(node, Reader) and isinstance(node.kernel, BilinearKernel)
        )
        wanted = [names[i] for i in positions]
        return OutputForm(node.schema.arrow(wanted), positions, node.time_type.arrow, pruned=pruned)

    @cached_property
    def table(self) -> pa.Schema:
        """Update rows with all columns."""
        return pa.schema([
            *self.node.schema.arrow(), (TIME, self.node.time_type.arrow), (DIFF, pa.int64())
        ])

    @cached_property
    def layout(self) -> Layout:
        """The layout of an arrangement's records."""
        return self._arranged.layout(self.wanted)

    @cached_property
    def stored(self) -> tuple[str, ...]:
        """The columns of an arrangement, in order."""
        return self._arranged.stored(self.wanted)

    @cached_property
    def input_schema(self) -> Schema:
        """The input columns that a node arranges by key."""
        schema = self.node.inputs[0].schema
        if isinstance(self.node, Keyed) and self.node.kernel is not None:
            return schema
        return schema.only(self.stored)

    @property
    def _arranged(self) -> Arranged:
        if not isinstance(self.node, Arranged):
            raise TypeError(f"{self.node!r} has no arrangement")
        return self.node


@dataclass(frozen=True)
class Graph:
    """The running part of a dataflow.

    Parameters
    ----------
    program : Program
        The lowered program.
    lowered : mapping of Node to Node
        The running node of each written node.
    order : tuple of (Node or Subgraph)
        The items in their order; a loop is one item.
    nodes : tuple of Node
        The nodes of all items, in this order.
    wanted : mapping of Node to frozenset of str
        The columns of each node with a reader.
    readings : mapping of Node to int
        The number of operators that evaluate each node's output.
    readers : mapping of Node to tuple of Reader
        Operators that read a node's arrangement.
    sinks : frozenset of Node
        Nodes that also run without readers.
    origins : mapping of Node to tuple of Node
        The written nodes of each running node.
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
        """The connected parts of the graph."""
        parts: dict[Node, list[Node]] = {}
        items: dict[int, list[tuple[int, Item]]] = {}

        def together(nodes: Iterable[Node]) -> None:
            merged: dict[int, list[Node]] = {}
            for node in nodes:
                part = parts.setdefault(node, [node])
                merged[id(part)] = part
            whole = [node for part in merged.values() for node in part]
            parts.update(dict.fromkeys(whole, whole))

        for item in self.order:
            if isinstance(item, Subgraph):
                together((*item.nodes(), *item.outside))
            else:
                together((item, *item.inputs))
        for place, item in enumerate(self.order):
            node = item if isinstance(item, Node) else item.nodes()[0]
            items.setdefault(id(parts[node]), []).append((place, item))
        components = {id(part): part for part in parts.values()}
        return tuple(
            Component(tuple(items[number]), tuple(part)) for number, part in components.items()
        )

    @cached_property
    def _forms(self) -> dict[Node, Form]:
        return {}

    def form(self, node: Node) -> Form:
        """The form of a node's records, computed once."""
        form = self._forms.get(node)
        if form is None:
            form = self._forms[node] = Form(node, self.wanted[node])
        return form

    @cached_property
    def places(self) -> Mapping[Node, int]:
        """The place of each node in the order."""
        return {node: place for place, node in enumerate(self.nodes)}

    @cached_property
    def part_of(self) -> dict[Node, Component]:
        """The part of each input."""
        return {node: part for part in self.connected for node in part.inputs}

    @cached_property
    def passive(self) -> frozenset[Node]:
        """The nodes outside of loops that do nothing in a step: their readers apply them."""
        return frozenset(
            item for item in self.order
            if isinstance(item, (Linear, Concat)) and item.loop is None
        )

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """The constants of the graph."""
        return tuple(node for node in self.nodes if isinstance(node, Constant))

    @cached_property
    def _plans(self) -> dict[LoopScope, Planned | None]:
        return {}

    def on_numbers(self, subgraph: Subgraph) -> Planned | None:
        """The form of a loop on numbers, computed once; None if it has no such form."""
        if subgraph.loop not in self._plans:
            self._plans[subgraph.loop] = planned(subgraph, self.wanted, self.sinks)
        return self._plans[subgraph.loop]

    def arrangement(self, sink: Node) -> Arranged:
        """The arrangement of a sink."""
        arrangement = self.lowered[sink]
        if not isinstance(arrangement, Arranged):
            raise TypeError(f"{sink!r} has no arrangement")
        return arrangement

    def feeds(
        self, node: Node, emitted: Mapping[Node, tuple[Feed, ...]], min_depth: int = 0
    ) -> tuple[Feed, ...]:
        """The updates that reach the readers of a node from inputs and keyed operators.

        Parameters
        ----------
        min_depth : int
            In a loop, nodes with fewer loops around them have no new updates: all of them arrived
            before the loop began.
        """
        if node.depth < min_depth:
            return ()
        if node in emitted or isinstance(node, SOURCES):
            return emitted.get(node, ())
        feeds = [f for source in node.inputs for f in self.feeds(source, emitted, min_depth)]
        if isinstance(node, Linear):
            feeds = [feed.then(self._stages[node]) for feed in feeds]
        return tuple(feeds)

    @cached_property
    def _stages(self) -> Mapping[Node, Stage]:
        """The stages of linear operators, for the columns with a reader. Each is one object, which
        identifies its cached results for few rows."""
        return {
            node: node.stage.giving(self.wanted[node])
            for node in self.nodes if isinstance(node, Linear)
        }


def graph_of(sinks: Iterable[Node], existing: Existing = Existing()) -> Graph:
    """The graph upstream of some sinks.

    Parameters
    ----------
    existing : Existing, optional
        The part that has run.
    """
    lowering = lowered(written(sinks), existing)
    origins = {node: existing.origins.get(node, ()) for node in lowering.program.nodes}
    for node, to in lowering.nodes.items():
        if to in origins and node not in origins[to]:
            origins[to] += (node,)
    for node, written_nodes in list(origins.items()):
        if isinstance(node, Shared) and not origins[node.inputs[0]]:
            origins[node.inputs[0]] = written_nodes
    return graph_from(lowering.program, lowering.nodes, origins, existing.wanted)


def graph_from(
    program: Program,
    nodes: Mapping[Node, Node],
    origins: Mapping[Node, tuple[Node, ...]],
    wanted: Mapping[Node, frozenset[str]],
) -> Graph:
    """The graph of a lowered program.

    Parameters
    ----------
    nodes : mapping of Node to Node
        The running node of each written node.
    origins : mapping of Node to tuple of Node
        The written nodes of each running node.
    wanted : mapping of Node to frozenset of str
        Columns that nodes have in any case.
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
    """The first frontier of each node, from those of fed inputs and of constants."""
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
