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

from pyspark_diff.kernels.accumulators import Accumulator, RowCount, layout_of
from pyspark_diff.kernels.diff_vectors import DiffVectors, concat_vectors, running
from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.lookup import accumulated_vectors
from pyspark_diff.kernels.results import GroupSums, Result
from pyspark_diff.operators.contract import Changes, DiffColumns, ReplayKernel, Side
from pyspark_diff.operators.node import Arranged, Keyed, Node, Reader
from pyspark_diff.spark.schema import Schema


@dataclass(frozen=True)
class AggregateKernel(ReplayKernel):
    """When the vector of a key changes, the kernel retracts the old row and inserts the new row.

    Parameters
    ----------
    width : int
        Number of the key's columns, which come first in the output.
    accumulators : tuple of Accumulator
        The components of the vectors.
    results : tuple of Result
        The other columns.
    rows : int or None
        The component that counts records: a key has a row while it is not zero. With None a key has
        a row while any component is not zero.
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
        if not isinstance(vectors, DiffVectors):  # an empty batch has no vectors
            vectors = DiffVectors(np.empty((0, layout_of(self.accumulators)[1]), np.int64))
        base, read = accumulated_vectors(
            side.new.records(), side.old, vectors, side.limit
        )
        before, after = running(vectors, side.new.starts, base)
        chosen = [i - self.width for i in wanted if i >= self.width]
        had, has = self._present(before), self._present(after)
        # One call computes the results of all vectors that have a row, the old vectors first.
        present = [_only(before, had), _only(after, has)]
        present = [vectors for vectors in present if len(vectors)] or present[:1]
        values = self._results(concat_vectors(present), chosen)
        old_place, new_place = np.cumsum(had) - 1, np.cumsum(has) - 1 + np.count_nonzero(had)
        changed = had != has
        both = np.flatnonzero(had & has)
        if chosen and both.size:
            changed[both] = ~rows_equal(values, old_place[both], new_place[both])
        retracted, inserted = np.flatnonzero(changed & had), np.flatnonzero(changed & has)
        rows = np.concatenate((retracted, inserted))
        places = pa.array(np.concatenate((old_place[retracted], new_place[inserted])))
        results = iter(values)
        columns = [
            layout.column(new, i, rows) if i < self.width else next(results).take(places)
            for i in wanted
        ]
        diff = np.concatenate((np.full(retracted.size, -1), np.ones(inserted.size, np.int64)))
        return (columns, new.times()[rows], diff), read

    def _present(self, vectors: DiffVectors) -> np.ndarray:
        return vectors.nonzero() if self.rows is None else vectors.values[:, self.rows] != 0

    def _results(self, vectors: DiffVectors, chosen: Sequence[int]) -> list[pa.Array]:
        offsets, _, _ = layout_of(self.accumulators)
        sums = GroupSums(vectors, dict(zip(self.accumulators, offsets)))
        return [self.results[i].evaluate(sums) for i in chosen]


def _only(vectors: DiffVectors, present: np.ndarray) -> DiffVectors:
    return vectors if present.all() else vectors.take(present)


def accumulators_of(
    results: Sequence[Result], *, by_rows: bool = True
) -> tuple[Accumulator, ...]:
    """The components of vectors from which results are computed; the count of records is first."""
    accumulators: list[Accumulator] = [RowCount()] if by_rows else []
    for result in results:
        accumulators += [a for a in result.accumulators if a not in accumulators]
    return tuple(accumulators)


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
    columns : sequence of str
        Columns that accumulators name by their number.
    by_rows : bool
        Whether a key has a row while its count of records is not zero. Otherwise it has a row while
        any sum is not zero.
    """
    accumulators = accumulators_of([result for _, result in results], by_rows=by_rows)
    kernel = AggregateKernel(
        len(key), accumulators, tuple(r for _, r in results), 0 if by_rows else None
    )
    fields = [source.schema.struct[name] for name in key]
    schema = Schema(T.StructType([*fields, *(field for field, _ in results)]))
    node = arrange_sums(source, key, columns, accumulators)
    return Reader("aggregate", (node,), schema, kernel, key)
