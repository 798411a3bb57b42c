"""Batch files of an object store, on this machine: they are mapped, so they have to be files here.

::

    path = local_copy(url)  =>  the bytes at path are those that the name in url certifies
    bytes of all copies of this user on this machine  <=  PYSPARK_DIFF_CACHE_BYTES, or one file

A batch file never changes under its name, which has its checksum and its length: so a copy never
grows old, and processes share it. It is checked while it is fetched, and has its name only when it
is whole. Those used longest ago go first. A process that has mapped a copy keeps it when it goes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b

from pyspark_diff.errors import DamagedStateError, DiffError, StorageError
from pyspark_diff.fallbacks import CACHE, count
from pyspark_diff.trace.local_objects import LocalObjects
from pyspark_diff.trace.manifest import DATA_FILE
from pyspark_diff.trace.objects import SCRATCH, Objects, redacted
from pyspark_diff.trace.roots import objects_at

#: The setting of how many bytes copies may take, and what it is where it is not set.
LIMIT = "PYSPARK_DIFF_CACHE_BYTES"
_DEFAULT_LIMIT = 10 << 30
_SUFFIX = ".arrow"
#: How many bytes are fetched together.
_PIECE = 1 << 25
#: After so many seconds nobody writes a file any more that has not got its name.
_ABANDONED = 3600.0


def local_copy(url: str) -> str:
    """The path of a batch file, of which a copy is fetched if there is none here.

    Raises a `DamagedStateError` if it is not there, or not what its name says. Open it at once:
    when there is no room, others that are fetched take its place.

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
    objects, name, checksum, length = _certified(url)
    if isinstance(objects, LocalObjects):
        return objects.locate(name)
    with _explained(url):
        folder = _folder()
        path = os.path.join(folder, blake2b(url.encode(), digest_size=16).hexdigest() + _SUFFIX)
        try:
            os.utime(path)  # it is used: others go before
            if os.stat(path).st_size == length:
                return path
        except FileNotFoundError:
            pass
        count("store", CACHE, "a batch file was fetched from the object store")
        _make_room(folder, length)
        scratch = f"{path}.{secrets.token_hex(8)}{SCRATCH}"
        try:
            with open(scratch, "xb") as file:
                found = 0
                for piece in _pieces(objects, name, length):
                    file.write(piece)
                    found = zlib.crc32(piece, found)
                file.flush()
                os.fsync(file.fileno())
                fetched = file.tell()
            if fetched != length or found != checksum:
                raise DamagedStateError(
                    f"{redacted(url)!r} is not as it was written: its {fetched:,} bytes have the "
                    f"checksum {found:08x}. Nothing of it was used. Put it back from a copy of the "
                    "store, or start a new one"
                )
            os.replace(scratch, path)
        finally:
            if os.path.exists(scratch):
                os.unlink(scratch)
    return path


def upload(path: str, url: str) -> None:
    """Put a batch file where its name says, if its bytes are those that the name certifies.

    Files have names of their own for each attempt, so that one that is there already is the same.
    """
    objects, name, checksum, length = _certified(url)
    with _explained(path), open(path, "rb") as file:
        found = 0
        while piece := file.read(_PIECE):
            found = zlib.crc32(piece, found)
        if file.tell() != length or found != checksum:
            raise DamagedStateError(
                f"{path!r} is not what {redacted(url)!r} says, and is not put there: its "
                f"{file.tell():,} bytes have the checksum {found:08x}. The disk may be failing"
            )
    objects.upload(name, path)


def _certified(url: str) -> tuple[Objects, str, int, int]:
    """The objects of a batch file's root, its name among them, its checksum and its bytes."""
    root, _, rest = url.rpartition("/data/")
    name = f"data/{rest}"
    found = DATA_FILE.fullmatch(name)
    if not root or found is None:
        raise StorageError(f"{redacted(url)[:500]!r} is not the URL of a batch file in a store")
    return _objects(root), name, int(found[3], 16), int(found[4])


@lru_cache(maxsize=16)
def _objects(root: str) -> Objects:
    # One client for all files of a root: it keeps its connections.
    return objects_at(root)


def _pieces(objects: Objects, name: str, length: int) -> Iterator[bytes]:
    try:
        for offset in range(0, length, _PIECE):
            yield objects.read_range(name, offset, min(_PIECE, length - offset))
    except FileNotFoundError:
        raise DamagedStateError(
            f"{objects.locate(name)!r} is missing, and a commit lists it. Put it back from a copy "
            "of the store, or start a new one"
        ) from None


def _folder() -> str:
    """The folder of this user's copies, which nobody else can write to."""
    folder = os.path.join(tempfile.gettempdir(), f"pyspark_diff_cache-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    found = os.stat(folder, follow_symlinks=False)
    others = stat.S_IMODE(found.st_mode) & 0o022
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or others:
        raise StorageError(
            f"{folder!r} is not a folder of this user that nobody else can write to, so copies of "
            "batch files are not kept there. Remove it, or set TMPDIR to another folder"
        )
    return folder


def _limit() -> int:
    text = os.environ.get(LIMIT, str(_DEFAULT_LIMIT))
    if not text.strip().isdecimal():
        raise StorageError(f"{LIMIT} is {text!r} in the environment; give a number of bytes")
    return int(text)


def _make_room(folder: str, needed: int) -> None:
    """Delete the copies used longest ago until there is room; one process of a user at a time."""
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
        there = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if there + needed <= limit:
                break
            os.unlink(path)
            there -= size
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
            remedy = f"Copies are kept in {tempfile.gettempdir()!r}, which has to be writable"
        raise StorageError(f"{redacted(what)!r}: {reason}. {remedy}") from error
