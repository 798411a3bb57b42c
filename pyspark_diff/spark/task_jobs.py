"""Spark jobs of tasks that read and make their rows by themselves.

    run_tasks(n, do)            =  do(0) + ... + do(n - 1)                   a task each
    run_moved(makers, k, do)    =  do(0, what was made for 0) + ... + do(k - 1, ...)

Spark sees bytes, so there is nothing to plan. It would take the driver longer to plan such a job as
a frame than most iterations of a loop are at work, and a frame's exchange is a job of its own.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Sequence

from pyspark.sql import SparkSession, is_remote

from pyspark_diff.spark.jvm import collected

#: So many tasks, and what each gives for which bucket, by its number.
Maker = tuple[int, Callable[[int], Iterator[tuple[int, bytes]]]]


def has_tasks() -> bool:
    """Whether there are such jobs: over Spark Connect there are only frames."""
    return not is_remote()


def run_tasks(
    spark: SparkSession, count: int, do: Callable[[int], Iterator[Any]]
) -> list[Any]:
    """What all tasks give.

    Parameters
    ----------
    spark : SparkSession
    count : int
    do : callable
        From the number of a task to what it gives.

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
    """What tasks give for each bucket, of the bytes that others made for it.

    Parameters
    ----------
    spark : SparkSession
    makers : sequence of (int, callable)
    buckets : int
    do : callable
        From a bucket and all that was made for it, in any order, to what it gives.

    Examples
    --------
    >>> makers = [(2, lambda number: iter([(number, b"a"), (0, b"b")]))]
    >>> run_moved(spark, makers, 3, lambda bucket, found: iter([(bucket, sorted(found))]))
    [(0, [b'a', b'b', b'b']), (1, [b'a']), (2, [])]
    >>> run_moved(spark, [], 2, lambda bucket, found: iter([(bucket, list(found))]))
    [(0, []), (1, [])]
    """
    every = [(make, number) for count, make in makers for number in range(count)]
    if not every:
        return run_tasks(spark, buckets, lambda bucket: do(bucket, ()))

    def run(task: int, nothing: Iterable[Any]) -> Iterator[tuple[int, bytes]]:
        _to_the_end(nothing)
        make, number = every[task]
        return make(number)

    def done(bucket: int, found: Iterable[bytes]) -> Iterator[Any]:
        found = iter(found)
        yield from do(bucket, found)
        _to_the_end(found)

    return collected(spark, len(every), run, (buckets, done))


def _to_the_end(given: Iterable[Any]) -> None:
    """Take all that Spark gives a task, also where that is nothing: a worker that has not seen the
    end of one task's input takes it for the beginning of the next."""
    for _ in given:
        pass
