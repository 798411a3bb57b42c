"""Spark jobs that Ctrl-C ends.

    whoever waits for a job is interrupted  ==>  the job is cancelled, and the interrupt goes on

PySpark reads the answer of the JVM in the thread that asks for it. An interrupt that meets the
reading cannot use the connection, which is waiting for that answer, so the job runs on, with all
of its tasks. So a job has a thread of its own here, and the one that waits is free to cancel it.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Callable, TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession, is_remote

#: Seconds for which a cancelled job is waited for. One that is still being planned has to be
#: cancelled again.
PATIENCE, AGAIN = 5.0, 0.1
#: Seconds between two looks at whether a job is still wanted.
EVERY = 0.1

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

    def run() -> None:
        try:
            _add_tag(spark, tag)
            answer.set_result(job())
        except BaseException as error:
            answer.set_exception(error)

    thread = InheritableThread(run, session=spark, daemon=True)
    try:
        thread.start()
        while wait([answer], EVERY).not_done:
            check()
        return answer.result()
    except BaseException:
        until = time.monotonic() + PATIENCE
        while thread.is_alive() and not answer.done() and time.monotonic() < until:
            with suppress(Exception):
                _cancel(spark, tag)
            thread.join(AGAIN)
        raise


def _add_tag(spark: SparkSession, tag: str) -> None:
    """Mark the jobs of this thread."""
    if is_remote():
        spark.addTag(tag)
    else:
        # A classic session knows its own tags only in the thread that has set them.
        spark.sparkContext.addJobTag(tag)


def _cancel(spark: SparkSession, tag: str) -> None:
    if is_remote():
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)
