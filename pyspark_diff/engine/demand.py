"""Demand: the needed columns of each node, and the number of evaluations of its output.

A column is computed only if a sink or a keyed operator downstream needs it::

    wanted(n) = union of needs(m, wanted(m)) over the readers m of n

The feedback of a loop has all columns, so that demand needs no fixed point.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Mapping

from pyspark_diff.engine.program import Program
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.loop import EnterAt, Move, Variable
from pyspark_diff.operators.node import Input, Keyed, Linear, Node, Reader, Shared


def wanted_of(
    program: Program, least: Mapping[Node, frozenset[str]] = MappingProxyType({})
) -> Mapping[Node, frozenset[str]]:
    """The columns of each node that have a reader.

    Parameters
    ----------
    least : mapping of Node to frozenset of str, optional
        Columns that nodes have in any case: nodes that have run keep their columns, also without
        their old readers.
    """
    wanted = {node: least.get(node, frozenset[str]()) for node in program.nodes}
    for node in (*program.sinks, *program.results.values()):
        wanted[node] |= frozenset(node.schema.names)
    for node in reversed(program.nodes):
        for number, source in enumerate(node.inputs):
            wanted[source] |= node.needs_of(wanted[node], number)
    return wanted


def readings_of(program: Program) -> Mapping[Node, int]:
    """The number of operators that evaluate each node's output."""
    return _counted(program)[0]


def worth_sharing(program: Program) -> frozenset[Node]:
    """Expressions that only Spark evaluates and several operators read."""
    return _counted(program)[1]


def _counted(program: Program) -> tuple[dict[Node, int], frozenset[Node]]:
    """The readings of each node, with worthwhile expressions shared; and these expressions."""
    readings = {node: 0 for node in program.nodes}
    for node in program.results.values():
        readings[node] += 1
    shared = set()
    for node in reversed(program.nodes):
        passed = _passed_on(node, readings[node])
        if passed > 1 and isinstance(node, Linear):
            # A portable stage costs less than storing its output. The rows of an output can be
            # divided by time later only if the stage keeps times.
            if not node.stage.portable and node.stage.keeps_time_and_diff:
                shared.add(node)
                passed = 1
        for source in node.inputs:
            readings[source] += passed
    return readings, frozenset(shared)


def _passed_on(node: Node, readings: int) -> int:
    """The number of evaluations of a node's inputs for a number of evaluations of its output."""
    if isinstance(node, (Input, Reader)):
        return 0
    if isinstance(node, (Keyed, Shared, EnterAt, Move)):
        return 1
    if isinstance(node, Inspect):
        return readings + 1
    # The start of a variable is inserted in the first iteration, and retracted in the second.
    return 2 * readings if isinstance(node, Variable) else readings
