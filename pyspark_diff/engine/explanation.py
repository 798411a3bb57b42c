"""Explanations: what each operator is, what it keeps and for whom, and what the last step cost it.

What is told is what runs: a program as it was lowered, in the order of a step. Nothing is run to
tell it, and nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Mapping

from pyspark_diff.engine.costs import Costs, OperatorCost
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.program import Program
from pyspark_diff.engine.subgraph import Subgraph
from pyspark_diff.errors import FullScanError
from pyspark_diff.operators.cross import Salt
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.inspect import Inspect
from pyspark_diff.operators.loop import Enter, EnterAt, Leave, Move, Variable
from pyspark_diff.operators.node import (
    Arranged,
    Concat,
    Input,
    Keyed,
    Linear,
    LoopScope,
    Node,
    Reader,
    Shared,
)
from pyspark_diff.reasons import (
    GROUP_FUNCTION,
    LOOP,
    LOOP_OF_RECORDS,
    PARTITION_READ,
    SPARK_EVALUATION,
    WHOLE_COLLECTION,
    WHOLE_SIDE,
    Reason,
)
from pyspark_diff.trace.spine import Trace

#: What operators are to who reads of them.
SOURCE, LINEAR, KEYED, LOOP_PART, SINK = "source", "linear", "keyed", "loop", "sink"


@dataclass(frozen=True)
class Operator:
    """One operator of a dataflow, as `explain` has it.

    Parameters
    ----------
    number : int
        Its place in the program, by which others name it.
    name : str
        Operator and number.
    form : {"source", "linear", "keyed", "loop", "sink"}
        How it is maintained: by what enters, update by update, by key from an arrangement, as a
        part of what makes a loop, or only shown.
    inputs : tuple of int
        Numbers of the operators that it reads.
    loops : tuple of str
        The loops that it is in, the outermost first.
    columns : tuple of str
        What it gives.
    arranged_by : tuple of str or None
        The key of the arrangement that it keeps; None if it keeps nothing.
    readers : tuple of str
        Who reads this arrangement: with more than one it is shared.
    rows, batches, bytes : int
        Update rows that are kept, in how many batches and bytes.
    reasons : tuple of Reason
        Why a change may cost more than itself.
    cost : OperatorCost
        What it did in the last step; all zero if it had nothing to do.
    feedback : int or None
        Of a variable of a loop the number of the operator whose output it is in the next iteration.
    """

    number: int
    name: str
    form: str
    inputs: tuple[int, ...]
    loops: tuple[str, ...]
    columns: tuple[str, ...]
    arranged_by: tuple[str, ...] | None = None
    readers: tuple[str, ...] = ()
    rows: int = 0
    batches: int = 0
    bytes: int = 0
    reasons: tuple[Reason, ...] = ()
    cost: OperatorCost = field(default_factory=OperatorCost)
    feedback: int | None = None

    @property
    def operator(self) -> str:
        """What it is called, without its number."""
        return self.name.rpartition("-")[0]

    @property
    def codes(self) -> str:
        """The codes of the reasons."""
        return ", ".join(reason.code for reason in self.reasons)


def operators(
    graph: Graph, traces: Mapping[Node, Trace], costs: Costs, arrangements: Mapping[Node, str]
) -> list[Operator]:
    """All operators of a graph in the order in which they run, those that do nothing left out.

    Parameters
    ----------
    graph : Graph
    traces : mapping of Node to Trace
        What is kept.
    costs : Costs
        Of the last step.
    arrangements : mapping of Node to str
        By kept collections what users call them.
    """
    program = graph.program
    general = set(_general_loops(graph))
    found = []
    for node in graph.nodes:
        trace = traces.get(node) if isinstance(node, Arranged) and node.keeps else None
        keeps = isinstance(node, Arranged) and node.keeps
        found.append(Operator(
            program.numbers[node],
            program.name(node),
            _form(node),
            tuple(program.numbers[source] for source in node.inputs),
            tuple(loop.name for loop in _loops(node)),
            tuple(node.schema.names),
            node.key if isinstance(node, Arranged) and keeps else None,
            _readers(graph, node, arrangements) if keeps else (),
            0 if trace is None else trace.rows,
            0 if trace is None else len(trace.batches),
            0 if trace is None else trace.size,
            tuple(_reasons(graph, node, general)),
            costs.get(node) or OperatorCost(),
            _feedback(program, node),
        ))
    return found


def _feedback(program: Program, node: Node) -> int | None:
    result = program.results.get(node) if isinstance(node, Variable) else None
    return None if result is None else program.numbers[result]


def _form(node: Node) -> str:
    if isinstance(node, (Input, Imported)):
        return SOURCE
    if isinstance(node, (Variable, Enter, EnterAt, Move, Leave)):
        return LOOP_PART
    if isinstance(node, Inspect):
        return SINK
    if isinstance(node, Arranged):
        return KEYED
    return LINEAR


def _loops(node: Node) -> list[LoopScope]:
    loop, found = node.loop, []
    while loop is not None:
        found.append(loop)
        loop = loop.parent
    return found[::-1]


def _readers(graph: Graph, node: Node, called: Mapping[Node, str]) -> tuple[str, ...]:
    names = [graph.program.name(reader) for reader in graph.readers[node]]
    if isinstance(node, Keyed) and node.kernel is not None:
        names.append(graph.program.name(node))
    if node in graph.sinks:
        names.append(called.get(node) or "at, to_df")
    return tuple(names)


def _general_loops(graph: Graph) -> Iterable[LoopScope]:
    """Loops whose records are not numbers alone."""
    stack = [item for item in graph.order if isinstance(item, Subgraph)]
    while stack:
        item = stack.pop()
        if item.loop.depth > 1 or graph.on_numbers(item) is None:
            yield item.loop
        stack += [inner for inner in item.items if isinstance(inner, Subgraph)]


def _reasons(graph: Graph, node: Node, general: set[LoopScope]) -> Iterable[Reason]:
    """Why a change may cost an operator more than itself."""
    if isinstance(node, Linear) and not node.stage.portable:
        yield SPARK_EVALUATION
    if isinstance(node, (Reader, Keyed)) and node.kernel is not None:
        reason = node.kernel.reason
        if isinstance(node, Reader) and reason is not None:
            key = node.arranged[0].key
            if _salted(node):
                reason = WHOLE_SIDE
            elif not key and reason in (GROUP_FUNCTION, PARTITION_READ):
                reason = WHOLE_COLLECTION
        if reason is not None:
            yield reason
    if isinstance(node, Variable):
        yield LOOP_OF_RECORDS if node.loop in general else LOOP


def _salted(node: Reader) -> bool:
    """Whether all that it joins by is a salt, so that each record meets each other one."""
    for source in node.arranged:
        below: Node = source
        while isinstance(below, (Keyed, Shared, Concat)) and below.inputs:
            below = below.inputs[0]
        if isinstance(below, Linear) and isinstance(below.stage, Salt):
            return source.key == (below.stage.name,) and below.stage.hot is None
    return False


def refuse_scans(graph: Graph) -> None:
    """Refuse a program in which a change of one record reads all that an operator keeps.

    Raises
    ------
    FullScanError
    """
    for one in operators(graph, {}, Costs(), {}):
        for reason in one.reasons:
            if reason.scope == "state":
                raise FullScanError(
                    f"{one.operator} over {', '.join(one.columns)} is refused by strict=True, "
                    f"{reason.code}: {reason.text}. You may {reason.advice}; or leave strict out, "
                    "which is policy='incremental' of a view"
                )
