"""Whole histories: collections that are frames of all their updates, and run in a single step.

    the first time of all updates  <=  every time in the history  <  the end of all times

No update follows a whole history. So the step goes from an initial state to complete inputs.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

import pyarrow.compute as pc
from pyspark.sql import functions as F

from pyspark_diff.dataflow.inputs import constant_arrival
from pyspark_diff.engine.graph import Graph
from pyspark_diff.engine.state import Arrival, State
from pyspark_diff.kernels.equality import normal_table
from pyspark_diff.operators.node import Constant, Input, Node
from pyspark_diff.runners.feed import UpdateRows
from pyspark_diff.runners.parquet import parquet_scan
from pyspark_diff.spark.frames import arrow_table, column
from pyspark_diff.spark.schema import TIME, TimeType
from pyspark_diff.times import Antichain

#: The first and the last time of a whole history.
BEGINNING, END = -(2**63), 2**63 - 1


class WholeHistory(NamedTuple):
    """The arguments of the step of a whole history."""

    state: State
    arrivals: Mapping[Node, tuple[Arrival, ...]]
    upper: Mapping[Node, Antichain]


def whole_history(graph: Graph, time_type: TimeType) -> WholeHistory:
    """The frames of a graph's inputs as arrivals, and its constants at the first time."""
    inputs = [node for node in graph.nodes if isinstance(node, Input)]
    state = State(dict.fromkeys(graph.nodes, Antichain([BEGINNING])), {}, {}, {})
    arrivals: dict[Node, tuple[Arrival, ...]] = {}
    for node in inputs:
        if isinstance(node, Constant):
            continue
        rows = UpdateRows(node.schema)
        if node.frame is not None and node.local:
            # Rows on the driver need no Spark job.
            table = normal_table(arrow_table(node.frame))
            rows = UpdateRows(node.schema, table=table, rows=table.num_rows)
        elif node.frame is not None:
            scan = parquet_scan(node.frame)
            rows = UpdateRows.of_frame(node.schema, node.frame, scan, time_type.arrow)
        arrivals[node] = (Arrival(rows, last=END),)
    constants = [node for node in inputs if isinstance(node, Constant)]
    if constants:
        # Constants enter no later than the first update.
        firsts = [_first(arrival.source, time_type) for (arrival,) in arrivals.values()]
        begin = min([time_type.start, *firsts])
        arrivals.update({node: (constant_arrival(node, begin),) for node in constants})
    return WholeHistory(state, arrivals, dict.fromkeys(inputs, Antichain()))


def _first(rows: UpdateRows, time_type: TimeType) -> int:
    """The first time of some updates; without updates, the first time of inputs."""
    first = None
    bounds = None if rows.scan is None else rows.scan.bounds_of(TIME)
    if bounds is not None:
        return bounds.first
    if rows.table is not None:
        first = pc.min(rows.table[TIME]).as_py() if rows.table.num_rows else None
    elif rows.frame is not None:
        row = rows.frame.agg(F.min(column(TIME)).alias("first")).first()
        first = None if row is None else row["first"]
    return time_type.start if first is None else time_type.encode(first)
