"""Exact groups of equal records that are stored by a 64-bit hash.

``key64`` decides on the candidate rows of a record, and `rows_equal` on equality: a collision of
hashes costs time and never gives a wrong answer::

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
        Group of each row; groups have numbers in the order of ``key64``.
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
    """An order in which equal records are adjacent even if different records share a hash.

    Each round places one record of every hash with unplaced rows. So the number of rounds is the
    number of distinct records of the worst hash.
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
