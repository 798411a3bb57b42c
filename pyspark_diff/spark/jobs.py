"""Spark jobs that Ctrl-C ends.

    a wait for a job is interrupted  ==>  the job is cancelled, and the interrupt is raised
    Spark is still planning the job  ==>  it is cancelled when it begins

PySpark reads the answer of the JVM in the calling thread. An interrupt of that read cannot use the
connection, which waits for the answer, so the job and all its tasks run on. Here a job has its own
thread, and the waiting thread is free to cancel it.
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

from pyspark_diff.spark.jvm_context import add_tag, cancel_tag, cancels_all, has_context

#: Seconds to wait for a cancelled job, and between two cancellations. A job that Spark is still
#: planning has to be cancelled again, also after the wait.
PATIENCE, AGAIN = 1.5, 0.03
#: Seconds between two checks whether a job is still needed: each takes some microseconds.
EVERY = 0.02

T = TypeVar("T")


def run_job(
    spark: SparkSession, job: Callable[[], T], check: Callable[[], None] = lambda: None
) -> T:
    """The result of a function that runs Spark jobs. An interrupted wait cancels the jobs.

    Parameters
    ----------
    spark : SparkSession
        The session of the jobs. Local properties of this thread, such as a pool, apply to them.
    job : callable
        Called in a thread of its own.
    check : callable
        Called repeatedly while the job runs; an error that it raises ends the wait.

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
    """A thread that inherits the local properties of its creator for Spark jobs.

    Parameters
    ----------
    answer : Future
        Receives the result or the error of ``run``, also if the session was stopped meanwhile and
        has no properties to inherit.
    """

    def answered() -> None:
        try:
            answer.set_result(run())
        except BaseException as error:
            answer.set_exception(error)

    if not is_remote() and not has_context():
        # There is nothing to inherit; ``run`` reports that Spark was stopped.
        return threading.Thread(target=answered, name=name, daemon=daemon)
    return _Inheriting(answered, answer, session=spark, name=name, daemon=daemon)


class _Inheriting(InheritableThread):
    """It sets the answer even if an error occurs before the call of the target."""

    def __init__(self, target: Callable[[], None], answer: Future[T], **how: object):
        super().__init__(target, **how)  # type: ignore[arg-type]
        self._answer = answer

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            if self._answer.done():
                raise
            self._answer.set_exception(error)


@contextmanager
def cancelling_nothing() -> Iterator[None]:
    """Within the context, Ctrl-C interrupts the wait and cancels no job.

    PySpark's handler of the signal cancels all jobs. A handler of the user stays.
    """
    before = None
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if cancels_all(handler):
            before = handler
    try:
        if before is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if before is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
