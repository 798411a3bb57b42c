"""The only way to compile a kernel: with numba, without the GIL, for few types, and stored on disk.

A kernel that Python calls declares the types of its arguments, and is compiled for these only::

    a call whose arguments convert to these types  =>  the same machine code

A number converts to any other type of numbers, as in an assignment; an array never converts.

`kernels.cache` has the places of the machine code. Compiling takes seconds if nothing is stored
yet; then the logger ``pyspark_diff`` writes one line.

Code that runs kernels for a user does so inside of `interruptible`:

    Ctrl-C  ==>  KeyboardInterrupt, after the running kernel has returned

The interpreter delivers a signal while Python code runs, and some Python code runs inside the call
of a kernel. It is numba's own code on the way out, and LLVM's callbacks if a kernel is loaded or
compiled. An exception there is lost or becomes a `SystemError`, or LLVM continues with a buffer
that was never filled, and frees it. So a signal that arrives there waits.
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

from pyspark_diff import thresholds
from pyspark_diff.kernels.cache import KernelCache

_logger = logging.getLogger("pyspark_diff")
_TYPE = re.compile(r"(\w+)(?:\[([:,]+)\])?(!?)(-?)")


class CompiledKernel(CPUDispatcher):
    """A compiled function, with the types that it is compiled for.

    Its `__call__` delivers the signals that arrived during the call.
    """

    #: Types of the arguments, as in `signature`; none for a function that only other kernels call.
    declared: tuple[str, ...] = ()
    _cache: KernelCache
    _can_compile: bool

    def __call__(self, *arguments: Any) -> Any:
        try:
            return _call(self, *arguments)
        finally:
            if _waiting and threading.current_thread() is threading.main_thread():
                _outer(_waiting.pop(), None)

    def compile(self, sig: Any) -> Any:
        # The number 0 in a call has the type of all other integers, and not a literal type.
        if isinstance(sig, tuple):
            sig = tuple(map(types.unliteral, sig))
        with _compiling:
            return super().compile(sig)

    def compile_declared(self) -> int:
        """Compile for the declared types; returns the number of types that were not compiled
        before."""
        with global_compiler_lock:
            if self._can_compile:
                for text in self.declared:
                    self.compile(signature(text))
                # From now on numba searches for a conversion of the arguments to the declared
                # types, and caches it. Without this it would accept only arguments of exactly these
                # types.
                self.disable_compile()
        return sum(self.stats.cache_misses.values())

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        # numba calls this for the first call.
        if not self.declared:
            return super()._compile_for_args(*args, **kws)  # type: ignore[misc]
        self.compile_declared()
        return self

    def _search_new_conversions(self, *args: Any, **kws: Any) -> bool:
        # numba calls this if it knows no conversion.
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
    """Compile a function that Python calls, at its first call, and store the machine code.

    Every Python worker of a Spark executor is a new process, so without the code on disk each
    worker would compile each kernel again.

    Parameters
    ----------
    declared : str
        The types of the arguments, as in `signature`. Other types are compiled on demand.

    Returns
    -------
    callable
        A decorator: it turns a function that numba can compile in nopython mode into a compiled
        one, with the same arguments.

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
    """As `kernel`, for a function that only kernels call: the callers determine its types."""
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """As `jit`, for a small helper in an inner loop: its code becomes a part of each caller's code.

    Otherwise a helper of some size is called, and the loop around the call is not optimised: sums
    of doubles took two to three times as long. A call also passes the whole description of each
    array, nine words for two dimensions, and counts references: a replay of short histories spent a
    third of its time on that.
    """
    return _compiled(function, inline=True)


def _compiled(
    function: Callable[..., Any], declared: tuple[str, ...] = (), *, inline: bool = False
) -> Any:
    options = {"nopython": True, "nogil": True, "boundscheck": None, "forceinline": inline}
    compiled = CompiledKernel(function, targetoptions=options)
    compiled.declared = declared
    compiled._cache = KernelCache(function, _compiling.begin)
    return compiled


def signature(arguments: str) -> tuple[types.Type, ...]:
    """The types of arguments, from text.

    They are written as in numba: ``int64[:]`` is an array. A ``-`` after it is an array that is
    only read (a writable array is accepted too, but not the other way round). A ``!`` is an array
    whose values need not be contiguous.

    Examples
    --------
    >>> signature("int64, bool[:]-")
    (int64, Array(bool, 1, 'C', True, aligned=True))
    """
    kinds: list[types.Type] = []
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
        kinds.append(kind)
    return tuple(kinds)


class _Compiling:
    """Logs, once in a process, that kernels are being compiled and how to do it in advance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0  # kernels are compiled inside of each other, and in several threads
        self._spent = 0.0
        self._since: float | None = None
        self._timer: threading.Timer | None = None
        self._has_logged = False

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
        """Start the timer: a kernel is not stored on disk."""
        with self._lock:
            if self._since is None and not self._has_logged:
                self._since = time.monotonic()
                seconds = max(thresholds.current.compile_log_seconds - self._spent, 0)
                self._timer = threading.Timer(seconds, self._log)
                self._timer.daemon = True
                self._timer.start()

    def _log(self) -> None:
        with self._lock:
            if self._since is None or self._has_logged:
                return
            self._has_logged = True
        # A warning, since a program without a configuration of logging prints it.
        _logger.warning(
            "compiling kernels for the first time, once per installation; "
            "`python -m pyspark_diff warm_up` does it beforehand"
        )


_compiling = _Compiling()


_call = CPUDispatcher.__call__
#: Signals that arrived while a kernel ran in the main thread, which handles them.
_waiting: list[int] = []
#: The handler of a signal that need not wait.
_outer: Callable[[int, FrameType | None], Any] = signal.default_int_handler


def _take(number: int, frame: FrameType | None) -> None:
    """Pass a signal on, or store it if it arrived during the call of a kernel."""
    code = CompiledKernel.__call__.__code__
    below = frame
    if frame is not None and frame.f_code is code:
        # The kernel has not begun, or it has returned: only Python code runs here.
        below = frame.f_back
    while below is not None:
        if below.f_code is code:
            if not _waiting:
                _waiting.append(number)
            return
        below = below.f_back
    _outer(number, frame)


def interrupted(error: BaseException | None) -> bool:
    """Whether an error comes from a Ctrl-C in compiled code.

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
    """A context for kernels: Ctrl-C raises KeyboardInterrupt, also in compiled code of a user.

    In the main thread it replaces the handler of the signal, if there is one, and calls that
    handler when no kernel runs.
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
        # If this is cut short, `_take` stays, and continues to pass signals to the previous
        # handler.
        if replaced is not None:
            # One call sets and reads the handler: Python takes microseconds for the name of a
            # handler.
            last = signal.signal(signal.SIGINT, replaced)
            if last is not _take:
                signal.signal(signal.SIGINT, last)
