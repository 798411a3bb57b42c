"""Linear aggregates: sums that live in the diff.

The diff of a key is a vector of sums (counts, sums, sums of squares), so a group's state is one
row, however many records it has. At every time ``t``, for each key with records then::

    accumulate(aggregate(A), t)[k] = (k, f1(v), f2(v), ...)      v = sum of the records' vectors

Vectors add up like numbers, in any order and any cut, and are taken back like numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_diff.kernels.accumulators import Accumulator, Rows, layout_of
from pyspark_diff.kernels.diff_vectors import DiffVectors, concat_vectors, running
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.lookup import accumulated_vectors
from pyspark_diff.kernels.results import Result, Sums
from pyspark_diff.operators.contract import Changes, DiffColumns, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True)
class AggregateKernel(ReplayKernel):
    """Where the vector of a key changes, its old row goes and its new row comes.

    Parameters
    ----------
    width : int
        Number of the key's columns, which come first in the output.
    accumulators : tuple of Accumulator
        What the vectors hold.
    results : tuple of Result
        The other columns.
    rows : int or None
        The component that counts records: there is a row where it is not zero. None where any
        component will do.
    """

    width: int
    accumulators: tuple[Accumulator, ...]
    results: tuple[Result, ...]
    rows: int | None

    def needs(self, wanted: Sequence[int], number: int) -> Sequence[str]:
        return []  # the key, and vectors

    def __call__(
        self, sides: Sequence[Side], own: Side | None, wanted: Sequence[int]
    ) -> tuple[Changes, int]:
        side = sides[0]
        new, layout = side.new.updates, side.layout
        vectors = new.diff
        if not isinstance(vectors, DiffVectors):  # no rows: none that could have vectors
            vectors = DiffVectors(np.empty((0, layout_of(self.accumulators)[1]), np.int64))
        base, read = accumulated_vectors(
            side.new.records(), side.old, vectors, side.limit
        )
        before, after = running(vectors, side.new.starts, base)
        chosen = [i - self.width for i in wanted if i >= self.width]
        there, now = self._present(before), self._present(after)
        # The results of all vectors that make a row, first those of before: one call for all.
        stand = [_only(before, there), _only(after, now)]
        made = self._results(concat_vectors([v for v in stand if len(v)] or stand[:1]), chosen)
        earlier, later = np.cumsum(there) - 1, np.cumsum(now) - 1 + np.count_nonzero(there)
        changed = there != now
        both = np.flatnonzero(there & now)
        if chosen and both.size:
            changed[both] = ~rows_equal(made, earlier[both], later[both])
        gone, rises = np.flatnonzero(changed & there), np.flatnonzero(changed & now)
        rows = np.concatenate((gone, rises))
        places = pa.array(np.concatenate((earlier[gone], later[rises])))
        results = iter(made)
        found = [
            layout.column(new, i, rows) if i < self.width else next(results).take(places)
            for i in wanted
        ]
        diff = np.concatenate((np.full(gone.size, -1), np.ones(rises.size, np.int64)))
        return (found, new.times()[rows], diff), read

    def _present(self, vectors: DiffVectors) -> np.ndarray:
        return vectors.nonzero() if self.rows is None else vectors.values[:, self.rows] != 0

    def _results(self, vectors: DiffVectors, chosen: Sequence[int]) -> list[pa.Array]:
        offsets, _, _ = layout_of(self.accumulators)
        sums = Sums(vectors, dict(zip(self.accumulators, offsets)))
        return [self.results[i].of(sums) for i in chosen]


def _only(vectors: DiffVectors, present: np.ndarray) -> DiffVectors:
    return vectors if present.all() else vectors.take(present)


def accumulators_of(
    results: Sequence[Result], *, by_rows: bool = True
) -> tuple[Accumulator, ...]:
    """What vectors hold that some results are made of; records are counted first."""
    held: list[Accumulator] = [Rows()] if by_rows else []
    for result in results:
        held += [a for a in result.accumulators if a not in held]
    return tuple(held)


def arrange_sums(
    source: Node, key: Sequence[str], columns: Sequence[str], accumulators: Sequence[Accumulator]
) -> Arranged:
    """The node that keeps, for each key of ``source``, a vector of sums over some columns."""
    source.schema.check_compared(key)
    diff_columns = DiffColumns(tuple(columns), tuple(accumulators))
    schema = source.schema.only(key)
    return Keyed("arrange", source, schema, None, key, diff_columns=diff_columns)


def aggregate(
    source: Node,
    key: Sequence[str],
    columns: Sequence[str],
    results: Sequence[tuple[T.StructField, Result]],
    *,
    by_rows: bool = True,
) -> Reader:
    """The node with one row for each key of ``source``: the key, and the results.

    Parameters
    ----------
    source : Node
    key : sequence of str
    columns : sequence of str
        Columns that accumulators name by their number.
    results : sequence of (StructField, Result)
    by_rows : bool
        A key has a row while its records do not add up to none; else while any sum is not zero.
    """
    held = accumulators_of([result for _, result in results], by_rows=by_rows)
    kernel = AggregateKernel(
        len(key), held, tuple(r for _, r in results), 0 if by_rows else None
    )
    fields = [source.schema.struct[name] for name in key]
    schema = Schema(T.StructType([*fields, *(field for field, _ in results)]))
    node = arrange_sums(source, key, columns, held)
    return Reader("aggregate", (node,), schema, kernel, key)
