"""Count: each record with its multiplicity, as data.

At every time ``t``, for each record ``r`` whose accumulated diff ``n`` is not zero::

    accumulate(count(A), t) = { (r, n): 1 }        and no row at all where n is zero
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.kernels.lookup import replay_on
from pyspark_diff.kernels.updates import pick
from pyspark_diff.operators.contract import Changes, RecordKernel, Side
from pyspark_diff.operators.node import Keyed, Node
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True)
class CountKernel(RecordKernel):
    """Where the accumulation of a record changes, its old row goes and its new row comes."""

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        (side,) = sides
        new, layout = side.new.updates, side.layout
        before, after, read = replay_on(side.old, side.new, side.limit)
        gone, come = np.flatnonzero(before), np.flatnonzero(after)
        diff = np.concatenate((np.full(gone.size, -1), np.ones(come.size, np.int64)))
        width = len(layout.types)
        columns: list[pa.Array] = []
        if any(i < width for i in wanted):
            rows = np.concatenate((gone, come))
            records = layout.decode(new.take(rows))
            columns = [records[i] for i in wanted if i < width]
        for i, position in enumerate(wanted):
            if position == width:
                columns.insert(i, pa.array(np.concatenate((before[gone], after[come]))))
        time = new.time
        if isinstance(time, np.ndarray):
            time = np.concatenate((pick(time, gone), pick(time, come)))
        return (columns, time, diff), read


def count(source: Node, name: str) -> Keyed:
    """The node that counts ``source``'s records into a column ``name``.

    Source: differential-dataflow ``operators/count.rs``.
    """
    field = T.StructField(name, T.LongType(), False)
    schema = Schema(T.StructType([*source.schema.struct.fields, field]))
    return Keyed("count", source, schema, CountKernel())
