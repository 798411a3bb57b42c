"""The folders of batch files: a directory that this process owns and removes, or that of a store.

A file is written under a temporary name and moved into place, so under its final name it is whole.
A volume or another mount of an object store has no rename. There the content is copied to the final
name. A reader learns the name from the result of the task, after the file is whole::

    open(path) succeeds  ==>  the file holds all of one bucket's rows

In a store the name certifies the file: it ends with the checksum and the length of the content, and
the first reader compares them. So a file that was changed, cut short or replaced is never read.

A file that cannot be written or read raises a `StorageError` with the path and the reason.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import uuid
import weakref
import zlib
from collections import OrderedDict
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Callable, Collection, Iterable, Iterator

import pyarrow as pa

from pyspark_diff.errors import DamagedStateError, DiffError, StorageError
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.trace import cache, held_batches
from pyspark_diff.trace.cache import local_copy, upload
from pyspark_diff.trace.local_objects import UNSUPPORTED
from pyspark_diff.trace.locked_folders import PREFIX, make_locked, remove_locked, remove_orphans
from pyspark_diff.trace.paths import REMOTE_SCHEMES, local_folder

#: The end of the name of an unfinished file.
_SCRATCH = ".tmp"
#: Bytes of a file that is copied because it cannot be mapped.
_COPIED_AT_ONCE = 1 << 20
#: The end of the name of a directory of batch files that outlive the process.
LASTING = ".durable"
_CERTIFIED = re.compile(r"-crc([0-9a-f]{8})-([0-9]{1,15})\.arrow\Z")
#: The system's errors that another try would meet again, on every machine.
_LASTING = frozenset({
    errno.EACCES, errno.EDQUOT, errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS
})

#: Mapped files. A mapped file occupies its space even after its deletion. So the driver closes the
#: files that it removes. A task does not learn of removals, and closes all files that it opened.
_opened: OrderedDict[str, UpdateChunk] = OrderedDict()
_MOST_OPEN = 4096
#: Files with the bytes that their names certify. A file never changes under its name.
_checked: set[str] = set()


class Storage:
    """A private directory of batch files.

    `close`, the garbage collection of the object and the end of the interpreter remove it, also
    after an exception.

    Parameters
    ----------
    parent : str or None
        The parent directory; None for the system's temporary directory. On a cluster it must be a
        path that the driver and all executors share.

    Examples
    --------
    >>> storage = Storage()
    >>> root = storage.root
    >>> storage.close()
    >>> os.path.exists(root)
    False
    """

    def __init__(self, parent: str | os.PathLike[str] | None = None):
        folder = Path(tempfile.gettempdir() if parent is None else _local_path(parent))
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_orphans(folder)
            self.root, lock = make_locked(folder)
        self._finalizer = weakref.finalize(self, _remove, self.root, lock, os.getpid())
        self._numbers = count(1)

    def directory(self, name: str) -> str:
        """A new path for a directory that its first file creates."""
        return f"{self.root}/{name}-{next(self._numbers)}"  # no other process uses the root

    def close(self) -> None:
        """Remove the directory. A second call does nothing."""
        self._finalizer()


class StoreFiles:
    """The batch files that one writer of a store creates.

    Parameters
    ----------
    root : str
        The root of the store.
    epoch : int
        The epoch of the writer.
    working : Storage, optional
        A folder that all machines share, for the files of a store outside of file systems: a
        commit uploads the files that it names. Without a folder the machines exchange all files
        through the store.
    """

    def __init__(self, root: str, epoch: int, working: Storage | None = None):
        self.root = root.rstrip("/") if working is None else working.root
        self._store, self._working = root.rstrip("/"), working
        self._begin = os.path.join(self.root, "data", f"e{epoch:04d}-")
        self._made: list[str] = []
        #: Whether the folder of batch files is durable.
        self._rooted = False

    def directory(self, name: str) -> str:
        """A new path for a directory that its first file creates."""
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", name)[:60]
        path = f"{self._begin}{plain}-{uuid.uuid4().hex[:12]}{LASTING}"
        if not self._made and not is_remote(path):
            data = os.path.dirname(path)
            with _explained(path):
                os.makedirs(data, exist_ok=True)
            if os.path.islink(data):
                raise StorageError(
                    f"{data!r} is a symbolic link, and is not followed. Put the folder itself there"
                )
        self._made.append(path)
        return path

    def name(self, path: str) -> str:
        """The name of a file within the store."""
        for root in (self.root, self._store):
            if path.startswith(root + "/"):
                return path.removeprefix(root + "/")
        raise StorageError(f"{path!r} lies outside of the store at {self._store!r}")

    def make_lasting(self, names: Iterable[str]) -> None:
        """Make files durable before the first commit that names them."""
        names = list(names)
        if self._working is not None:
            for name in names:
                upload(os.path.join(self.root, name), f"{self._store}/{name}")
            return
        if is_remote(self.root):
            return  # the writer of each file has uploaded it
        for directory in sorted({os.path.dirname(name) for name in names}):
            sync(os.path.join(self.root, directory))
        if names:
            sync(os.path.join(self.root, "data"))
        if names and not self._rooted:
            # Their common folder may be new, too.
            sync(self.root)
            self._rooted = True

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that this process does not need, except those that commits may name."""
        paths = list(paths)
        if self._working is None:
            stay = [path for path in paths if certified(path) is not None]
            _forget(stay)
            paths = sorted(set(paths) - set(stay))
        remove_files([path for path in paths if self._working is None or not is_remote(path)])

    def close(self) -> None:
        """Remove the files that only this process could read. A second call does nothing."""
        _forget_directories(set(self._made).__contains__)
        if self._working is None:
            remove_files([path for path in _files_in(set(self._made)) if certified(path) is None])
        self._made = []
        if self._working is not None:
            self._working.close()


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def certified(path: str) -> tuple[int, int] | None:
    """The checksum and the length in the name of a store's file; None for other files.

    Examples
    --------
    >>> certified("00003-crc0a1b2c3d-4096.arrow"), certified("00003.arrow")
    ((169552957, 4096), None)
    """
    match = _CERTIFIED.search(path)
    return None if match is None else (int(match[1], 16), int(match[2]))


def write_batch(
    path: str, batch: pa.RecordBatch | pa.Table, *, make: bool = True, fixed: bool = False
) -> tuple[str, int]:
    """Write an Arrow IPC file under its final name only when it is whole.

    Parameters
    ----------
    path : str
        A path, or the URL of a file in a store.
    make : bool
        Whether to create the directory. A task of a Spark job does not: after a failure of the job
        and the removal of its files, other tasks may still run, and must leave no files.
    fixed : bool
        Whether others know the name. Otherwise a URL gains the checksum and the length.

    Returns
    -------
    tuple of str and int
        The final name, and the bytes of the file.
    """
    if is_remote(path):
        return _uploaded(path, batch, None if fixed else cache.PASSING)
    return _written(path, batch, make, lasting=False)


def write_lasting(
    path: str, batch: pa.RecordBatch | pa.Table, *, make: bool = True
) -> tuple[str, int]:
    """Write a file that outlives a crash of the machine; returns its certified path and length."""
    if is_remote(path):
        return _uploaded(path, batch, ".arrow")
    return _written(path, batch, make, lasting=True)


def _uploaded(
    url: str, batch: pa.RecordBatch | pa.Table, ending: str | None
) -> tuple[str, int]:
    return cache.put_batch(url, lambda scratch: _write(scratch, batch), ending)


def _write(path: str, batch: pa.RecordBatch | pa.Table) -> None:
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write(batch)


def _written(
    path: str, batch: pa.RecordBatch | pa.Table, make: bool, lasting: bool
) -> tuple[str, int]:
    scratch = f"{path}.{uuid.uuid4().hex[:8]}{_SCRATCH}"
    with _explained(path):
        if make:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            _write(scratch, batch)
            size = os.path.getsize(scratch)
            if lasting:
                sync(scratch)
                path = f"{path.removesuffix('.arrow')}-crc{checksum_of(scratch):08x}-{size}.arrow"
            put_in_place(scratch, path)
        except BaseException:
            if os.path.exists(scratch):
                os.unlink(scratch)
            raise
    return path, size


def put_in_place(scratch: str, path: str) -> None:
    """Give a whole file its final name, or copy it if the file system has no rename."""
    try:
        os.replace(scratch, path)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        shutil.copyfile(scratch, path)
        os.unlink(scratch)


def sync(path: str) -> None:
    """Make the content of a file, or the entries of a directory, outlive a crash."""
    with _explained(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def checksum_of(path: str) -> int:
    """The checksum of a file's content."""
    with mapped_file(path) as mapped:
        return zlib.crc32(mapped.read_buffer()) if mapped.size() else 0


@contextmanager
def job_directory(directory: str) -> Iterator[None]:
    """Create the directory of a job's tasks, and remove it after the job if it is empty.

    This also removes the unfinished files of killed tasks.
    """
    if is_remote(directory):
        yield
        return
    with _explained(directory):
        os.makedirs(directory, exist_ok=True)
    try:
        yield
    finally:
        try:
            for name in os.listdir(directory):
                if name.endswith(_SCRATCH):
                    os.unlink(os.path.join(directory, name))
            os.rmdir(directory)
        except OSError:
            pass  # it has files


def mapped_file(path: str) -> pa.NativeFile:
    """A mapped file, or a mapped local copy if its file system cannot map.

    Volumes and other mounts of object stores cannot map. A copy has no name: it uses disk and no
    memory, and the system deletes it after its last reader.
    """
    try:
        return pa.memory_map(path)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    with tempfile.NamedTemporaryFile(prefix=PREFIX, suffix=_SCRATCH) as copy:
        with open(path, "rb") as file:
            shutil.copyfileobj(file, copy, _COPIED_AT_ONCE)
        copy.flush()
        try:
            return pa.memory_map(copy.name)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
    with pa.OSFile(path) as read:
        return pa.BufferReader(read.read_buffer())


def read_table(path: str) -> pa.Table:
    """The update rows of a mapped file."""
    with _explained(path), _understood(path):
        return pa.ipc.open_file(mapped_file(_checked_path(path))).read_all()


def settle(paths: Iterable[str]) -> None:
    """Write the files of batches in memory, so that other processes can read them."""
    for path in paths:
        if held_batches.is_file(path):
            write_batch(path, ipc.to_batch(open_updates(path)), fixed=True)
            held_batches.drop_written(path)


def spilled(folder: str, updates: UpdateChunk) -> UpdateChunk:
    """Spill updates to a mapped file: they use no memory, and disk only while they have a reader.
    """
    if is_remote(folder):
        folder = tempfile.gettempdir()
    path = os.path.join(folder, f"spill-{uuid.uuid4().hex[:12]}{_SCRATCH}")
    write_batch(path, ipc.to_batch(updates), make=False)
    with _explained(path):
        try:
            with pa.ipc.open_file(mapped_file(path)) as reader:
                return ipc.from_batch(reader.get_batch(0))
        finally:
            os.unlink(path)  # the map stays readable, and a killed process leaves no file


def open_updates(path: str) -> UpdateChunk:
    """The updates of a mapped batch file: the system reads only the pages that are used.

    Files never change under their names, so the most recently used files stay open.
    """
    in_memory = held_batches.look_up(path)
    if in_memory is not None:
        return in_memory
    updates = _opened.get(path)
    if updates is None:
        with _explained(path), _understood(path):
            with pa.ipc.open_file(mapped_file(_checked_path(path))) as reader:
                updates = ipc.from_batch(reader.get_batch(0))
        _opened[path] = updates
        if len(_opened) > _MOST_OPEN:
            _opened.popitem(last=False)
    else:
        _opened.move_to_end(path)
    return updates


def _checked_path(path: str) -> str:
    """The path of a file on this machine.

    The first call of a process for a file compares its bytes with the checksum and the length that
    its name certifies, if it has them.

    Raises
    ------
    DamagedStateError
    """
    local = local_copy(path) if is_remote(path) else path
    expected = certified(path)
    if expected is None or path in _checked:
        return local
    # The file, its folder, and the folder of all of them belong to the store.
    for part in path, os.path.dirname(path), os.path.dirname(os.path.dirname(path)):
        if local == path and os.path.islink(part):
            raise DamagedStateError(
                f"{path!r}: {part!r} is a symbolic link, and is not followed. Put the target of "
                "the link there"
            )
    actual = None
    try:
        actual = checksum_of(local), os.path.getsize(local)
    except FileNotFoundError:
        pass
    if actual != expected:
        fault = "is missing"
        if actual is not None and actual[1] != expected[1]:
            fault = f"has {actual[1]:,} bytes, and was written with {expected[1]:,}"
        elif actual is not None:
            fault = "has other bytes than were written"
        raise DamagedStateError(
            f"{local!r} {fault}. Another program changed it, or the file system lost it. Bring it "
            "back from a copy, or open the store at an older commit that does not need it"
        )
    _checked.add(path)
    return local


@contextmanager
def _understood(path: str) -> Iterator[None]:
    """Turn the errors of a read of a store's file into one that names the cause.

    The checksum of a file may be right although the file is no batch.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        if isinstance(error, DiffError) or certified(path) is None:
            raise
        raise DamagedStateError(
            f"{path!r} is no batch of updates, although its checksum is right. Another library "
            f"wrote it. {type(error).__name__}: {error}"
        ) from error


@contextmanager
def opened_for_task() -> Iterator[None]:
    """Close the files of a task at its end.

    Its process continues, and later tasks there cannot know which files have been removed.
    """
    try:
        yield
    finally:
        _opened.clear()


def remove_files(paths: list[str]) -> None:
    """Delete files; a file that does not exist is no error."""
    remote = []
    for path in paths:
        if held_batches.remove(path):
            continue
        _opened.pop(path, None)
        _checked.discard(path)
        if is_remote(path):
            remote.append(path)
            continue
        # Remove the directory with the last file of the batch, even if that file is gone already.
        for remove, what in (os.unlink, path), (os.rmdir, os.path.dirname(path)):
            try:
                remove(what)
            except OSError:
                pass
    cache.remove(remote)


def _files_in(directories: Collection[str]) -> list[str]:
    """The paths of all files in directories of batch files."""
    paths = []
    for directory in directories:
        if not is_remote(directory):
            with suppress(FileNotFoundError), os.scandir(directory) as entries:
                paths += [entry.path for entry in entries]
    remote = {path for path in directories if is_remote(path)}
    # A request for each of many directories would take longer than one for their parent.
    parents = remote if len(remote) == 1 else {os.path.dirname(path) for path in remote}
    for parent in sorted(parents):
        paths += [path for path in cache.listed(parent) if os.path.dirname(path) in remote]
    return paths


def _forget(paths: Iterable[str]) -> None:
    """Close files without deleting them."""
    for path in paths:
        _opened.pop(path, None)


def _forget_directories(chosen: Callable[[str], bool]) -> None:
    """Close the files of the chosen directories, and drop their batches in memory."""
    for path in list(_opened):  # other threads may open files meanwhile
        if chosen(os.path.dirname(path)):
            _opened.pop(path, None)
    held_batches.remove_in(chosen)


def remove_others(directory: str, paths: Iterable[str]) -> None:
    """Delete all files of a job's directory except some: those of lost attempts of tasks."""
    staying = set(paths)
    remove_files([path for path in _files_in([directory]) if path not in staying])


def remove_directories(paths: list[str]) -> None:
    """Delete directories with their files and their batches in memory."""
    folders = set(paths)
    _forget_directories(folders.__contains__)
    remote = set(filter(is_remote, paths))
    if remote:
        cache.remove(_files_in(remote))
    for folder in filter(os.path.exists, paths):
        for _ in range(5):  # a task that still runs may add a file during the removal
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break


def _remove(root: str, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the owner ends, not the owner
    # A mapped file occupies its space even after its deletion.
    _forget_directories(lambda directory: directory.startswith(root + os.sep))
    remove_locked(root)
    os.close(lock)


def _local_path(parent: str | os.PathLike[str]) -> str:
    """The absolute path of a root: readers in other directories use it."""
    path = os.fspath(parent) if isinstance(parent, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path.strip():
        raise StorageError(
            f"root is {parent!r}. Pass the path of a directory, or leave it out for the system's "
            "temporary directory"
        )
    remote = path.partition(":")[0].lower() in REMOTE_SCHEMES
    folder = None if remote else local_folder(path)
    if folder is None:
        raise StorageError(
            f"root is {path!r}, and is no path of a mounted file system: batches are mapped into "
            "memory. Pass the path of a directory, on a cluster one that the driver and all "
            "executors share"
        )
    return folder


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the system's error for a path into a `StorageError` with a remedy."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if isinstance(error, FileExistsError):
            reason = "It is a file"
        message = f"{os.fspath(path)!r}: {reason}. {_remedy(path, error.errno)}"
        raise StorageError(message) from error


def _remedy(path: str | os.PathLike[str], code: int | None) -> str:
    if code not in (errno.ENOSPC, errno.EDQUOT):
        return (
            "Pass a root=... that is a directory, or can become one, and is writable, on a cluster "
            "one that the driver and all executors share"
        )
    folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
    return (
        f"The unfinished file is removed, and {shutil.disk_usage(folder).free:,} bytes are free in "
        f"{os.fspath(folder)!r}. Make room and step again, or start a dataflow with a root=... "
        "that has more"
    )


def may_pass(error: DiffError) -> bool:
    """Whether another try, perhaps on another machine, may succeed."""
    if not isinstance(error, StorageError):
        return False
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno not in _LASTING
