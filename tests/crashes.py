"""The primitive operations of a store, and what a crash leaves at each of them.

A process that is killed leaves the file system as it is::

    a copy of the folder at an operation  =  what a kill at that operation leaves

so one run shows what all kills would leave, and nothing of Python's own clearing up gets between.
A machine that crashes loses what was not synced: of each file what was written since its last sync,
of each folder the names that came or went since. That is worked out beside the run:

    lost = for each folder the entries, and for each file the bytes, as of its last sync

Nothing of the library knows of this: `os` and Arrow's files are patched from outside.
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

#: What is told of an operation: what it does, to which path, and whether it has been done.
Handler = Callable[[str, str, bool], None]

#: Which of the arguments tell where an operation of `os` happens, and the descriptor of the folder
#: that a name is relative to.
_BY_PATH = {
    "link": (1, "dst_dir_fd"), "replace": (1, "dst_dir_fd"), "rename": (1, "dst_dir_fd"),
    "unlink": (0, "dir_fd"), "rmdir": (0, "dir_fd"), "mkdir": (0, "dir_fd"),
}
_BY_DESCRIPTOR = ("write", "writev", "pwrite", "fsync")


@contextmanager
def operations(root: str, handler: Handler) -> Iterator[None]:
    """Tell of all operations on files below a folder that change something, before and after."""
    root = os.path.realpath(root)

    def around(what: str, path: str, call: Callable[[], Any]) -> Any:
        if not (path == root or path.startswith(root + os.sep)):
            return call()
        handler(what, path, False)
        answer = call()
        try:
            handler(what, path, True)
        except OSError:
            if what == "open" and isinstance(answer, int):
                os.close(answer)  # whoever called has nothing to close
            raise
        return answer

    def by_path(name: str) -> Callable[..., Any]:
        real = getattr(os, name)
        place, folder = _BY_PATH[name]

        def run(*given: Any, **options: Any) -> Any:
            path = _resolved(given[place], options.get(folder))
            return around(name, path, lambda: real(*given, **options))

        return run

    def by_descriptor(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def run(*given: Any) -> Any:
            return around(name, _path_of(given[0]), lambda: real(*given))

        return run

    real_open = os.open

    def opens(path: Any, flags: int, *mode: int, **options: Any) -> int:
        def call() -> Any:
            return real_open(path, flags, *mode, **options)

        if not flags & os.O_CREAT:
            return int(call())
        return int(around("open", _resolved(path, options.get("dir_fd")), call))

    writer = pa.ipc.RecordBatchFileWriter
    real_file, real_write = pa.OSFile, writer.write
    #: The file that Arrow opened last; one is written at a time.
    last = [""]

    def arrow_file(path: str, *mode: str) -> Any:
        last[0] = os.path.realpath(path)
        return around("open", last[0], lambda: real_file(path, *mode))

    def arrow_write(self: Any, *given: Any) -> Any:
        # What is written into memory has no file; one that was written has another name by now.
        path = last[0] if os.path.exists(last[0]) else ""
        return around("write", path, lambda: real_write(self, *given))

    with ExitStack() as stack:
        found: list[tuple[Any, str, Any]] = [
            (os, "open", opens), (pa, "OSFile", arrow_file), (writer, "write", arrow_write),
            *((os, name, by_path(name)) for name in _BY_PATH),
            *((os, name, by_descriptor(name)) for name in _BY_DESCRIPTOR),
        ]
        for holder, name, function in found:
            stack.enter_context(mock.patch.object(holder, name, function))
        # Where an operation takes the descriptor of a folder is told by the function itself.
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
    """Does something at the k-th operation, or at all from there on.

    Parameters
    ----------
    act : callable
        Given the operation's name and path.
    number : int
        From 1 on; 0 for none, so that they are only counted.
    after : bool
        When it has been done.
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


# What happens.


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
    """The process is over, as if it were killed: nothing is cleared up."""
    os._exit(137)


# What a crash of the machine leaves.


class Synced:
    """What of a folder would outlive a crash of the machine.

    Parameters
    ----------
    base : str
        A folder that is there, and is durable. What is below it may be lost.
    beside : str
        A folder on the same file system, where files are held so that no number is given again.
    """

    def __init__(self, base: str, beside: str):
        self._base, self._beside = base, beside
        self._folders: dict[int, dict[str, int]] = {}
        self._files: dict[int, bytes] = {}
        self._pinned: set[int] = set()
        self._open: list[int] = []
        os.makedirs(beside, exist_ok=True)
        self.synced(base)

    def close(self) -> None:
        """Let go of everything."""
        for descriptor in self._open:
            os.close(descriptor)
        shutil.rmtree(self._beside, ignore_errors=True)

    def synced(self, path: str) -> None:
        """A file or a folder has been synced."""
        number = self._number(path)
        if os.path.isdir(path):
            self._folders[number] = {
                name: self._number(os.path.join(path, name)) for name in os.listdir(path)
            }
        else:
            self._files[number] = Path(path).read_bytes()

    def _number(self, path: str) -> int:
        """What a file or folder is known by, also when its name has gone."""
        status = os.stat(path, follow_symlinks=False)
        number = status.st_ino
        if number not in self._pinned:
            self._pinned.add(number)
            if stat.S_ISDIR(status.st_mode):
                self._open.append(os.open(path, os.O_RDONLY))
                self._folders.setdefault(number, {})
            else:
                os.link(path, os.path.join(self._beside, str(number)))
        return number

    def lost(self, to: str, kind: str, seed: int = 0) -> None:
        """Write down what is left after a crash.

        Parameters
        ----------
        to : str
            A folder, which is made.
        kind : str
            ``all`` that was not synced is lost; ``torn``: names are there, but of files that were
            not synced zeros; ``some`` of it, by chance.
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
            # A folder that was removed, and made anew, is another one.
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
        live = Path(path or os.path.join(self._beside, str(number))).read_bytes()
        synced = self._files.get(number)
        if synced == live or kind == "some" and chance.random() < 0.5:
            return live
        if kind == "all":
            return synced or b""
        if kind == "torn":
            return (synced or b"") + bytes(max(len(live) - len(synced or b""), 0))
        return live[: chance.randrange(len(live) + 1)]
