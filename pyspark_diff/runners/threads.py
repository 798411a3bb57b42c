"""Work that several threads of the driver do side by side, for as long as there are threads."""

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
    """What a function gives for each item, in their order.

    Parameters
    ----------
    do : callable
    items : iterable
    threads : int
        So many are at work at once, and no more results than that wait to be taken.

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
            except RuntimeError:  # the program ends, and waits for this: no thread can be had
                while waiting:
                    yield waiting.popleft().result()
                yield do(item)
        while waiting:
            yield waiting.popleft().result()


class Team:
    """Threads that come together again and again; they are there from the first time to `close`.

    Parameters
    ----------
    threads : int
        The one that asks is one of them.

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
        """What a function gives for each item, in their order, when all of them are done."""
        todo = list(enumerate(items))
        left, made = iter(todo), dict[int, _Made]()

        def work() -> None:
            for number, item in left:
                made[number] = do(item)

        others: list[Future[None]] = []
        try:
            for _ in todo[1:self._threads]:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._threads - 1)
                others.append(self._pool.submit(work))
        except RuntimeError:
            pass  # the program ends, and waits for this: no thread can be had
        try:
            work()
        finally:
            wait(others)
        for one in others:
            one.result()
        return [made[number] for number, _ in todo]

    def close(self) -> None:
        """Let the threads go, when they are done."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
