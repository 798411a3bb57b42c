"""Work in pieces: memory never contains the whole input, state and output of a large bucket.

A piece is a range of keys, with all updates of these keys. Operators work key by key, so::

    F(A) = sum(F(A within range))        for ranges that are disjoint and cover all keys

Input that exceeds the memory is spilled in sorted files, and output in files. If the rows of a
piece do not fit into memory, an error names the heaviest keys.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, contextmanager
from typing import Callable, Iterable, Iterator, NamedTuple, Sequence

import numpy as np
import pyarrow as pa

from pyspark_diff import thresholds
from pyspark_diff.errors import TooManyRowsError
from pyspark_diff.fallbacks import MEMORY, count
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.key_ranges import rows_of
from pyspark_diff.kernels.machine_memory import free_memory
from pyspark_diff.kernels.updates import Int64, OffsetOverflow, UpdateChunk, concat
from pyspark_diff.operators.contract import Side
from pyspark_diff.trace import storage

#: Estimated bytes of a row while a kernel works on it.
ROW_BYTES = 100
#: Number of the heaviest keys that a message names.
NAMED = 3


class Given(NamedTuple):
    """Output update rows: in memory, and in spilled files."""

    table: pa.Table | None = None
    paths: tuple[str, ...] = ()
    rows: int = 0


def share(rows: Iterable[int], most: int, threads: int) -> int:
    """The row limit of each bucket, such that concurrent buckets have no more than `most` rows.

    A large bucket may use the share that concurrent small buckets do not need.

    Parameters
    ----------
    rows : iterable of int
        Number of rows of each bucket.
    threads : int
        Number of concurrent buckets.

    Examples
    --------
    >>> share([50, 50], 100, 2), share([90, 90], 100, 2), share([900, 20], 100, 2)
    (100, 50, 80)
    """
    left, largest = most, sorted(rows)[-threads:]
    for others, bucket in zip(range(len(largest), 0, -1), largest):
        if bucket > left // others:
            return max(1, left // others)
        left -= bucket
    return most


class RowsInMemory:
    """Counts the output rows in memory, of all buckets of a process."""

    def __init__(self, most: int):
        self._most, self._lock = most, threading.Lock()
        self._rows = self._bytes = 0

    def add(self, rows: int, size: int) -> bool:
        """Add a number, perhaps negative, of rows and bytes; returns whether they are too many."""
        with self._lock:
            self._rows += rows
            self._bytes += size
            return self._rows > self._most or self._bytes > thresholds.current.work_bytes_max


class Spool:
    """Output rows of one bucket: in memory, and spilled in files if they are too many.

    Parameters
    ----------
    directory, name : str
        Directory and common prefix of files.
    waiting : RowsInMemory
        The count of rows in memory, shared by all buckets.
    make : bool
        Whether a spill creates the directory.
    """

    def __init__(self, directory: str, name: str, waiting: RowsInMemory, *, make: bool):
        self._path = os.path.join(directory, name)
        self._waiting, self._make = waiting, make
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._paths: list[str] = []

    def add(self, table: pa.Table) -> None:
        """Add rows."""
        if not table.num_rows:
            return
        self._held.append(table)
        self._rows += table.num_rows
        # The size of all buffers is cheap to get, and an upper bound of the size of a slice.
        size = table.get_total_buffer_size()
        size = size if size < thresholds.current.buffer_size_bytes_max else table.nbytes
        self._bytes += size
        if self._waiting.add(table.num_rows, size):
            path = f"{self._path}-{len(self._paths)}.arrow"
            spilled = pa.concat_tables(self._held)
            path, _ = storage.write_batch(path, spilled, make=self._make)
            self._paths.append(path)
            self._held = []
            self._waiting.add(-spilled.num_rows, -self._bytes)
            self._bytes = 0

    def added(self) -> Given:
        """All added rows."""
        table = pa.concat_tables(self._held) if self._held else None
        return Given(table, tuple(self._paths), self._rows)


class Intake:
    """Input updates by bucket: in memory, and spilled in sorted files if they are too many.

    Parameters
    ----------
    folder : str
        Directory of files. They have no names, so that no file outlives the process.
    most : int
        Maximal number of rows in memory, of all buckets together.
    name : str
        The operator, for the count of spills.
    """

    def __init__(self, folder: str, most: int, name: str = "intake"):
        self._folder, self._most, self._name = folder, most, name
        self._held: dict[int, list[tuple[int, UpdateChunk]]] = {}
        self._sorted: dict[int, list[UpdateChunk]] = {}
        self._waiting = self._bytes = 0
        #: Rows that came in, by bucket.
        self.rows: dict[int, int] = {}

    def add(self, bucket: int, part: UpdateChunk, number: int = 0) -> None:
        """Add updates, in any order.

        The order of numbered parts decides, so that a retried task writes the same bytes.
        """
        rows, size = len(part), part.nbytes
        if self._held and not self._fits(rows, size):
            self._settle()
            if not (self._fits(self._waiting, self._bytes) and self._fits(rows, size)):
                self._write()
        self._held.setdefault(bucket, []).append((number, part))
        self.rows[bucket] = self.rows.get(bucket, 0) + rows
        self._waiting += rows
        self._bytes += size

    def buckets(self) -> list[int]:
        """The buckets with updates."""
        return sorted(self.rows)

    def take(self, bucket: int) -> tuple[list[UpdateChunk], list[UpdateChunk]]:
        """A bucket's updates, those in any order and those in order, each of its own; once."""
        parts = sorted(self._held.pop(bucket, []), key=lambda numbered: numbered[0])
        return [part for _, part in parts], self._sorted.pop(bucket, [])

    def _fits(self, rows: int, size: int) -> bool:
        """Whether a number of further rows and bytes fits into memory."""
        if self._waiting + rows > self._most:
            return False
        return self._bytes + size <= thresholds.current.work_bytes_max

    def _settle(self) -> None:
        """Consolidate the updates of each bucket."""
        self._waiting = self._bytes = 0
        for bucket, parts in self._held.items():
            less = consolidate(concat([part for _, part in parts])).updates
            self._held[bucket] = [(-1, less)]
            self._waiting += len(less)
            self._bytes += less.nbytes

    def _write(self) -> None:
        """Spill the updates of each bucket, in the order of their keys."""
        count(self._name, MEMORY, "its new rows exceed the memory of a step and are spilled")
        for bucket, [(_, part)] in self._held.items():
            if len(part):
                self._sorted.setdefault(bucket, []).append(storage.spilled(self._folder, part))
        self._held, self._waiting, self._bytes = {}, 0, 0


def room(name: str, sides: Sequence[Side], most: int) -> AbstractContextManager[None]:
    """A context for the work on a piece that raises an error if the piece exceeds the memory.

    Raises
    ------
    TooManyRowsError
    """
    if sum(len(updates) for side in sides for updates in _updates_of(side)) > most:
        rows = sum(int(count.sum()) for count in _touched(sides)[2])
        if rows > most:
            check_room(name, rows, "rows under one key", lambda: sides)
    return explained(name, sides)


@contextmanager
def explained(name: str, sides: Sequence[Side]) -> Iterator[None]:
    """A context for work that may exhaust the memory.

    Raises
    ------
    TooManyRowsError
    """
    try:
        yield
    except OffsetOverflow as error:
        raise too_many(name, str(error), sides) from error
    except MemoryError as error:
        if isinstance(error, TooManyRowsError):
            raise
        raise too_many(name, f"the memory does not suffice ({error})", sides) from error


def check_room(
    name: str, rows: int, what: str, sides: Callable[[], Sequence[Side]]
) -> None:
    """Raise an error if a number of rows does not fit into memory.

    Raises
    ------
    TooManyRowsError
    """
    free = free_memory()
    if free is not None and rows * ROW_BYTES > free:
        raise too_many(name, f"{rows:,} {what} do not fit into memory", sides())


def too_many(name: str, what: str, sides: Sequence[Side]) -> TooManyRowsError:
    """The error that names an operator and its heaviest keys.

    Parameters
    ----------
    what : str
        The finding.
    sides : sequence of Side
        The updates that the operator was reading.
    """
    keys = "; ".join(
        f"{key!r}: {' x '.join(f'{count:,}' for count in counts)} rows"
        for key, counts in heaviest(sides)
    )
    return TooManyRowsError(
        f"{name}: {what}. Its heaviest keys are {keys}. Leave such keys out or make them finer, "
        "reduce the collections before they meet, or give the processes more memory"
    )


def heaviest(sides: Sequence[Side]) -> Iterable[tuple[tuple[object, ...], list[int]]]:
    """The keys with the most rows, of several sides pairs of rows; and the rows of each side."""
    side, first, counts = _touched(sides)
    weight = np.prod([np.maximum(count, 1).astype(np.float64) for count in counts], axis=0)
    top = np.argsort(-weight, kind="stable")[:NAMED]
    columns = [
        column.to_pylist()
        for column in side.layout.decode_key(side.new.updates.keys().take(first[top]))
    ]
    for i, key in enumerate(zip(*columns) if columns else [()] * top.size):
        yield key, [int(count[top[i]]) for count in counts]


def _updates_of(side: Side) -> list[UpdateChunk]:
    return [*side.old, *side.earlier, side.new.updates]


def _touched(sides: Sequence[Side]) -> tuple[Side, Int64, list[Int64]]:
    """The side with the most new updates, the first row of each of its keys, and for each side the
    number of rows of these keys."""
    most = max(sides, key=lambda side: len(side.new.updates))
    keys, first = np.unique(most.new.updates.key64, return_index=True)
    none = np.zeros(keys.size, np.int64)
    counts = [
        np.sum([none, *(rows_of(part.key64, keys, keys) for part in _updates_of(side))], axis=0)
        for side in sides
    ]
    return most, first, counts
