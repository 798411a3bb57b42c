"""From updates with columns to updates whose diffs are vectors: the columns move into the diff.

With ``l(x)`` the vectors that a row's columns ``x`` count for once::

    accumulate(into_diff(U), t)[key] = sum(diff * l(x) for (key, x, s, diff) in U if s <= t)
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.accumulators import Accumulator, tally
from pyspark_diff.kernels.consolidate import PairCodes, codes_of, rows_of, span_of
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.sums import DENSE
from pyspark_diff.kernels.updates import Int64, Updates


def into_diff(
    updates: Updates, columns: Sequence[pa.Array], accumulators: Sequence[Accumulator]
) -> Updates:
    """Updates of the keys with one vector for each key and time.

    Parameters
    ----------
    updates : Updates
        Keys without values, in any order.
    columns : sequence of pyarrow.Array
        What is moved into the diff, row by row.
    accumulators : sequence of Accumulator
        How.

    Returns
    -------
    Updates
        Its diffs are vectors. Vectors of zeros are not left out.

    Examples
    --------
    >>> from pyspark_diff.kernels.accumulators import Rows
    >>> u = Updates(np.array([7, 7]), None, 0, np.array([1, -2]))
    >>> into_diff(u, [pa.array([10, 3])], [Rows()]).diff.values.tolist()
    [[-1]]
    """
    if not len(updates):
        return updates
    key, first = codes_of(updates.key64, updates.columns, None)
    time = updates.time
    if isinstance(time, np.ndarray):
        pairs = PairCodes(key, time)
        code, group = _number(pairs.code, 0, pairs.span)
        key, time = pairs.parts(code)
    else:
        key, group = _number(*span_of(key))
    vectors = tally(accumulators, columns, group, key.size, updates.scalars())
    return rows_of(updates, key, time, vectors, first)


def _number(code: Int64, low: int, span: int) -> tuple[Int64, Int64]:
    """The distinct codes in order, and for each row which one it is."""
    if span >= DENSE * code.size:
        found, group = np.unique(code, return_inverse=True)
        return found, group
    table = np.zeros(span + 1, dtype=np.int32)
    group = np.empty(code.size, dtype=np.int64)
    _place(code, low, table, group)
    return np.flatnonzero(table) + low, group


@kernel("int64[:], int64, int32[:], int64[:]")
def _place(code, low, table, group):  # type: ignore[no-untyped-def]
    for i in range(code.size):
        table[code[i] - low] = 1
    count = 0
    for s in range(table.size):
        if table[s]:
            count += 1
            table[s] = count
    for i in range(code.size):
        group[i] = table[code[i] - low] - 1
