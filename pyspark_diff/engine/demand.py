"""Demand: which columns each node has to give, and how often what it gives is evaluated.

A column is computed only if a sink or a keyed operator downstream needs it::

    wanted(n) = union of needs(m, wanted(m)) over the readers m of n

What goes round in a loop goes round whole, so that no circle has to be followed.
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
    """Columns of each node that somebody reads.

    Parameters
    ----------
    program : Program
    least : mapping of Node to frozenset of str, optional
        Columns that nodes give in any case: those that have run go on as they are, also where what
        read them is gone.
    """
    wanted = {node: least.get(node, frozenset[str]()) for node in program.nodes}
    for node in (*program.sinks, *program.results.values()):
        wanted[node] |= frozenset(node.schema.names)
    for node in reversed(program.nodes):
        for number, source in enumerate(node.inputs):
            wanted[source] |= node.needs_of(wanted[node], number)
    return wanted


def readings_of(program: Program) -> Mapping[Node, int]:
    """How many operators evaluate what each node gives."""
    return _counted(program)[0]


def worth_sharing(program: Program) -> frozenset[Node]:
    """Expressions that only Spark evaluates and several operators read."""
    return _counted(program)[1]


def _counted(program: Program) -> tuple[dict[Node, int], frozenset[Node]]:
    """The readings of each node, when all expressions that are worth it are shared."""
    readings = {node: 0 for node in program.nodes}
    for node in program.results.values():
        readings[node] += 1
    shared = set()
    for node in reversed(program.nodes):
        passed = _passed_on(node, readings[node])
        if passed > 1 and isinstance(node, Linear):
            # What needs no Spark costs less than to keep it; and only where times stay what they
            # are can updates be told by time afterwards.
            if not node.stage.portable and node.stage.keeps_time_and_diff:
                shared.add(node)
                passed = 1
        for source in node.inputs:
            readings[source] += passed
    return readings, frozenset(shared)


def _passed_on(node: Node, readings: int) -> int:
    """How often the inputs of a node are evaluated if its output is evaluated so many times."""
    if isinstance(node, (Input, Reader)):
        return 0
    if isinstance(node, (Keyed, Shared, EnterAt, Move)):
        return 1
    if isinstance(node, Inspect):
        return readings + 1
    # What a variable starts with is there at first, and taken back then.
    return 2 * readings if isinstance(node, Variable) else readings
