"""Batches: immutable sets of updates with a description, in files for each bucket that has rows.

A batch with description ``(lower, upper, since)`` of a collection ``A`` keeps::

    sum(diff in batch, time <= t) = sum(diff in A, time <= t, lower <= time < upper)

for every ``t`` beyond ``since``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Iterator, Mapping, Sequence

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


class HeldTogether(dict[int, tuple[BatchFile, ...]]):
    """The files of a small batch by bucket, of which all rows are held as one.

    Parameters
    ----------
    directory : str
        Of all files; whoever opens it has all rows.
    files : mapping of int to tuple of BatchFile
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

    @cached_property  # asked for in each step
    def rows(self) -> int:
        """Number of update rows."""
        return sum(file.rows for files in self.files.values() for file in files)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for files in self.files.values() for file in files)

    @cached_property  # asked for in each step
    def paths(self) -> tuple[str, ...]:
        """Paths of all files."""
        return tuple(file.path for files in self.files.values() for file in files)

    def opened(self, buckets: Iterable[int] | None = None) -> Iterator[tuple[int | None, str]]:
        """What is opened to see some buckets, or all: files and whose they are, or one of all.

        A small batch is seen with all of its buckets. The others have other keys.
        """
        if isinstance(self.files, HeldTogether):
            yield None, self.files.directory
            return
        for bucket in self.files if buckets is None else buckets:
            for file in self.files.get(bucket, ()):
                yield bucket, file.path


class Paths(Mapping[int, tuple[str, ...]]):
    """Paths of some batches by bucket, oldest first: made when they are asked for.

    Parameters
    ----------
    batches : sequence of Batch
    """

    def __init__(self, batches: Sequence[Batch]):
        self.batches = batches

    def __getitem__(self, bucket: int) -> tuple[str, ...]:
        found = tuple(
            file.path for batch in self.batches for file in batch.files.get(bucket, ())
        )
        if not found:
            raise KeyError(bucket)
        return found

    def __iter__(self) -> Iterator[int]:
        if len(self.batches) == 1:
            return iter(self.batches[0].files)
        return iter(dict.fromkeys(b for batch in self.batches for b in batch.files))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(batch.files for batch in self.batches)

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)  # a task has no use for anything else

    def opened(self, buckets: Sequence[int] | None = None) -> Iterator[tuple[int | None, str]]:
        """As `Batch.opened`, of all batches."""
        for batch in self.batches:
            yield from batch.opened(buckets)
