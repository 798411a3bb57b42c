"""Merging of sorted batches into one, with logical compaction.

For batches ``B`` with a common ``since``::

    accumulate(merge(B), t) = sum(accumulate(b, t) for b in B)      for every t beyond since
"""

from __future__ import annotations

from pyspark_diff.kernels.consolidate import Grouped, consolidate
from pyspark_diff.kernels.updates import Updates, advanced, concat


def merge(batches: list[Updates], since: int | None) -> Grouped:
    """One consolidated batch out of several, times advanced to ``since``.

    Parameters
    ----------
    batches : list of Updates
    since : int or None
        See `pyspark_diff.kernels.replay.compact`.

    Returns
    -------
    Grouped

    Examples
    --------
    >>> import numpy as np
    >>> a = Updates(np.array([1, 2]), None, 0, 1)
    >>> b = Updates(np.array([2]), None, 3, -1)
    >>> merge([a, b], 3).updates.key64.tolist()
    [1]
    """
    return consolidate(advanced(concat(batches), since))
