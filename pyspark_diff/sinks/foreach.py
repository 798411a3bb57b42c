"""A function of the user as a sink: each epoch at least once, with its number for idempotence."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from pyspark_diff.dataflow.sink import Epoch, Sink


def foreach(function: Callable[[DataFrame, int], object]) -> Sink:
    """A function that is called with the changes of each step.

    If the function raises, or the application ends before it returns, it is called again with the
    same changes and the same epoch, before any later work. So it is called at least once for each
    epoch, in order. A target that remembers the last epoch, or an idempotent write, has each epoch
    exactly once.

    Parameters
    ----------
    function : callable
        Called as ``function(changes, epoch)`` with a Spark frame, the columns of the collection and
        then time and diff, and the number of the epoch. The frame is valid until the function
        returns.

    Examples
    --------
    >>> from pyspark_diff import Dataflow
    >>> with Dataflow(spark) as flow:
    ...     words, words_in = flow.input("words", "word string")
    ...     _ = words.sink("out", foreach(lambda changes, epoch: print(epoch, changes.count())))
    ...     words_in.insert([("a",), ("b",)])
    ...     _ = flow.advance_to(1)
    1 2
    """
    if not callable(function):
        raise TypeError(
            f"foreach takes a function of changes and epoch, such as print, not {function!r}"
        )
    return _Foreach(function)


class _Foreach(Sink):
    def __init__(self, function: Callable[[DataFrame, int], object]):
        self._function = function

    def write(self, epoch: Epoch) -> None:
        self._function(epoch.changes, epoch.number)

    def __repr__(self) -> str:
        return f"foreach({getattr(self._function, '__qualname__', self._function)!s})"
