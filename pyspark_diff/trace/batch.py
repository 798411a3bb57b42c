"""Batches: immutable sets of updates with a description, in files for each bucket that has rows.

A batch with description ``(lower, upper, since)`` of a collection ``A`` keeps::

    sum(diff in batch, time <= t) = sum(diff in A, time <= t, lower <= time < upper)

for every ``t`` beyond ``since``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Iterator, Mapping, Sequence

from pyspark_diff.kernels.updates import bounds_of
from pyspark_diff.times import Description
from pyspark_diff.trace import storage


@dataclass(frozen=True)
class BatchFile:
    """One bucket of a batch, or a range of its keys if the bucket is too large to load at once.

    Parameters
    ----------
    size : int
        Length in bytes.
    diffs : int
        Sum of its diffs, within 64 bits; 0 if no reader will need the sum.
    """

    path: str
    rows: int
    size: int
    diffs: int = 0


class BatchInMemory(dict[int, tuple[BatchFile, ...]]):
    """The files of a small batch by bucket; memory has the rows of all of them together.

    Parameters
    ----------
    directory : str
        The directory of all files. Its path opens the rows of all buckets.
    """

    def __init__(self, directory: str, files: Mapping[int, tuple[BatchFile, ...]]):
        super().__init__(files)
        self.directory = directory


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

    @cached_property  # each step reads it
    def rows(self) -> int:
        """Number of update rows."""
        return sum(file.rows for files in self.files.values() for file in files)

    @cached_property  # a step reads it for each batch that reaches beyond a reader's frontier
    def times(self) -> tuple[int, int] | None:
        """The least and the greatest time; None without rows, or if a file is not on this
        machine."""
        bounds = []
        for _, path in self.opened():
            if storage.is_remote(path):
                return None
            bounds.append(bounds_of(storage.open_updates(path).time))
        known = [bound for bound in bounds if bound is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if known else None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for files in self.files.values() for file in files)

    @cached_property  # each step reads it
    def paths(self) -> tuple[str, ...]:
        """Paths of all files."""
        return tuple(file.path for files in self.files.values() for file in files)

    def opened(self, buckets: Iterable[int] | None = None) -> Iterator[tuple[int | None, str]]:
        """The paths that a reader of some or all buckets opens, each with its bucket.

        A small batch has a single path, for all of its buckets, with None for the bucket. A reader
        then gets rows of other buckets, too, and these have other keys.
        """
        if isinstance(self.files, BatchInMemory):
            yield None, self.files.directory
            return
        for bucket in self.files if buckets is None else buckets:
            for file in self.files.get(bucket, ()):
                yield bucket, file.path


class Paths(Mapping[int, tuple[str, ...]]):
    """Paths of some batches by bucket, oldest first, computed on demand."""

    def __init__(self, batches: Sequence[Batch]):
        self.batches = batches

    def __getitem__(self, bucket: int) -> tuple[str, ...]:
        paths = tuple(
            file.path for batch in self.batches for file in batch.files.get(bucket, ())
        )
        if not paths:
            raise KeyError(bucket)
        return paths

    def __iter__(self) -> Iterator[int]:
        if len(self.batches) == 1:
            return iter(self.batches[0].files)
        return iter(dict.fromkeys(b for batch in self.batches for b in batch.files))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(batch.files for batch in self.batches)

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)  # a task needs only the paths

    def opened(self, buckets: Sequence[int] | None = None) -> Iterator[tuple[int | None, str]]:
        """The same as `Batch.opened`, for all batches."""
        for batch in self.batches:
            yield from batch.opened(buckets)
