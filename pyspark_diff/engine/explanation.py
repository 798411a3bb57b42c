"""Explanations: each operator, its arrangement with its readers, and its cost in the last step.

An explanation describes the lowered program in the order of a step. It runs nothing, and changes
nothing.
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

#: Forms of operators, for readers of explanations.
SOURCE, LINEAR, KEYED, LOOP_PART, SINK = "source", "linear", "keyed", "loop", "sink"


@dataclass(frozen=True)
class Operator:
    """One operator of a dataflow, as an explanation describes it.

    Parameters
    ----------
    number : int
        Its place in the program, which identifies it in other operators.
    name : str
        Operator and number.
    form : {"source", "linear", "keyed", "loop", "sink"}
        Its maintenance: by arrivals, update by update, by key from an arrangement, as a part of a
        loop's construction, or for display only.
    inputs : tuple of int
        Numbers of its inputs.
    loops : tuple of str
        The loops around it, the outermost first.
    columns : tuple of str
        Its output columns.
    arranged_by : tuple of str or None
        The key of its arrangement; None without an arrangement.
    readers : tuple of str
        The readers of its arrangement; several readers share it.
    rows, batches, bytes : int
        Numbers of update rows, batches and bytes in its arrangement.
    reasons : tuple of Reason
        Reasons why a change may cost more than the change itself.
    cost : OperatorCost
        Its cost in the last step; all zero if it did no work.
    feedback : int or None
        For a variable of a loop, the number of the operator with its next value.
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
        """Its kind, without its number."""
        return self.name.rpartition("-")[0]

    @property
    def codes(self) -> str:
        """The codes of the reasons."""
        return ", ".join(reason.code for reason in self.reasons)


def operators(
    graph: Graph, traces: Mapping[Node, Trace], costs: Costs, arrangements: Mapping[Node, str]
) -> list[Operator]:
    """All operators of a graph in the order of a step, without those that do no work.

    Parameters
    ----------
    traces : mapping of Node to Trace
        The traces of arrangements.
    costs : Costs
        The costs of the last step.
    arrangements : mapping of Node to str
        Users' names of kept collections.
    """
    program = graph.program
    general = set(_general_loops(graph))
    listed = []
    for node in graph.nodes:
        trace = traces.get(node) if isinstance(node, Arranged) and node.keeps else None
        keeps = isinstance(node, Arranged) and node.keeps
        listed.append(Operator(
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
    return listed


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
    loop, loops = node.loop, []
    while loop is not None:
        loops.append(loop)
        loop = loop.parent
    return loops[::-1]


def _readers(graph: Graph, node: Node, called: Mapping[Node, str]) -> tuple[str, ...]:
    names = [graph.program.name(reader) for reader in graph.readers[node]]
    if isinstance(node, Keyed) and node.kernel is not None:
        names.append(graph.program.name(node))
    if node in graph.sinks:
        names.append(called.get(node) or "at, to_df")
    return tuple(names)


def _general_loops(graph: Graph) -> Iterable[LoopScope]:
    """Loops with other records than numbers."""
    stack = [item for item in graph.order if isinstance(item, Subgraph)]
    while stack:
        item = stack.pop()
        if item.loop.depth > 1 or graph.on_numbers(item) is None:
            yield item.loop
        stack += [inner for inner in item.items if isinstance(inner, Subgraph)]


def _reasons(graph: Graph, node: Node, general: set[LoopScope]) -> Iterable[Reason]:
    """The reasons why a change may cost an operator more than the change itself."""
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
    """Whether a salt is the whole key of a join, so that all pairs of records meet."""
    for source in node.arranged:
        below: Node = source
        while isinstance(below, (Keyed, Shared, Concat)) and below.inputs:
            below = below.inputs[0]
        if isinstance(below, Linear) and isinstance(below.stage, Salt):
            return source.key == (below.stage.name,) and below.stage.hot is None
    return False


def refuse_scans(graph: Graph) -> None:
    """Refuse a program in which a change of one record reads all rows of an arrangement.

    Raises
    ------
    FullScanError
    """
    for operator in operators(graph, {}, Costs(), {}):
        columns = ", ".join(operator.columns)
        for reason in operator.reasons:
            if reason.scope == "state":
                raise FullScanError(
                    f"{operator.operator} over {columns} is refused by strict=True, "
                    f"{reason.code}: {reason.text}. You may {reason.advice}; or leave strict out "
                    "(for a view: policy='incremental')"
                )
