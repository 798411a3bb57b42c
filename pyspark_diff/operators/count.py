"""Count: each record with its multiplicity, as data.

At every time ``t``, for each record ``r`` whose accumulated diff ``n`` is not zero::

    accumulate(count(A), t) = { (r, n): 1 }        and no row at all where n is zero
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.kernels.lookup import counted_on
from pyspark_diff.kernels.updates import pick
from pyspark_diff.operators.contract import Changes, RecordKernel, Side
from pyspark_diff.operators.node import Keyed, Node
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True)
class CountKernel(RecordKernel):
    """When the accumulation of a record changes, the kernel replaces its row."""

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        (side,) = sides
        new, layout = side.new.updates, side.layout
        rows, counts, diff, read = counted_on(side.old, side.new, side.limit)
        width = len(layout.types)
        columns = [
            pa.array(counts) if i == width else layout.column(new, i, rows) for i in wanted
        ]
        return (columns, pick(new.time, rows), diff), read


def count(source: Node, name: str) -> Keyed:
    """The node that counts ``source``'s records into a column ``name``.

    Source: differential-dataflow ``operators/count.rs``.
    """
    source.schema.check_compared()
    field = T.StructField(name, T.LongType(), False)
    schema = Schema(T.StructType([*source.schema.struct.fields, field]))
    return Keyed("count", source, schema, CountKernel())
