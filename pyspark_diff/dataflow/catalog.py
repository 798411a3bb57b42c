"""The list of a dataflow's arrangements: rows, bytes, frontiers and readers of each."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import IterationReport, State
from pyspark_diff.operators.node import Arranged, Input, Keyed, Node
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.times import Antichain


class ArrangementEntry(NamedTuple):
    """A row of the list: an arrangement."""

    name: str
    key: str
    rows: int
    batches: int
    bytes: int
    lower: Any
    upper: Any
    since: Any
    readers: list[str]


def iterations(report: Sequence[IterationReport]) -> pa.Table:
    """A table with a row for each iteration of a loop."""
    fields = [("loop", pa.string()), ("iteration", pa.list_(pa.int64())), ("changes", pa.int64()),
              ("seconds", pa.float64())]
    columns = zip(*report) if report else [()] * len(fields)
    return pa.table([pa.array(c, kind) for c, (_, kind) in zip(columns, fields)],
                    schema=pa.schema(fields))


def schema(time_type: TimeType, structs: T.StructType | None) -> T.StructType:
    """Spark schema of the list. If times are structs, a frontier is a list of them."""
    kinds = {"rows": T.LongType(), "batches": T.IntegerType(), "bytes": T.LongType(),
             "readers": T.ArrayType(T.StringType(), False)}
    kind = time_type.kind if structs is None else T.ArrayType(structs, False)
    times = dict.fromkeys(("lower", "upper", "since"), kind)
    return T.StructType([
        T.StructField(name, {**kinds, **times}.get(name, T.StringType()))
        for name in ArrangementEntry._fields
    ])


def entries(graph: Graph, state: State, time_type: TimeType) -> list[ArrangementEntry]:
    """All arrangements of a graph, in the order in which a step updates them."""
    listed = []
    for node in graph.nodes:
        if not isinstance(node, Arranged) or not node.keeps:
            continue
        trace = state.traces.get(node)
        if trace is None:
            continue
        lower, upper, since = (
            _decoded(frontier, time_type)
            for frontier in (trace.lower, trace.upper, trace.since)
        )
        readers = [_name(graph, reader) for reader in graph.readers[node]]
        if isinstance(node, Keyed) and node.kernel is not None:
            readers.append(_name(graph, node))
        if node in graph.sinks:
            readers.append("at, to_df")
        listed.append(ArrangementEntry(
            _name(graph, node), ", ".join(node.key), trace.rows, len(trace.batches), trace.size,
            lower, upper, since, readers,
        ))
    return listed


def _decoded(frontier: Antichain, time_type: TimeType) -> Any:
    """A frontier in the user's types; None if it is empty."""
    if frontier.is_empty:
        return None
    least = frontier.elements[0]
    return time_type.decode(least) if isinstance(least, int) else list(frontier)


def _name(graph: Graph, node: Node) -> str:
    """Operator and number of a node, and the names of the inputs that it depends on."""
    inputs: dict[str, None] = {}
    stack: list[Node] = [node]
    visited = set()
    while stack:
        upstream = stack.pop()
        if isinstance(upstream, Input):
            inputs[upstream.name] = None
        if upstream not in visited:
            visited.add(upstream)
            stack.extend(reversed(upstream.inputs))
    return f"{graph.program.name(node)}({', '.join(inputs)})"


def as_text(listed: Sequence[ArrangementEntry]) -> str:
    """The list as a printed table."""
    head = list(ArrangementEntry._fields)
    lines = [
        [", ".join(map(str, v)) if isinstance(v, list) else "complete" if v is None else
         f"{v:,}" if isinstance(v, int) and name in ("rows", "bytes") else str(v)
         for name, v in zip(head, entry)]
        for entry in listed
    ]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    right = {"rows", "batches", "bytes", "lower", "upper", "since"}
    shown = [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, line, widths)
        ).rstrip()
        for line in [head, ["-" * width for width in widths], *lines]
    ]
    return "\n".join(shown)
