"""Spark jobs that Ctrl-C ends.

    whoever waits for a job is interrupted  ==>  the job is cancelled, and the interrupt goes on
    and if Spark is still planning it then  ==>  it is cancelled when it begins

PySpark reads the answer of the JVM in the thread that asks for it. An interrupt that meets the
reading cannot use the connection, which is waiting for that answer, so the job runs on, with all
of its tasks. So a job has a thread of its own here, and the one that waits is free to cancel it.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession, is_remote

from pyspark_diff.spark.jvm import add_tag, cancel_tag, cancels_all, has_context

#: Seconds for which a cancelled job is waited for. One that is still being planned has to be
#: cancelled again, also when nobody waits any more.
PATIENCE, AGAIN = 1.5, 0.03
#: Seconds between two looks at whether a job is still wanted: each takes some microseconds.
EVERY = 0.02

T = TypeVar("T")


def run_job(
    spark: SparkSession, job: Callable[[], T], check: Callable[[], None] = lambda: None
) -> T:
    """What a function gives that runs Spark jobs; they are cancelled if the wait is cut short.

    Parameters
    ----------
    spark : SparkSession
        Its session. What this thread has set for its jobs, such as a pool, holds for them too.
    job : callable
        Called in a thread of its own.
    check : callable
        Called again and again while the job runs; what it raises ends the wait.

    Examples
    --------
    >>> run_job(spark, spark.range(3).count)
    3
    """
    tag = f"pyspark_diff-{uuid.uuid4().hex}"
    answer: Future[T] = Future()

    def run() -> T:
        add_tag(spark, tag)
        return job()

    thread = inheriting_thread(spark, run, answer, daemon=True)

    def cancel_until(end: float) -> None:
        while not answer.done() and time.monotonic() < end:
            with suppress(Exception):
                cancel_tag(spark, tag)
            wait([answer], AGAIN)

    try:
        thread.start()
        while wait([answer], EVERY).not_done:
            check()
        return answer.result()
    except BaseException:
        if thread.is_alive():
            cancel_until(time.monotonic() + PATIENCE)
        if thread.is_alive() and not answer.done():
            threading.Thread(
                target=cancel_until, args=(math.inf,), name="pyspark_diff cancel", daemon=True
            ).start()
        raise


def inheriting_thread(
    spark: SparkSession, run: Callable[[], T], answer: Future[T], *, name: str | None = None,
    daemon: bool | None = None,
) -> threading.Thread:
    """A thread that hands on what the one that starts it has set for its Spark jobs.

    Parameters
    ----------
    spark : SparkSession
    run : callable
    answer : Future
        Is given what ``run`` gives or raises; always, also if a session that was stopped meanwhile
        takes nothing over.
    name : str, optional
    daemon : bool, optional
    """

    def told() -> None:
        try:
            answer.set_result(run())
        except BaseException as error:
            answer.set_exception(error)

    if not is_remote() and not has_context():
        # There is nothing to inherit; what runs says that Spark was stopped.
        return threading.Thread(target=told, name=name, daemon=daemon)
    return _Inheriting(told, answer, session=spark, name=name, daemon=daemon)


class _Inheriting(InheritableThread):
    """Its answer comes, whatever happens before the target is called."""

    def __init__(self, target: Callable[[], None], answer: Future[T], **how: object):
        super().__init__(target, **how)  # type: ignore[arg-type]
        self._told = answer

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            if self._told.done():
                raise
            self._told.set_exception(error)


@contextmanager
def cancelling_nothing() -> Iterator[None]:
    """Around a wait for something that Ctrl-C shall not end; the wait it does.

    PySpark's handler of the signal cancels all jobs. One of the user stays.
    """
    before = None
    if threading.current_thread() is threading.main_thread():
        found = signal.getsignal(signal.SIGINT)
        if cancels_all(found):
            before = found
    try:
        if before is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if before is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
