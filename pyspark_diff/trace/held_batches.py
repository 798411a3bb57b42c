"""Batches in the memory of this process, under the paths of their future files.

Most small batches are merged into others within a few steps. A file for each of them would cost
more than the rest of a small step. The rows of a new large batch are in memory already. A file of
them is a copy into pages that the system may have to allocate: a fifth of a large step. So large
batches stay in memory while they are a small part of it::

    bytes of large batches in memory  <=  all memory / large_memory_divisor

`pyspark_diff.trace.storage` opens these batches by their paths, like files. It writes a file when
another process has to read the batch, and it drops a batch instead of removing its file.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from typing import Callable, Mapping

import numpy as np

from pyspark_diff import thresholds
from pyspark_diff.kernels.machine_memory import all_memory, free_memory
from pyspark_diff.kernels.updates import Int64, UpdateChunk, unshared


class _Part:
    """One bucket of a small batch. The first read of this bucket alone extracts its rows."""

    def __init__(self, directory: str, whole: UpdateChunk, rows: Int64):
        self.directory, self._whole, self._rows = directory, whole, rows

    @cached_property
    def updates(self) -> UpdateChunk:
        """The rows of the bucket."""
        return self._whole.take(self._rows)


_batches: dict[str, UpdateChunk | _Part] = {}
#: Batches of several buckets, in order of their keys, by the directory of their files.
_wholes: dict[str, UpdateChunk] = {}
#: Bytes of large batches, by their paths.
_large: dict[str, int] = {}


def keep_copy(path: str, updates: UpdateChunk) -> None:
    """Keep a copy of a batch under the path of a file."""
    # The rows may be a few of large arrays, and without a copy these arrays would stay alive.
    _batches[path] = updates.take(np.arange(len(updates)))


def keep(path: str, updates: UpdateChunk) -> None:
    """Keep a batch without a copy. Its arrays stay alive anyway, such as those of a mapped file."""
    _batches[path] = updates


def keep_large(path: str, updates: UpdateChunk, *, copied: bool = False) -> bool:
    """Keep a batch of many rows under the path of a file, if there is room for it.

    Returns whether there is. Arrays that are parts of larger arrays are copied, and with `copied`
    all arrays.
    """
    size, most, free = updates.size, _all_memory(), free_memory()
    share = thresholds.current.large_memory_divisor
    if most is None or free is None or size > free // share:
        return False
    if size + sum(list(_large.values())) > most // share:  # other threads may add batches meanwhile
        return False
    _large[path] = size
    _batches[path] = updates.take(np.arange(len(updates))) if copied else unshared(updates)
    return True


@cache
def _all_memory() -> int | None:
    return all_memory()


def keep_together(directory: str, updates: UpdateChunk, parts: Mapping[str, Int64]) -> None:
    """Keep a batch of several buckets: each of its files has some of its rows.

    A reader of all buckets opens the directory, and gets all rows at once. The directory can be
    opened until the first of its files is removed.
    """
    _wholes[directory] = whole = updates.take(np.arange(len(updates)))
    for path, rows in parts.items():
        _batches[path] = _Part(directory, whole, rows)


def is_file(path: str) -> bool:
    """Whether memory has a batch under the path of a file."""
    return path in _batches


def look_up(path: str) -> UpdateChunk | None:
    """The batch under the path of a file, or of a directory of several; None if there is none."""
    batch = _batches.get(path, _wholes.get(path))
    return batch.updates if isinstance(batch, _Part) else batch


def drop_written(path: str) -> None:
    """Drop a batch after its file was written."""
    del _batches[path]
    _large.pop(path, None)


def remove(path: str) -> bool:
    """Drop a batch that has no file; returns whether there was one."""
    batch = _batches.pop(path, None)
    _large.pop(path, None)
    if batch is None:
        _wholes.pop(os.path.dirname(path), None)
    elif isinstance(batch, _Part):
        _wholes.pop(batch.directory, None)
    return batch is not None


def remove_in(chosen: Callable[[str], bool]) -> None:
    """Drop all batches of the chosen directories."""
    for path in list(_batches):  # other threads may add batches meanwhile
        if chosen(os.path.dirname(path)):
            _batches.pop(path, None)
            _large.pop(path, None)
    for directory in filter(chosen, list(_wholes)):
        _wholes.pop(directory, None)
