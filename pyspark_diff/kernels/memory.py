"""Memory of worker processes: kept for the next task instead of returned to the system, and not
searched for garbage again and again.

Kernels allocate arrays of tens of megabytes and drop them again. The C library gives such blocks
back at once, and the next task pays for touching fresh pages: on virtual machines that can cost
more than the kernel itself (measured: splitting 50 million rows 3.6 s, with kept memory 1.5 s).

PySpark's workers collect garbage after each task. With numba, pandas and pyarrow loaded that takes
75 ms of processor time, where a small task takes five; what is loaded never is garbage.
"""

from __future__ import annotations

import ctypes
import functools
import gc

#: Numbers of the parameters in glibc's ``malloc.h``.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


@functools.cache
def keep_memory() -> bool:
    """Tell the C library to keep freed memory; for processes that exist for kernels only.

    Returns
    -------
    bool
        Whether the C library knows such settings (glibc does).
    """
    try:
        set_parameter = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    done = [
        set_parameter(_MMAP_MAX, 0),
        set_parameter(_TRIM_THRESHOLD, 2**31 - 1),
        set_parameter(_TOP_PAD, 1 << 26),
    ]
    return all(done)


#: Tasks that this process has begun.
_tasks = 0


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
