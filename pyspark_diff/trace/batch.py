"""Batches: immutable sets of updates with a description, in files for each bucket that has rows.

A batch with description ``(lower, upper, since)`` of a collection ``A`` keeps::

    sum(diff in batch, time <= t) = sum(diff in A, time <= t, lower <= time < upper)

for every ``t`` beyond ``since``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Mapping

from pyspark_diff.times import Description


@dataclass(frozen=True)
class BatchFile:
    """One bucket of a batch, or where that is too much to hold at once a range of its keys.

    Parameters
    ----------
    path : str
    rows : int
    size : int
        Length in bytes.
    diffs : int
        Sum of its diffs, within 64 bits; 0 where nobody will ask for it.
    """

    path: str
    rows: int
    size: int
    diffs: int = 0


@dataclass(frozen=True)
class Batch:
    """Updates of one interval.

    Parameters
    ----------
    description : Description
        Interval and since.
    files : mapping of int to tuple of BatchFile
        By bucket; buckets without rows are absent.
    """

    description: Description
    files: Mapping[int, tuple[BatchFile, ...]]

    @cached_property  # asked for in each step
    def rows(self) -> int:
        """Number of update rows."""
        return sum(file.rows for files in self.files.values() for file in files)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for files in self.files.values() for file in files)

    def paths(self) -> list[str]:
        """Paths of all files."""
        return [file.path for files in self.files.values() for file in files]
