"""The one way a kernel is compiled: by numba, without the GIL, for few types, and kept on disk.

A kernel that Python calls says the types of its arguments, so that it is compiled for these only::

    a call whose arguments can be given as these types  =>  the same machine code

A number is given as any other type of numbers, as in an assignment; an array never is.

`kernels.cache` says where that is kept. Compiling takes seconds where nothing is kept yet, of which
one line is told by the logger ``pyspark_diff``.

Whoever runs kernels for a user does so within `interruptible`:

    Ctrl-C  ==>  KeyboardInterrupt, when the kernel that runs has returned

The interpreter lets a signal in wherever Python code runs, and some runs within the call of a
kernel: numba's on the way out, and when a kernel is loaded or compiled, what LLVM calls back. An
exception there is lost or becomes a `SystemError`, or LLVM goes on with a buffer that was never
filled in, and frees it. So a signal that comes there waits.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from numba.core import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from pyspark_diff.kernels.cache import Kept

#: Compiling is told of when it has taken so many seconds of a process.
PATIENCE = 2.0

_logger = logging.getLogger("pyspark_diff")
_TYPE = re.compile(r"(\w+)(?:\[([:,]+)\])?(!?)(-?)")


class Kernel(CPUDispatcher):
    """A compiled function, with the types that it is compiled for.

    The call is where signals wait for its end.
    """

    #: Types of the arguments, as in `signature`; none for what only other kernels call.
    declared: tuple[str, ...] = ()
    _cache: Kept
    _can_compile: bool

    def __call__(self, *arguments: Any) -> Any:
        try:
            return _call(self, *arguments)
        finally:
            if _waiting and threading.current_thread() is threading.main_thread():
                _outer(_waiting.pop(), None)

    def compile(self, sig: Any) -> Any:
        # The number 0 in a call is an integer like all others, and not a type of its own.
        if isinstance(sig, tuple):
            sig = tuple(map(types.unliteral, sig))
        with _compiling:
            return super().compile(sig)

    def compile_declared(self) -> int:
        """Compile for the declared types; gives for how many of them that was not done before."""
        with global_compiler_lock:
            if self._can_compile:
                for text in self.declared:
                    self.compile(signature(text))
                # From now on numba looks for a way from what is given to what is declared, which it
                # remembers; else it would take nothing but the very same types.
                self.disable_compile()
        return sum(self.stats.cache_misses.values())

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        # numba asks for this in the first call.
        if not self.declared:
            return super()._compile_for_args(*args, **kws)  # type: ignore[misc]
        self.compile_declared()
        return self

    def _search_new_conversions(self, *args: Any, **kws: Any) -> bool:
        # And for this when it knows no way.
        if super()._search_new_conversions(*args, **kws):  # type: ignore[misc]
            return True
        with global_compiler_lock:
            self.disable_compile(False)
            try:
                self.compile(tuple(map(self.typeof_pyval, args)))
            finally:
                self.disable_compile()
        return True


def kernel(*declared: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that Python calls, when it is called first, and keep the machine code.

    Every Python worker of a Spark executor is a fresh process, so without what is kept on disk each
    of them would compile each kernel again.

    Parameters
    ----------
    declared : str
        The types of the arguments, as in `signature`. Others are compiled for when they come.

    Returns
    -------
    callable
        What turns a function that numba can compile in nopython mode into a compiled one, with the
        same arguments.

    Examples
    --------
    >>> @kernel("int64")
    ... def triangle(n):
    ...     total = 0
    ...     for i in range(n + 1):
    ...         total += i
    ...     return total
    >>> triangle(4)
    10
    """
    return lambda function: _compiled(function, declared)


def jit(function: Callable[..., Any]) -> Any:
    """As `kernel`, for a function that only kernels call: its types come from there."""
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """As `jit`, for a small helper in an inner loop: its code becomes a part of each caller's.

    Else a helper of some size is called, and the loop around the call is not optimised: sums of
    doubles took two to three times as long. A call also hands over all that is known of each array,
    nine words of one with two dimensions, and counts who holds it: a replay of short histories
    spent a third of its time on that.
    """
    return _compiled(function, inline=True)


def _compiled(
    function: Callable[..., Any], declared: tuple[str, ...] = (), *, inline: bool = False
) -> Any:
    options = {"nopython": True, "nogil": True, "boundscheck": None, "forceinline": inline}
    made = Kernel(function, targetoptions=options)
    made.declared = declared
    made._cache = Kept(function, _compiling.begin)
    return made


def signature(arguments: str) -> tuple[types.Type, ...]:
    """The types of arguments, from text.

    They are written as numba writes them: ``int64[:]`` is an array, with ``-`` behind it one that
    is only read (which one that is written to may be, but not the other way round), with ``!`` one
    whose values need not lie side by side.

    Examples
    --------
    >>> signature("int64, bool[:]-")
    (int64, Array(bool, 1, 'C', True, aligned=True))
    """
    found: list[types.Type] = []
    for text in arguments.split(", "):
        matched = _TYPE.fullmatch(text)
        if matched is None:
            raise ValueError(f"{text!r} is no type of an argument")
        name, dimensions, loose, read = matched.groups()
        kind = types.boolean if name == "bool" else getattr(types, name)
        if dimensions:
            kind = types.Array(
                kind, dimensions.count(":"), "A" if loose else "C", readonly=bool(read)
            )
        found.append(kind)
    return tuple(found)


class _Compiling:
    """Tells, once in a process, that kernels are being compiled and how to do it beforehand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0  # a kernel is compiled within another one, and in several threads
        self._spent = 0.0
        self._since: float | None = None
        self._timer: threading.Timer | None = None
        self._told = False

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._since is not None and self._timer is not None and not self._depth:
                self._timer.cancel()
                self._spent += time.monotonic() - self._since
                self._since = self._timer = None

    def begin(self) -> None:
        """A kernel was not found on disk."""
        with self._lock:
            if self._since is None and not self._told:
                self._since = time.monotonic()
                self._timer = threading.Timer(max(PATIENCE - self._spent, 0), self._tell)
                self._timer.daemon = True
                self._timer.start()

    def _tell(self) -> None:
        with self._lock:
            if self._since is None or self._told:
                return
            self._told = True
        # A warning, as that is what a program shows that has not set up logging.
        _logger.warning(
            "compiling kernels for the first time, once per installation; "
            "`python -m pyspark_diff warm_up` does it beforehand"
        )


_compiling = _Compiling()


_call = CPUDispatcher.__call__
#: Signals that came while a kernel ran in the main thread, which is the one that takes them.
_waiting: list[int] = []
#: What takes a signal when it need not wait.
_outer: Callable[[int, FrameType | None], Any] = signal.default_int_handler


def _take(number: int, frame: FrameType | None) -> None:
    """Hand a signal on, or let it wait if it came within the call of a kernel."""
    code = Kernel.__call__.__code__
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
        if replaced is not None:
            # What it was is asked in one go: Python takes microseconds for the name of a handler.
            last = signal.signal(signal.SIGINT, replaced)
            if last is not _take:
                signal.signal(signal.SIGINT, last)
