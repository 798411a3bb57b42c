"""Private directories, each with a file that its owner locks while it lives.

The next process with the same parent directory removes the directories of dead owners::

    a directory is removed  ==>  its lock file has our marker and is of this user, and is not locked
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
            # Without the marker no process takes this directory for an orphan, not even on a
            # machine that can lock the same folder. The directory of a killed process stays.
        # The file is whole and locked before it has its name, so no process takes this directory
        # for an orphan. Without a rename there is no lock, and the directory of a killed process
        # stays.
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
    """The content of the lock file of a directory of this name that this module made."""
    return f"pyspark_diff storage 1\n{name}\n{os.getuid()}\n".encode()


def remove_orphans(folder: Path) -> None:
    """Remove the directories of killed owners: their locks are free."""
    for name in os.listdir(folder):
        if name.startswith(PREFIX):
            try:
                _remove_orphan(folder / name)
            except OSError:
                pass  # it is another user's, or its owner lives


def _remove_orphan(root: Path) -> None:
    """Remove a directory if it is ours and an orphan, without following any link."""
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # A pipe of this name would wait for a writer.
        lock = os.open("lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        try:
            status = os.fstat(lock)
            marker = _marker(root.name)
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
            if ours and os.read(lock, len(marker) + 1) == marker:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_locked(root)
        finally:
            os.close(lock)
    finally:
        os.close(directory)


def remove_locked(root: str | os.PathLike[str]) -> None:
    """Remove a directory, its lock last. After an interruption, the next process continues."""
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != "lock":
                    os.unlink(entry)
    except OSError:
        pass  # another process removes it, too
    shutil.rmtree(root, ignore_errors=True)
