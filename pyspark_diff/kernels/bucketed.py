"""Look-ups in a batch that is cut by bucket: one compiled call for all of its files.

With ``B`` the rows of all files, and ``K`` some keys; each look-up reads the files of its bucket::

    rows_under(K, B)  =  the rows of B whose key is in K, in the order of a batch
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.key_index import (
    DIFF_OF_ALL,
    DIFFS,
    KEYS,
    LENGTH,
    PLACE_OF_ALL,
    PLACES,
    TIME_OF_ALL,
    TIMES,
    VALUES,
    grown,
    part,
)
from pyspark_diff.kernels.search import guess_of, seek, word
from pyspark_diff.kernels.updates import Int64, PerRow, UpdateChunk


def rows_under(
    keys: Int64, buckets: Int64, files: Sequence[tuple[int, UpdateChunk]]
) -> UpdateChunk | None:
    """The rows of a batch under some keys.

    Parameters
    ----------
    keys : ndarray of int64
        In order; keys may repeat.
    buckets : ndarray of int32
        The bucket of each key.
    files : sequence of (int, UpdateChunk)
        Bucket and rows; the rows of a bucket are in the order of their keys.

    Returns
    -------
    UpdateChunk or None
        None if the records are not plain numbers.

    Examples
    --------
    >>> rows = [UpdateChunk(np.array([2, 6]), None, 0, 1), UpdateChunk(np.array([3]), None, 0, 1)]
    >>> result = rows_under(np.array([3, 6]), np.array([1, 0], np.int32), list(enumerate(rows)))
    >>> result.key64.tolist(), result.time, result.diffs().tolist()
    ([3, 6], 0, [1, 1])
    """
    files = sorted(files, key=lambda file: file[0])
    words = [updates.words for _, updates in files]
    if any(entry is None for entry in words):
        return None
    table = np.array(words, np.int64).reshape(len(files), 9)
    first = np.searchsorted([bucket for bucket, _ in files], np.arange(files[-1][0] + 2))
    key64, parts = _rows_under(np.ascontiguousarray(keys), buckets, table, first)
    shared: list[PerRow] = []
    for column, addresses, of_all in (
        (1, TIMES, TIME_OF_ALL), (2, PLACES, PLACE_OF_ALL), (3, DIFFS, DIFF_OF_ALL)
    ):
        entry = table[:, of_all]
        same = not table[:, addresses].any() and (entry == entry[0]).all()
        shared.append(int(entry[0]) if same else np.ascontiguousarray(parts[:, column]))
    time, coordinate, diff = shared
    like = files[0][1]
    values = None if like.val64 is None else np.ascontiguousarray(parts[:, 0])
    return UpdateChunk(key64, None, time, diff, values, None, like.ordering, coordinate)


@kernel("int64[:]-, int32[:]-, int64[:,:], int64[:]")
def _rows_under(keys, buckets, files, first):  # type: ignore[no-untyped-def]
    cursors = np.zeros(files.shape[0], np.int64)
    rows = np.empty((keys.size + 16, 5), np.int64)
    top = 0
    for i in range(keys.size):
        key = keys[i]
        if buckets[i] + 1 >= first.size or i > 0 and key == keys[i - 1]:
            continue
        for f in range(first[buckets[i]], first[buckets[i] + 1]):
            address, length = files[f, KEYS], files[f, LENGTH]
            guess = guess_of(address, length, cursors[f], key)
            row = seek(address, length, cursors[f], key, guess)
            while row < length and word(address + 8 * row) == key:
                rows = grown(rows, top, top + 1)
                rows[top, 0] = part(files, f, VALUES, VALUES, row)
                rows[top, 1] = part(files, f, TIMES, TIME_OF_ALL, row)
                rows[top, 2] = part(files, f, PLACES, PLACE_OF_ALL, row)
                rows[top, 3] = part(files, f, DIFFS, DIFF_OF_ALL, row)
                rows[top, 4] = key
                top += 1
                row += 1
            cursors[f] = row
    return rows[:top, 4].copy(), rows[:top]
