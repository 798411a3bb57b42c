"""Loop coordinates: the iteration of each enclosing loop that an update belongs to.

The coordinate ``(i1, ..., im)`` of an update in ``m`` nested loops, the outermost first, is packed
into one integer. Coordinates have the product order::

    (i1, ..., im) <= (j1, ..., jm)   iff   i1 <= j1 and ... and im <= jm

and packed coordinates, compared as numbers, have the lexicographic order, which respects it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyspark_diff.errors import StalledError
from pyspark_diff.kernels.updates import Int64, PerRow
from pyspark_diff.times import Coordinate, enter, join


def bits(depth: int) -> int:
    """Number of bits of each part of a coordinate in ``depth`` nested loops."""
    return 62 // depth if depth else 62


def pack(coordinate: Coordinate) -> int:
    """A coordinate as one integer.

    Raises
    ------
    StalledError
        If a part of it is too large for its bits.

    Examples
    --------
    >>> unpack(pack((3, 70)), 2)
    (3, 70)
    """
    width = bits(len(coordinate))
    code = 0
    for part in coordinate:
        if part >> width:
            raise StalledError(
                f"iteration {part} of {len(coordinate)} nested loops is more than "
                f"{(1 << width) - 1}, the largest number at this depth"
            )
        code = (code << width) | part
    return code


def unpack(code: int, depth: int) -> Coordinate:
    """Undo `pack`."""
    width = bits(depth)
    mask = (1 << width) - 1
    return tuple((code >> (width * (depth - 1 - i))) & mask for i in range(depth))


@dataclass(frozen=True)
class Limit:
    """The coordinates that are less than or equal to a limit.

    Parameters
    ----------
    depth : int
        Number of loops around the updates.
    code : int
        The coordinate, packed.

    Examples
    --------
    >>> limit = Limit(2, pack((3, 1)))
    >>> limit.mask(np.array([pack((2, 1)), pack((0, 2)), pack((4, 0))])).tolist()
    [True, False, False]
    """

    depth: int
    code: int

    def mask(self, codes: Int64) -> np.ndarray:
        """Whether each coordinate is less than or equal to the limit."""
        if self.depth <= 1:
            return codes <= self.code
        below = np.ones(codes.size, dtype=bool)
        for mine, theirs in zip(unpack(self.code, self.depth), _parts(codes, self.depth)):
            below &= theirs <= mine
        return below


def lub(codes: PerRow, depth: int, at: Coordinate) -> PerRow:
    """The least upper bounds of coordinates of rows in some of the loops and of a coordinate in
    all.

    Parameters
    ----------
    codes : ndarray of int64, or int
        Coordinates of rows in `depth` nested loops.
    depth : int
        May be less than the length of `at`: the rows exist in the other loops from the start.
    at : tuple of int

    Returns
    -------
    ndarray of int64, or int
        Packed, of the length of `at`.

    Examples
    --------
    >>> [unpack(int(c), 2) for c in lub(np.array([1, 5]), 1, (3, 7))]
    [(3, 7), (5, 7)]
    """
    deep = len(at)
    if depth == 0:
        return pack(at)
    if deep == 1:
        return np.maximum(codes, at[0]) if isinstance(codes, np.ndarray) else max(codes, at[0])
    if not isinstance(codes, np.ndarray):
        return pack(join(enter(unpack(codes, depth), deep - depth), at))
    bound = np.zeros(codes.size, dtype=np.int64)
    width = bits(deep)
    theirs = _parts(codes, depth)
    for i, mine in enumerate(at):
        part = np.maximum(theirs[i], mine) if i < depth else mine
        bound = (bound << width) | part
    return bound


def _parts(codes: Int64, depth: int) -> list[Int64]:
    width = bits(depth)
    mask = (1 << width) - 1
    return [(codes >> (width * (depth - 1 - i))) & mask for i in range(depth)]
