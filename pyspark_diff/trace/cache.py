"""Local copies of the batch files of an object store: only a local file can be mapped.

::

    path = local_copy(url)  =>  the bytes at path are those that the name in url certifies
    bytes of all copies of this user on this machine  <=  PYSPARK_DIFF_CACHE_BYTES, or one file

A batch file never changes under its name, which contains its checksum and its length. So a copy is
never stale, and processes share it. The download checks the bytes, and gives the copy its name only
when it is whole. The least recently used copies are deleted first. A process that has mapped a copy
can still read it after its deletion.

Machines without a shared folder exchange files through the object store: `put_batch` writes a local
file, uploads it, and keeps it as the copy. The name of a file that no commit names has a checksum,
too. The exception is a file of a batch that was in the driver's memory before a task needed it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import BinaryIO

from pyspark_diff import thresholds
from pyspark_diff.errors import DamagedStateError, DiffError, StorageError
from pyspark_diff.fallbacks import CACHE, count
from pyspark_diff.trace.credentials import access_of
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.manifest import DATA_FILE
from pyspark_diff.trace.objects import SCRATCH, Objects, redacted
from pyspark_diff.trace.roots import objects_at

_logger = logging.getLogger("pyspark_diff")
#: The setting for the maximum bytes of all copies, and its default.
LIMIT = "PYSPARK_DIFF_CACHE_BYTES"
_DEFAULT_LIMIT = 10 << 30
_SUFFIX = ".arrow"
#: The end of the name of a file that no commit names.
PASSING = ".passing.arrow"
_PASSING = re.compile(
    r"data/[A-Za-z0-9_][A-Za-z0-9_.=-]{0,250}/[A-Za-z0-9][A-Za-z0-9._-]{0,200}?"
    r"(?:-crc([0-9a-f]{8})-(\d{1,15})\.passing)?\.arrow"
)
#: A scratch file that did not change for this many seconds has no writer any more.
_ABANDONED = 3600.0


def local_copy(url: str) -> str:
    """The path of the local copy of a batch file, after a download if there is no copy yet.

    Raises a `DamagedStateError` if the file is missing, or has other bytes than its name certifies.
    Open the path at once: a later download deletes the copy if it needs the room.

    Examples
    --------
    >>> import zlib
    >>> data = b"some rows"
    >>> name = f"e0001-x-0123456789ab.durable/00000-crc{zlib.crc32(data):08x}-{len(data)}.arrow"
    >>> url = f"memory://doctest-cache/data/{name}"
    >>> _ = objects_at("memory://doctest-cache").create(f"data/{name}", [data])
    >>> open(local_copy(url), "rb").read()
    b'some rows'
    """
    objects, name, checksum, length = _named(url)
    if isinstance(objects, LocalObjects):
        return objects.locate(name)
    with _explained(url):
        folder = _folder()
        path = _path(folder, url)
        try:
            os.utime(path)  # mark it as used, so that older copies are deleted first
            if length in (None, os.stat(path).st_size):
                return path
        except FileNotFoundError:
            pass
        count("store", CACHE, "a batch file was fetched from the object store")
        if length is None:
            whole = _whole(objects, name)
            checksum, length = zlib.crc32(whole), len(whole)
            pieces = iter([whole])
        else:
            pieces = _pieces(objects, name, length)
        _make_room(folder, length)
        scratch = f"{path}.{secrets.token_hex(8)}{SCRATCH}"
        try:
            with open(scratch, "xb") as file:
                actual = 0
                for piece in pieces:
                    file.write(piece)
                    actual = zlib.crc32(piece, actual)
                file.flush()
                os.fsync(file.fileno())
                fetched = file.tell()
            if fetched != length or actual != checksum:
                raise DamagedStateError(
                    f"{redacted(url)!r} is damaged: its {fetched:,} bytes have the checksum "
                    f"{actual:08x}. None of them were used. Put the file back from a copy of the "
                    "store, or start a new store"
                )
            os.replace(scratch, path)
        finally:
            if os.path.exists(scratch):
                os.unlink(scratch)
    return path


def put_batch(url: str, write: Callable[[str], None], ending: str | None) -> tuple[str, int]:
    """Write a batch file on this machine, upload it, and keep it as the local copy.

    Parameters
    ----------
    url : str
        The URL of the file, without a checksum.
    write : callable
        Writes the file to a path.
    ending : str or None
        The end of the name after the checksum and the length; None adds neither.

    Returns
    -------
    tuple of str and int
        The URL with the checksum and the length, and the length.
    """
    with _explained(url):
        folder = _folder()
        scratch = os.path.join(folder, f"{secrets.token_hex(16)}{SCRATCH}")
        try:
            write(scratch)
            size = os.path.getsize(scratch)
            if ending is not None:
                checksum = _checksum(scratch)
                url = f"{url.removesuffix(_SUFFIX)}-crc{checksum:08x}-{size}{ending}"
            objects, name, _, _ = _named(url)
            objects.upload(name, scratch)
            _make_room(folder, size)
            os.replace(scratch, _path(folder, url))
        finally:
            if os.path.exists(scratch):
                os.unlink(scratch)
    return url, size


def remove(urls: Iterable[str]) -> None:
    """Delete files that no commit names, and their local copies.

    A vacuum deletes the files for which this fails.
    """
    waiting: dict[str, list[str]] = {}
    for url in urls:
        root, name = _parted(url)
        waiting.setdefault(root, []).append(name)
        _drop(url)
    for root, names in waiting.items():
        try:
            _objects(root).delete(names)
        except StorageError as error:
            _logger.warning("%d files stay until a vacuum: %s", len(names), error)


def listed(directory: str) -> list[str]:
    """The URLs of the files in a directory of batch files, for a removal; none after an error."""
    root, name = _parted(f"{directory}/")
    try:
        return [f"{root}/{item.name}" for item in _objects(root).names(name.rstrip("/"))]
    except StorageError as error:
        _logger.warning("the files in %s stay until a vacuum: %s", redacted(directory), error)
        return []


def upload(path: str, url: str) -> None:
    """Upload a batch file to its URL, if its bytes are those that its name certifies.

    Each attempt has its own file names, so a file that exists under the name is the same file.
    """
    objects, name, checksum, length = _certified(url)
    with _explained(path), open(path, "rb") as file:
        actual = _checksum_of(file)
        if file.tell() != length or actual != checksum:
            raise DamagedStateError(
                f"{path!r} was not uploaded: its {file.tell():,} bytes have the checksum "
                f"{actual:08x}, and its name is {redacted(url)!r}. The disk may be failing"
            )
    objects.upload(name, path)


def _parted(url: str) -> tuple[str, str]:
    """The root of the store of a batch file, and the name of the file's object."""
    root, _, rest = url.rpartition("/data/")
    return root, f"data/{rest}"


def _certified(url: str) -> tuple[Objects, str, int, int]:
    """The objects of the root of a batch file, its name, its checksum and its length in bytes."""
    root, name = _parted(url)
    match = DATA_FILE.fullmatch(name)
    if not root or match is None:
        raise StorageError(f"{redacted(url)[:500]!r} is not the URL of a batch file in a store")
    return _objects(root), name, int(match[3], 16), int(match[4])


def _named(url: str) -> tuple[Objects, str, int | None, int | None]:
    """The same for any file, with None for a checksum and a length that its name lacks."""
    root, name = _parted(url)
    if DATA_FILE.fullmatch(name) is not None:
        return _certified(url)
    passing = _PASSING.fullmatch(name)
    if not root or passing is None:
        raise StorageError(f"{redacted(url)[:500]!r} is not the URL of a batch file in a store")
    if passing[1] is None:
        return _objects(root), name, None, None
    return _objects(root), name, int(passing[1], 16), int(passing[2])


def _checksum_of(file: BinaryIO) -> int:
    checksum = 0
    while piece := file.read(thresholds.current.download_piece_bytes):
        checksum = zlib.crc32(piece, checksum)
    return checksum


def _checksum(path: str) -> int:
    with open(path, "rb") as file:
        return _checksum_of(file)


def _path(folder: str, url: str) -> str:
    return os.path.join(folder, blake2b(url.encode(), digest_size=16).hexdigest() + _SUFFIX)


def _drop(url: str) -> None:
    """Delete the local copy of a file, if there is one."""
    try:
        os.unlink(_path(_folder(), url))
    except FileNotFoundError:
        pass


def _whole(objects: Objects, name: str) -> bytes:
    try:
        return objects.read(name)
    except FileNotFoundError:
        raise _missing(objects, name) from None


def _objects(root: str) -> Objects:
    return _client(root, access_of(root).number)


@lru_cache(maxsize=16)
def _client(root: str, access: int) -> Objects:
    # All files of a root share a client, which keeps its connections.
    return objects_at(root)


def _pieces(objects: Objects, name: str, length: int) -> Iterator[bytes]:
    try:
        size = thresholds.current.download_piece_bytes
        for offset in range(0, length, size):
            yield objects.read_range(name, offset, min(size, length - offset))
    except FileNotFoundError:
        raise _missing(objects, name) from None


def _missing(objects: Objects, name: str) -> DamagedStateError:
    return DamagedStateError(
        f"{objects.locate(name)!r} is missing, and a commit or a running step lists it. Put the "
        "file back from a copy of the store, or start a new store"
    )


def _folder() -> str:
    """The folder of this user's copies. No other user can write to it."""
    folder = os.path.join(tempfile.gettempdir(), f"pyspark_diff_cache-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    status = os.stat(folder, follow_symlinks=False)
    others = stat.S_IMODE(status.st_mode) & 0o022
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or others:
        raise StorageError(
            f"{folder!r} must be a folder of this user that no other user can write to, and is "
            "not. So no copies of batch files are kept there. Remove it, or set TMPDIR to another "
            "folder"
        )
    return folder


def _limit() -> int:
    text = os.environ.get(LIMIT, str(_DEFAULT_LIMIT))
    if not text.strip().isdecimal():
        raise StorageError(f"{LIMIT} is {text!r} in the environment. Set it to a number of bytes")
    return int(text)


def _make_room(folder: str, needed: int) -> None:
    """Delete the least recently used copies until there is room, one process of a user at a time.
    """
    limit = _limit()
    lock = os.open(
        os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copies = []
        for entry in os.scandir(folder):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if entry.name.endswith(_SUFFIX):
                copies.append((status.st_mtime_ns, status.st_size, entry.path))
            elif entry.name.endswith(SCRATCH) and status.st_mtime < time.time() - _ABANDONED:
                os.unlink(entry.path)
        total = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if total + needed <= limit:
                break
            os.unlink(path)
            total -= size
    finally:
        os.close(lock)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except DiffError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        remedy = f"Make room, set {LIMIT} to fewer bytes, or set TMPDIR to a folder that has more"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"Copies are kept in {tempfile.gettempdir()!r}, which must be writable"
        raise StorageError(f"{redacted(what)!r}: {reason}. {remedy}") from error
