"""From updates with columns to updates whose diffs are vectors: the columns move into the diff.

With ``l(x)`` the vectors of the columns ``x`` of one row with diff 1::

    accumulate(into_diff(U), t)[key] = sum(diff * l(x) for (key, x, s, diff) in U if s <= t)
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.accumulators import Accumulator, tally
from pyspark_diff.kernels.consolidate import PairCodes, codes_of, rows_of
from pyspark_diff.kernels.order import ranked
from pyspark_diff.kernels.updates import UpdateChunk


def into_diff(
    updates: UpdateChunk, columns: Sequence[pa.Array], accumulators: Sequence[Accumulator]
) -> UpdateChunk:
    """Updates of the keys with one vector for each key and time.

    Parameters
    ----------
    updates : UpdateChunk
        Keys without values, in any order.
    columns : sequence of pyarrow.Array
        The columns that move into the diff, row by row.
    accumulators : sequence of Accumulator
        The conversion of columns into vectors.

    Returns
    -------
    UpdateChunk
        Its diffs are vectors. Vectors of zeros are not dropped.

    Examples
    --------
    >>> from pyspark_diff.kernels.accumulators import RowCount
    >>> u = UpdateChunk(np.array([7, 7]), None, 0, np.array([1, -2]))
    >>> into_diff(u, [pa.array([10, 3])], [RowCount()]).diff.values.tolist()
    [[-1]]
    """
    if not len(updates):
        return updates
    key, first = codes_of(updates.key64, updates.columns, None)
    time = updates.time
    if isinstance(time, np.ndarray):
        pairs = PairCodes(key, time)
        code, group = ranked(pairs.code)
        key, time = pairs.parts(code)
    else:
        key, group = ranked(key)
    vectors = tally(accumulators, columns, group, key.size, updates.scalars())
    return rows_of(updates, key, time, vectors, first)
