"""The order in which nodes run: each after its inputs, and each loop as a whole.

A loop is one item of the order around it. Inside it its nodes have an order of their own, which
begins at the variables: the way back from a variable's result does not count. A result from outside
of the variable's loop is no way back. The loop reads it, as it reads its other inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence, Union

from pyspark_diff.engine.program import Program
from pyspark_diff.operators.loop import Leave, Variable
from pyspark_diff.operators.node import Arranged, LoopScope, Node


@dataclass(frozen=True)
class Subgraph:
    """One loop's part of a graph.

    Parameters
    ----------
    items : tuple of (Node or Subgraph)
        In the order of an iteration.
    leaves : tuple of Leave
        The nodes at which collections leave the loop.
    outside : tuple of Node
        Nodes outside of the loop that nodes of the loop read.
    """

    loop: LoopScope
    items: tuple[Union[Node, "Subgraph"], ...]
    leaves: tuple[Leave, ...]
    outside: tuple[Node, ...]

    def nodes(self) -> list[Node]:
        """All nodes of the loop and of inner loops."""
        return flat(self.items)


Item = Union[Node, Subgraph]


def flat(items: Iterable[Item]) -> list[Node]:
    """The nodes of an order, one after the other."""
    nodes: list[Node] = []
    for item in items:
        nodes.extend(item.nodes() if isinstance(item, Subgraph) else [item])
    return nodes


def order_of(program: Program) -> tuple[Item, ...]:
    """All nodes of a program that is lowered, in the order in which they run."""
    return _ordered(program.nodes, None, program.results)


def _sources(node: Node, results: Mapping[Variable, Node]) -> tuple[Node, ...]:
    """The inputs of a node, and the result of a variable if it is outside of the loop."""
    result = results.get(node) if isinstance(node, Variable) else None
    if result is None or node.loop is None or result in node.loop:
        return node.inputs
    return (*node.inputs, result)


def _ordered(
    nodes: Sequence[Node], loop: LoopScope | None, results: Mapping[Variable, Node]
) -> tuple[Item, ...]:
    """The order of one loop's nodes, with the loops inside of it as single items."""
    depth = 0 if loop is None else loop.depth

    def place(node: Node) -> Node | LoopScope:
        """The item of a node in this order: the node, or its inner loop."""
        if node.loop is None or node.loop.depth <= depth:
            return node
        return node.loop.enclosing(depth + 1)

    inner: dict[LoopScope, list[Node]] = {}
    needs: dict[Node | LoopScope, dict[Node | LoopScope, None]] = {}
    own_nodes = set(nodes)
    for node in nodes:
        here = place(node)
        if isinstance(here, LoopScope):
            inner.setdefault(here, []).append(node)
        sources = needs.setdefault(here, {})
        for source in _sources(node, results):
            there = place(source)
            if there is not here and source in own_nodes:
                sources[there] = None
    placed: list[Node | LoopScope] = []
    visited: set[Node | LoopScope] = set()
    stack: list[tuple[Node | LoopScope, bool]] = [(item, False) for item in reversed(list(needs))]
    while stack:
        item, done = stack.pop()
        if done:
            placed.append(item)
        elif item not in visited:
            visited.add(item)
            stack.append((item, True))
            stack.extend((source, False) for source in reversed(list(needs[item])))
    items: list[Item] = []
    for item in placed:
        if isinstance(item, LoopScope):
            items.append(_subgraph(item, inner[item], nodes, results))
        else:
            items.append(item)
    return tuple(items)


def _subgraph(
    loop: LoopScope, nodes: Sequence[Node], nodes_around: Sequence[Node],
    results: Mapping[Variable, Node],
) -> Subgraph:
    leaves = tuple(
        node for node in nodes_around if isinstance(node, Leave) and node.inputs[0].loop is loop
    )
    outside = dict.fromkeys(
        source for node in nodes for source in _sources(node, results) if source not in loop
    )
    return Subgraph(loop, _ordered(nodes, loop, results), leaves, tuple(outside))


def arranged_in(subgraph: Subgraph) -> list[Arranged]:
    """The nodes of a loop that keep arrangements."""
    return [node for node in subgraph.nodes() if isinstance(node, Arranged)]
