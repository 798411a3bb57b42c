"""The order in which nodes run: each behind its inputs, and each loop as a whole.

A loop is one item of the order around it. Inside it its nodes have an order of their own, which
begins at the variables: the way back from a variable's result does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Sequence, Union

from pyspark_diff.operators.arrange import arrange_by_self
from pyspark_diff.operators.by_self import over_arrangement
from pyspark_diff.operators.loop import Enter, Leave, Variable
from pyspark_diff.operators.node import Arranged, Keyed, LoopScope, Node, Reader


@dataclass(frozen=True)
class Subgraph:
    """One loop's part of a graph.

    Parameters
    ----------
    loop : LoopScope
    items : tuple of (Node or Subgraph)
        In the order of an iteration.
    leaves : tuple of Leave
        Where its collections leave it.
    outside : tuple of Node
        Nodes outside of it that are read inside.
    """

    loop: LoopScope
    items: tuple[Union[Node, "Subgraph"], ...]
    leaves: tuple[Leave, ...]
    outside: tuple[Node, ...]

    def nodes(self) -> list[Node]:
        """All nodes of the loop and of those inside of it."""
        return flat(self.items)


Item = Union[Node, Subgraph]


def flat(items: Iterable[Item]) -> list[Node]:
    """The nodes of an order, one after the other."""
    found: list[Node] = []
    for item in items:
        found.extend(item.nodes() if isinstance(item, Subgraph) else [item])
    return found


def sources_of(node: Node) -> tuple[Node, ...]:
    """What a node needs to have run before it: its inputs, or what stands in for it or them."""
    if isinstance(node, Keyed) and node.loop is not None and node.kernel is not None:
        if node.kernel.stateful:
            return (_stand_in(node),)
    if isinstance(node, (Enter, Leave, Reader)):
        return node.inputs
    return tuple(_entered(node.loop, source) for source in node.inputs)


def result_of(node: Variable) -> Node:
    """What goes round to a variable, as it is seen in its loop."""
    if node.result is None:
        raise ValueError(f"{node!r} was never set")
    return _entered(node.loop, node.result)


def _stand_in(node: Keyed) -> Reader:
    """The reader of an arrangement that does in a loop what a keyed operator does outside."""
    if node.stand_in is None:
        arranged = arrange_by_self(node.inputs[0])
        node.stand_in = over_arrangement(node, arranged, arranged=True)
    return node.stand_in


def _entered(loop: LoopScope | None, source: Node) -> Node:
    """A stream of updates, as it is seen in a loop."""
    if loop is None or source.loop is not None:
        return source
    outermost = loop.around(1)
    if source not in outermost.entered:
        outermost.entered[source] = Enter(outermost, source)
    return outermost.entered[source]


def order_of(sinks: Sequence[Node]) -> tuple[Item, ...]:
    """All nodes upstream of some sinks, in the order in which they run."""
    seen: dict[Node, None] = {}
    stack = list(reversed(sinks))
    while stack:  # without recursion: chains may be longer than Python's stack
        node = stack.pop()
        if node in seen:
            continue
        seen[node] = None
        stack.extend(reversed(sources_of(node)))
        if isinstance(node, Variable) and node.result is not None:
            stack.append(result_of(node))
    return _ordered(list(seen), None)


def _ordered(nodes: Sequence[Node], loop: LoopScope | None) -> tuple[Item, ...]:
    """The order of one loop's nodes, with the loops inside of it as single items."""
    depth = 0 if loop is None else loop.depth

    def place(node: Node) -> Node | LoopScope:
        """What a node is in this order: itself, or the loop that it is in."""
        if node.loop is None or node.loop.depth <= depth:
            return node
        return node.loop.around(depth + 1)

    inner: dict[LoopScope, list[Node]] = {}
    needs: dict[Node | LoopScope, dict[Node | LoopScope, None]] = {}
    within = set(nodes)
    for node in nodes:
        here = place(node)
        if isinstance(here, LoopScope):
            inner.setdefault(here, []).append(node)
        found = needs.setdefault(here, {})
        for source in sources_of(node):
            there = place(source)
            if there is not here and source in within:
                found[there] = None
    placed: list[Node | LoopScope] = []
    seen: set[Node | LoopScope] = set()
    stack: list[tuple[Node | LoopScope, bool]] = [(item, False) for item in reversed(list(needs))]
    while stack:
        item, done = stack.pop()
        if done:
            placed.append(item)
        elif item not in seen:
            seen.add(item)
            stack.append((item, True))
            stack.extend((source, False) for source in reversed(list(needs[item])))
    items: list[Item] = []
    for item in placed:
        if isinstance(item, LoopScope):
            items.append(_subgraph(item, inner[item], nodes))
        else:
            items.append(item)
    return tuple(items)


def _subgraph(loop: LoopScope, nodes: Sequence[Node], around: Sequence[Node]) -> Subgraph:
    leaves = tuple(
        node for node in around if isinstance(node, Leave) and node.inputs[0].loop is loop
    )
    outside = dict.fromkeys(
        source for node in nodes for source in sources_of(node)
        if source not in loop and (isinstance(node, Reader) or source.loop is not None
                                   or isinstance(node, Enter))
    )
    return Subgraph(loop, _ordered(nodes, loop), leaves, tuple(outside))


def arranged_in(subgraph: Subgraph) -> list[Arranged]:
    """The nodes of a loop that keep arrangements."""
    return [node for node in subgraph.nodes() if isinstance(node, Arranged)]
