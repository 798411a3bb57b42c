"""Programs: nodes, the feedback of their loops, and their sinks.

A program is a value. Its text has a line for each node, after the lines of its inputs::

    number kind(numbers of its inputs): output columns

with an indent for each loop around the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Mapping

from pyspark_diff.operators.loop import Variable
from pyspark_diff.operators.node import Arranged, Input, Node


@dataclass(frozen=True, eq=False)
class Program:
    """Sinks and all nodes upstream of them.

    Parameters
    ----------
    sinks : tuple of Node
        Nodes that run without readers in the program, each once.
    nodes : tuple of Node
        All nodes, each after its inputs.
    results : mapping of Variable to Node
        The feedback of each variable, which follows the variable in `nodes`.
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
        text = f"{'  ' * node.depth}{self.numbers[node]} {node.kind}({inputs})"
        if isinstance(node, Input):
            text += f" {node.name}"
        text += f": {', '.join(node.schema.names)}"
        if isinstance(node, Arranged) and node.keeps:
            text += f"; kept by ({', '.join(node.key)})"
        if isinstance(node, Variable) and node in self.results:
            text += f"; goes on as {self.numbers[self.results[node]]}"
        return text


def written(sinks: Iterable[Node]) -> Program:
    """The program upstream of some sinks, before its lowering."""
    return program_of(sinks, None)


def program_of(sinks: Iterable[Node], results: Mapping[Variable, Node] | None) -> Program:
    """The program upstream of some sinks.

    Parameters
    ----------
    results : mapping of Variable to Node, or None
        The feedback of variables; None for their definitions.
    """
    sinks = tuple(dict.fromkeys(sinks))
    roots = list(sinks)
    visited: set[Node] = set()
    nodes: list[Node] = []
    round_: dict[Variable, Node] = {}
    for root in roots:
        stack = [(root, False)]
        while stack:  # without recursion: chains may be longer than Python's stack
            node, done = stack.pop()
            if done:
                nodes.append(node)
            elif node not in visited:
                visited.add(node)
                stack.append((node, True))
                stack.extend((source, False) for source in reversed(node.inputs))
                if isinstance(node, Variable):
                    result = node.result if results is None else results.get(node)
                    if result is not None:
                        round_[node] = result
                        roots.append(result)
    return Program(sinks, tuple(nodes), round_)
