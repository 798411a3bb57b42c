"""Objects of a store as files of a folder.

    create(name, parts) = True  =>  the file and all folders above it are on the disk

An object is written under a scratch name next to its final name, and synced. Then it is linked to
its final name, which fails if the name is taken, and the folder is synced. No symbolic link below
the root is followed.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import shutil
import stat
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from pyspark_diff.errors import DiffError, StorageError, UnknownOutcomeError
from pyspark_diff.trace.objects import (
    FOLDERS,
    HEAD,
    MOST_BYTES,
    PROBE,
    SCRATCH,
    SEGMENT,
    ListedObject,
    Objects,
    Part,
    checked,
    foreign_among,
)

#: The errors of mounts of object stores for a map, a lock, a rename or a random write.
UNSUPPORTED = frozenset({
    errno.EINVAL, errno.ENODEV, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP,
    errno.EPERM, errno.ESPIPE,
})
#: The errors of file systems without hard links.
_NO_LINKS = frozenset({
    errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.ESPIPE
})
#: The maximum number of buffers in one call of the operating system.
_MOST_PARTS = 512
#: The folders that stay open; all others may be removed at any time.
_KEPT_OPEN = frozenset({"", "commits", "floor", "readers"})


class LocalObjects(Objects):
    """Objects as files of a folder, which the first object creates.

    Parameters
    ----------
    root : str
        A folder of a file system with hard links.
    """

    def __init__(self, root: str | os.PathLike[str]):
        self.root = os.path.abspath(root)
        self._open: dict[str, tuple[int, tuple[int, int]]] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._open)

    def create(self, name: str, parts: Sequence[Part]) -> bool:
        with self._making(name) as (folder, base):
            scratch = self._write_scratch(folder, base, parts, sync=True)
            try:
                os.link(scratch, base, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
            except OSError as error:
                if _is_same(folder, scratch, base):
                    pass  # the link was created, and only the answer was lost
                elif error.errno not in _NO_LINKS:
                    raise
                else:
                    raise StorageError(
                        f"{self.root!r} is on a file system without hard links, where an object "
                        "cannot be created whole and only once. Keep the store on another file "
                        "system, or in an object store"
                    ) from error
            finally:
                # A failure must not pass on from here: the object exists under its name.
                _discard(folder, scratch)
            self._sync_name(folder, name)
        return True

    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        with self._making(name) as (folder, base):
            if not lasting and _overwritten(folder, base, data):
                return
            scratch = self._write_scratch(folder, base, [data], sync=lasting)
            try:
                os.replace(scratch, base, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                _discard(folder, scratch)
                if error.errno not in UNSUPPORTED:
                    raise
                raise StorageError(
                    f"{self.root!r} is on a file system without renames, where an object cannot "
                    "be replaced as a whole. Keep the store on another file system, or in an "
                    "object store"
                ) from error
            if lasting:
                self._sync_name(folder, name)

    def probe(self) -> None:
        """Check that a second create is refused, and that an object can be replaced."""
        super().probe()
        name = f"{PROBE}{secrets.token_hex(8)}"
        try:
            self.replace(name, b"", lasting=False)
        finally:
            with suppress(StorageError):
                self.delete([name])

    def upload(self, name: str, path: str) -> None:
        with open(path, "rb") as file:
            self.create(name, [memoryview(_whole(file))])

    def read(self, name: str) -> bytes:
        with self._explained(checked(name)), self._opened(name) as file:
            return _read(file, 0, MOST_BYTES)

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        with self._explained(checked(name)), self._opened(name) as file:
            return _read(file, offset, length)

    def names(self, folder: str) -> list[ListedObject]:
        return [file for file in self._walk(folder) if not file.name.endswith(SCRATCH)]

    def leftovers(self) -> list[ListedObject]:
        inside = [file for folder in FOLDERS for file in self._walk(folder)]
        top = [
            file for file in self._walk("", deep=False)
            if file.name.startswith((PROBE, f"{HEAD}."))
        ]
        return [file for file in inside if file.name.endswith(SCRATCH)] + top

    def delete(self, names: Iterable[str]) -> None:
        touched = set()
        for name in names:
            try:
                with self._explained(checked(name)), self._parent(name) as (folder, base):
                    os.unlink(base, dir_fd=folder)
            except FileNotFoundError:
                continue
            touched.add(os.path.dirname(name))
        for folder_name in touched - _KEPT_OPEN:
            try:
                os.rmdir(os.path.join(self.root, folder_name))
            except OSError:
                pass  # it has other files

    def locate(self, name: str) -> str:
        path = os.path.join(self.root, checked(name))
        real = os.path.join(os.path.realpath(self.root), name)
        if os.path.realpath(path) != real:
            raise StorageError(
                f"{path!r} leads out of the store by a symbolic link, and is not used. Put the "
                "folder itself there"
            )
        return path

    def secure(self, name: str) -> None:
        with self._explained(checked(name)):
            with self._opened(name) as file:
                _sync(file)
            folder = name
            while folder:
                folder = folder.rpartition("/")[0]
                descriptor = self._open_folder(folder)
                try:
                    _sync(descriptor)
                finally:
                    os.close(descriptor)

    def foreign(self) -> list[str]:
        with self._explained(""):
            try:
                return foreign_among(os.listdir(self.root))
            except FileNotFoundError:
                return []

    def remove_empty(self, folder: str, before: float) -> None:
        with self._explained(checked(folder)):
            try:
                entries = list(os.scandir(os.path.join(self.root, folder)))
            except FileNotFoundError:
                return
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    try:
                        if entry.stat(follow_symlinks=False).st_mtime < before:
                            os.rmdir(entry.path)
                    except OSError:
                        pass  # it has files, or another process has removed it

    def _walk(self, folder: str, *, deep: bool = True) -> list[ListedObject]:
        """All files in a folder, without links and names that no object of a store has."""
        files = []
        waiting = [checked(folder) if folder else ""]
        while waiting:
            parent = waiting.pop()
            with self._explained(parent):
                try:
                    descriptor = self._open_folder(parent)
                except FileNotFoundError:
                    continue
                try:
                    for entry in os.scandir(descriptor):
                        name = f"{parent}/{entry.name}" if parent else entry.name
                        if not SEGMENT.fullmatch(entry.name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            if deep:
                                waiting.append(name)
                        elif entry.is_file(follow_symlinks=False):
                            try:
                                status = entry.stat(follow_symlinks=False)
                            except FileNotFoundError:
                                continue
                            files.append(ListedObject(name, status.st_size, status.st_mtime))
                finally:
                    os.close(descriptor)
        return files

    def _write_scratch(
        self, folder: int, base: str, parts: Sequence[Part], *, sync: bool
    ) -> str:
        scratch = f"{base}.{secrets.token_hex(8)}{SCRATCH}"
        file = os.open(
            scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder
        )
        try:
            try:
                _write(file, parts)
                if sync:
                    _sync(file)
            finally:
                os.close(file)
        except BaseException:
            _discard(folder, scratch)
            raise
        return scratch

    def _sync_name(self, folder: int, name: str) -> None:
        try:
            _sync(folder)
        except OSError as error:
            raise UnknownOutcomeError(
                f"{os.path.join(self.root, name)!r} was written, but it is not known whether it "
                f"would outlive a crash: {os.strerror(error.errno or 0)}"
            ) from error

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with self._parent(name) as (folder, base):
            # A pipe of this name would wait for a writer.
            file = os.open(
                base, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise StorageError(f"{os.path.join(self.root, name)!r} is no file")
            yield file
        finally:
            os.close(file)

    @contextmanager
    def _making(self, name: str) -> Iterator[tuple[int, str]]:
        """Open the folder of a new object, after creating the folder if it does not exist."""
        with self._explained(checked(name), writes=True):
            with self._parent(name, make=True) as parent:
                yield parent

    @contextmanager
    def _parent(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The open folder of an object, and the name of the object in it."""
        folder, _, base = name.rpartition("/")
        if folder in _KEPT_OPEN:
            yield self._open_once(folder, make), base
            return
        descriptor = self._open_folder(folder, make=make)
        try:
            yield descriptor, base
        finally:
            os.close(descriptor)

    def _open_once(self, folder: str, make: bool) -> int:
        """Open a folder for good, or check that the open folder still has its name."""
        path = os.path.join(self.root, folder)
        with self._lock:
            known = self._open.get(folder)
            if known is not None:
                try:
                    status = os.stat(path, follow_symlinks=not folder)
                except FileNotFoundError:
                    status = None
                if status is not None and (status.st_dev, status.st_ino) == known[1]:
                    return known[0]
                raise StorageError(
                    f"{path!r} was removed, or replaced by another folder, while it was in use. "
                    "Open the store again"
                )
            descriptor = self._open_folder(folder, make=make)
            status = os.fstat(descriptor)
            self._open[folder] = descriptor, (status.st_dev, status.st_ino)
            return descriptor

    def _open_folder(self, folder: str, *, make: bool = False) -> int:
        """Open a folder, part by part, so that no link below the root is followed."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            descriptor = os.open(self.root, flags)
        except FileNotFoundError:
            if not make:
                raise
            _make_lasting(self.root)
            descriptor = os.open(self.root, flags)
        for part in folder.split("/") if folder else ():
            above = descriptor
            try:
                try:
                    descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
                except FileNotFoundError:
                    if not make:
                        raise
                    try:
                        os.mkdir(part, dir_fd=above)
                    except FileExistsError:
                        pass  # another process was faster
                    _sync(above)
                    descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
            finally:
                os.close(above)
        return descriptor

    @contextmanager
    def _explained(self, name: str, *, writes: bool = False) -> Iterator[None]:
        """Turn errors of the system into errors of the library; a missing object is no error here.
        """
        try:
            yield
        except DiffError:
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not writes:
                raise
            path = os.path.join(self.root, name)
            reason = os.strerror(error.errno) if error.errno else str(error)
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(
                os.path.dirname(path)
            ):
                reason = "It is a symbolic link in the place of a folder, and is not followed"
            raise StorageError(f"{path!r}: {reason}. {self._remedy(error.errno)}") from error

    def _remedy(self, code: int | None) -> str:
        if code not in (errno.ENOSPC, errno.EDQUOT):
            return "The store must be in a folder that can be written to"
        folder = self.root
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        return (
            f"{shutil.disk_usage(folder).free:,} bytes are free in {folder!r}, and no commit has "
            "changed. Make room and repeat the operation"
        )


def _close(opened: dict[str, tuple[int, tuple[int, int]]]) -> None:
    for descriptor, _ in opened.values():
        os.close(descriptor)
    opened.clear()


def _make_lasting(path: str) -> None:
    """Make a folder and its missing parents, and sync the parent of each."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            pass  # another process was faster
        above = os.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(above)
        finally:
            os.close(above)


def _is_same(folder: int, scratch: str, base: str) -> bool:
    """Whether two names in a folder refer to the same file."""
    try:
        first, second = (
            os.stat(name, dir_fd=folder, follow_symlinks=False) for name in (scratch, base)
        )
    except OSError:
        return False
    return os.path.samestat(first, second)


def _discard(folder: int, scratch: str) -> None:
    try:
        os.unlink(scratch, dir_fd=folder)
    except OSError:
        pass  # a vacuum deletes it


def _sync(file: int) -> None:
    """Sync a file to the disk itself, for which some systems have a separate call."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def _overwritten(folder: int, base: str, data: bytes) -> bool:
    """Overwrite a file of the same length, if there is one.

    A crash may leave the old content, the new one, or neither. Some file systems flush a new file
    before they move it into the place of another: on ext4, this took half the time of creating a
    synced file.
    """
    try:
        file = os.open(base, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno not in UNSUPPORTED | {errno.ENOENT}:
            raise
        return False
    try:
        return os.fstat(file).st_size == len(data) == os.pwrite(file, data, 0)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return False
    finally:
        os.close(file)


def _write(file: int, parts: Sequence[Part]) -> None:
    """Write all parts, although the system may accept only some of the bytes at once."""
    waiting = [view for view in (memoryview(part).cast("B") for part in parts) if len(view)]
    waiting.reverse()
    while waiting:
        done = os.writev(file, waiting[:-_MOST_PARTS - 1:-1])
        while waiting and done >= len(waiting[-1]):
            done -= len(waiting.pop())
        if done:
            waiting[-1] = waiting[-1][done:]


def _whole(file: BinaryIO) -> mmap.mmap | bytes:
    """The content of a file, mapped if possible."""
    if not file.read(1):
        return b""  # an empty file cannot be mapped
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    file.seek(0)
    return file.read()


def _read(file: int, offset: int, length: int) -> bytes:
    size = os.fstat(file).st_size
    if length >= MOST_BYTES < size:
        raise StorageError(f"an object has {size:,} bytes, and {MOST_BYTES:,} are the maximum")
    left = min(length, max(size - offset, 0))
    parts = []
    while left > 0:
        part = os.pread(file, min(left, 1 << 30), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
