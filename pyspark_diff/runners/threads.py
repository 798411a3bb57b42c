"""Work that several threads of the driver do in parallel, until the program ends."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Callable, Iterable, Iterator, TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def side_by_side(
    do: Callable[[_Item], _Made], items: Iterable[_Item], threads: int
) -> Iterator[_Made]:
    """The results of a function for each item, in the order of items.

    Parameters
    ----------
    threads : int
        Maximal number of concurrent calls, and of results that wait for the caller.

    Examples
    --------
    >>> list(side_by_side(lambda n: n * n, range(5), 2))
    [0, 1, 4, 9, 16]
    """
    if threads < 2:
        yield from map(do, items)
        return
    waiting: deque[Future[_Made]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            if len(waiting) == threads:
                yield waiting.popleft().result()
            try:
                waiting.append(pool.submit(copy_context().run, do, item))
            except RuntimeError:  # an ending program starts no threads, but waits for this work
                while waiting:
                    yield waiting.popleft().result()
                yield do(item)
        while waiting:
            yield waiting.popleft().result()


class Team:
    """Threads for repeated parallel work, from the first call of `each` to `close`.

    Parameters
    ----------
    threads : int
        Number of threads, the calling thread included.

    Examples
    --------
    >>> team = Team(2)
    >>> team.each(lambda n: n * n, range(5))
    [0, 1, 4, 9, 16]
    >>> team.close()
    """

    def __init__(self, threads: int):
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def each(self, do: Callable[[_Item], _Made], items: Iterable[_Item]) -> list[_Made]:
        """The results of a function for each item, in the order of items, after all calls."""
        todo = list(enumerate(items))
        left, results = iter(todo), dict[int, _Made]()

        def work() -> None:
            for number, item in left:
                results[number] = do(item)

        others: list[Future[None]] = []
        try:
            for _ in todo[1:self._threads]:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._threads - 1)
                others.append(self._pool.submit(work))
        except RuntimeError:
            pass  # an ending program starts no threads, but waits for this work
        try:
            work()
        finally:
            wait(others)
        for other in others:
            other.result()
        return [results[number] for number, _ in todo]

    def close(self) -> None:
        """Wait for the threads, and end them."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
