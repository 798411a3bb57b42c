"""Where batch files live: one directory that this process owns, and that it always removes.

A file is written under a temporary name and moved into place, so under its final name it is whole::

    open(path) succeeds  ==>  the file holds all of one bucket's rows

The directory is locked while its owner lives. Directories whose owner died are removed by the next
one that starts beside them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from typing import Iterable, Iterator

import numpy as np
import pyarrow as pa

from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.updates import Updates

_PREFIX = "pyspark_diff-"
_MOST_OPEN = 4096
_opened: OrderedDict[str, Updates] = OrderedDict()
#: Small batches that no other process has had to read yet.
_in_memory: dict[str, Updates] = {}


class Storage:
    """A private directory of batch files.

    Removed by `close`, when the object is collected, and when the interpreter ends, also after an
    exception.

    Parameters
    ----------
    parent : str or None
        Directory to put it in; None for the system's temporary directory. On a cluster it must be
        a path that the driver and all executors share.

    Examples
    --------
    >>> storage = Storage()
    >>> root = storage.root
    >>> storage.close()
    >>> os.path.exists(root)
    False
    """

    def __init__(self, parent: str | None = None):
        folder = Path(parent or tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        _remove_orphans(folder)
        self.root = tempfile.mkdtemp(prefix=_PREFIX, dir=folder)
        scratch = os.path.join(self.root, "lock.tmp")
        lock = os.open(scratch, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Locked before it has its name: nobody can take this directory for an orphan in between.
        os.rename(scratch, os.path.join(self.root, "lock"))
        self._finalizer = weakref.finalize(self, _remove, self.root, lock, os.getpid())

    def directory(self, name: str) -> str:
        """A path that nobody has used, for a directory that is made with its first file."""
        return os.path.join(self.root, f"{name}-{uuid.uuid4().hex[:12]}")

    def close(self) -> None:
        """Remove everything. A second call does nothing."""
        self._finalizer()


def write_batch(path: str, batch: pa.RecordBatch | pa.Table, *, make: bool = True) -> int:
    """Write an Arrow IPC file under its final name only when it is whole; returns its bytes.

    A task of a Spark job does not `make` the directory: when the job has failed and its files are
    removed, other tasks of it may still be running, and shall leave nothing behind.
    """
    if make:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    scratch = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with pa.OSFile(scratch, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write(batch)
        size = os.path.getsize(scratch)
        os.replace(scratch, path)
    except BaseException:
        if os.path.exists(scratch):
            os.unlink(scratch)
        raise
    return size


@contextmanager
def made(directory: str) -> Iterator[None]:
    """Around a job whose tasks write into a directory: there for them, and gone if it is empty."""
    os.makedirs(directory, exist_ok=True)
    try:
        yield
    finally:
        try:
            os.rmdir(directory)
        except OSError:
            pass  # there is something in it


def read_table(path: str) -> pa.Table:
    """A file of update rows, mapped."""
    return pa.ipc.open_file(pa.memory_map(path)).read_all()


def put_in_memory(path: str, updates: Updates) -> None:
    """Keep a small batch in memory under the path of a file that is written when it is needed.

    Most small batches are merged into others within a few steps; a file each would cost more than
    all the rest of a small step.
    """
    # A copy: what is held may be a few rows of large arrays, which would stay alive with it.
    _in_memory[path] = updates.take(np.arange(len(updates)))


def settle(paths: Iterable[str]) -> None:
    """Write the files of held batches, so that other processes can read them."""
    for path in paths:
        updates = _in_memory.get(path)
        if updates is not None:
            write_batch(path, ipc.to_batch(updates))
            del _in_memory[path]


def open_updates(path: str) -> Updates:
    """The updates of a batch file, mapped: only the pages that are touched are read.

    Files never change under their name, so those opened last are kept open.
    """
    found = _in_memory.get(path)
    if found is not None:
        return found
    found = _opened.get(path)
    if found is None:
        with pa.ipc.open_file(pa.memory_map(path)) as reader:
            found = ipc.from_batch(reader.get_batch(0))
        _opened[path] = found
        if len(_opened) > _MOST_OPEN:
            _opened.popitem(last=False)
    else:
        _opened.move_to_end(path)
    return found


def remove_files(paths: list[str]) -> None:
    """Delete files; those already gone are no error."""
    for path in paths:
        if _in_memory.pop(path, None) is not None:
            continue
        _opened.pop(path, None)
        try:
            os.unlink(path)
            os.rmdir(os.path.dirname(path))  # succeeds with the last file of the batch
        except OSError:
            pass


def remove_directories(paths: list[str]) -> None:
    """Delete directories of files with all that is in them, or is held for them."""
    folders = set(paths)
    for known in (_opened, _in_memory):
        for path in [path for path in known if os.path.dirname(path) in folders]:
            del known[path]
    for folder in filter(os.path.exists, paths):
        for _ in range(5):  # a task that still runs may add a file while others are removed
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break


def _remove(root: str, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the owner ends, not the owner
    for path in [path for path in _opened if path.startswith(root + os.sep)]:
        del _opened[path]  # a mapped file holds its space also when it is deleted
    for path in [path for path in _in_memory if path.startswith(root)]:
        del _in_memory[path]
    shutil.rmtree(root, ignore_errors=True)
    os.close(lock)


def _remove_orphans(folder: Path) -> None:
    """Remove directories whose owner was killed: a lock that can be taken has no owner."""
    for root in folder.glob(_PREFIX + "*"):
        try:
            lock = os.open(root / "lock", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)
