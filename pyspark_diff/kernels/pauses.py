"""Between two calls of a function of the user: whether to go on is looked at there.

    pause()  ≡  what `looking` was given, in the same thread; nothing where there is none
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_thread = threading.local()


def pause() -> None:
    """Called before each call of a function that may take long; raises if work is to end."""
    look = who_looks()
    if look is not None:
        look()


def who_looks() -> Callable[[], None] | None:
    """What is called in the pauses of this thread."""
    return getattr(_thread, "look", None)


@contextmanager
def looking(look: Callable[[], None]) -> Iterator[None]:
    """Around work of this thread, in the pauses of which something is called.

    Examples
    --------
    >>> with looking(lambda: print("goes on")):
    ...     pause()
    goes on
    >>> pause()
    """
    before = who_looks()
    _thread.look = look
    try:
        yield
    finally:
        _thread.look = before
