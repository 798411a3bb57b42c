"""Fallbacks: a slower path does a piece of work that a fast path cannot do exactly.

    fast path(input)  =  slow path(input)      or a fallback with its reason

A fallback changes the cost of a step and never its output. Each step counts its fallbacks by
operator, path and reason: ``flow.last_report.fallbacks``, ``flow.explain()``. The logger
``pyspark_diff`` reports each of them once in a process, at level INFO.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from pyspark_diff.errors import FallbackError

#: The setting of the environment that makes each fallback an error: ``raise``.
SETTING = "PYSPARK_DIFF_FALLBACKS"
#: The fast paths of sources: files of Delta tables by the package deltalake, the changes that a
#: Delta table recorded, the rows that were added to a log, Parquet files by pyarrow. The fast
#: paths of a step: an expression without Spark, a loop on integers, operators fused into one task.
DELTALAKE, FEED, ADDED, PYARROW, COMPILED, INTEGERS, FUSED = (
    "deltalake", "change feed", "added rows", "pyarrow", "compiled expression", "integer loop",
    "fused task",
)
#: Rows in memory, and copies of batch files on the local disk: a spill, a row that is computed
#: again, and a cache miss count as fallbacks from them, and are never errors.
MEMORY, CACHE = "memory", "cache"
#: The number of different fallbacks that one process reports to the logger.
_REPORTED_MAX = 1_000

_logger = logging.getLogger("pyspark_diff")


class Fallback(NamedTuple):
    """A kind of fallback.

    Parameters
    ----------
    operator : str
        The operator, source or sink that does the work.
    path : str
        The fast path that was left: "deltalake", "change feed", "added rows", "pyarrow",
        "compiled expression", "integer loop", "fused task", "memory" or "cache".
    reason : str
        The cause, in one sentence without a full stop.
    """

    operator: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} left the path {self.path!r}: {self.reason}"


#: Numbers of fallbacks by kind.
Fallbacks = Counter[Fallback]

_counting: ContextVar[Fallbacks | None] = ContextVar("pyspark_diff_fallbacks", default=None)
_reported: set[Fallback] = set()
_lock = threading.Lock()


@contextmanager
def counting(fallbacks: Fallbacks) -> Iterator[Fallbacks]:
    """Count the fallbacks of this thread, and of threads with its context, in `fallbacks`.

    Examples
    --------
    >>> with counting(Fallbacks()) as fallbacks:
    ...     fall_back("delta", "deltalake", "the table has column mapping")
    ...     fall_back("delta", "deltalake", "the table has column mapping")
    >>> [(kind.path, number) for kind, number in fallbacks.items()]
    [('deltalake', 2)]
    """
    before = _counting.set(fallbacks)
    try:
        yield fallbacks
    finally:
        _counting.reset(before)


def move(source: Fallbacks, target: Fallbacks) -> None:
    """Add the fallbacks of `source` to those of `target`, and empty it."""
    with _lock:
        target.update(source)
        source.clear()


def fall_back(operator: str, path: str, reason: str) -> None:
    """As `count`; an error if the user does not allow fallbacks.

    Parameters
    ----------
    operator, path, reason : str
        As of `Fallback`.

    Raises
    ------
    FallbackError
        If ``PYSPARK_DIFF_FALLBACKS`` is ``raise`` in the environment, as in a test of a program
        that shall stay on its fast paths.
    """
    kind = Fallback(operator, path, reason)
    if os.environ.get(SETTING) == "raise":
        raise FallbackError(
            f"{kind}. {SETTING}=raise turns each fallback into an error. Change the program or its "
            f"data, or unset {SETTING}"
        )
    count(operator, path, reason)


def count(operator: str, path: str, reason: str, times: int = 1) -> None:
    """Count fallbacks of a kind, and report the first one of a process to the logger.

    Parameters
    ----------
    operator, path, reason : str
        As of `Fallback`.
    times : int
        The number of fallbacks.
    """
    kind = Fallback(operator, path, reason)
    fallbacks = _counting.get()
    with _lock:
        if fallbacks is not None:
            fallbacks[kind] += times
        if kind in _reported or len(_reported) >= _REPORTED_MAX:
            return
        _reported.add(kind)
    _logger.info("%s", kind)
