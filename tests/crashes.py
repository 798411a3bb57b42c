"""The primitive operations of a store, and the files after a kill or a crash at each of them.

A kill of the process does not change the file system::

    store after a kill at an operation  =  copy of the folder at that operation

so one run yields the stores of all kills, without any clean-up by Python. A crash of the machine
loses unsynced writes: bytes of a file and entries of a folder since its last sync::

    store after a crash  =  the entries of each folder and the bytes of each file at its last sync

The library is unaware of this: the module patches `os` and Arrow's files.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from faults import filler

#: Takes the name of an operation, its path, and whether it is done.
Handler = Callable[[str, str, bool], None]

#: For each operation of `os` the position of its path, and the name of its folder's descriptor.
_BY_PATH = {
    "link": (1, "dst_dir_fd"), "replace": (1, "dst_dir_fd"), "rename": (1, "dst_dir_fd"),
    "unlink": (0, "dir_fd"), "rmdir": (0, "dir_fd"), "mkdir": (0, "dir_fd"),
}
_BY_DESCRIPTOR = ("write", "writev", "pwrite", "fsync")


@contextmanager
def operations(root: str, handler: Handler) -> Iterator[None]:
    """Call `handler` before and after each operation that changes a file below a folder."""
    root = os.path.realpath(root)

    def observe(what: str, path: str, call: Callable[[], Any]) -> Any:
        if not (path == root or path.startswith(root + os.sep)):
            return call()
        handler(what, path, False)
        answer = call()
        try:
            handler(what, path, True)
        except OSError:
            if what == "open" and isinstance(answer, int):
                os.close(answer)  # the caller has no descriptor to close
            raise
        return answer

    def by_path(name: str) -> Callable[..., Any]:
        real = getattr(os, name)
        place, folder = _BY_PATH[name]

        def run(*args: Any, **options: Any) -> Any:
            path = _resolved(args[place], options.get(folder))
            return observe(name, path, lambda: real(*args, **options))

        return run

    def by_descriptor(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def run(*args: Any) -> Any:
            return observe(name, _path_of(args[0]), lambda: real(*args))

        return run

    real_open = os.open

    def opens(path: Any, flags: int, *mode: int, **options: Any) -> int:
        def call() -> Any:
            return real_open(path, flags, *mode, **options)

        if not flags & os.O_CREAT:
            return int(call())
        return int(observe("open", _resolved(path, options.get("dir_fd")), call))

    writer = pa.ipc.RecordBatchFileWriter
    real_file, real_write = pa.OSFile, writer.write
    #: The file that Arrow opened last; it writes one file at a time.
    last = [""]

    def arrow_file(path: str, *mode: str) -> Any:
        last[0] = os.path.realpath(path)
        return observe("open", last[0], lambda: real_file(path, *mode))

    def arrow_write(self: Any, *args: Any) -> Any:
        # A write to memory has no file. A finished file has another name by now.
        path = last[0] if os.path.exists(last[0]) else ""
        return observe("write", path, lambda: real_write(self, *args))

    with ExitStack() as stack:
        patches: list[tuple[Any, str, Any]] = [
            (os, "open", opens), (pa, "OSFile", arrow_file), (writer, "write", arrow_write),
            *((os, name, by_path(name)) for name in _BY_PATH),
            *((os, name, by_descriptor(name)) for name in _BY_DESCRIPTOR),
        ]
        for holder, name, function in patches:
            stack.enter_context(mock.patch.object(holder, name, function))
        # `os` lists by function which operations take the descriptor of a folder.
        stack.enter_context(mock.patch.object(
            os, "supports_dir_fd", os.supports_dir_fd | {getattr(os, n) for n in _BY_PATH}
        ))
        yield


def _resolved(path: Any, folder: int | None) -> str:
    if isinstance(path, int):
        return _path_of(path)
    if folder is not None:
        return os.path.join(_path_of(folder), os.fspath(path))
    path = os.path.abspath(os.fspath(path))
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


@dataclass
class At:
    """Act at the k-th operation, or at all operations from there on.

    Parameters
    ----------
    act : callable
        Takes the name and the path of the operation.
    number : int
        From 1 on; 0 only counts operations.
    after : bool
        Act after the operation, not before it.
    forever : bool
    only : tuple of str
        Count only these operations.
    """

    act: Callable[[str, str], None]
    number: int = 0
    after: bool = False
    forever: bool = False
    only: tuple[str, ...] = ()
    count: int = 0
    struck: list[str] = field(default_factory=list)

    def __call__(self, what: str, path: str, done: bool) -> None:
        if self.only and what not in self.only:
            return
        self.count += not done
        if self.number and done == self.after and (
            self.count == self.number or self.forever and self.count > self.number
        ):
            self.struck.append(f"{what} {short(path)}")
            self.act(what, path)


def short(path: str) -> str:
    """A path by its last two names."""
    return "/".join(Path(path).parts[-2:])


# The actions.


def fails(code: int) -> Callable[[str, str], None]:
    def act(what: str, path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    return act


def full(root: str) -> Callable[[str, str], None]:
    """Fill the file system that a store is on, to the last byte."""
    def act(what: str, path: str) -> None:
        with open(filler(root), "ab", buffering=0) as file:
            for size in 1 << 16, 1 << 12, 1:
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    return act


def ends(what: str, path: str) -> None:
    """End the process without clean-up, like a kill."""
    os._exit(137)


# The files after a crash of the machine.


class Synced:
    """The files of a folder that survive a crash of the machine.

    Parameters
    ----------
    base : str
        An existing, durable folder. The entries below it may be lost.
    pins : str
        A folder on the same file system for hard links, so that no inode number is reused.
    """

    def __init__(self, base: str, pins: str):
        self._base, self._pins = base, pins
        self._folders: dict[int, dict[str, int]] = {}
        self._files: dict[int, bytes] = {}
        self._pinned: set[int] = set()
        self._open: list[int] = []
        os.makedirs(pins, exist_ok=True)
        self.synced(base)

    def close(self) -> None:
        """Close the descriptors and remove the links."""
        for descriptor in self._open:
            os.close(descriptor)
        shutil.rmtree(self._pins, ignore_errors=True)

    def synced(self, path: str) -> None:
        """Record a sync of a file or a folder."""
        number = self._number(path)
        if os.path.isdir(path):
            self._folders[number] = {
                name: self._number(os.path.join(path, name)) for name in os.listdir(path)
            }
        else:
            self._files[number] = Path(path).read_bytes()

    def _number(self, path: str) -> int:
        """The inode number of a file or folder, which also identifies it without its name."""
        status = os.stat(path, follow_symlinks=False)
        number = status.st_ino
        if number not in self._pinned:
            self._pinned.add(number)
            if stat.S_ISDIR(status.st_mode):
                self._open.append(os.open(path, os.O_RDONLY))
                self._folders.setdefault(number, {})
            else:
                os.link(path, os.path.join(self._pins, str(number)))
        return number

    def lost(self, to: str, kind: str, seed: int = 0) -> None:
        """Write the files that a crash leaves.

        Parameters
        ----------
        to : str
            A new folder.
        kind : str
            ``all`` unsynced writes are lost; ``torn``: names survive, but unsynced bytes are
            zeros; ``some`` unsynced writes are lost, by random choice.
        """
        chance = random.Random(f"{kind} {seed}")
        self._write(os.stat(self._base).st_ino, self._base, to, kind, chance)

    def _write(
        self, number: int | None, live: str | None, to: str, kind: str, chance: random.Random
    ) -> None:
        os.makedirs(to)
        names = {} if number is None else dict(self._folders.get(number, {}))
        there = set() if live is None else set(os.listdir(live))
        for name in sorted(there | set(names)):
            path = None if live is None or name not in there else os.path.join(live, name)
            # A folder that was removed and created again is a different one.
            now = None if path is None else os.stat(path, follow_symlinks=False).st_ino
            then = names.get(name)
            if kind == "torn" or kind == "some" and chance.random() < 0.5:
                then = now
            if then is None:
                continue
            if then != now:
                path = None
            if then in self._folders or path is not None and os.path.isdir(path):
                self._write(then, path, os.path.join(to, name), kind, chance)
            else:
                Path(to, name).write_bytes(self._bytes(then, path, kind, chance))

    def _bytes(
        self, number: int, path: str | None, kind: str, chance: random.Random
    ) -> bytes:
        live = Path(path or os.path.join(self._pins, str(number))).read_bytes()
        synced = self._files.get(number)
        if synced == live or kind == "some" and chance.random() < 0.5:
            return live
        if kind == "all":
            return synced or b""
        if kind == "torn":
            return (synced or b"") + bytes(max(len(live) - len(synced or b""), 0))
        return live[: chance.randrange(len(live) + 1)]
