"""Spark jobs whose tasks read and write their rows themselves.

    run_tasks(n, do)            =  do(0) + ... + do(n - 1)                   one task each
    run_moved(makers, k, do)    =  do(0, bytes for 0) + ... + do(k - 1, bytes for k - 1)

Spark sees bytes, so it has no plan to make. Planning such a job as a frame would take the driver
longer than the work of most iterations of a loop, and a frame's exchange is a job of its own.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Sequence

from pyspark.sql import SparkSession, is_remote

from pyspark_diff.spark.jvm_context import collected

#: A number of tasks, and a function from a task's number to pairs of a bucket and its bytes.
Maker = tuple[int, Callable[[int], Iterator[tuple[int, bytes]]]]


def has_tasks() -> bool:
    """Whether such jobs are possible: Spark Connect has only frames."""
    return not is_remote()


def run_tasks(
    spark: SparkSession, count: int, do: Callable[[int], Iterator[Any]]
) -> list[Any]:
    """The results of all tasks.

    Parameters
    ----------
    do : callable
        From the number of a task to its results.

    Examples
    --------
    >>> run_tasks(spark, 3, lambda number: iter([number * 2])), run_tasks(spark, 0, iter)
    ([0, 2, 4], [])
    """
    def run(number: int, nothing: Iterable[Any]) -> Iterator[Any]:
        _to_the_end(nothing)
        return do(number)

    if not count:
        return []
    return collected(spark, count, run)


def run_moved(
    spark: SparkSession, makers: Sequence[Maker], buckets: int,
    do: Callable[[int, Iterable[bytes]], Iterator[Any]],
) -> list[Any]:
    """The results of a task for each bucket, from the bytes that other tasks made for it.

    Parameters
    ----------
    makers : sequence of (int, callable)
    do : callable
        From a bucket and its bytes, in any order, to the results.

    Examples
    --------
    >>> makers = [(2, lambda number: iter([(number, b"a"), (0, b"b")]))]
    >>> run_moved(spark, makers, 3, lambda bucket, found: iter([(bucket, sorted(found))]))
    [(0, [b'a', b'b', b'b']), (1, [b'a']), (2, [])]
    >>> run_moved(spark, [], 2, lambda bucket, found: iter([(bucket, list(found))]))
    [(0, []), (1, [])]
    """
    tasks = [(make, number) for count, make in makers for number in range(count)]
    if not tasks:
        return run_tasks(spark, buckets, lambda bucket: do(bucket, ()))

    def run(task: int, nothing: Iterable[Any]) -> Iterator[tuple[int, bytes]]:
        _to_the_end(nothing)
        make, number = tasks[task]
        return make(number)

    def done(bucket: int, moved: Iterable[bytes]) -> Iterator[Any]:
        remaining = iter(moved)
        yield from do(bucket, remaining)
        _to_the_end(remaining)

    return collected(spark, len(tasks), run, (buckets, done))


def _to_the_end(items: Iterable[Any]) -> None:
    """Read the input of a task to its end, also if it is empty: a worker would take the unread end
    of one task's input for the beginning of the next."""
    for _ in items:
        pass
