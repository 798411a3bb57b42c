"""Batches that this process holds in memory, under the paths of the files that they will be.

Most small batches are merged into others within a few steps: a file each would cost more than all
the rest of a small step. A large one is in memory already when it is made, and to write it copies
all of it into pages of the system that may never have been touched before: a fifth of a large step.
So what is large is held as long as it is a small part of the machine's memory::

    bytes of large batches held here  <=  all memory / SHARE

`pyspark_diff.trace.storage` writes them when another process has to read them, opens them by their
paths as it does files, and lets go of them where it removes files.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from typing import Callable, Mapping

import numpy as np

from pyspark_diff.kernels.machine_memory import all_memory, free_memory
from pyspark_diff.kernels.updates import Int64, Updates, unshared

#: Of this machine's memory large batches may take the share of one in so many, and each of them
#: one in so many of what is free.
SHARE = 4


class _Part:
    """One bucket of a small batch: its rows are picked out when somebody asks for them alone."""

    def __init__(self, directory: str, whole: Updates, rows: Int64):
        self.directory, self._whole, self._rows = directory, whole, rows

    @cached_property
    def updates(self) -> Updates:
        """The rows of the bucket."""
        return self._whole.take(self._rows)


_held: dict[str, Updates | _Part] = {}
#: Those of several buckets as one, in order of their keys, by the directory of their files.
_wholes: dict[str, Updates] = {}
#: Bytes of large ones, by their paths.
_large: dict[str, int] = {}


def put(path: str, updates: Updates) -> None:
    """Keep a batch under the path of a file."""
    # A copy: what is held may be a few rows of large arrays, which would stay alive with it.
    _held[path] = updates.take(np.arange(len(updates)))


def hold(path: str, updates: Updates) -> None:
    """The same without a copy, of what is held anyway: mapped from a file, say."""
    _held[path] = updates


def put_large(path: str, updates: Updates, *, copied: bool = False) -> bool:
    """Keep a batch of many rows under the path of a file, if there is room for it.

    Arrays that are parts of larger ones are copied, or all of them.
    """
    size, most, free = updates.size, _all_memory(), free_memory()
    if most is None or free is None or size > free // SHARE:
        return False
    if size + sum(list(_large.values())) > most // SHARE:  # other threads may put batches meanwhile
        return False
    _large[path] = size
    _held[path] = updates.take(np.arange(len(updates))) if copied else unshared(updates)
    return True


@cache
def _all_memory() -> int | None:
    return all_memory()


def put_together(directory: str, updates: Updates, parts: Mapping[str, Int64]) -> None:
    """Keep a batch of several buckets: each of its files has some of its rows.

    Whoever looks into all buckets opens the directory, and has all rows at once. It can be opened
    as long as all of its files are there.
    """
    _wholes[directory] = whole = updates.take(np.arange(len(updates)))
    for path, rows in parts.items():
        _held[path] = _Part(directory, whole, rows)


def is_file(path: str) -> bool:
    """Whether a batch is held under the path of a file."""
    return path in _held


def found(path: str) -> Updates | None:
    """What is held under the path of a file, or of the directory of several; None if nothing is."""
    held = _held.get(path, _wholes.get(path))
    return held.updates if isinstance(held, _Part) else held


def written(path: str) -> None:
    """Let go of a batch that is in its file now."""
    del _held[path]
    _large.pop(path, None)


def removed(path: str) -> bool:
    """Let go of a batch for good; gives whether there was one."""
    held = _held.pop(path, None)
    _large.pop(path, None)
    if held is None:
        _wholes.pop(os.path.dirname(path), None)
    elif isinstance(held, _Part):
        _wholes.pop(held.directory, None)
    return held is not None


def removed_where(chosen: Callable[[str], bool]) -> None:
    """Let go of all batches whose directories are chosen."""
    for path in list(_held):  # other threads may put batches meanwhile
        if chosen(os.path.dirname(path)):
            _held.pop(path, None)
            _large.pop(path, None)
    for directory in filter(chosen, list(_wholes)):
        _wholes.pop(directory, None)
