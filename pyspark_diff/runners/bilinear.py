"""The work of a bilinear operator in one bucket: the output of its pairs, part by part.

A bilinear operator needs no earlier output: each pair of updates meets once, and belongs to the
least upper bound of their coordinates. If there are too many pairs, the task leaves a rest::

    output of a bucket = output of its result + the tables of its rests

The reader of the output computes the rest piece by piece, and consolidates each piece before the
next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels.coordinates import pack
from pyspark_diff.kernels.key_ranges import Keys
from pyspark_diff.kernels.updates import PerRow, pick
from pyspark_diff.operators.contract import BilinearKernel, Changes, Part, Parts, Side
from pyspark_diff.runners.pieces import Given, RowsInMemory, Spool, check_room, explained, room
from pyspark_diff.runners.read import Read
from pyspark_diff.runners.work import BucketResult


class BilinearParts:
    """The parts of a bilinear operator's output in one bucket, in order."""

    def __init__(self, read: Read, kernel: BilinearKernel, bucket: int):
        self._read, self._kernel, self._bucket = read, kernel, bucket
        self._wanted = () if read.output is None else read.output.wanted
        self._ranges = iter(read.ranges(bucket))
        self.rows_in = self.rows_read = self.rows = 0
        #: Returns the coordinates of the output in the last range.
        self._coordinates: Callable[[], list[int]] = list

    def parts(self) -> Iterator[tuple[list[Side], Part]]:
        """All parts, each with its input."""
        for keys in self._ranges:
            sides, output = self._under(keys)
            for part in output.parts:
                yield sides, part

    def rest(self) -> list[int]:
        """Count the rows of the remaining ranges; returns their packed coordinates."""
        codes = set(self._coordinates())
        for keys in self._ranges:
            self._under(keys)
            codes.update(self._coordinates())
        return sorted(codes)

    def _under(self, keys: Keys) -> tuple[list[Side], Parts]:
        """The input and the output of a range of keys."""
        sides = self._read.sides(self._bucket, keys)
        # Memory has room for several chunks, since a reader consolidates them one by one.
        most = max(1, self._read.pairs // 4)
        with room(self._read.name, sides, self._read.most):
            output = self._kernel(sides, self._read.at, self._wanted, most)
        self.rows_in += sum(len(side.new.updates) for side in sides)
        self.rows_read += output.read
        self.rows += output.rows
        self._coordinates = output.coordinates
        return sides, output


def process_bilinear(
    read: Read, kernel: BilinearKernel, bucket: int, waiting: RowsInMemory, in_memory: bool
) -> BucketResult:
    """The output of a bucket up to the memory's limit of pairs, and the rest after it."""
    pieces = BilinearParts(read, kernel, bucket)
    spools: dict[int, Spool] = {}
    rows = number = 0
    done = True
    for number, (sides, part) in enumerate(pieces.parts()):
        if rows > read.pairs:
            done = False
            break
        chunks: list[tuple[Changes, PerRow]] = []
        more = 0
        with explained(read.name, sides):
            for changes, coordinates in part():
                chunks.append((changes, coordinates))
                more += changes[2].size
                if rows + more > read.pairs and len(chunks) > 1:
                    done = False
                    break
        if not done:
            break  # drops the whole part, since a rest begins with a whole part
        rows += more
        if read.output is None:
            continue
        for code, change in chain.from_iterable(_by_coordinate(*chunk) for chunk in chunks):
            if code not in spools:
                name = f"out-{bucket:05d}-{code}"
                spools[code] = Spool(read.directory, name, waiting, make=in_memory)
            spools[code].add(read.output.table(change))
    rest: tuple[tuple[int, int, int, int], ...] = ()
    if not done and read.output is not None:
        codes = pieces.rest()
        about = max(pieces.rows - rows, 1)
        rest = tuple((code, number, about, read.most) for code in codes)
    later = {code: added for code, spool in spools.items() if (added := spool.added()).rows}
    output = later.pop(pack(read.at), Given())
    return BucketResult(bucket, (), output, pieces.rows_in, pieces.rows_read, later, {}, rest)


@dataclass(frozen=True)
class Rest:
    """A bilinear operator's output in one bucket from some part on, at one coordinate.

    Each read computes it again; it is never stored.

    Parameters
    ----------
    coordinate : int
        The packed coordinate.
    first : int
        Number of the first part.
    rows : int
        Estimated number of update rows.
    share, shares : int
        Only parts whose number has the remainder `share` modulo `shares`.
    """

    read: Read
    bucket: int
    coordinate: int
    first: int
    rows: int
    share: int = 0
    shares: int = 1

    def tables(self) -> Iterator[pa.Table]:
        """The update rows, chunk by chunk."""
        kernel, output = self.read.kernel, self.read.output
        if not isinstance(kernel, BilinearKernel) or output is None:
            raise TypeError(f"{kernel!r} leaves no rest")
        pieces = BilinearParts(self.read, kernel, self.bucket)
        for number, (sides, part) in enumerate(pieces.parts()):
            if number < self.first or number % self.shares != self.share:
                continue
            with explained(self.read.name, sides):
                for chunk in part():
                    for code, change in _by_coordinate(*chunk):
                        if code == self.coordinate:
                            yield output.table(change)

    def shared(self, shares: int) -> "list[Rest]":
        """The rest in several shares, one for each task."""
        return [replace(self, share=share, shares=shares) for share in range(shares)]


def check_fit(rest: Sequence[Rest]) -> None:
    """Check that all rows fit into memory together.

    Raises
    ------
    TooManyRowsError
        If they do not fit.
    """
    if rest:
        most = max(rest, key=lambda part: part.rows)
        check_room(
            most.read.name, sum(part.rows for part in rest), "output update rows",
            lambda: _heaviest(most.read, most.bucket),
        )


def _heaviest(read: Read, bucket: int) -> list[Side]:
    """The input of the range of a bucket's keys with the largest output."""
    kernel = read.kernel
    assert isinstance(kernel, BilinearKernel)
    most, heaviest = -1, []
    for keys in read.ranges(bucket):
        sides = read.sides(bucket, keys)
        rows = kernel(sides, read.at, (), read.most).rows
        if rows > most:
            most, heaviest = rows, sides
    return heaviest


def _by_coordinate(changes: Changes, coordinates: PerRow) -> list[tuple[int, Changes]]:
    if not isinstance(coordinates, np.ndarray):
        return [(coordinates, changes)]
    columns, time, diff = changes
    codes = np.unique(coordinates)
    if codes.size == 1:
        return [(int(codes[0]), changes)]
    parts: list[tuple[int, Changes]] = []
    for code in codes:
        rows = np.flatnonzero(coordinates == code)
        index = pa.array(rows)
        part = [column.take(index) for column in columns], pick(time, rows), diff[rows]
        parts.append((int(code), part))
    return parts
