"""Memory of processes that run kernels: kept for the next kernel instead of returned to the system,
and not searched for garbage again and again. Workers do so until they are idle, a user's process
while a large step runs::

    before a large step  =  after it:  what malloc keeps, whether garbage is looked for

Kernels allocate arrays of tens of megabytes and drop them again. The C library gives such blocks
back at once, and the next task pays for touching fresh pages: on virtual machines that can cost
more than the kernel itself (measured: splitting 50 million rows 3.6 s, with kept memory 1.5 s).
Arrow's own allocator gives back as well, so while a large step runs Arrow takes memory from the C
library (all of TPC-H in one step, 2.7 GB of batches: 20 s, where it was 27 s).

PySpark's workers collect garbage after each task. With numba, pandas and pyarrow loaded that takes
75 ms of processor time, where a small task takes five; what is loaded never is garbage.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Numbers of the parameters in glibc's ``malloc.h``.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
#: By which memory is kept, and glibc's own as they are once a process has freed a large block: it
#: adapts two of them to that, and no more once any has been set.
_KEPT = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 26))
_USUAL = (
    (_MMAP_MAX, 65536), (_MMAP_THRESHOLD, 1 << 25), (_TRIM_THRESHOLD, 1 << 26),
    (_TOP_PAD, 1 << 17),
)


@functools.cache
def keep_memory() -> bool:
    """Tell the C library to keep freed memory; for processes that exist for kernels only.

    Returns
    -------
    bool
        Whether the C library knows such settings (glibc does).
    """
    library = _malloc()
    return library is not None and all([library.mallopt(*one) for one in _KEPT])


@functools.cache
def share_memory() -> bool:
    """Let all threads take memory from one place; for processes that run kernels in threads.

    Else each thread has a heap of its own, whose large blocks are given back at once whatever is
    set: of the pages that a load of ten million rows touches that was more than half. It holds for
    threads that begin afterwards, unless malloc has been set up by the environment. Kernels ask
    for few, large blocks, so they do not wait for each other.

    Returns
    -------
    bool
        Whether the C library knows such a setting, and nobody had set it up.
    """
    library = _malloc()
    if library is None or any(map(os.environ.get, ("MALLOC_ARENA_MAX", *_SET_UP))):
        return False
    return bool(library.mallopt(_ARENA_MAX, 1))


@functools.cache
def _malloc() -> ctypes.CDLL | None:
    """The C library, if it knows such settings."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt, library.malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return library


class _Large:
    """Large work that is under way in this process, in any of its threads. It holds state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[object] = set()
        #: What is left to be put back, before it has been changed: an interrupt may come anywhere.
        self._undo: list[Callable[[], object]] = []

    def begin(self, work: object) -> None:
        with self._lock:
            self._under_way.add(work)
            if len(self._under_way) > 1:
                return
            library = _malloc()
            # Whoever has set up malloc by the environment knows why.
            if library is not None and not any(map(os.environ.get, _SET_UP)):
                self._undo.append(functools.partial(_give_back, library))
                for one in _KEPT:
                    library.mallopt(*one)
                if not os.environ.get(_ARROW):
                    # Not before: its threads have malloc settle how many heaps there may be.
                    import pyarrow as pa

                    usual = pa.default_memory_pool()
                    self._undo.append(functools.partial(pa.set_memory_pool, usual))
                    pa.set_memory_pool(pa.system_memory_pool())
            # What was frozen by the user himself would be thawed with the rest.
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
#: Variables by which a user sets up malloc.
_SET_UP = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_",
           "MALLOC_TOP_PAD_")
#: The one by which a user chooses Arrow's allocator.
_ARROW = "ARROW_DEFAULT_MEMORY_POOL"


@contextmanager
def large_work() -> Iterator[None]:
    """Around work on many rows in a user's process: memory that kernels free is kept for the next,
    and given back at the end; and what was there before is not searched for garbage.

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
    for one in _USUAL:
        library.mallopt(*one)
    library.malloc_trim(0)


#: Seconds after a task in which another one may want its memory, and from how many bytes of this
#: process on what no other has wanted is given back then.
IDLE_SECONDS, LARGE_BYTES = 1.0, 1 << 29
#: How many tasks this process has begun, and what gives memory back if no other one comes.
_tasks = 0
_idle: threading.Timer | None = None


@contextmanager
def worker_task() -> Iterator[None]:
    """Around a task of a worker: what its kernels free is kept for the next one, if that comes
    soon, and modules are not searched for garbage.

    Workers that had nothing more to do while the driver ran a loop held a third of the memory of a
    large load.
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
        if library is not None and _resident() >= LARGE_BYTES:
            _idle = threading.Timer(IDLE_SECONDS, library.malloc_trim, [0])
            _idle.daemon = True
            with suppress(RuntimeError):  # no thread more is allowed; the task is done all the same
                _idle.start()


def _resident() -> int:
    """Bytes of memory that this process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def spare_collector() -> None:
    """Take what has been loaded out of the collector's sight; to be called in each task.

    It does so in a process's second, fourth, eighth, ... task: modules are loaded when they are
    first needed, and what is garbage by then is collected before.
    """
    global _tasks
    _tasks += 1
    if _tasks > 1 and _tasks & (_tasks - 1) == 0:
        gc.collect()
        gc.freeze()
