"""The distinct values of some keys as candidates, in order, after rows of batches have been read.

    base[c]  =  the sum of the old diffs of candidate c that have been read
"""

from __future__ import annotations

import numpy as np

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.jit import kernel
from pyspark_diff.kernels.updates import Int64, UpdateChunk


def values_of(updates: UpdateChunk) -> UpdateChunk:
    """The values as records of their own, with the diffs."""
    if updates.val64 is None:
        raise ValueError("these records have no values")
    return UpdateChunk(
        updates.val64, updates.values, 0, updates.scalars(), coordinate=updates.coordinate
    )


def expand(first: Int64, counts: Int64) -> tuple[Int64, Int64]:
    """The rows of several runs, and the number of each row's run."""
    run = np.repeat(np.arange(counts.size), counts)
    return run, np.arange(run.size) + np.repeat(first - np.cumsum(counts) + counts, counts)


def code_order(code: Int64) -> Int64:
    """Rows in the order of codes; ordered codes are not sorted again."""
    if (code[1:] >= code[:-1]).all():
        return np.arange(code.size)
    return np.argsort(code)


def check(fits: bool) -> None:
    """Raise if a sum of diffs does not fit."""
    if not fits:
        raise DiffOverflowError(
            "the accumulated diff of a record leaves the range of 64-bit integers: check the diffs "
            "of the input"
        )


@kernel("int64[:], int64[:], int64, int64[:]-")
def candidates(order, packed, old, diff):  # type: ignore[no-untyped-def]
    """Each distinct value once: a row of it, its sum of old diffs, and whether it is touched. Then
    the candidate of each touched value (rows from ``old`` on), and whether no sum overflows."""
    count = 0
    for i in range(order.size):
        count += i == 0 or packed[order[i]] != packed[order[i - 1]]
    first = np.empty(count, np.int64)
    base = np.zeros(count, np.int64)
    touched = np.zeros(count, np.bool_)
    of_record = np.empty(order.size - old, np.int64)
    c = -1
    for i in range(order.size):
        row = order[i]
        if i == 0 or packed[row] != packed[order[i - 1]]:
            c += 1
            first[c] = row
        if row >= old:
            touched[c] = True
            of_record[row - old] = c
        else:
            total = base[c] + diff[row]
            if ((base[c] ^ total) & (diff[row] ^ total)) < 0:
                return first, base, touched, of_record, False
            base[c] = total
    return first, base, touched, of_record, True
