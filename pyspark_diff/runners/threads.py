"""Work that several threads of the driver do side by side, for as long as there are threads."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
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
                waiting.append(pool.submit(do, item))
            except RuntimeError:  # the program ends, and waits for this: no thread can be had
                while waiting:
                    yield waiting.popleft().result()
                yield do(item)
        while waiting:
            yield waiting.popleft().result()
