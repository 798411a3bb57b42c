"""Memory of processes that run kernels: the C library keeps freed memory for the next kernel
instead of returning it to the system, and the collector does not search long-lived objects again.
Workers do so until they are idle, a user's process while a large step runs::

    after a large step  =  before it:  the settings of malloc, and the garbage collector

Kernels allocate arrays of tens of megabytes and free them again. The C library returns such blocks
at once, and the next task pays for touching fresh pages. On virtual machines that can cost more
than the kernel itself (measured: splitting 50 million rows 3.6 s, with retained memory 1.5 s).
Arrow's own allocator returns memory as well, so Arrow takes memory from the C library while a large
step runs. For all of TPC-H in one step, with 2.7 GB of batches, that is 20 s instead of 27 s.

PySpark's workers collect garbage after each task. With numba, pandas and pyarrow loaded that takes
75 ms of processor time, while a small task takes five; loaded modules are never garbage.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark_diff import thresholds

#: Numbers of the parameters in glibc's ``malloc.h``.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
#: Settings that retain memory, and glibc's own settings after a process has freed a large block:
#: glibc adapts two of them at that point, and stops adapting after any has been set.
_KEPT = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 26))
_USUAL = (
    (_MMAP_MAX, 65536), (_MMAP_THRESHOLD, 1 << 25), (_TRIM_THRESHOLD, 1 << 26),
    (_TOP_PAD, 1 << 17),
)


@functools.cache
def keep_memory() -> bool:
    """Set the C library to retain freed memory; for processes that only run kernels.

    Returns
    -------
    bool
        Whether the C library has such settings (glibc does).
    """
    library = _malloc()
    return library is not None and all([library.mallopt(*setting) for setting in _KEPT])


@functools.cache
def share_memory() -> bool:
    """Make all threads take memory from one heap; for processes that run kernels in threads.

    Otherwise each thread has its own heap, and returns large blocks at once under all settings:
    that was more than half of the pages that a load of ten million rows touches. The setting
    applies to threads that start later, unless the environment configures malloc. Kernels ask for
    few, large blocks, so they do not wait for each other.

    Returns
    -------
    bool
        Whether the C library has such a setting, and the environment does not configure malloc.
    """
    library = _malloc()
    if library is None or any(map(os.environ.get, ("MALLOC_ARENA_MAX", *_SET_UP))):
        return False
    return bool(library.mallopt(_ARENA_MAX, 1))


@functools.cache
def _malloc() -> ctypes.CDLL | None:
    """The C library, if it has such settings."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt, library.malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return library


class _Large:
    """Large work in progress in this process, in any of its threads. It has state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[object] = set()
        #: The pending restorations. Each is added before its change: an interrupt may come
        #: anywhere.
        self._undo: list[Callable[[], object]] = []

    def begin(self, work: object) -> None:
        with self._lock:
            self._under_way.add(work)
            if len(self._under_way) > 1:
                return
            library = _malloc()
            # Settings of malloc by the environment have precedence.
            if library is not None and not any(map(os.environ.get, _SET_UP)):
                self._undo.append(functools.partial(_give_back, library))
                for setting in _KEPT:
                    library.mallopt(*setting)
                if not os.environ.get(_ARROW):
                    # Not earlier: the start of Arrow's threads fixes the number of heaps in malloc.
                    import pyarrow as pa

                    usual = pa.default_memory_pool()
                    self._undo.append(functools.partial(pa.set_memory_pool, usual))
                    pa.set_memory_pool(pa.system_memory_pool())
            # If the user has frozen objects, `unfreeze` would unfreeze those too.
            if gc.isenabled() and not gc.get_freeze_count():
                self._undo.append(gc.unfreeze)
                gc.freeze()

    def end(self, work: object) -> None:
        with self._lock:
            self._under_way.discard(work)
            while not self._under_way and self._undo:
                self._undo[-1]()
                self._undo.pop()


_large = _Large()
#: Environment variables that configure malloc.
_SET_UP = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_",
           "MALLOC_TOP_PAD_")
#: The environment variable of Arrow's allocator.
_ARROW = "ARROW_DEFAULT_MEMORY_POOL"


@contextmanager
def large_work() -> Iterator[None]:
    """A context for work on many rows in a user's process. Memory that kernels free is retained for
    the next kernel, and returned at the end. The collector does not search earlier objects.

    Examples
    --------
    >>> with large_work():
    ...     gc.get_freeze_count() > 0
    True
    >>> gc.get_freeze_count()
    0
    """
    work = object()
    try:
        _large.begin(work)
        yield
    finally:
        _large.end(work)


def _give_back(library: ctypes.CDLL) -> None:
    for setting in _USUAL:
        library.mallopt(*setting)
    library.malloc_trim(0)


#: The number of tasks that this process has begun, and the timer that returns memory if no other
#: task comes.
_tasks = 0
_idle: threading.Timer | None = None


@contextmanager
def worker_task() -> Iterator[None]:
    """A context for a task of a worker: memory that its kernels free is retained for the next task,
    if that comes soon, and the collector does not search modules.

    Without it, idle workers kept a third of the memory of a large load while the driver ran a loop.
    """
    global _idle
    keep_memory()
    spare_collector()
    if _idle is not None:
        _idle.cancel()
        _idle = None
    try:
        yield
    finally:
        library = _malloc()
        if library is not None and _resident() >= thresholds.current.idle_memory_bytes_min:
            seconds = thresholds.current.idle_memory_seconds
            _idle = threading.Timer(seconds, library.malloc_trim, [0])
            _idle.daemon = True
            with suppress(RuntimeError):  # no further thread is allowed; the task is done anyway
                _idle.start()


def _resident() -> int:
    """Resident bytes of this process; 0 if the system does not report them."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def spare_collector() -> None:
    """Exclude loaded modules from garbage collection; to be called in each task.

    It does so in a process's second, fourth, eighth, ... task: modules are loaded at their first
    use, and existing garbage is collected before.
    """
    global _tasks
    _tasks += 1
    if _tasks > 1 and _tasks & (_tasks - 1) == 0:
        gc.collect()
        gc.freeze()
