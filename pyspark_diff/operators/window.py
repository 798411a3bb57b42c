"""Windows: functions of each record among the records of its partition, in an order.

At every time ``t``, with the records of a key in order, each as often as it occurs::

    window(A, f) = { (record, f(record, among the records of its key in A at t)) }

The arrangement stores the records of a key in this order. All other columns break ties, so that the
results are deterministic. A change reads the rows of its key. If the functions depend only on some
neighbours of a row, a change reads only these rows. The kernel emits changed results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.errors import NegativeMultiplicityError
from pyspark_diff.kernels.updates import Int64, UpdateChunk, joined
from pyspark_diff.kernels.window_functions import Function
from pyspark_diff.kernels.window_reach import Reach
from pyspark_diff.kernels.window_rows import WindowRows, rows_of
from pyspark_diff.kernels.windows import Changed, NegativeCountError, read_range, windows
from pyspark_diff.operators.contract import Changes, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Reader
from pyspark_diff.reasons import PARTITION_READ, Reason
from pyspark_diff.spark.schema import Schema, TimeType


@dataclass(frozen=True)
class WindowKernel(ReplayKernel):
    """The replay of functions of records within their partition.

    Parameters
    ----------
    names : tuple of str
        Columns of the records.
    by : tuple of (str, bool)
        Columns that define the order, and whether each is descending.
    functions : tuple of Function
        Functions of the output columns after the columns of the records.
    time_type : TimeType
        For messages.
    """

    names: tuple[str, ...]
    by: tuple[tuple[str, bool], ...]
    functions: tuple[Function, ...]
    time_type: TimeType

    @property
    def reason(self) -> Reason | None:
        near = Reach.of_all([function.reach for function in self.functions]).near
        return PARTITION_READ if near is None else None

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        functions = self._wanted(wanted)
        if any(function.distinguishes_ties for function in functions):
            return self.names  # they break ties
        needed = {self.names[i] for i in wanted if i < len(self.names)}
        needed.update(name for name, _ in self.by)
        needed.update(name for function in functions for name in function.columns)
        return [name for name in self.names if name in needed]

    def _wanted(self, wanted: Sequence[int]) -> list[Function]:
        width = len(self.names)
        return [self.functions[i - width] for i in wanted if i >= width]

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        side, functions = sides[0], self._wanted(wanted)
        value = side.layout.value
        if value is None or value.ordering is None:
            raise ValueError("a window reads an arrangement in order")
        changes: list[Changes] = []
        read = 0
        if len(side.new.updates):
            reach = Reach.of_all([function.reach for function in functions])

            def touched(rows: WindowRows) -> tuple[Int64, Int64]:
                return read_range(rows, functions, _Columns(side, rows), first)

            first = self.by[0] if self.by else None
            rows = rows_of(
                side.old, side.new, value.ordering, len(self.by), side.limit, reach.near,
                reach.ties, touched,
            )
            read = rows.read
            columns = _Columns(side, rows)
            try:
                for changed in windows(
                    rows, functions, columns, first, side.open_from
                ):
                    changes.append(self._changes(changed, columns, wanted))
            except NegativeCountError as wrong:
                raise self._refusal(wrong, side, columns) from None
        return self._joined(changes, side, wanted), read

    def _changes(self, changed: Changed, columns: "_Columns", wanted: Sequence[int]) -> Changes:
        results = iter(changed.results)
        output = [
            columns.column(self.names[i], changed.candidate) if i < len(self.names)
            else next(results)
            for i in wanted
        ]
        return output, changed.time, changed.diff

    def _joined(self, parts: list[Changes], side: Side, wanted: Sequence[int]) -> Changes:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            none = np.empty(0, np.int64)
            kinds = dict(zip(side.names, side.layout.all_types))
            columns = [
                pa.array([], kinds[self.names[i]] if i < len(self.names)
                         else self.functions[i - len(self.names)].kind)
                for i in wanted
            ]
            return columns, none, none
        columns = [joined(list(column)) for column in zip(*(part[0] for part in parts))]
        times, diffs = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in (1, 2))
        return columns, times, diffs

    def _refusal(
        self, wrong: NegativeCountError, side: Side, columns: "_Columns"
    ) -> NegativeMultiplicityError:
        at = np.array([wrong.candidate])
        shown = ", ".join(
            f"{name}={columns.column(name, at)[0].as_py()!r}" for name in side.names
        )
        return NegativeMultiplicityError(
            f"the record ({shown}) has at time {self.time_type.decode(wrong.time)!r} the "
            f"multiplicity {wrong.count}: more was removed than was inserted, and a window "
            "has no place for it. Correct the input"
        )


class _Columns:
    """The columns of candidates, each computed on its first request."""

    def __init__(self, side: Side, rows: WindowRows):
        self._side, self._rows = side, rows
        pool = rows.pool
        self._pool = UpdateChunk(pool.key64, None, 0, 1, pool.key64, pool.columns)
        self._known: dict[str, pa.Array] = {}

    def __call__(self, name: str) -> pa.Array:
        if name not in self._known:
            self._known[name] = self.column(name, np.arange(len(self._rows)))
        return self._known[name]

    def column(self, name: str, candidates: Int64) -> pa.Array:
        side, rows = self._side, self._rows
        position = side.names.index(name)
        if side.is_value(name):
            return side.layout.column(self._pool, position, rows.first[candidates])
        return side.layout.column(rows.keys, position, rows.key[candidates])


def window(
    source: Arranged,
    by: Sequence[tuple[str, bool]],
    functions: Sequence[tuple[T.StructField, Function]],
) -> Reader:
    """The node that adds the results of functions to each record.

    Parameters
    ----------
    source : Arranged
        Made by `pyspark_diff.operators.arrange.arrange_in_order`.
    by : sequence of (str, bool)
        Columns that define the order, and whether each is descending. They begin the value.
    functions : sequence of (StructField, Function)
        The new columns.
    """
    fields = [*source.schema.struct.fields, *(field for field, _ in functions)]
    kernel = WindowKernel(
        source.schema.names, tuple(by), tuple(function for _, function in functions),
        source.time_type,
    )
    return Reader("window", (source,), Schema(T.StructType(fields)), kernel, source.key)
