"""Diffs that are vectors: several sums of a row, one *component* for each.

Vectors form a commutative group, added component by component, so they are valid diffs::

    sum_vectors(c, L)[k]    = sum(L[i] for c[i] == k)            (codes that sum to zero vanish)
    running(L, s, B):  after[i] = B[g] + sum(L[j] for j <= i in the group g of i)
                       before[i] = after[i] - L[i]

Integer components obey this exactly or raise. A pair of components has one sum of doubles as a
*double-word*, added with a relative error of about 3 * 2**-106, inside and outside of the range of
doubles: see `pyspark_diff.kernels.double_word`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

import numpy as np

from pyspark_diff.errors import DiffOverflowError
from pyspark_diff.kernels.buffers import read_only
from pyspark_diff.kernels.double_word import pair_sum
from pyspark_diff.kernels.jit import inlined, jit, kernel
from pyspark_diff.kernels.overflow import sum_leaves

Int64 = np.ndarray

#: The bits of a kernel's status, which are combined by "or".
COUNTER_OVERFLOW, MULTIPLICITY = 1, 2

#: The roles of a component in `_add_row`.
_COUNTER, _HIGH, _LOW = 0, 1, 2


@dataclass(frozen=True)
class DiffVectors:
    """One vector of sums for each row.

    Parameters
    ----------
    values : ndarray of int64, shape (n, w), C-contiguous
        The components: signed counters, or for pairs the bits of a float64.
    pairs : tuple of int
        First component of each pair. The components ``p`` and ``p + 1`` are two finite float64,
        the words of one sum.

    Examples
    --------
    >>> vectors = DiffVectors(np.array([[1, 2], [0, 0]]))
    >>> len(vectors), vectors.width, vectors.nonzero().tolist()
    (2, 2, [True, False])
    """

    values: Int64
    pairs: tuple[int, ...] = ()

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def width(self) -> int:
        """Number of components of each row."""
        return int(self.values.shape[1])

    @property
    def reals(self) -> np.ndarray:
        """The same memory read as float64; only the components of pairs are meaningful."""
        return self.values.view(np.float64)

    def take(self, rows: np.ndarray | slice) -> "DiffVectors":
        """Rows at some indices (or of a mask or a slice), in that order."""
        return DiffVectors(np.ascontiguousarray(self.values[rows]), self.pairs)

    def zeros(self, rows: int) -> "DiffVectors":
        """Rows of zero, as wide as these vectors."""
        return DiffVectors(np.zeros((rows, self.width), np.int64), self.pairs)

    def nonzero(self) -> np.ndarray:
        """Whether any component of a row is not zero; both zeros of floats count as zero."""
        flags = np.empty(len(self), np.bool_)
        _nonzero(read_only(self.values), read_only(self.reals), self.roles(), flags)
        return flags

    def roles(self) -> np.ndarray:
        """The role of each component, for the compiled kernels."""
        return _roles(self.width, self.pairs)


@lru_cache(maxsize=256)
def _roles(width: int, pairs: tuple[int, ...]) -> np.ndarray:
    role = np.full(width, _COUNTER, np.int64)
    for pair in pairs:
        role[pair], role[pair + 1] = _HIGH, _LOW
    return role


def concat_vectors(parts: Sequence[DiffVectors]) -> DiffVectors:
    """All rows of at least one set of vectors, concatenated.

    Examples
    --------
    >>> vectors = DiffVectors(np.array([[1, 2]]))
    >>> concat_vectors([vectors, vectors.zeros(1)]).values.tolist()
    [[1, 2], [0, 0]]
    """
    if len(parts) == 1:
        return parts[0]
    return DiffVectors(np.concatenate([part.values for part in parts]), parts[0].pairs)


def sum_vectors(code: Int64, vectors: DiffVectors) -> tuple[Int64, DiffVectors]:
    """Add the vectors of equal codes and drop sums that are zero.

    Parameters
    ----------
    code : ndarray of int64, shape (n,)
        A code for each row, in any order; ordered codes are not sorted again.
    vectors : DiffVectors
        The rows. The rows of one code are added in their order.

    Returns
    -------
    codes : ndarray of int64
        Distinct codes, ascending.
    sums : DiffVectors

    Raises
    ------
    DiffOverflowError
        If a counter leaves 64 bits.

    Examples
    --------
    >>> vectors = DiffVectors(np.array([[1, 5], [1, 1], [-1, -5]]))
    >>> codes, sums = sum_vectors(np.array([7, 3, 7]), vectors)
    >>> codes.tolist(), sums.values.tolist()
    ([3], [[1, 1]])
    """
    rows = len(vectors)
    order = np.empty(0, np.int64)
    if (code[1:] < code[:-1]).any():
        order = np.argsort(code, kind="stable")
    codes = np.empty(rows, np.int64)
    sums = DiffVectors(np.empty((rows, vectors.width), np.int64), vectors.pairs)
    count, status = _sum(
        read_only(code), order, read_only(vectors.values), read_only(vectors.reals),
        vectors.roles(),
        codes, sums.values, sums.reals,
    )
    check(status)
    if count < rows // 2:
        # Otherwise a few sums would keep the memory of all rows.
        return codes[:count].copy(), DiffVectors(sums.values[:count].copy(), vectors.pairs)
    return codes[:count], sums.take(slice(0, count))


def running(
    vectors: DiffVectors, starts: Int64, base: DiffVectors
) -> tuple[DiffVectors, DiffVectors]:
    """Running sum inside each group, just before and just after each row.

    Parameters
    ----------
    vectors : DiffVectors
        Rows, those of one group next to each other.
    starts : ndarray of int64, shape (groups,)
        Index of the first row of each group; no group is empty.
    base : DiffVectors, shape (groups, w)
        The initial sum of each group.

    Returns
    -------
    before, after : DiffVectors

    Raises
    ------
    DiffOverflowError
        If a counter leaves 64 bits.

    Examples
    --------
    >>> vectors, base = DiffVectors(np.array([[2], [-1], [5]])), DiffVectors(np.array([[10], [0]]))
    >>> before, after = running(vectors, np.array([0, 2]), base)
    >>> before.values.ravel().tolist(), after.values.ravel().tolist()
    ([10, 12, 0], [12, 11, 5])
    """
    before, after = (
        DiffVectors(np.empty((len(vectors), vectors.width), np.int64), vectors.pairs)
        for _ in range(2)
    )
    check(_running(
        read_only(vectors.values), read_only(vectors.reals), vectors.roles(), read_only(starts),
        read_only(base.values), before.values, after.values, after.reals,
    ))
    return before, after


def add_at(table: DiffVectors, group: Int64, vectors: DiffVectors) -> None:
    """Add each row of vectors to the table's row of its group, in place.

    Parameters
    ----------
    table : DiffVectors
        Changed; its values must be writable. After an error it has a part of the sums.
    group : ndarray of int64, shape (n,)
        A row of the table for each row of vectors; groups may repeat.
    vectors : DiffVectors, shape (n, w)

    Raises
    ------
    DiffOverflowError
        If a counter leaves 64 bits.

    Examples
    --------
    >>> table = DiffVectors(np.zeros((2, 1), np.int64))
    >>> add_at(table, np.array([1, 1]), DiffVectors(np.array([[3], [4]])))
    >>> table.values.tolist()
    [[0], [7]]
    """
    check(_add_at(
        read_only(group), read_only(vectors.values), read_only(vectors.reals), vectors.roles(),
        table.values, table.reals,
    ))


def check(status: int) -> None:
    """Raise the error of a kernel's status, if any."""
    if status & COUNTER_OVERFLOW:
        raise DiffOverflowError(
            "a sum in the diff leaves the range of 64-bit integers: check the diffs of the input"
        )
    if status & MULTIPLICITY:
        raise DiffOverflowError(
            "a multiplicity is too large for an exact sum: the diff of a row must be smaller than "
            "2147483648 in size. Check the diffs of the input"
        )


@inlined
def _add_row(values, reals, row, role, out, out_reals, at):  # type: ignore[no-untyped-def]
    status = 0
    for k in range(role.size):
        if role[k] == _COUNTER:
            old, more = out[at, k], values[row, k]
            new = old + more
            if sum_leaves(old, more):
                status |= COUNTER_OVERFLOW
            out[at, k] = new
        elif role[k] == _HIGH:
            out_reals[at, k], out_reals[at, k + 1] = pair_sum(
                out_reals[at, k], out_reals[at, k + 1], reals[row, k], reals[row, k + 1]
            )
    return status


@jit
def _is_nonzero(values, reals, row, role):  # type: ignore[no-untyped-def]
    for k in range(role.size):
        if role[k] == _COUNTER:
            if values[row, k] != 0:
                return True
        elif reals[row, k] != 0.0:
            return True
    return False


@kernel("int64[:,:]-, float64[:,:]-, int64[:], bool[:]")
def _nonzero(values, reals, role, flags):  # type: ignore[no-untyped-def]
    for i in range(flags.size):
        flags[i] = _is_nonzero(values, reals, i, role)


@kernel(
    "int64[:]-, int64[:], int64[:,:]-, float64[:,:]-, int64[:], int64[:], int64[:,:], "
    "float64[:,:]"
)
def _sum(code, order, values, reals, role, codes, out, out_reals):  # type: ignore[no-untyped-def]
    status, count, rows, i = 0, 0, code.size, 0
    while i < rows:
        this = code[order[i] if order.size else i]
        for k in range(out.shape[1]):
            out[count, k] = 0
        while i < rows:
            row = order[i] if order.size else i
            if code[row] != this:
                break
            status |= _add_row(values, reals, row, role, out, out_reals, count)
            i += 1
        codes[count] = this
        if _is_nonzero(out, out_reals, count, role):
            count += 1
    return count, status


@kernel(
    "int64[:,:]-, float64[:,:]-, int64[:], int64[:]-, int64[:,:]-, int64[:,:], int64[:,:], "
    "float64[:,:]"
)
def _running(  # type: ignore[no-untyped-def]
    values, reals, role, starts, base, before, after, after_reals
):
    status, rows = 0, values.shape[0]
    for g in range(starts.size):
        stop = starts[g + 1] if g + 1 < starts.size else rows
        for i in range(starts[g], stop):
            for k in range(role.size):
                last = base[g, k] if i == starts[g] else after[i - 1, k]
                before[i, k] = last
                after[i, k] = last
            status |= _add_row(values, reals, i, role, after, after_reals, i)
    return status


@kernel("int64[:]-, int64[:,:]-, float64[:,:]-, int64[:], int64[:,:], float64[:,:]")
def _add_at(group, values, reals, role, table, table_reals):  # type: ignore[no-untyped-def]
    status = 0
    for i in range(group.size):
        status |= _add_row(values, reals, i, role, table, table_reals, group[i])
    return status
