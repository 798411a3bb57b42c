"""The one way a kernel is compiled: by numba, without the GIL, kept in a cache on disk.

Compiled code notices Ctrl-C when it returns, and may return with it as a `SystemError`. Whoever
runs kernels for a user does so within `interruptible`:

    Ctrl-C  ==>  KeyboardInterrupt
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Any:
    """Compile `function` with numba on its first call and keep the machine code on disk.

    Every Python worker of a Spark executor is a fresh process, so without the cache each of them
    would compile each kernel again. Where numba finds no place to write (the package is installed
    read-only or imported from an archive, and there is no home directory), the kernel is compiled
    once in each process instead: slower to start, the same answers.

    A cached kernel is compiled again when the file it is written in changes, but not when a
    function that it calls from *another* file does; so a kernel and its helpers live in one
    file, or in two that are changed together.

    Parameters
    ----------
    function : callable
        A function that numba can compile in nopython mode.

    Returns
    -------
    callable
        The compiled function, with the same arguments.

    Examples
    --------
    >>> @jit
    ... def triangle(n):
    ...     total = 0
    ...     for i in range(n + 1):
    ...         total += i
    ...     return total
    >>> triangle(4)
    10
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError as error:
        # numba has no class of its own for this; any other RuntimeError is a fault in the kernel.
        if "no locator available" not in str(error):
            raise
        return numba.njit(nogil=True)(function)


def interrupted(error: BaseException | None) -> bool:
    """Whether an error is what compiled code made of Ctrl-C.

    Examples
    --------
    >>> error = SystemError("returned a result with an exception set")
    >>> error.__cause__ = KeyboardInterrupt()
    >>> interrupted(error), interrupted(SystemError())
    (True, False)
    """
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def interruptible() -> Iterator[None]:
    """Around kernels: Ctrl-C leaves as a KeyboardInterrupt, also out of compiled code."""
    try:
        yield
    except SystemError as error:
        if interrupted(error):
            raise KeyboardInterrupt from error
        raise
