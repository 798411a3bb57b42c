"""Private directories with a lock that lives as long as their owner.

The next process that starts next to one removes the directory of a dead owner::

    a directory is removed  ==>  its lock names it as ours, is of this user, and is not held
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from pyspark_diff.trace.local_objects import UNSUPPORTED

#: The begin of the names of private directories.
PREFIX = "pyspark_diff-"


def make_locked(folder: Path) -> tuple[str, int]:
    """A new directory of this process, and its lock."""
    root = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
    lock = -1
    try:
        scratch = os.path.join(root, "lock.tmp")
        lock = os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(lock, _marker(os.path.basename(root)))
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            # Without the marker nobody takes this directory for an orphan, not even a machine where
            # the same folder can be locked; what a killed process leaves there stays.
        # Whole and locked before it has its name: nobody takes this directory for an orphan.
        # Without a rename there is no such lock, and the directory of a killed process stays.
        try:
            os.rename(scratch, os.path.join(root, "lock"))
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
        raise
    return root, lock


def _marker(name: str) -> bytes:
    """What the lock of a directory of this name holds, if this user made it by this module."""
    return f"pyspark_diff storage 1\n{name}\n{os.getuid()}\n".encode()


def remove_orphans(folder: Path) -> None:
    """Remove directories whose owner was killed: a lock of ours that can be taken has no owner."""
    for name in os.listdir(folder):
        if name.startswith(PREFIX):
            try:
                _remove_orphan(folder / name)
            except OSError:
                pass  # it is somebody else's, or somebody lives in it


def _remove_orphan(root: Path) -> None:
    """Remove a directory if it is ours and an orphan. No link is followed, wherever it stands."""
    within = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # A pipe of this name would wait for a writer.
        lock = os.open("lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
        try:
            found = os.fstat(lock)
            marker = _marker(root.name)
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
            if ours and os.read(lock, len(marker) + 1) == marker:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_locked(root)
        finally:
            os.close(lock)
    finally:
        os.close(within)


def remove_locked(root: str | os.PathLike[str]) -> None:
    """Remove a directory, its lock last: cut short, it is found and removed by the next."""
    try:
        with os.scandir(root) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != "lock":
                    os.unlink(entry)
    except OSError:
        pass  # somebody else removes it too
    shutil.rmtree(root, ignore_errors=True)
