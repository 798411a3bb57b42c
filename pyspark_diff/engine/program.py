"""Programs: nodes, what goes round in their loops, and which of them are run for their own sake.

A program is a value. What is printed of it has a line a node, each behind its inputs::

    number kind(numbers of its inputs): what it gives

further in for each loop around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Mapping

from pyspark_diff.operators.loop import Variable
from pyspark_diff.operators.node import Arranged, Input, Node


@dataclass(frozen=True, eq=False)
class Program:
    """Nodes that are to be run, and all that they are made of.

    Parameters
    ----------
    sinks : tuple of Node
        Nodes that are run for their own sake, each once.
    nodes : tuple of Node
        All nodes, each behind its inputs.
    results : mapping of Variable to Node
        What goes round to each variable, which comes behind the variable.
    """

    sinks: tuple[Node, ...]
    nodes: tuple[Node, ...]
    results: Mapping[Variable, Node]

    @cached_property
    def numbers(self) -> Mapping[Node, int]:
        """The place of each node."""
        return {node: number for number, node in enumerate(self.nodes)}

    def name(self, node: Node) -> str:
        """A name that a node has in this program alone."""
        return f"{node.kind}-{self.numbers[node]}"

    def __str__(self) -> str:
        lines = [self._line(node) for node in self.nodes]
        sinks = sorted(self.numbers[sink] for sink in self.sinks)
        return "\n".join([*lines, f"run: {', '.join(map(str, sinks))}"])

    def _line(self, node: Node) -> str:
        inputs = ", ".join(str(self.numbers[source]) for source in node.inputs)
        told = f"{'  ' * node.depth}{self.numbers[node]} {node.kind}({inputs})"
        if isinstance(node, Input):
            told += f" {node.name}"
        told += f": {', '.join(node.schema.names)}"
        if isinstance(node, Arranged) and node.keeps:
            told += f"; kept by ({', '.join(node.key)})"
        if isinstance(node, Variable) and node in self.results:
            told += f"; goes on as {self.numbers[self.results[node]]}"
        return told


def written(sinks: Iterable[Node]) -> Program:
    """The program upstream of some sinks, as it is written."""
    return program_of(sinks, None)


def program_of(sinks: Iterable[Node], results: Mapping[Variable, Node] | None) -> Program:
    """The program upstream of some sinks.

    Parameters
    ----------
    sinks : iterable of Node
    results : mapping of Variable to Node, or None
        What goes round to variables; None for what they were defined as.
    """
    sinks = tuple(dict.fromkeys(sinks))
    roots = list(sinks)
    seen: set[Node] = set()
    nodes: list[Node] = []
    round_: dict[Variable, Node] = {}
    for root in roots:
        stack = [(root, False)]
        while stack:  # without recursion: chains may be longer than Python's stack
            node, done = stack.pop()
            if done:
                nodes.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((source, False) for source in reversed(node.inputs))
                if isinstance(node, Variable):
                    result = node.result if results is None else results.get(node)
                    if result is not None:
                        round_[node] = result
                        roots.append(result)
    return Program(sinks, tuple(nodes), round_)
