"""The first k records of each key, in an order of their own.

At every time ``t``, for each key, among the records with a positive multiplicity at ``t``::

    top_k(A, k) = the first k in order, each as often as it occurs

The arrangement stores the records of a key in this order, so a search in each of its few batches
finds the first records. The number of rows that a change reads depends on k and the change, and not
on the size of the group: the successors of removed records are the next rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.kernels import top_k as kernel
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.operators.node import Keyed, Reader
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True)
class TopKKernel(ReplayKernel):
    """The replay of the first records.

    Parameters
    ----------
    names : tuple of str
        Columns of the records.
    by : int
        Number of the value's columns that define the order; the others only break ties.
    mode : {"rows", "row_number", "rank", "dense_rank"}
        Whether records have a number, and its kind.
    from_back : bool
        Whether the last records in order count as the first.
    ties : tuple of str
        The columns that break ties, in their order.
    """

    k: int
    names: tuple[str, ...]
    by: int
    mode: str
    from_back: bool
    ties: tuple[str, ...]

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        needed = {self.names[i] for i in wanted if i < len(self.names)}
        if self.mode in ("rows", "row_number"):
            # Records that agree up to the last wanted column are interchangeable.
            last = max((i for i, name in enumerate(self.ties) if name in needed), default=-1)
            needed.update(self.ties[:last + 1])
        return [name for name in self.names if name in needed]

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
        decoded = dict(zip(side.names, side.layout.decode(rows)))
        columns = []
        for i in wanted:
            if i < len(self.names):
                columns.append(decoded[self.names[i]])
            else:
                columns.append(pa.array(numbers if numbers is not None else [], pa.int32()))
        return (columns, rows.times(), rows.diffs() if len(rows) else np.empty(0, np.int64)), read


def top_k(
    source: Keyed,
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
    by : int
        Number of the value's columns that define the order.
    number : str, optional
        Name of the column with the number of each record.
    mode : {"rows", "row_number", "rank", "dense_rank"}
        The kind of the number.
    from_back : bool
        Whether the last records in order count as the first.
    """
    fields = list(source.schema.struct.fields)
    if number is not None:
        fields.append(T.StructField(number, T.IntegerType(), False))
    names = source.schema.names
    order = {*source.key, *(name for name, _, _ in source.ordering or ())}
    ties = tuple(name for name in names if name not in order)
    top = TopKKernel(k, names, by, mode, from_back, ties)
    return Reader("top_k", (source,), Schema(T.StructType(fields)), top, source.key)
