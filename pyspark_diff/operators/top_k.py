"""The first k records of each key, in an order of their own.

At every time ``t``, for each key, of the records that stand there with a positive multiplicity::

    top_k(A, k) = the first k in order, each as often as it occurs

The arrangement holds the records of a key in this order, so what comes first is found by search in
each of its few batches. A change reads a number of rows that follows k and the change, and not the
size of the group: where the first ones go, the next ones stand right behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.kernels import top_k as kernel
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Reader
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True)
class TopKKernel(ReplayKernel):
    """The replay of what comes first.

    Parameters
    ----------
    k : int
    names : tuple of str
        Columns of the records.
    by : int
        How many of the value's columns make the order; the others only break ties.
    mode : {"rows", "row_number", "rank"}
        Whether records come with a number.
    from_back : bool
        Whether the last in order count as the first.
    """

    k: int
    names: tuple[str, ...]
    by: int
    mode: str
    from_back: bool

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        # With fewer columns the same records tie, and the same number of them is taken.
        return [self.names[i] for i in wanted if i < len(self.names)]

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        side = sides[0]
        value = side.layout.value
        if value is None or value.ordering is None:
            raise ValueError("top_k reads an arrangement in order")
        rows, numbers, read = kernel.top_k(
            side.old, side.new, self.k, value.ordering, by=self.by, mode=self.mode,
            from_back=self.from_back, limit=side.limit,
        )
        found = dict(zip(side.names, side.layout.decode(rows)))
        columns = []
        for i in wanted:
            if i < len(self.names):
                columns.append(found[self.names[i]])
            else:
                columns.append(pa.array(numbers if numbers is not None else [], pa.int32()))
        return (columns, rows.times(), rows.diffs() if len(rows) else np.empty(0, np.int64)), read


def top_k(
    source: Arranged,
    k: int,
    by: int,
    *,
    number: str | None = None,
    mode: str = "rows",
    from_back: bool = False,
) -> Reader:
    """The node with the first k records of each key.

    Parameters
    ----------
    source : Arranged
        Made by `pyspark_diff.operators.arrange.arrange_in_order`.
    k : int
    by : int
        How many of the value's columns make the order.
    number : str, optional
        Name of the column with the number of each record.
    mode : {"rows", "row_number", "rank"}
        What the number is.
    from_back : bool
        Whether the last in order count as the first.
    """
    fields = list(source.schema.struct.fields)
    if number is not None:
        fields.append(T.StructField(number, T.IntegerType(), False))
    names = source.schema.names
    found = TopKKernel(k, names, by, mode, from_back)
    return Reader("top_k", (source,), Schema(T.StructType(fields)), found, source.key)
