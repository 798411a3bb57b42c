"""The traces of the arrangements of a commit, read from the text of its state.

    stored_traces(commit).trace(n)  =  the trace of arrangement n at the time of the commit

A reader of a store needs no more than these traces, and not the program. The text of a state comes
from a file, so it is checked like any other input. `pyspark_diff.engine.durable` reads the rest of
a state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException

from pyspark_diff.errors import DamagedStateError, DiffError
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.updates import sum_of
from pyspark_diff.times import Antichain, Description
from pyspark_diff.trace import held_batches
from pyspark_diff.trace.batch import Batch, BatchFile
from pyspark_diff.trace.commits import Commit, Commits
from pyspark_diff.trace.manifest import FileInfo, Segment
from pyspark_diff.trace.objects import Objects
from pyspark_diff.trace.spine import Trace


@dataclass(frozen=True)
class PayloadPlace:
    """The segment of a small batch in the payload of a commit.

    Parameters
    ----------
    rows, diffs : int
        The same as those of `BatchFile`.
    """

    commit: int
    offset: int
    length: int
    checksum: int
    rows: int
    diffs: int


class StoredTraces:
    """Reads the text of a state: the traces of its arrangements, and its JSON body.

    Parameters
    ----------
    root : str
        The root of the store.
    files : mapping of str to FileInfo
        The files that the commit names.
    read : callable
        Returns the bytes of a segment, by its commit, offset, length and checksum.
    small : callable
        Returns the path under which this process keeps a small batch, by the batch's number.
    """

    def __init__(
        self,
        text: bytes,
        root: str,
        files: Mapping[str, FileInfo],
        read: Callable[[int, int, int, int], pa.Buffer],
        small: Callable[[int], str],
    ):
        self._root, self._files = root.rstrip("/"), files
        self._read, self._path = read, small
        #: Small batches that were read, by their paths.
        self.places: dict[str, PayloadPlace] = {}
        with understood():
            self.program, rest = text.split(b"\n")
            self.body: dict[str, Any] = json.loads(rest)
            if type(self.body) is not dict:
                raise TypeError("the state is no object")

    def trace(self, number: int) -> Trace | None:
        """The trace of an arrangement; None if no update had reached it."""
        with understood():
            encoded = self.body["traces"].get(str(number))
            return None if encoded is None else self._trace(encoded)

    def rows(self) -> int:
        """The number of rows of all arrangements."""
        with understood():
            return sum(self._trace(encoded).rows for encoded in self.body["traces"].values())

    def _trace(self, encoded: Any) -> Trace:
        lower, upper, since, batches = encoded
        return Trace(
            antichain_told(lower), antichain_told(upper), antichain_told(since),
            tuple(map(self._batch, batches)),
        )

    def _batch(self, encoded: Any) -> Batch:
        lower, upper, since, files = encoded
        interval = Description(antichain_told(lower), antichain_told(upper), antichain_told(since))
        by_bucket = {int(b): tuple(map(self._file, listed)) for b, listed in files.items()}
        if not all(0 <= bucket < self.body["buckets"] for bucket in by_bucket):
            raise ValueError(f"a batch has other buckets than {self.body['buckets']}")
        return Batch(interval, by_bucket)

    def _file(self, encoded: Any) -> BatchFile:
        if isinstance(encoded, str):
            info = self._files[encoded]
            return BatchFile(f"{self._root}/{encoded}", info.rows, info.length, info.diffs)
        number = int(encoded)
        place = PayloadPlace(*map(int, self.body["small"][number]))
        path = self._path(number)
        if path not in self.places:
            with pa.ipc.open_file(self._bytes(place)) as reader:
                updates = ipc.from_batch(reader.get_batch(0))
            if (len(updates), sum_of(updates)) != (place.rows, place.diffs):
                raise ValueError("a small batch has other rows than its state declares")
            held_batches.keep(path, updates)
            self.places[path] = place
        return BatchFile(path, place.rows, place.length, place.diffs)

    def _bytes(self, place: PayloadPlace) -> pa.Buffer:
        return self._read(place.commit, place.offset, place.length, place.checksum)


_Read = TypeVar("_Read", bound=StoredTraces)


def stored_traces(
    objects: Objects, commits: Commits, commit: Commit, own: str, kind: type[_Read]
) -> _Read:
    """A reader of the state of a commit.

    Parameters
    ----------
    own : str
        A directory that only this reader uses. The paths of small batches lie in it, and memory
        has their rows.
    kind : type
        `StoredTraces`, or a class that reads more.
    """
    root = objects.root.rstrip("/")

    def read(number: int, offset: int, length: int, checksum: int) -> pa.Buffer:
        return pa.py_buffer(commits.segment_bytes(number, Segment(offset, length, checksum)))

    return kind(
        commit.state, root, commit.files, read, lambda number: f"{own}/{number:05d}.arrow"
    )


@contextmanager
def understood() -> Iterator[None]:
    """Turn the errors of a read of a commit's state into an error that names the cause.

    Raises
    ------
    DamagedStateError
    """
    try:
        yield
    except (
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
        pa.ArrowException, PySparkException,
    ) as error:
        if isinstance(error, DiffError):
            raise
        raise DamagedStateError(
            "this version cannot read the state of a commit, although its checksum is right "
            f"({type(error).__name__}: {error}). Another library wrote it, or a version with a "
            "fault. Open the store at an older commit"
        ) from error


def antichain_told(encoded: Any) -> Antichain:
    """A frontier from its JSON."""
    if type(encoded) is not list:
        raise TypeError(f"{encoded!r} is no frontier")
    return Antichain(encoded)
