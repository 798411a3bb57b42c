"""Where the objects of a store lie: a folder, or a bucket of an object store, behind one door.

An object has a name within its root, ``folder/name``, and is whole or not there. What all that is
durable stands on is one request::

    create(name, parts) = True   =>  the object was not there, and outlives a crash from now on
    create(name, parts) = False  =>  the name is taken; what it holds is as it was

`False` says nothing of who took the name. A client that tries again when an answer is lost is told
that its own object is there already, by S3 as by NFS: whoever creates reads back whose it is.

In a folder an object is written beside its name, synced, linked to its name, which fails where the
name is taken, and the folder is synced. No symbolic link is followed below the root.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import secrets
import shutil
import stat
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Union
from urllib.parse import unquote, urlsplit

from pyspark_diff.errors import DiffError, StorageError, UnknownOutcomeError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

Part = Union[bytes, memoryview]

#: How the name of a file ends that is being written.
SCRATCH = ".tmp"
#: A hint at the last commit, beside the folders.
HEAD = "head"
#: No object that is read as a whole has more bytes.
MOST_BYTES = 1 << 32
#: The key that is created twice, to see that the second time is refused.
_PROBE = "probe-"

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,254}")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):/", re.IGNORECASE)
_REMOTE = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "memory"})
#: What a file system says that has no links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
#: What the operating system takes at once.
_MOST_PARTS = 512
#: Where others put what a dataflow is to take in.
INBOX = "inbox"
#: The folders of a store. What else lies below its root is somebody else's.
FOLDERS = ("commits", "data", "floor", INBOX, "readers")
#: Those that are kept open in a file system; all others come and go.
_KEPT_OPEN = frozenset({"", "commits", "floor", "readers"})


@dataclass(frozen=True)
class Found:
    """An object in a listing: its name within the root, its bytes, when it was written."""

    name: str
    size: int
    modified: float


class Objects(ABC):
    """The objects below one root."""

    root: str

    @abstractmethod
    def create(self, name: str, parts: Sequence[Part]) -> bool:
        """Put an object where there is none, in one request.

        Returns True when it is there and durable, False where the name is taken. Where the answer
        is lost that is an `UnknownOutcomeError`; after every other error the object is not there.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Put an object whether there is one or not.

        One that need not outlive a crash may also be damaged by it, and is quicker.
        """

    @abstractmethod
    def upload(self, name: str, path: str) -> None:
        """Put a file where nothing else is ever put, durably, however large it is."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """All of an object. A `FileNotFoundError` where there is none."""

    @abstractmethod
    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """A part of an object, shorter where it ends before."""

    @abstractmethod
    def names(self, folder: str) -> list[Found]:
        """What is in a folder and in those within it, in no order; "" for all below the root."""

    @abstractmethod
    def leftovers(self) -> list[Found]:
        """What was being written when its process ended, or is written now."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are gone are no error."""

    @abstractmethod
    def locate(self, name: str) -> str:
        """Where an object is: an absolute path, or a URL."""

    def secure(self, name: str) -> None:
        """Make durable an object that is there, and its folders, where `create` could not say so.

        Also for files that were written where `locate` has said.
        """

    @abstractmethod
    def foreign(self) -> list[str]:
        """Names right below the root that are none of a store, a few of them."""

    def remove_empty(self, folder: str, before: float) -> None:
        """Remove folders in a folder that are empty and older than a time."""

    def probe(self) -> None:
        """See that a second create of one key is refused; a `StorageError` where it is not.

        Some mounted object stores write over what is there, and say that they have created it.
        """
        name = f"{_PROBE}{secrets.token_hex(8)}"
        try:
            if not self.create(name, [b"first"]) and self.read(name) != b"first":
                raise StorageError(
                    f"{self.root!r}: it says that a new key is taken, so commits cannot be told "
                    "from those of others there. Keep the store somewhere else"
                )
            if self.create(name, [b"second"]) or self.read(name) != b"first":
                raise StorageError(
                    f"{self.root!r}: a second create of one key is not refused there, so two "
                    "writers would overwrite each other's commits. Keep the store on a file system "
                    "with hard links, or in an object store with conditional writes"
                )
        finally:
            try:
                self.delete([name])
            except StorageError:
                pass  # vacuum finds it


def objects_at(root: str | os.PathLike[str]) -> Objects:
    """The objects below a path, a ``file:`` URL, or the URL of an object store.

    Examples
    --------
    >>> objects = objects_at("memory://doctest")
    >>> objects.create("commits/first", [b"a", b"b"]), objects.create("commits/first", [b"c"])
    (True, False)
    >>> objects.read("commits/first")
    b'ab'
    """
    if not isinstance(root, (str, os.PathLike)) or not os.fspath(root).strip():
        raise StorageError(
            f"the root of a store is {root!r}; give the path of a folder, or a URL such as "
            "s3://bucket/folder"
        )
    path = os.fspath(root)
    scheme = _SCHEME.match(path)
    if scheme is None:
        return LocalObjects(path)
    there = urlsplit(path)
    if scheme[1].lower() in _REMOTE:
        return RemoteObjects(path)
    if scheme[1].lower() != "file" or there.netloc not in ("", "localhost"):
        raise StorageError(
            f"the root of a store is {redacted(path)!r}; it can be the path of a folder, or a URL "
            f"that begins with file:, {', '.join(sorted(f'{name}://' for name in _REMOTE))}"
        )
    return LocalObjects(unquote(there.path))


def redacted(text: str) -> str:
    """A URL, or a text with URLs in it, without passwords and without queries, which may be keys.

    Examples
    --------
    >>> redacted("s3://me:secret@bucket/folder?X-Amz-Signature=abc")
    's3://bucket/folder'
    """
    text = re.sub(r"(\w://)[^/@\s'\"]*:[^/@\s'\"]*@", r"\1", text)
    return re.sub(r"(\w://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)


def checked(name: str) -> str:
    """A name of an object, if it can be one: relative, of plain characters, and nowhere else."""
    if not (len(name) <= 1024 and all(map(_SEGMENT.fullmatch, name.split("/")))):
        raise StorageError(
            f"{name[:200]!r} is no name of an object: parts of letters, digits, '_', '.', '=' and "
            "'-' between slashes, each beginning with a letter, a digit or '_'"
        )
    return name


class LocalObjects(Objects):
    """Objects as files of a folder, which is made with the first of them.

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
                    pass  # it was done, and only the answer was lost
                elif error.errno not in _NO_LINKS:
                    raise
                else:
                    raise StorageError(
                        f"{self.root!r} is on a file system without hard links, where an object "
                        "cannot be created whole and only once. Keep the store on another file "
                        "system, or in an object store"
                    ) from error
            finally:
                # It may not fail now: what has its name is there.
                _discard(folder, scratch)
            self._sync_name(folder, name)
        return True

    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        with self._making(name) as (folder, base):
            if not lasting and _overwritten(folder, base, data):
                return
            scratch = self._write_scratch(folder, base, [data], sync=lasting)
            os.replace(scratch, base, src_dir_fd=folder, dst_dir_fd=folder)
            if lasting:
                self._sync_name(folder, name)

    def upload(self, name: str, path: str) -> None:
        with open(path, "rb") as file:
            # Nothing can be mapped of an empty file.
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.read(1) else b""
            self.create(name, [memoryview(whole)])

    def read(self, name: str) -> bytes:
        with self._explained(checked(name)), self._opened(name) as file:
            return _read(file, 0, MOST_BYTES)

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        with self._explained(checked(name)), self._opened(name) as file:
            return _read(file, offset, length)

    def names(self, folder: str) -> list[Found]:
        return [found for found in self._walk(folder) if not found.name.endswith(SCRATCH)]

    def leftovers(self) -> list[Found]:
        inside = [found for folder in FOLDERS for found in self._walk(folder)]
        beside = [
            found for found in self._walk("", deep=False)
            if found.name.startswith((_PROBE, f"{HEAD}."))
        ]
        return [found for found in inside if found.name.endswith(SCRATCH)] + beside

    def delete(self, names: Iterable[str]) -> None:
        touched = set()
        for name in names:
            try:
                with self._explained(checked(name)), self._within(name) as (folder, base):
                    os.unlink(base, dir_fd=folder)
            except FileNotFoundError:
                continue
            touched.add(os.path.dirname(name))
        for folder_name in touched - _KEPT_OPEN:
            try:
                os.rmdir(os.path.join(self.root, folder_name))
            except OSError:
                pass  # there is more in it

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
                return _foreign(os.listdir(self.root))
            except FileNotFoundError:
                return []

    def remove_empty(self, folder: str, before: float) -> None:
        with self._explained(checked(folder)):
            try:
                found = list(os.scandir(os.path.join(self.root, folder)))
            except FileNotFoundError:
                return
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    try:
                        if entry.stat(follow_symlinks=False).st_mtime < before:
                            os.rmdir(entry.path)
                    except OSError:
                        pass  # there is something in it, or somebody else has removed it

    def _walk(self, folder: str, *, deep: bool = True) -> list[Found]:
        """All files in a folder; what is a link, or has a name that we never give, is not ours."""
        found = []
        waiting = [checked(folder) if folder else ""]
        while waiting:
            within = waiting.pop()
            with self._explained(within):
                try:
                    descriptor = self._open_folder(within)
                except FileNotFoundError:
                    continue
                try:
                    for entry in os.scandir(descriptor):
                        name = f"{within}/{entry.name}" if within else entry.name
                        if not _SEGMENT.fullmatch(entry.name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            if deep:
                                waiting.append(name)
                        elif entry.is_file(follow_symlinks=False):
                            try:
                                status = entry.stat(follow_symlinks=False)
                            except FileNotFoundError:
                                continue
                            found.append(Found(name, status.st_size, status.st_mtime))
                finally:
                    os.close(descriptor)
        return found

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
                f"{os.path.join(self.root, name)!r} was written, but whether it would outlive a "
                f"crash is not known: {os.strerror(error.errno or 0)}"
            ) from error

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with self._within(name) as (folder, base):
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
        """The folder of an object that is to be written, which is made where there is none."""
        with self._explained(checked(name), writes=True):
            with self._within(name, make=True) as found:
                yield found

    @contextmanager
    def _within(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder of an object, open, and what the object is called in it."""
        folder, _, base = name.rpartition("/")
        if folder in _KEPT_OPEN:
            yield self._kept(folder, make), base
            return
        descriptor = self._open_folder(folder, make=make)
        try:
            yield descriptor, base
        finally:
            os.close(descriptor)

    def _kept(self, folder: str, make: bool) -> int:
        """A folder that stays open, as long as it is the one of that name."""
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
                        pass  # somebody else was quicker
                    _sync(above)
                    descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
            finally:
                os.close(above)
        return descriptor

    @contextmanager
    def _explained(self, name: str, *, writes: bool = False) -> Iterator[None]:
        """What the system says, as an error of ours; that there is no such object passes."""
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
                reason = "A symbolic link stands in the place of a folder, and is not followed"
            raise StorageError(f"{path!r}: {reason}. {self._remedy(error.errno)}") from error

    def _remedy(self, code: int | None) -> str:
        if code not in (errno.ENOSPC, errno.EDQUOT):
            return "The store has to be in a folder that can be written to"
        there = self.root
        while not os.path.exists(there):
            there = os.path.dirname(there)
        return (
            f"{shutil.disk_usage(there).free:,} bytes are free in {there!r}, and what is committed "
            "is as it was. Make room and do it again"
        )


#: How often a request is made again whose answer is lost.
RETRIES = 5
#: Stores in memory, by their names in this process.
_memories: dict[str, ObjectStore] = {}


class RemoteObjects(Objects):
    """Objects in a bucket of an object store, or for tests in memory.

    Credentials are taken from the environment, as the tools of each provider do, and from nowhere
    else.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/folder``, ``gs://bucket/folder``, ``az://container/folder``, or
        ``memory://name``, which is gone with the process.
    """

    def __init__(self, url: str):
        there = urlsplit(url)
        if there.password is not None or there.query or there.fragment:
            raise StorageError(
                f"the root {redacted(url)!r} came with a password or a query; give the URL "
                "without, and credentials in the environment"
            )
        self.root = url.rstrip("/")
        try:
            import obstore.store
        except ImportError as error:
            raise StorageError(
                f"the root {self.root!r} needs obstore, which is not installed here: "
                'pip install "pyspark_diff[remote]"'
            ) from error
        if there.scheme.lower() == "memory":
            self._prefix = there.path.strip("/") + "/" if there.path.strip("/") else ""
            self._store = _memories.setdefault(there.netloc, obstore.store.MemoryStore())
            return
        self._prefix = ""
        with self._explained(""):
            self._store = obstore.store.from_url(
                self.root,
                # Timeouts are the client's own, 30 s: options given here would put those of the
                # environment out of force. A request that is made again may meet its own object:
                # whoever creates reads back.
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=60)},
            )

    def create(self, name: str, parts: Sequence[Part]) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        data = b"".join(parts)
        with self._explained(checked(name), writes=True):
            try:
                obstore.put(self._store, self._prefix + name, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        import obstore

        with self._explained(checked(name), writes=True):
            obstore.put(self._store, self._prefix + name, data, use_multipart=False)

    def upload(self, name: str, path: str) -> None:
        import obstore

        with self._explained(checked(name), writes=True):
            # In parts where it is large; it is there when all of them are.
            obstore.put(self._store, self._prefix + name, Path(path))

    def read(self, name: str) -> bytes:
        import obstore

        with self._explained(checked(name)):
            found = obstore.get(self._store, self._prefix + name)
            if found.meta["size"] > MOST_BYTES:
                raise StorageError(f"{self.locate(name)!r} has {found.meta['size']:,} bytes")
            return bytes(found.bytes())

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        import obstore
        from obstore.exceptions import BaseError

        with self._explained(checked(name)):
            try:
                if length:
                    return bytes(obstore.get_range(
                        self._store, self._prefix + name, start=offset, length=length
                    ))
            except BaseError:
                # A range behind the end is an error, of no class of its own.
                if offset < obstore.head(self._store, self._prefix + name)["size"]:
                    raise
        return b""

    def names(self, folder: str) -> list[Found]:
        import obstore

        below = self._prefix + (checked(folder) + "/" if folder else "")
        with self._explained(folder):
            pages = obstore.list(self._store, below or None)
            found = [self._found(entry) for page in pages for entry in page]
        # What has a name that we never give is not ours.
        return [item for item in found if all(map(_SEGMENT.fullmatch, item.name.split("/")))]

    def leftovers(self) -> list[Found]:
        # An object is there or not; only a key of a probe can stay behind.
        return [found for found in self._top()[1] if found.name.startswith(_PROBE)]

    def foreign(self) -> list[str]:
        folders, found = self._top()
        return _foreign([*folders, *(item.name for item in found)])

    def delete(self, names: Iterable[str]) -> None:
        import obstore

        waiting = [self._prefix + checked(name) for name in names]
        try:
            with self._explained(""):
                if waiting:
                    obstore.delete(self._store, waiting)
        except FileNotFoundError:
            # Some stores say so, and have left the others.
            for name in waiting:
                try:
                    with self._explained(name):
                        obstore.delete(self._store, name)
                except FileNotFoundError:
                    pass

    def locate(self, name: str) -> str:
        return f"{self.root}/{checked(name)}"

    def _top(self) -> tuple[list[str], list[Found]]:
        """The folders right below the root, and the objects there."""
        import obstore

        with self._explained(""):
            found = obstore.list_with_delimiter(self._store, self._prefix or None)
        folders = [path.removeprefix(self._prefix) for path in found["common_prefixes"]]
        return folders, [self._found(entry) for entry in found["objects"]]

    def _found(self, entry: ObjectMeta) -> Found:
        return Found(
            entry["path"].removeprefix(self._prefix), int(entry["size"]),
            entry["last_modified"].timestamp(),
        )

    @contextmanager
    def _explained(self, name: str, *, writes: bool = False) -> Iterator[None]:
        """What the object store says, as an error of ours without keys or signatures in it."""
        from obstore import exceptions

        try:
            yield
        except (DiffError, FileNotFoundError, exceptions.AlreadyExistsError):
            raise
        except exceptions.NotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
        except (
            exceptions.PermissionDeniedError, exceptions.UnauthenticatedError,
            exceptions.InvalidPathError, exceptions.NotSupportedError,
            exceptions.UnknownConfigurationKeyError, ValueError,
        ) as error:
            raise StorageError(self._told(name, error)) from None
        except (exceptions.BaseError, OSError, TimeoutError) as error:
            told = self._told(name, error)
            raise (UnknownOutcomeError(told) if writes else StorageError(told)) from None

    def _told(self, name: str, error: Exception) -> str:
        # The first line; what follows is the client's own account, with headers and addresses.
        reason = redacted(str(error).partition("\n")[0])[:500]
        return (
            f"{self.root}/{name}: {reason}. Credentials, region and endpoint are taken from the "
            "environment; see that they are those of this root"
        )


def _foreign(names: Iterable[str]) -> list[str]:
    return sorted(
        name for name in names
        if name not in (*FOLDERS, HEAD) and not name.startswith((_PROBE, f"{HEAD}."))
    )[:5]


def _close(opened: dict[str, tuple[int, tuple[int, int]]]) -> None:
    for descriptor, _ in opened.values():
        os.close(descriptor)
    opened.clear()


def _make_lasting(path: str) -> None:
    """Make a folder and those above it, each of them synced into the one that it is in."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            pass  # somebody else was quicker
        above = os.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(above)
        finally:
            os.close(above)


def _is_same(folder: int, scratch: str, base: str) -> bool:
    """Whether two names in a folder are of one file."""
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
        pass  # vacuum finds it


def _sync(file: int) -> None:
    """Until it is on the disk itself, for which some systems have a call of their own."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def _overwritten(folder: int, base: str, data: bytes) -> bool:
    """Write over a file of the same length, if there is one; a crash may leave either, or neither.

    A new file moved into its place is flushed first by some file systems: measured on ext4, half as
    much as it costs to create one that is synced.
    """
    try:
        file = os.open(base, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return False
    try:
        return os.fstat(file).st_size == len(data) == os.pwrite(file, data, 0)
    finally:
        os.close(file)


def _write(file: int, parts: Sequence[Part]) -> None:
    """Write all parts, however much of them the system takes at once."""
    waiting = [view for view in (memoryview(part).cast("B") for part in parts) if len(view)]
    waiting.reverse()
    while waiting:
        done = os.writev(file, waiting[:-_MOST_PARTS - 1:-1])
        while waiting and done >= len(waiting[-1]):
            done -= len(waiting.pop())
        if done:
            waiting[-1] = waiting[-1][done:]


def _read(file: int, offset: int, length: int) -> bytes:
    size = os.fstat(file).st_size
    if length >= MOST_BYTES < size:
        raise StorageError(f"an object of {size:,} bytes, where {MOST_BYTES:,} are the most")
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
