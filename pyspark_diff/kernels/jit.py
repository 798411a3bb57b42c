"""The one way a kernel is compiled: by numba, without the GIL, kept in a cache on disk.

Whoever runs kernels for a user does so within `interruptible`:

    Ctrl-C  ==>  KeyboardInterrupt, when the kernel that runs has returned

The interpreter lets a signal in wherever Python code runs, and some runs within the call of a
kernel: numba's on the way out, and when a kernel is loaded or compiled, what LLVM calls back. An
exception there is lost or becomes a `SystemError`, or LLVM goes on with a buffer that was never
filled in, and frees it. So a signal that comes there waits.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher
from numba.core.registry import CPUDispatcher


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
    return _compiled(function, inline=False)


def inlined(function: Callable[..., Any]) -> Any:
    """As `jit`, for a small helper in an inner loop: its code becomes a part of each caller's.

    Else a helper of some size is called, and the loop around the call is not optimised: sums of
    doubles took two to three times as long.
    """
    return _compiled(function, inline=True)


def _compiled(function: Callable[..., Any], *, inline: bool) -> Any:
    try:
        kernel = numba.njit(cache=True, nogil=True, forceinline=inline)(function)
    except RuntimeError as error:
        # numba has no class of its own for this; any other RuntimeError is a fault in the kernel.
        if "no locator available" not in str(error):
            raise
        kernel = numba.njit(nogil=True, forceinline=inline)(function)
    if isinstance(kernel, Dispatcher):  # it is the function itself under NUMBA_DISABLE_JIT
        kernel.__class__ = _Kernel
    return kernel


class _Kernel(CPUDispatcher):  # type: ignore[misc]
    """A kernel as Python calls it; the call is where signals wait for its end."""

    def __call__(self, *arguments: Any) -> Any:
        try:
            return _call(self, *arguments)
        finally:
            if _waiting and threading.current_thread() is threading.main_thread():
                _outer(_waiting.pop(), None)


_call = CPUDispatcher.__call__
#: Signals that came while a kernel ran in the main thread, which is the one that takes them.
_waiting: list[int] = []
#: What takes a signal when it need not wait.
_outer: Callable[[int, FrameType | None], Any] = signal.default_int_handler


def _take(number: int, frame: FrameType | None) -> None:
    """Hand a signal on, or let it wait if it came within the call of a kernel."""
    code = _Kernel.__call__.__code__
    below = frame
    if frame is not None and frame.f_code is code:
        # The kernel has not begun, or it has returned: here nobody but Python looks.
        below = frame.f_back
    while below is not None:
        if below.f_code is code:
            if not _waiting:
                _waiting.append(number)
            return
        below = below.f_back
    _outer(number, frame)


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
    """Around kernels: Ctrl-C leaves as a KeyboardInterrupt, also out of compiled code of a user.

    In the main thread it takes the place of the function that handles the signal, if there is one,
    and calls it when no kernel runs.
    """
    global _outer
    replaced = None
    try:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before) and before is not _take:
                _outer = replaced = before
                signal.signal(signal.SIGINT, _take)
        yield
    except SystemError as error:
        if interrupted(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        # Cut short here, `_take` stays, and goes on handing signals to what was there before.
        if replaced is not None and signal.getsignal(signal.SIGINT) is _take:
            signal.signal(signal.SIGINT, replaced)
