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
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from pyspark_diff.errors import DamagedStateError, DiffError, StorageError
from pyspark_diff.kernels import ipc
from pyspark_diff.kernels.updates import Updates
from pyspark_diff.trace import cache, held_batches
from pyspark_diff.trace.cache import local_copy, upload
from pyspark_diff.trace.local_objects import UNSUPPORTED
from pyspark_diff.trace.locked_folders import PREFIX, make_locked, remove_locked, remove_orphans

#: How the name of a file ends that is being written.
_SCRATCH = ".tmp"
#: Bytes of a file that is copied because it cannot be mapped.
_COPIED_AT_ONCE = 1 << 20
#: How the name of a directory ends whose batch files outlive the process.
LASTING = ".durable"
_CERTIFIED = re.compile(r"-crc([0-9a-f]{8})-([0-9]{1,15})\.arrow\Z")
#: What the system says when it would say the same again, and on every machine.
_LASTING = frozenset({
    errno.EACCES, errno.EDQUOT, errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS
})
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):/", re.IGNORECASE)

#: Files that are mapped. A mapped file holds its space also when it is deleted: the driver lets go
#: of those that it removes, and a task, which learns of no removal, of all that it opened.
_opened: OrderedDict[str, Updates] = OrderedDict()
_MOST_OPEN = 4096
#: Files that are what their names say, in which they never change.
_checked: set[str] = set()


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

    def __init__(self, parent: str | os.PathLike[str] | None = None):
        folder = Path(tempfile.gettempdir() if parent is None else _local_path(parent))
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_orphans(folder)
            self.root, lock = make_locked(folder)
        self._finalizer = weakref.finalize(self, _remove, self.root, lock, os.getpid())
        self._numbers = count(1)

    def directory(self, name: str) -> str:
        """A path that nobody has used, for a directory that is made with its first file."""
        return f"{self.root}/{name}-{next(self._numbers)}"  # the root is ours alone

    def close(self) -> None:
        """Remove everything. A second call does nothing."""
        self._finalizer()


class StoreFiles:
    """The batch files of a store, as one writer of it makes them.

    Parameters
    ----------
    root : str
        The store's.
    epoch : int
        The writer's.
    working : Storage, optional
        A folder that all machines share, for the files of a store in no file system: a commit
        uploads the files that it names. Without a folder the machines exchange all files through
        the store.
    """

    def __init__(self, root: str, epoch: int, working: Storage | None = None):
        self.root = root.rstrip("/") if working is None else working.root
        self._store, self._working = root.rstrip("/"), working
        self._begin = os.path.join(self.root, "data", f"e{epoch:04d}-")
        self._made: list[str] = []
        #: Whether the folder of batch files is sure to last.
        self._rooted = False

    def directory(self, name: str) -> str:
        """A path that nobody has used, for a directory that is made with its first file."""
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", name)[:60]
        found = f"{self._begin}{plain}-{uuid.uuid4().hex[:12]}{LASTING}"
        if not self._made and not is_remote(found):
            data = os.path.dirname(found)
            with _explained(found):
                os.makedirs(data, exist_ok=True)
            if os.path.islink(data):
                raise StorageError(
                    f"{data!r} is a symbolic link, and is not followed. Put the folder itself there"
                )
        self._made.append(found)
        return found

    def name(self, path: str) -> str:
        """What the store calls one of its files."""
        for root in (self.root, self._store):
            if path.startswith(root + "/"):
                return path.removeprefix(root + "/")
        raise StorageError(f"{path!r} lies outside of the store at {self._store!r}")

    def make_lasting(self, names: Iterable[str]) -> None:
        """Make files last that a commit is about to name, and no commit has named."""
        names = list(names)
        if self._working is not None:
            for name in names:
                upload(os.path.join(self.root, name), f"{self._store}/{name}")
            return
        if is_remote(self.root):
            return  # each file was uploaded when it was written
        for directory in sorted({os.path.dirname(name) for name in names}):
            sync(os.path.join(self.root, directory))
        if names:
            sync(os.path.join(self.root, "data"))
        if names and not self._rooted:
            # The folder of all of them may be new as well.
            sync(self.root)
            self._rooted = True

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that are not needed here; those that commits may name stay in the store."""
        paths = list(paths)
        if self._working is None:
            stay = [path for path in paths if certified(path) is not None]
            _forget(stay)
            paths = sorted(set(paths) - set(stay))
        remove_files([path for path in paths if self._working is None or not is_remote(path)])

    def close(self) -> None:
        """Remove what only this process could have read. A second call does nothing."""
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
    """The checksum and the length that a file's name tells, if it is one of a store.

    Examples
    --------
    >>> certified("00003-crc0a1b2c3d-4096.arrow"), certified("00003.arrow")
    ((169552957, 4096), None)
    """
    found = _CERTIFIED.search(path)
    return None if found is None else (int(found[1], 16), int(found[2]))


def write_batch(
    path: str, batch: pa.RecordBatch | pa.Table, *, make: bool = True, fixed: bool = False
) -> tuple[str, int]:
    """Write an Arrow IPC file under its final name only when it is whole.

    Parameters
    ----------
    path : str
        A path, or the URL of a file in a store.
    batch : RecordBatch or Table
    make : bool
        Whether to make the directory. A task of a Spark job does not: when the job has failed and
        its files are removed, other tasks of it may still run, and must leave nothing.
    fixed : bool
        Whether the name is known to others. Else a URL gains the checksum and the length.

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
    """The same with a file that outlives a crash of the machine; returns its certified path too."""
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
    """Give a whole file its final name; if the file system has no rename, by a copy."""
    try:
        os.replace(scratch, path)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        shutil.copyfile(scratch, path)
        os.unlink(scratch)


def sync(path: str) -> None:
    """Make what was written of a file, or the entries of a directory, outlive a crash."""
    with _explained(path):
        there = os.open(path, os.O_RDONLY)
        try:
            os.fsync(there)
        finally:
            os.close(there)


def checksum_of(path: str) -> int:
    """The checksum of a file's content."""
    with mapped_file(path) as mapped:
        return zlib.crc32(mapped.read_buffer()) if mapped.size() else 0


@contextmanager
def made(directory: str) -> Iterator[None]:
    """Around a job whose tasks write into a directory: there for them, and gone if it is empty.

    What a task was writing when it was killed goes with the job.
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
            pass  # there is something in it


def mapped_file(path: str) -> pa.NativeFile:
    """A file, mapped; where its file system knows no maps, its content, mapped from a local copy.

    Volumes and other mounts of object stores cannot map. A copy has no name, so that it takes disk
    and no memory, and goes when nobody has it.
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
    """A file of update rows, mapped."""
    with _explained(path), _understood(path):
        return pa.ipc.open_file(mapped_file(_checked_path(path))).read_all()


def settle(paths: Iterable[str]) -> None:
    """Write the files of held batches, so that other processes can read them."""
    for path in paths:
        if held_batches.is_file(path):
            write_batch(path, ipc.to_batch(open_updates(path)), fixed=True)
            held_batches.drop_written(path)


def spilled(folder: str, updates: Updates) -> Updates:
    """The same updates in a file, mapped: they take no memory, and go when nobody has them."""
    if is_remote(folder):
        folder = tempfile.gettempdir()
    path = os.path.join(folder, f"spill-{uuid.uuid4().hex[:12]}{_SCRATCH}")
    write_batch(path, ipc.to_batch(updates), make=False)
    with _explained(path):
        try:
            with pa.ipc.open_file(mapped_file(path)) as reader:
                return ipc.from_batch(reader.get_batch(0))
        finally:
            os.unlink(path)  # a mapped file keeps its space, and nothing is left if we are killed


def open_updates(path: str) -> Updates:
    """The updates of a batch file, mapped: only the pages that are touched are read.

    Files never change under their name, so those opened last are kept open.
    """
    held = held_batches.look_up(path)
    if held is not None:
        return held
    found = _opened.get(path)
    if found is None:
        with _explained(path), _understood(path):
            with pa.ipc.open_file(mapped_file(_checked_path(path))) as reader:
                found = ipc.from_batch(reader.get_batch(0))
        _opened[path] = found
        if len(_opened) > _MOST_OPEN:
            _opened.popitem(last=False)
    else:
        _opened.move_to_end(path)
    return found


def _checked_path(path: str) -> str:
    """Where a file is on this machine, which is what its name certifies, if it does: that is looked
    at when this process first opens it.

    Raises
    ------
    DamagedStateError
    """
    here = local_copy(path) if is_remote(path) else path
    told = certified(path)
    if told is None or path in _checked:
        return here
    # The file, its folder, and the folder of all of them are the store's own.
    for part in path, os.path.dirname(path), os.path.dirname(os.path.dirname(path)):
        if here == path and os.path.islink(part):
            raise DamagedStateError(
                f"{path!r}: {part!r} is a symbolic link, and is not followed. Put there what it "
                "leads to"
            )
    found = None
    try:
        found = checksum_of(here), os.path.getsize(here)
    except FileNotFoundError:
        pass
    if found != told:
        what = "is missing"
        if found is not None and found[1] != told[1]:
            what = f"has {found[1]:,} bytes, and was written with {told[1]:,}"
        elif found is not None:
            what = "holds something else than what was written"
        raise DamagedStateError(
            f"{here!r} {what}. It was changed from outside, or lost by the file system. Bring it "
            "back from a copy, or open the store at an older commit that does not need it"
        )
    _checked.add(path)
    return here


@contextmanager
def _understood(path: str) -> Iterator[None]:
    """Around what is read of a file of a store: that it is certified does not make it a batch."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        if isinstance(error, DiffError) or certified(path) is None:
            raise
        raise DamagedStateError(
            f"{path!r} is no batch of updates, although its checksum is right: it was not written "
            f"by this library. {type(error).__name__}: {error}"
        ) from error


@contextmanager
def opened_for_task() -> Iterator[None]:
    """Around what a task reads: the files that it opened are let go when it ends.

    Its process lives on, and none of its later tasks would know which files have been removed.
    """
    try:
        yield
    finally:
        _opened.clear()


def remove_files(paths: list[str]) -> None:
    """Delete files; those already gone are no error."""
    remote = []
    for path in paths:
        if held_batches.remove(path):
            continue
        _opened.pop(path, None)
        _checked.discard(path)
        if is_remote(path):
            remote.append(path)
            continue
        # The directory goes with the last file of the batch, also of one that is gone already.
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
    """Let go of files that stay where they are."""
    for path in paths:
        _opened.pop(path, None)


def _forget_directories(chosen: Callable[[str], bool]) -> None:
    """Let go of all that is opened or held of some directories."""
    for path in list(_opened):  # other threads may open files meanwhile
        if chosen(os.path.dirname(path)):
            _opened.pop(path, None)
    held_batches.remove_in(chosen)


def remove_others(directory: str, paths: Iterable[str]) -> None:
    """Delete what is in a job's directory but for some files: attempts of tasks that were lost."""
    kept = set(paths)
    remove_files([path for path in _files_in([directory]) if path not in kept])


def remove_directories(paths: list[str]) -> None:
    """Delete directories of files with all that is in them, or is held for them."""
    folders = set(paths)
    _forget_directories(folders.__contains__)
    remote = set(filter(is_remote, paths))
    if remote:
        cache.remove(_files_in(remote))
    for folder in filter(os.path.exists, paths):
        for _ in range(5):  # a task that still runs may add a file while others are removed
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break


def _remove(root: str, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the owner ends, not the owner
    # A mapped file holds its space also when it is deleted.
    _forget_directories(lambda directory: directory.startswith(root + os.sep))
    remove_locked(root)
    os.close(lock)


def _local_path(parent: str | os.PathLike[str]) -> str:
    """An absolute path: whoever reads files, by this path, may be in another directory."""
    if not isinstance(parent, (str, os.PathLike)) or not os.fspath(parent).strip():
        raise StorageError(
            f"root is {parent!r}; give the path of a directory, or leave it out for the system's "
            "temporary directory"
        )
    path = os.fspath(parent)
    scheme = _SCHEME.match(path)
    if scheme is None:
        return os.path.abspath(path)
    there = urlsplit(path)
    if scheme[1].lower() != "file" or there.netloc not in ("", "localhost"):
        raise StorageError(
            f"root is {path!r}, and state is only kept in file systems that are mounted: batches "
            "are mapped into memory. Give the path of a directory, on a cluster one that the "
            "driver and all executors share"
        )
    return os.path.abspath(unquote(there.path))


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the system says about a path, as an error of ours that says what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if isinstance(error, FileExistsError):
            reason = "It is a file"
        told = f"{os.fspath(path)!r}: {reason}. {_remedy(path, error.errno)}"
        raise StorageError(told) from error


def _remedy(path: str | os.PathLike[str], code: int | None) -> str:
    if code not in (errno.ENOSPC, errno.EDQUOT):
        return (
            "Give a root=... that is a directory, or can be made as one, and can be written to; on "
            "a cluster one that the driver and all executors share"
        )
    there = next(folder for folder in Path(path).absolute().parents if folder.exists())
    return (
        f"What was written of it is removed again, and {shutil.disk_usage(there).free:,} bytes are "
        f"free in {os.fspath(there)!r}. Make room and step again, or start a dataflow with a "
        "root=... that has more"
    )


def may_pass(error: DiffError) -> bool:
    """Whether another try, perhaps on another machine, may not meet this error."""
    if not isinstance(error, StorageError):
        return False
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno not in _LASTING
