"""What the arrangements of a commit hold, read from the text of its state.

    stored_traces(commit).trace(n)  =  the trace of arrangement n when the commit was made

That is all that a reader of a store needs, which knows of no program. What is read is checked like
any other input: it is a file. The rest of a state is read by `pyspark_diff.engine.durable`.
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
class Place:
    """Where a small batch lies: in the payload of a commit.

    Parameters
    ----------
    commit : int
    offset, length, checksum : int
    rows, diffs : int
        As of `BatchFile`.
    """

    commit: int
    offset: int
    length: int
    checksum: int
    rows: int
    diffs: int


class StoredTraces:
    """Reads the text of a state: what its arrangements held, and what is told beside that.

    Parameters
    ----------
    text : bytes
    root : str
        Where the store is.
    files : mapping of str to FileInfo
        Those that the commit names.
    read : callable
        The bytes at a place: commit, offset, length and checksum.
    small : callable
        Gives each small batch a path, by its number: under it this process holds it.
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
        self.places: dict[str, Place] = {}
        with understood():
            self.program, rest = text.split(b"\n")
            self.body: dict[str, Any] = json.loads(rest)
            if type(self.body) is not dict:
                raise TypeError("the state is no object")

    def trace(self, number: int) -> Trace | None:
        """What an arrangement held, if anything had reached it."""
        with understood():
            told = self.body["traces"].get(str(number))
            return None if told is None else self._trace(told)

    def _trace(self, told: Any) -> Trace:
        lower, upper, since, batches = told
        return Trace(
            antichain_told(lower), antichain_told(upper), antichain_told(since),
            tuple(map(self._batch, batches)),
        )

    def _batch(self, told: Any) -> Batch:
        lower, upper, since, files = told
        interval = Description(antichain_told(lower), antichain_told(upper), antichain_told(since))
        found = {int(b): tuple(map(self._file, held)) for b, held in files.items()}
        if not all(0 <= bucket < self.body["buckets"] for bucket in found):
            raise ValueError(f"a batch has other buckets than {self.body['buckets']}")
        return Batch(interval, found)

    def _file(self, told: Any) -> BatchFile:
        if isinstance(told, str):
            info = self._files[told]
            return BatchFile(f"{self._root}/{told}", info.rows, info.length, info.diffs)
        number = int(told)
        place = Place(*map(int, self.body["small"][number]))
        path = self._path(number)
        if path not in self.places:
            with pa.ipc.open_file(self._bytes(place)) as reader:
                updates = ipc.from_batch(reader.get_batch(0))
            if (len(updates), sum_of(updates)) != (place.rows, place.diffs):
                raise ValueError("a small batch holds other rows than it is said to")
            held_batches.hold(path, updates)
            self.places[path] = place
        return BatchFile(path, place.rows, place.length, place.diffs)

    def _bytes(self, place: Place) -> pa.Buffer:
        return self._read(place.commit, place.offset, place.length, place.checksum)


_Read = TypeVar("_Read", bound=StoredTraces)


def stored_traces(
    objects: Objects, commits: Commits, commit: Commit, own: str, kind: type[_Read]
) -> _Read:
    """What reads the state of a commit.

    Parameters
    ----------
    objects : Objects
    commits : Commits
    commit : Commit
    own : str
        A directory that nobody else has: small batches are held as if they were files in it.
    kind : type
        `StoredTraces`, or what reads more.
    """
    root = objects.root.rstrip("/")

    def read(number: int, offset: int, length: int, checksum: int) -> pa.Buffer:
        found = commits.segment_bytes(number, Segment(offset, length, checksum))
        return pa.py_buffer(found)

    return kind(
        commit.state, root, commit.files, read, lambda number: f"{own}/{number:05d}.arrow"
    )


@contextmanager
def understood() -> Iterator[None]:
    """Around what is read of a commit: what does not fit is an error that says so.

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
            f"a commit holds no state that this version can read ({type(error).__name__}: {error}),"
            " although its checksum is right: it was not written by this library, or by a version "
            "with a fault. Open the store at an older commit"
        ) from error


def antichain_told(told: Any) -> Antichain:
    """A frontier, as JSON has it."""
    if type(told) is not list:
        raise TypeError(f"{told!r} is no frontier")
    return Antichain(told)
