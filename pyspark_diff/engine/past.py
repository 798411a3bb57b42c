"""Backfill: the past of collections that new operators read, as feeds.

For an `Imported` node of a collection ``A``, whose past is kept from ``since`` on::

    its first output  =  the updates of A before the step, their times advanced to since
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, cast

import numpy as np
import pyarrow as pa

from pyspark_diff.engine.context import StepContext
from pyspark_diff.engine.growth import Past
from pyspark_diff.kernels.layout import as_int64
from pyspark_diff.kernels.updates import joined
from pyspark_diff.operators.imported import Imported
from pyspark_diff.operators.loop import Entering
from pyspark_diff.operators.node import Arranged, Constant
from pyspark_diff.runners.feed import Feed, UpdateRows
from pyspark_diff.spark.schema import DIFF, TIME
from pyspark_diff.times import Antichain, Coordinate
from pyspark_diff.trace.arrangement import Arrangement


def past_of(step: StepContext, node: Imported) -> tuple[Feed, ...]:
    """The past of a node's collection, outside of loops."""
    return tuple(
        replace(feed, chain=(*feed.chain, *past.chain))
        for past in step.growth.pasts.get(node, ()) for feed in _feeds_before(step, past)
    )


def past_in(step: StepContext, node: Imported) -> Iterator[tuple[Coordinate, Feed]]:
    """The past of a node's collection with struct times, each feed with its coordinate."""
    for past in step.growth.pasts.get(node, ()):
        for feed in _feeds_before(step, past):
            if not past.fields:
                yield (0,) * node.depth, replace(feed, chain=(*feed.chain, *past.chain))
                continue
            if feed.source.passing:
                feed = replace(feed, source=step.evaluation.materialised(feed.source))
            tables = [table.select(past.fields) for table in step.local.tables(feed)]
            if not sum(table.num_rows for table in tables):
                continue
            numbers = [as_int64(joined([c])).to_numpy() for c in pa.concat_tables(tables)]
            coordinates, rows = np.unique(np.stack(numbers, 1), axis=0, return_counts=True)
            for at, count in zip(map(tuple, coordinates.tolist()), rows.tolist()):
                # The estimate of rows, since the feed reads all rows and selects these.
                part = replace(feed, source=replace(feed.source, rows=count))
                stages = (Entering(*pair) for pair in zip(past.fields, at))
                yield at, replace(part, chain=(*feed.chain, *stages, *past.chain))


def _feeds_before(step: StepContext, past: Past) -> list[Feed]:
    """The feeds of a collection before the step, without the chain of its reader."""
    if isinstance(past.node, Constant):
        return [
            Feed(a.source.as_listed(), until=Antichain([cast(int, a.last) + 1]))
            for a in step.constants[past.node]
        ]
    return [_arranged(step, past.node), *step.state.pending.get(past.node, ())]


def _arranged(step: StepContext, node: Arranged) -> Feed:
    """The updates of an arrangement before the step."""
    wanted = step.graph.wanted[node]
    trace, names = step.settled[node], node.stored(wanted)
    schema = node.schema.only(n for n in node.schema.names if n in names)
    arrangement = Arrangement(trace, schema, node.layout(wanted), names, node.time_type, TIME, DIFF)
    since = step.growth.since.bound
    if step.settings.few(trace.rows):
        source = UpdateRows(schema, table=arrangement.table(since), rows=trace.rows)
    else:
        frame = arrangement.updates(step.spark_runner.session, since)
        source = UpdateRows(schema, frame=frame, rows=trace.rows)
    until = trace.upper
    if since is not None and not step.settings.open:
        # Another input may be ahead of this input, so `since` may lie beyond this trace.
        until = until.join(Antichain([since + 1]))
    return Feed(source, until=until)
