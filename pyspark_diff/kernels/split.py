"""Consolidation and splitting of updates by bucket, before they are shuffled.

For the rows ``R`` of a task and the parts that `split` yields::

    accumulate(R, t) = sum(accumulate(part, t) for part in parts)
    every record of the part of bucket b hashes to b
"""

from __future__ import annotations

from typing import Iterator

import numpy as np

from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.layout import Layout
from pyspark_diff.kernels.updates import Int64, UpdateChunk


def split(updates: UpdateChunk, layout: Layout, buckets: int) -> Iterator[tuple[int, UpdateChunk]]:
    """Consolidated updates of each bucket with updates.

    Parameters
    ----------
    updates : UpdateChunk
        Rows in any order.
    layout : Layout
        Layout of the records.
    buckets : int
        Number of buckets.

    Yields
    ------
    bucket : int
    part : UpdateChunk
        Its rows, ordered by (key64, record, time).

    Examples
    --------
    >>> import pyarrow as pa
    >>> u = UpdateChunk(np.array([7, 7, 8]), None, 0, 1)
    >>> [(b, p.key64.tolist(), p.diff.tolist()) for b, p in split(u, Layout((pa.int64(),)), 1)]
    [(0, [7, 8], [2, 1])]
    """
    yield from partition(consolidate(updates).updates, layout, buckets)


def partition(rows: UpdateChunk, layout: Layout, buckets: int) -> Iterator[tuple[int, UpdateChunk]]:
    """As `split`, without consolidation: rows of a bucket keep their order."""
    if not len(rows):
        return
    if buckets == 1:
        yield 0, rows
        return
    order, stops = places(rows, layout, buckets)
    plain = rows.columns is None and rows.values is None
    moved = rows.take(order) if plain else rows
    for number, start, stop in stops:
        yield number, moved.between(start, stop) if plain else rows.take(order[start:stop])


def places(
    rows: UpdateChunk, layout: Layout, buckets: int
) -> tuple[Int64, list[tuple[int, int, int]]]:
    """Numbers of rows in order of their buckets, and in their own order inside a bucket; and for
    each bucket with rows the begin and the end of its rows among them."""
    # A counting sort, as there are few buckets.
    order, stops = _by_bucket(layout.buckets(rows, buckets), buckets)
    ranges, start = [], 0
    for bucket, stop in enumerate(stops.tolist()):
        if stop > start:
            ranges.append((bucket, start, stop))
            start = stop
    return order, ranges


@kernel("int32[:], int64")
def _by_bucket(bucket, buckets):  # type: ignore[no-untyped-def]
    stops = np.zeros(buckets, np.int64)
    for i in range(bucket.size):
        stops[bucket[i]] += 1
    total = 0
    at = np.empty(buckets, np.int64)
    for b in range(buckets):
        at[b] = total
        total += stops[b]
        stops[b] = total
    order = np.empty(bucket.size, np.int64)
    for i in range(bucket.size):
        order[at[bucket[i]]] = i
        at[bucket[i]] += 1
    return order, stops
