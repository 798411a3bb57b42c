"""Exact groups of equal records behind a 64-bit hash.

``key64`` decides where a record may be, `rows_equal` whether it is there: a collision of hashes
costs time and never a wrong answer::

    group[i] == group[j]   iff   key64[i] == key64[j] and record[i] == record[j]
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.equality import rows_equal
from pyspark_diff.kernels.order import order_of
from pyspark_diff.kernels.updates import Int64


def group_records(key64: Int64, columns: Sequence[pa.Array]) -> tuple[Int64, Int64]:
    """Number the distinct records.

    Parameters
    ----------
    key64 : ndarray of int64, shape (n,)
        Hash of each record.
    columns : sequence of pyarrow.Array
        The records.

    Returns
    -------
    group : ndarray of int64, shape (n,)
        Group of each row; groups are numbered in the order of ``key64``.
    first : ndarray of int64, shape (groups,)
        A row of each group.

    Examples
    --------
    >>> group, first = group_records(np.array([9, 9, 4]), [pa.array(["a", "b", "c"])])
    >>> group.tolist(), first.tolist()
    ([1, 2, 0], [2, 0, 1])
    """
    rows = key64.size
    order = order_of(key64)
    ordered = key64[order]
    same = np.zeros(rows, dtype=bool)
    twins = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    same[twins] = rows_equal(columns, order[twins - 1], order[twins])
    if not same[twins].all():
        order = _split_collisions(columns, ordered, order)
        same[twins] = (ordered[twins] == ordered[twins - 1]) & rows_equal(
            columns, order[twins - 1], order[twins]
        )
    heads = np.flatnonzero(~same)
    group = np.empty(rows, dtype=np.int64)
    group[order] = np.cumsum(~same) - 1
    return group, order[heads]


def _split_collisions(columns: Sequence[pa.Array], ordered: Int64, order: Int64) -> Int64:
    """Order in which equal records stand together also where different ones share a hash.

    Each round takes one record of every hash that still has unplaced rows, so it ends after as many
    rounds as the worst hash has distinct records.
    """
    rows = ordered.size
    run = np.cumsum(np.concatenate(([True], ordered[1:] != ordered[:-1]))) - 1
    place = np.full(rows, -1, dtype=np.int64)
    left = np.arange(rows)
    turn = 0
    while left.size:
        _, leader, member = np.unique(run[left], return_index=True, return_inverse=True)
        placed = rows_equal(columns, order[left[leader]][member], order[left])
        place[left[placed]] = turn
        left = left[~placed]
        turn += 1
    return order[np.lexsort((place, run))]
