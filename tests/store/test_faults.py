"""A few of the faults of ci/faults, and tests of the errors that they revealed.

    a step with a fault is right, or it changes nothing and its repetition is right
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import connect_server
import pyarrow as pa
import pytest
from fault_program import KINDS, no_job, run_with
from programs import files_of

from pyspark_diff import Dataflow, StorageError
from pyspark_diff.errors import from_text
from pyspark_diff.runners import tasks
from pyspark_diff.runners.spark import SparkRunner
from pyspark_diff.runners.work import Merge
from pyspark_diff.spark.jobs import run_job


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [
        ("an error, for ever", "task rename", 9),
        ("worker killed", "task write", 5),
        ("Ctrl-C in a job", "task kernel", 7),
    ],
)
def test_a_step_meets_a_fault(spark, tmp_path, name, place, number):
    if connect_server.WANTED:
        number = 1  # over Connect a step passes through a place less often
    kind = next(kind for kind in KINDS if kind.name == name)
    # This session does not try a task again.
    kind = replace(kind, right=False, fails=True, error=kind.error if kind.fails else Exception)
    assert run_with(spark, kind, place, number, tmp_path) == "failed"


def merged(path):
    """The result of a task that merges one file."""
    do = tasks.merge_buckets([(Merge({0: [str(path)]}, str(path.parent), None, 1000), 0)])
    return list(tasks.with_errors(do)(0))


def test_an_error_of_a_file_that_may_pass_is_for_spark_to_try_again(tmp_path, monkeypatch):
    def refuse(code):
        def fail(*_):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(pa, "memory_map", fail)

    for code in errno.EIO, errno.ESTALE, errno.ETIMEDOUT:
        refuse(code)
        with pytest.raises(RuntimeError) as caught:
            merged(tmp_path / "00000.arrow")
        restored = from_text(str(caught.value))
        assert isinstance(restored, StorageError) and os.strerror(code) in str(restored)
    # The task reports a permanent error at once.
    for code in errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EACCES:
        refuse(code)
        ((_, result, _, error),) = merged(tmp_path / "00000.arrow")
        assert result is None and os.strerror(code) in error


def test_an_error_of_a_file_in_a_job_that_merges_is_one_of_the_library(spark, tmp_path):
    """Spark passes the error on as text."""
    with Dataflow(spark, runner="spark", buckets=1, root=str(tmp_path)) as flow:
        path = tmp_path / "00000.arrow"
        path.mkdir()  # the error of a directory counts as temporary
        with pytest.raises(StorageError, match=str(path)):
            SparkRunner(spark, flow.time_type).merge([
                Merge({0: [str(path)]}, str(tmp_path / "merged"), None, 1000)
            ])
        assert not files_of(flow) and not (tmp_path / "merged").exists()


def hold(folder):
    """A function of a task that creates a file at its start and then sleeps for a minute."""

    def run(batches):
        Path(folder, "runs").touch()
        time.sleep(60)
        yield from batches

    return run


@pytest.mark.parametrize("handler", [None, signal.default_int_handler])
def test_an_interrupt_ends_a_job_and_no_other(spark, tmp_path, handler):
    """It also holds without PySpark's handler, which would cancel all jobs."""

    def interrupt():
        while not (tmp_path / "runs").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handler or before)
    try:
        frame = spark.range(0, 1, 1, 1).mapInArrow(hold(tmp_path), "id long")
        with pytest.raises(KeyboardInterrupt):
            threading.Thread(target=interrupt).start()
            run_job(spark, frame.collect)
        no_job(spark, time.monotonic())
    finally:
        signal.signal(signal.SIGINT, before)
    assert run_job(spark, spark.range(7).count) == 7


@pytest.mark.classic_only("is about local properties of Spark's context")
def test_what_a_thread_has_set_for_its_jobs_holds(spark):
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "mine")
    try:
        assert run_job(spark, lambda: context.getLocalProperty("spark.scheduler.pool")) == "mine"
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)


def test_what_a_job_raises_is_raised(spark):
    with pytest.raises(ZeroDivisionError):
        run_job(spark, lambda: 1 // 0)
