"""The Scala bridge in a session that runs: it counts jobs, and harms nothing.

The laws of its book are in Scala, see test_scala.py; here are real jobs. Tests with a bridge are
left out where ci/build_bridge has not been run.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_diff.spark import bridge as module
from pyspark_diff.spark import jvm_context
from pyspark_diff.spark.bridge import Bridge, JobCounts, JobLabel, bridge_of, labelled
from pyspark_diff.spark.jobs import run_job
from pyspark_diff.times import Antichain

pytestmark = pytest.mark.classic_only(
    "the bridge is in the JVM of Spark's context, which a client does not have"
)

needs_jar = pytest.mark.skipif(
    not list(module.JARS.glob("*.jar")), reason="ci/build_bridge has not been run"
)
LABEL = JobLabel("flow", "count of edges", (0, 3), 5, 9)
DESCRIPTION = "spark.job.description"


@pytest.fixture
def bridge(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bridge]:
    """A bridge of its own, with a dataflow."""
    bridge_object = module._loaded(spark.sparkContext)
    assert bridge_object is not None
    monkeypatch.setitem(module._bridges, spark.sparkContext, bridge_object)
    bridge_object.register("flow")
    yield bridge_object
    bridge_object.forget("flow")


def settled(bridge: Bridge, right: Callable[[JobCounts], bool], flow: str = "flow") -> JobCounts:
    """The counts once they are right: Spark notifies its listeners a little later."""
    until = time.monotonic() + 20
    while True:
        counts = bridge.counts(flow)
        assert counts is not None
        if right(counts) or time.monotonic() > until:
            return counts
        time.sleep(0.01)


def idle(counts: JobCounts) -> bool:
    return 0 < counts.jobs == counts.jobs_done


# Labels

numbers = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.text(), st.text(), st.lists(st.integers(0, 1 << 40)).map(tuple), numbers, numbers)
def test_a_label_is_what_it_was(dataflow, operator, iteration, lower, upper):
    label = JobLabel(dataflow, operator, iteration, lower, upper)
    text = label.text()
    assert JobLabel.from_text(text) == label
    assert text.isascii() and text.count("|") == 4 and " " not in text


@needs_jar
def test_labels_are_for_the_jobs_of_a_thread_and_go_back(spark, bridge):
    context = spark.sparkContext

    def label() -> str | None:
        return context.getLocalProperty("spark.pyspark_diff.job")

    with labelled(spark, LABEL):
        assert label() == LABEL.text()
        text = "pyspark_diff: count of edges at iteration 0, 3 from time 5 to before 9"
        assert context.getLocalProperty(DESCRIPTION) == text
        with labelled(spark, JobLabel("flow", "inner")):
            assert label() == "flow|inner|||"
            assert context.getLocalProperty(DESCRIPTION) == "pyspark_diff: inner"
            # Threads that are started for jobs have it too, others do not.
            assert run_job(spark, label) == "flow|inner|||"
            labels: list[str | None] = []
            thread = threading.Thread(target=lambda: labels.append(label()))
            thread.start()
            thread.join()
            assert labels == [None]
        with pytest.raises(ValueError), labelled(spark, JobLabel("flow", "fails")):
            raise ValueError
        assert (label(), context.getLocalProperty(DESCRIPTION)) == (LABEL.text(), text)
    assert (label(), context.getLocalProperty(DESCRIPTION)) == (None, None)


@needs_jar
def test_a_description_of_the_user_stays(spark, bridge):
    context = spark.sparkContext
    context.setJobDescription("mine")
    try:
        with labelled(spark, LABEL):
            assert context.getLocalProperty(DESCRIPTION) == "mine"
        assert context.getLocalProperty(DESCRIPTION) == "mine"
    finally:
        context.setLocalProperty(DESCRIPTION, None)


# Counts

@needs_jar
def test_jobs_count_for_their_operators(spark, bridge):
    spark.range(10, numPartitions=2).collect()
    for operator, jobs in {"first": 2, "second, |\"x\"": 1}.items():
        with labelled(spark, JobLabel("flow", operator, (), 0, 1)):
            for _ in range(jobs):
                assert len(spark.range(100, numPartitions=2).collect()) == 100
    with labelled(spark, JobLabel("nobody's", "first")):
        spark.range(10, numPartitions=2).collect()
    counts = settled(bridge, lambda c: c.jobs_done == 3)
    by_operator = bridge.operators("flow")
    assert by_operator is not None and list(by_operator) == ["first", "second, |\"x\""]
    each = [(c.jobs, c.jobs_done, c.stages, c.stages_done, c.tasks, c.tasks_started, c.tasks_done,
             c.rows) for c in (*by_operator.values(), counts)]
    assert each == [(2, 2, 2, 2, 4, 4, 4, 200), (1, 1, 1, 1, 2, 2, 2, 100),
                    (3, 3, 3, 3, 6, 6, 6, 300)]
    assert counts.seconds > 0 and counts.running == ()


@needs_jar
def test_shuffles_count_and_skipped_stages_are_done(spark, bridge):
    with labelled(spark, LABEL):
        frame = spark.range(1000, numPartitions=2).repartition(3, "id").cache()
        try:
            frame.groupBy((F.col("id") % 7).alias("k")).count().collect()
        finally:
            frame.unpersist()
    counts = settled(bridge, idle)
    assert counts.tasks == counts.tasks_started == counts.tasks_done >= 5
    assert counts.stages == counts.stages_done >= 2
    assert counts.rows >= 1000 and counts.bytes > 1000


@needs_jar
def test_failures_and_cancelled_jobs_leave_nothing_undone(spark, bridge):
    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("on purpose")

    with labelled(spark, LABEL), pytest.raises(Exception, match="on purpose"):
        spark.range(10, numPartitions=2).mapInArrow(fails, "id long").collect()
    counts = settled(bridge, idle)
    assert counts.tasks == counts.tasks_started == counts.tasks_done == 2
    assert bridge.counts("flow") is not None


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives a megabyte each tenth of a second, for two seconds."""
    (batch,) = batches
    for _ in range(20):
        time.sleep(0.1)
        yield pa.RecordBatch.from_arrays([pa.array(range(1 << 17))], schema=batch.schema)


def watched(spark: SparkSession, bridge: Bridge) -> list[JobCounts]:
    """The counts of the bridge, twenty per second, while a task of two seconds ran."""
    samples: list[JobCounts] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            counts = bridge.counts("flow")
            if counts is not None:
                samples.append(counts)

    with labelled(spark, LABEL):
        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            spark.range(0, 1, 1, 1).mapInArrow(slowly, "id long").agg(F.sum("id")).collect()
        finally:
            over.set()
            watcher.join()
    return samples


def numbers_of(counts: JobCounts) -> list[float]:
    return [counts.jobs, counts.jobs_done, counts.stages, counts.stages_done, counts.tasks,
            counts.tasks_started, counts.tasks_done, counts.rows, counts.bytes, counts.seconds]


@needs_jar
def test_counts_move_within_long_tasks_and_never_back(spark, bridge):
    samples = watched(spark, bridge)
    for before, after in zip(samples, samples[1:]):
        assert all(a <= b for a, b in zip(numbers_of(before), numbers_of(after)))
    first = [counts for counts in samples if counts.running and counts.tasks_done == 0]
    assert {counts.running[0][0] for counts in first} == {LABEL}
    assert len({counts.bytes for counts in first}) >= 5
    # The seconds grow at each look, also during a task.
    assert len({counts.seconds for counts in first}) >= len(first) * 0.9


# Frontiers

@needs_jar
@pytest.mark.parametrize(("before", "after"), [
    (Antichain([5]), Antichain([9])),
    (Antichain([-(1 << 63)]), Antichain()),
    (Antichain([(1, 4), (2, 3)]), Antichain([(2, 4)])),
    (Antichain([(1,)]), Antichain([(2,)])),
])
def test_the_frontier_is_what_was_committed(bridge, before, after):
    assert bridge.frontier("flow") is None
    bridge.begin("flow", before)
    assert bridge.frontier("flow") == before
    bridge.end("flow", before)
    bridge.begin("flow", before)
    assert bridge.frontier("flow") == before
    bridge.end("flow", after)
    assert bridge.frontier("flow") == after
    bridge.forget("flow")
    assert bridge.frontier("flow") is None and bridge.counts("flow") is None
    assert not bridge.broken


# Without, or with one that does not fit

@needs_jar
def test_there_is_one_for_a_context(spark):
    shared = bridge_of(spark)
    assert shared is not None and bridge_of(spark.newSession()) is shared


@needs_jar
def test_it_can_be_turned_off(another):
    another.conf.set("spark.pyspark_diff.bridge", "false")
    assert bridge_of(another) is None


def test_over_connect_there_is_none(spark, monkeypatch):
    monkeypatch.setattr(module, "is_remote", lambda: True)
    assert bridge_of(spark) is None
    with labelled(spark, LABEL):
        assert spark.sparkContext.getLocalProperty("spark.pyspark_diff.job") is None


def test_a_jar_that_is_missing_is_no_fault(spark, monkeypatch, tmp_path, caplog):
    not_loaded(monkeypatch, tmp_path)
    assert bridge_of(spark) is None
    with labelled(spark, LABEL):
        assert spark.sparkContext.getLocalProperty("spark.pyspark_diff.job") is None
        assert spark.range(3).count() == 3
    assert caplog.records == []


def not_loaded(monkeypatch: pytest.MonkeyPatch, jars: Path) -> None:
    """As in a process that has not asked for a bridge, and with other jars in the package."""
    monkeypatch.setattr(module, "JARS", jars)
    monkeypatch.setattr(module, "_bridges", {})
    monkeypatch.setattr(jvm_context, "_loaded", {})


def empty_jar(folder: Path) -> str:
    (folder / "pyspark_diff-bridge_2.13.jar").write_bytes(b"no jar")
    return "no bridge"


def other_scala(folder: Path) -> str:
    (folder / "pyspark_diff-bridge_9.9.jar").touch()
    return "no bridge for Scala 2.13"


@pytest.mark.parametrize("make", [empty_jar, other_scala])
def test_a_jar_that_does_not_fit_is_told_once(spark, monkeypatch, tmp_path, caplog, make):
    expected = make(tmp_path)
    not_loaded(monkeypatch, tmp_path)
    assert bridge_of(spark) is None and bridge_of(spark) is None
    (record,) = caplog.records
    assert expected in record.getMessage() and record.levelno == logging.WARNING


@needs_jar
def test_another_version_of_the_protocol_is_told_once(spark, monkeypatch, caplog):
    monkeypatch.setattr(module, "PROTOCOL", 99)
    monkeypatch.setattr(module, "_bridges", {})
    assert bridge_of(spark) is None and bridge_of(spark) is None
    (record,) = caplog.records
    assert "has version 1 and not 99" in record.getMessage()


# Faults

@needs_jar
def test_a_listener_that_breaks_says_so_and_harms_nothing(spark, bridge):
    with labelled(spark, LABEL):
        assert spark.range(3).count() == 3
    settled(bridge, idle)
    bridge.begin("flow", Antichain([0]))
    context = spark.sparkContext
    context.setLocalProperty("spark.pyspark_diff.job", "no label")
    try:
        assert spark.range(3).count() == 3
    finally:
        context.setLocalProperty("spark.pyspark_diff.job", None)
    until = time.monotonic() + 20
    while bridge.counts("flow") is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert bridge.broken
    assert bridge.counts("flow") is bridge.operators("flow") is bridge.frontier("flow") is None
    with labelled(spark, LABEL):
        assert spark.range(3).count() == 3
    bridge.end("flow", Antichain([1]))


@needs_jar
def test_a_bridge_that_breaks_leaves_no_label(spark, bridge, monkeypatch):
    """Jobs of the user that come after are not taken for ours."""
    context = spark.sparkContext
    with labelled(spark, LABEL):
        assert context.getLocalProperty("spark.pyspark_diff.job") == LABEL.text()
        monkeypatch.setattr(bridge, "_broken", True)
    assert context.getLocalProperty("spark.pyspark_diff.job") is None
    assert context.getLocalProperty(DESCRIPTION) is None
    context.setJobDescription("mine")
    try:
        monkeypatch.setattr(bridge, "_broken", False)
        with labelled(spark, LABEL):
            monkeypatch.setattr(bridge, "_broken", True)
        assert context.getLocalProperty(DESCRIPTION) == "mine"
    finally:
        context.setLocalProperty(DESCRIPTION, None)
        monkeypatch.setattr(bridge, "_broken", False)


class Failing:
    """Replaces the object in the JVM."""

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            raise RuntimeError("on purpose")

        return call


def test_a_fault_on_the_way_is_told_once(spark, caplog):
    broken = Bridge(spark.sparkContext, Failing())
    broken.register("flow")
    broken.begin("flow", Antichain([0]))
    broken.end("flow", Antichain([0]))
    assert broken.counts("flow") is broken.operators("flow") is broken.frontier("flow") is None
    assert broken.label("x") is None
    broken.forget("flow")
    assert broken.broken
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# Sessions of their own

RESTARTED = """
import sys, time
from pyspark_diff.spark import bridge as bridge_module
from pyspark_diff.spark.bridge import JobLabel, bridge_of, labelled
from pyspark_diff.spark.session import session
from pyspark_diff.times import Antichain

jar = sys.argv[1]
old = None
for number in range(2):
    spark = session(master="local[1]", conf={"spark.jars": jar} if jar else {})
    if jar:
        bridge_module.JARS = bridge_module.JARS / "nothing here"
    bridge = bridge_of(spark)
    assert bridge is not None and bridge is not old
    bridge.register("flow")
    bridge.begin("flow", Antichain([number]))
    with labelled(spark, JobLabel("flow", "op")):
        spark.range(3).collect()
    until = time.monotonic() + 20
    while bridge.counts("flow").jobs_done < 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert bridge.counts("flow").jobs == 1, bridge.counts("flow")
    spark.stop()
    assert bridge_of(spark) is None
    assert bridge.counts("flow") is bridge.frontier("flow") is None
    bridge.end("flow", Antichain())
    bridge.forget("flow")
    assert not bridge.broken
    old = bridge
print("fine")
"""


PATH = os.pathsep.join(map(str, [Path(module.__file__).parents[2], Path(__file__).parent]))


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300,
        # Workers find this module by it.
        env={**os.environ, "PYTHONPATH": PATH},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_jar
@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True], ids=["in the package", "spark.jars"])
def test_one_session_after_another(named):
    (jar,) = module.JARS.glob("*.jar")
    assert run(RESTARTED, str(jar) if named else "").endswith("fine\n")


HEARTBEATS = """
import sys
from pyspark_diff.spark.bridge import bridge_of
from pyspark_diff.spark.session import session
import test_bridge

spark = session(master="local-cluster[1,1,512]", conf={
    "spark.executor.heartbeatInterval": "300ms", "spark.executor.memory": "512m",
})
bridge = bridge_of(spark)
bridge.register("flow")
seen = test_bridge.watched(spark, bridge)
print(len({counts.bytes for counts in seen if counts.tasks_done == 0}))
spark.stop()
"""


@needs_jar
@pytest.mark.slow
def test_executors_tell_in_heartbeats():
    assert int(run(HEARTBEATS)) >= 4


def processor_seconds(spark: SparkSession) -> float:
    """Sum this process and the JVM: on a busy machine, wall-clock time says nothing."""
    gateway: Any = spark.sparkContext._gateway
    fields = Path(f"/proc/{gateway.proc.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@needs_jar
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell")
def test_it_costs_next_to_nothing(spark, bridge):
    def jobs() -> float:
        began = processor_seconds(spark)
        for _ in range(50):
            with labelled(spark, LABEL):
                spark.range(0, 100, 1, 4).collect()
        return processor_seconds(spark) - began

    jobs()
    ratios = []
    for _ in range(7):
        with pytest.MonkeyPatch.context() as patch:
            bridge.forget("flow")
            patch.setattr(module, "_bridges", {})
            without = jobs()
        bridge.register("flow")
        ratios.append(jobs() / without)
    print([round(ratio, 3) for ratio in ratios])
    assert statistics.median(ratios) < 1.1
