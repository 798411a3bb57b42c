"""Rows in order of their times: in one pass if times are close together.

For times ``t`` and the places ``places = in_time_order(t)`` of the rows::

    rearranged(t, places) ascends;   rows of one time keep their order
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.order import order_of, to_begins
from pyspark_diff.kernels.updates import Int64


def in_time_order(times: Int64) -> Int64 | None:
    """The place of each row in the order of their times.

    Returns
    -------
    ndarray of int64, or None
        None if the rows are in order.

    Examples
    --------
    >>> in_time_order(np.array([5, 3, 5, 3])).tolist(), in_time_order(np.array([1, 1, 2]))
    ([2, 0, 3, 1], None)
    """
    if (times[1:] >= times[:-1]).all():
        return None
    low, high = int(times.min()), int(times.max())
    if high - low < thresholds.current.dense_slots_per_row_max * times.size:
        return _counted(times, low, high - low + 1)
    places = np.empty(times.size, np.int64)
    places[order_of(times)] = np.arange(times.size)
    return places


def rearranged(column: pa.ChunkedArray, places: Int64) -> pa.Array:
    """A column with each row at its place.

    Examples
    --------
    >>> rearranged(pa.chunked_array([[1, 2], [3]]), np.array([2, 0, 1])).to_pylist()
    [2, 3, 1]
    """
    kind = column.type
    if column.null_count or not (pa.types.is_int64(kind) or pa.types.is_timestamp(kind)):
        order = np.empty(places.size, np.int64)
        order[places] = np.arange(places.size)
        return column.combine_chunks().take(pa.array(order))
    # Chunk by chunk: without a copy of all chunks.
    out = np.empty(places.size, np.int64)
    start = 0
    for chunk in column.chunks:
        _scatter(chunk.view(pa.int64()).to_numpy(), places[start:start + len(chunk)], out)
        start += len(chunk)
    return pa.array(out).view(kind)


@kernel("int64[:]-, int64[:]-, int64[:]")
def _scatter(values, places, out):  # type: ignore[no-untyped-def]
    for i in range(values.size):
        out[places[i]] = values[i]


@kernel("int64[:]-, int64, int64")
def _counted(times, low, span):  # type: ignore[no-untyped-def]
    at = np.zeros(span, np.int64)
    for i in range(times.size):
        at[times[i] - low] += 1
    to_begins(at)
    places = np.empty(times.size, np.int64)
    for i in range(times.size):
        t = times[i] - low
        places[i] = at[t]
        at[t] += 1
    return places
