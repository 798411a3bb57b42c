"""Rows in order of their times: in one pass where times lie close together.

For times ``t`` and ``order = in_time_order(t)``::

    t[order] ascends;   rows of one time stay as they are
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.sums import DENSE, to_begins
from pyspark_diff.kernels.updates import Int64


def in_time_order(times: Int64) -> Int64 | None:
    """The rows in order of their times.

    Parameters
    ----------
    times : ndarray of int64

    Returns
    -------
    ndarray of int64, or None
        None where they are in order.

    Examples
    --------
    >>> in_time_order(np.array([5, 3, 5, 3])).tolist(), in_time_order(np.array([1, 1, 2]))
    ([1, 3, 0, 2], None)
    """
    if (times[1:] >= times[:-1]).all():
        return None
    low, high = int(times.min()), int(times.max())
    if high - low < DENSE * times.size:
        return _counted(times, low, high - low + 1)
    return np.argsort(times, kind="stable")


@kernel("int64[:]-, int64, int64")
def _counted(times, low, span):  # type: ignore[no-untyped-def]
    at = np.zeros(span, np.int64)
    for i in range(times.size):
        at[times[i] - low] += 1
    to_begins(at)
    order = np.empty(times.size, np.int64)
    for i in range(times.size):
        t = times[i] - low
        order[at[t]] = i
        at[t] += 1
    return order
