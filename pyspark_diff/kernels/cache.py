"""The places of compiled kernels between processes, and the reasons to compile them again.

A process loads a kernel from the first folder that has it, and saves it in the first writable one::

    NUMBA_CACHE_DIR                if it is set, and then no other
    __pycache__ next to the file   also if it is read-only: a warm-up at install serves all users
    the user's folder of caches
    a folder of the user's own in the system's folder for temporary files

If no folder is writable, each process compiles the kernel: the start is slower, the answers are the
same. With ``files(k)`` the file of a kernel and all files that it imports, directly or indirectly::

    the cache returns a kernel  =>  files(k) have the same content as at its compilation
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from inspect import getfile
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache

#: The private members of numba's classes that a subclass here sets or calls.
_USED = {
    CompileResultCacheImpl: ("_locator_classes",),
    FunctionCache: ("_impl_class", "cache_path", "flush", "load_overload", "save_overload"),
}
_logger = logging.getLogger("pyspark_diff")
_IMPORT = re.compile(r"^\s*from pyspark_diff\.kernels\.(\w+) import", re.MULTILINE)


class KernelCache:
    """The compiled forms of a function, with the methods that numba calls on a cache.

    Parameters
    ----------
    on_miss : callable
        Called if the function has to be compiled.
    """

    def __init__(self, function: Callable[..., Any], on_miss: Callable[[], None]):
        self._function = function
        self._on_miss = on_miss
        self._loaded: list[FunctionCache] | None = None

    @property
    def cache_path(self) -> str | None:
        return next((cache.cache_path for cache in self._caches()), None)

    def load_overload(self, types: Any, context: Any) -> Any:
        """The compiled form for types of arguments, or None."""
        for cache in self._caches():
            try:
                compiled = cache.load_overload(types, context)
            except (OSError, EOFError):
                continue  # an unreadable folder, or half a file
            if compiled is not None:
                return compiled
        self._on_miss()
        return None

    def save_overload(self, types: Any, compiled: Any) -> None:
        """Store a compiled form, if a folder is writable."""
        for cache in self._caches():
            try:
                cache.save_overload(types, compiled)
            except OSError:
                continue
            return

    def flush(self) -> None:
        for cache in self._caches():
            cache.flush()

    def _caches(self) -> list[FunctionCache]:
        # Created on demand: most kernels are never called.
        if self._loaded is None:
            self._loaded = list(_caches_of(self._function))
        return self._loaded


@lru_cache(maxsize=1)
def is_supported() -> bool:
    """Whether numba's private classes have all members that the cache uses.

    Without them the results stay correct: each process compiles the kernels that it calls.
    """
    lacks = [
        f"{kind.__name__}.{name}" for kind, names in _USED.items() for name in names
        if not hasattr(kind, name)
    ]
    if lacks:
        _logger.warning(
            "numba %s lacks %s, so compiled kernels are not stored, and each process compiles "
            "them again. Install numba below 0.70", numba.__version__, ", ".join(lacks),
        )
    return not lacks


def _caches_of(function: Callable[..., Any]) -> Iterator[FunctionCache]:
    file = getfile(function)
    if not os.path.exists(file) or not is_supported():
        return  # in an archive, or written at a prompt
    for folder in folders(file):

        class Implementation(CompileResultCacheImpl):
            _locator_classes = [_FolderLocators(folder)]  # type: ignore[list-item]

        class Cache(FunctionCache):
            _impl_class = Implementation

        yield Cache(function)


def folders(file: str) -> list[str]:
    """The folders for the kernels of a file, in the order of look-ups."""
    # The name depends on the path of the file, since two installations may differ.
    own = hashlib.sha256(os.path.abspath(file).encode()).hexdigest()[:16]
    configured: str = config.CACHE_DIR  # type: ignore[attr-defined]
    if configured:
        return [os.path.join(configured, f"pyspark_diff-{own}")]
    paths = [os.path.join(os.path.dirname(os.path.abspath(file)), "__pycache__")]
    roots = [_user_folder(), _temporary_folder()]
    return paths + [os.path.join(root, "pyspark_diff", own) for root in roots if root]


def _user_folder() -> str | None:
    default = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(default)
    return folder if os.path.isabs(folder) else None


def _temporary_folder() -> str | None:
    """A folder that no other user can write to, since the process runs the code that it loads from
    it.
    """
    folder = os.path.join(tempfile.gettempdir(), f"pyspark_diff-{os.getuid()}")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.lstat(folder)
    except OSError:
        return None
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return folder if own and not status.st_mode & 0o022 else None


class _FolderLocators:
    """A locator factory for numba: creates a locator for each function that is stored in a
    folder."""

    def __init__(self, folder: str):
        self._folder = folder

    def from_function(self, function: Callable[..., Any], file: str) -> _Locator:
        return _Locator(self._folder, file, function.__code__.co_firstlineno)


class _Locator:
    def __init__(self, folder: str, file: str, line: int):
        self._folder = folder
        self._py_file = file  # numba asks for it when it warns
        self._line = line

    def ensure_cache_path(self) -> None:
        os.makedirs(self._folder, exist_ok=True)

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return stamp(self._py_file)

    def get_disambiguator(self) -> str:
        return str(self._line)


@lru_cache(maxsize=None)
def stamp(file: str) -> str:
    """A digest of a file and of all modules of this folder that it imports, directly or
    indirectly."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    pending, done = [Path(file)], set()
    while pending:
        path = pending.pop()
        if path in done:
            continue
        done.add(path)
        text = path.read_bytes()
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(text).digest())
        named = (here / f"{name}.py" for name in _IMPORT.findall(text.decode()))
        pending.extend(sorted(other for other in named if other.exists()))
    return digest.hexdigest()
