"""The pauses between two calls of a user's function, in which the engine checks for cancellation.

    pause()  ≡  a call of the argument of `looking`, in the same thread; nothing without one
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_thread = threading.local()


def pause() -> None:
    """Called before each call of a function that may take long; raises if work is to end."""
    look = who_looks()
    if look is not None:
        look()


def who_looks() -> Callable[[], None] | None:
    """The function that is called in the pauses of this thread."""
    return getattr(_thread, "look", None)


class looking:
    """A context in which the pauses of this thread call a function.

    Examples
    --------
    >>> with looking(lambda: print("goes on")):
    ...     pause()
    goes on
    >>> pause()
    """

    def __init__(self, look: Callable[[], None]):
        self._look = look

    def __enter__(self) -> None:
        self._before = who_looks()
        _thread.look = self._look

    def __exit__(self, *_: object) -> None:
        _thread.look = self._before
