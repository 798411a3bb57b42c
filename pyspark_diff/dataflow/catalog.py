"""The arrangements of a dataflow, listed: what is kept, how much of it, and for whom."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import IterationReport, State
from pyspark_diff.operators.node import Arranged, Input, Keyed, Node
from pyspark_diff.spark.schema import TimeType
from pyspark_diff.times import Antichain


class Entry(NamedTuple):
    """One arrangement."""

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
    """The iterations of loops, a row each."""
    fields = [("loop", pa.string()), ("iteration", pa.list_(pa.int64())), ("changes", pa.int64()),
              ("seconds", pa.float64())]
    columns = zip(*report) if report else [()] * len(fields)
    return pa.table([pa.array(c, kind) for c, (_, kind) in zip(columns, fields)],
                    schema=pa.schema(fields))


def schema(time_type: TimeType, structs: T.StructType | None) -> T.StructType:
    """Spark schema of the list; times that are structs are told as frontiers, lists of them."""
    kinds = {"rows": T.LongType(), "batches": T.IntegerType(), "bytes": T.LongType(),
             "readers": T.ArrayType(T.StringType(), False)}
    kind = time_type.kind if structs is None else T.ArrayType(structs, False)
    times = dict.fromkeys(("lower", "upper", "since"), kind)
    return T.StructType([
        T.StructField(name, {**kinds, **times}.get(name, T.StringType()))
        for name in Entry._fields
    ])


def entries(graph: Graph, state: State, time_type: TimeType) -> list[Entry]:
    """All arrangements of a graph, in the order in which they are brought up to date."""
    found = []
    for node in graph.nodes:
        if not isinstance(node, Arranged) or not node.keeps:
            continue
        trace = state.traces.get(node)
        if trace is None:
            continue
        lower, upper, since = (
            _told(frontier, time_type)
            for frontier in (trace.lower, trace.upper, trace.since)
        )
        readers = [_name(graph, reader) for reader in graph.readers[node]]
        if isinstance(node, Keyed) and node.kernel is not None:
            readers.append(_name(graph, node))
        if node in graph.sinks:
            readers.append("at, to_df")
        found.append(Entry(
            _name(graph, node), ", ".join(node.key), trace.rows, len(trace.batches), trace.size,
            lower, upper, since, readers,
        ))
    return found


def _told(frontier: Antichain, time_type: TimeType) -> Any:
    """A frontier as users see it; None where it is complete."""
    if frontier.is_empty:
        return None
    least = frontier.elements[0]
    return time_type.decode(least) if isinstance(least, int) else list(frontier)


def _name(graph: Graph, node: Node) -> str:
    """Operator and number, and the inputs that it is made of."""
    inputs: dict[str, None] = {}
    stack: list[Node] = [node]
    seen = set()
    while stack:
        at = stack.pop()
        if isinstance(at, Input):
            inputs[at.name] = None
        if at not in seen:
            seen.add(at)
            stack.extend(reversed(at.inputs))
    return f"{graph.program.name(node)}({', '.join(inputs)})"


def as_text(found: Sequence[Entry]) -> str:
    """The list as a table to read."""
    head = list(Entry._fields)
    lines = [
        [", ".join(map(str, v)) if isinstance(v, list) else "complete" if v is None else
         f"{v:,}" if isinstance(v, int) and name in ("rows", "bytes") else str(v)
         for name, v in zip(head, entry)]
        for entry in found
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
