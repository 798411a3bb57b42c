"""Ctrl-C always raises KeyboardInterrupt, and an interrupted step changes nothing.

    interrupted steps, then a whole step  ==  one step
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pyspark_diff import Dataflow
from pyspark_diff.kernels.jit import interrupted, interruptible
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.runners import local, threads
from pyspark_diff.runners.work import Merge
from pyspark_diff.sinks import Sink
from pyspark_diff.trace import held_batches

ROOT = Path(__file__).parents[2]

START = """
import os, signal, threading, time
import numba, numpy as np, pyarrow as pa
from pyspark_diff import Dataflow, session

spark = session(master="local[1]")
# PySpark's own handler asks the JVM to cancel jobs, and fails if the signal interrupts a JVM call.
signal.signal(signal.SIGINT, signal.default_int_handler)
patience = [0]


@numba.njit(nogil=True)  # a user's own: nothing waits for its end
def search(values, turns):
    # With such results compiled code turns the signal into a SystemError.
    sums = np.zeros_like(values)
    for turn in range(turns):
        for i in range(values.size):
            sums[i] += values[i] ^ turn
    return sums, values


search(np.arange(3), 1)


def slow(key, values):
    if patience[0]:
        interrupt(0.02)  # it interrupts compiled code, which runs at least ten times as long
    search(np.arange(1000), patience[0])
    return [(len(values),)]


def interrupt(after):
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()


def outcome(do):
    try:
        do()
    except BaseException as error:
        return type(error).__name__
    return "done"
"""

#: A user's function calls compiled code. An interrupt there is no error of the function.
REDUCE = START + """
with Dataflow(spark, runner="local", buckets=1) as flow:
    rows, rows_in = flow.input("rows", "k int, v int")
    sizes = rows.reduce(slow, "n int", "k").keep()
    rows_in.insert([(1, 1), (1, 2), (2, 1)])
    rows_in.close()
    for turns in 1_000_000, 1_000_000, 1_000_000, 0:
        patience[0] = turns
        print(outcome(flow.step), flush=True)
    print(sorted(map(tuple, sizes.at().collect())))
"""

#: Kernels of the library, interrupted at any moment.
COUNT = START + """
def build(flow):
    rows, rows_in = flow.input("rows", "k bigint")
    counts = rows.join(rows.distinct(), "k").count().keep()
    rows_in.insert(pa.table({"k": np.arange(400_000) % 100_000}))
    rows_in.close()
    return counts

with Dataflow(spark, runner="local", buckets=1) as flow:
    build(flow)
    began = time.perf_counter()
    flow.step()  # all is compiled by now
    lasts = time.perf_counter() - began
with Dataflow(spark, runner="local", buckets=1) as flow:
    counts = build(flow)
    for share in range(1, 10):
        result = outcome(lambda: (interrupt(lasts * share / 10), flow.step()))
        if result == "done":
            # The signal came after the step, or is still to come.
            outcome(lambda: time.sleep(lasts + 1))
            break
        print(result, flush=True)
    print(outcome(flow.step))
    print(counts.at().count(), counts.at().agg({"count": "sum"}).first()[0])
"""


#: Interrupts at the first line of Python functions that run inside the call of a kernel.
WITHIN = """
import signal, sys
import numpy as np
from llvmlite.binding import executionengine, ffi
from numba.core import serialize
from pyspark_diff.kernels.jit import interruptible, jit

engine = executionengine.ExecutionEngine
for inner in (
    engine._raw_object_cache_getbuffer, engine._raw_object_cache_notify,
    ffi._lib_fn_wrapper.__call__, serialize._numba_unpickle,
):
    @jit
    def kernel(values):
        copied = np.zeros_like(values)
        for i in range(values.size):
            copied[i] += values[i]
        return copied, values

    def called(frame, event, argument):
        if frame.f_code is inner.__code__:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    try:
        with interruptible():
            sys.settrace(called)
            kernel(np.arange(3))
    except BaseException as error:
        print(type(error).__name__, error.__cause__, sys.gettrace())
    assert signal.getsignal(signal.SIGINT) is handler
    assert kernel(np.arange(3))[0].tolist() == [0, 1, 2]
"""


def printed(program: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
def test_an_interrupt_in_compiled_code_is_an_interrupt():
    assert printed(REDUCE) == [*["KeyboardInterrupt"] * 3, "done", "[(1, 2), (2, 1)]"]


def test_an_interrupt_waits_for_the_end_of_a_kernel():
    # An interrupt between two lines of an LLVM callback led to a double free.
    assert printed(WITHIN) == ["KeyboardInterrupt None None"] * 4


def test_a_step_may_be_interrupted_at_any_moment():
    *outcomes, last, sums = printed(COUNT)
    assert set(outcomes) <= {"KeyboardInterrupt"} and last == "done"
    assert sums == "100000 400000"


def test_an_interrupt_is_told_from_a_failure_of_compiled_code():
    outer, inner = SystemError("returned a result with an exception set"), SystemError("the same")
    outer.__cause__ = inner
    for cause, wanted in (KeyboardInterrupt(), True), (MemoryError(), False), (None, False):
        inner.__cause__ = cause
        assert interrupted(outer) is wanted
        with pytest.raises(KeyboardInterrupt if wanted else SystemError):
            with interruptible():
                raise outer


def test_an_interrupt_that_comes_when_buckets_have_been_merged_is_not_lost(monkeypatch, tmp_path):
    """The pool waits for its threads then. An abandoned iterator would lose the interrupt."""
    class Interrupted(threads.ThreadPoolExecutor):
        def __exit__(self, *error):
            super().__exit__(*error)
            raise KeyboardInterrupt

    monkeypatch.setattr(threads, "ThreadPoolExecutor", Interrupted)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    files = {bucket: [str(tmp_path / f"{bucket}.arrow")] for bucket in range(2)}
    for (path,) in files.values():
        held_batches.keep_copy(path, UpdateChunk(np.arange(3), None, 0, 1))
    with pytest.raises(KeyboardInterrupt):
        local.LocalRunner(None).merge(Merge(files, str(tmp_path / "merged"), None, 1000))
    held_batches.remove_in(lambda directory: directory.startswith(str(tmp_path)))


class _Failing(Sink):
    """A sink and consumer that raises the error of compiled code, with a chosen cause."""

    meets: BaseException | None = None

    def write(self, epoch):
        self(epoch)

    def __call__(self, *_):
        if self.meets is not None:
            raise SystemError("returned a result with an exception set") from self.meets


@pytest.mark.parametrize("role", ["consumer", "owed", "sink"])
def test_an_interrupt_in_compiled_code_of_who_is_given_changes_is_one(spark, tmp_path, role):
    other, failing = _Failing(), _Failing()

    def program(flow):
        rows, _ = flow.input("rows", "k int")
        for name, consumer in ("other", other), ("failing", failing):
            if role == "sink":
                rows.sink(name, consumer)
            else:
                rows.inspect(consumer)

    other.meets = MemoryError()
    failing.meets = MemoryError() if role == "owed" else KeyboardInterrupt()
    flow = Dataflow.open(tmp_path / "store", program, spark=spark, runner="local")
    flow.session("rows").insert([(1,)])
    flow.session("rows").advance_to(1)
    with pytest.raises(SystemError if role == "owed" else KeyboardInterrupt):
        flow.step()
    if role == "owed":
        flow._storage.close()  # as after a kill
        failing.meets = KeyboardInterrupt()
        flow = Dataflow.open(tmp_path / "store", program, spark=spark, runner="local")
        with pytest.raises(KeyboardInterrupt):
            flow.step()
    other.meets = failing.meets = None
    flow.step()
    assert flow._state.handed_over
    flow.close()
