"""Each kind of sink stores each change once, after any failure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal as D
from unittest import mock

import pytest
from pyspark.sql import functions as F
from test_catch_up import Killed, Log

from pyspark_diff import Dataflow, SchemaError, SinkError
from pyspark_diff.dataflow.sink import Sink
from pyspark_diff.sinks import change_log, foreach, snapshot
from pyspark_diff.sources import Inserts, Removes


def counts(log, sink):
    def program(flow):
        flow.source("words", log).count().sink("counts", sink)

    return program


def read(spark, path):
    return sorted(map(tuple, spark.read.parquet(str(path)).collect()))


@pytest.mark.parametrize("fails", ["before", "behind", "killed before", "killed behind"])
def test_a_change_log_has_each_epoch_once(spark, tmp_path, fails):
    log, folder = Log("word string"), tmp_path / "log"
    sink = change_log(str(folder))
    program = counts(log, sink)
    write, error = type(sink).write, Killed() if "killed" in fails else OSError("full")

    def failing(self, epoch):
        if "behind" in fails:
            write(self, epoch)
        raise error

    flow = Dataflow.open(tmp_path / "store", program, spark=spark)
    for night in range(3):
        log.changes.append(Inserts([("a",)] * (night + 1)))
        with mock.patch.object(type(sink), "write", failing):
            with pytest.raises((SinkError, Killed)):
                flow.catch_up()
        if night == 1 or "killed" in fails:
            flow = Dataflow.open(tmp_path / "store", program, spark=spark)
        log.changes.append(Inserts([("b",)]))
        flow.catch_up()
    flow.close()
    log_rows = read(spark, folder)
    # The words of a failed night were committed, so that they are an epoch of their own.
    assert [row[-1] for row in log_rows if row[0] == "a" and row[3] > 0] == [1, 3, 5]
    total = spark.read.parquet(str(folder)).groupBy("word", "count").agg(F.sum("diff").alias("n"))
    assert sorted(map(tuple, total.where("n <> 0").collect())) == [("a", 6, 1), ("b", 3, 1)]


def test_what_a_log_has_not_written_is_refused(spark, tmp_path):
    log, folder = Log("word string"), str(tmp_path / "log")
    spark.range(2).write.parquet(folder)
    log.changes.append(Inserts([("a",)]))
    with Dataflow(spark, runner="local") as flow:
        counts(log, change_log(folder))(flow)
        for _ in range(2):
            with pytest.raises(SinkError, match="table of the columns id.*replace=True"):
                flow.catch_up()
    assert spark.read.parquet(folder).count() == 2
    with Dataflow(spark, runner="local") as flow:
        counts(log, change_log(folder, replace=True))(flow)
        flow.catch_up()
        log.changes.append(Inserts([("b",)]))
        flow.catch_up()
    assert len(read(spark, folder)) == 2
    with Dataflow(spark, runner="local") as flow:
        counts(log, change_log(folder))(flow)
        with pytest.raises(SinkError, match="epoch 2 of a log"):
            flow.catch_up()
    with Dataflow(spark) as flow:
        rows, _ = flow.input("rows", "Epoch int")
        with pytest.raises(SchemaError, match="column 'epoch' of its own"):
            rows.sink("out", change_log(folder))


def test_a_snapshot_is_what_stands(spark, tmp_path):
    log, folder = Log("word string"), str(tmp_path / "now")
    with Dataflow(spark, runner="local") as flow:
        flow.source("words", log).sink("words", snapshot(folder))
        log.changes.append(Inserts([("a",), ("a",), ("b",)]))
        flow.catch_up()
        assert read(spark, folder) == [("a",), ("a",), ("b",)]
        log.changes.append(Removes([("a",), ("b",)]))
        flow.catch_up()
        assert read(spark, folder) == [("a",)]
        log.changes.append(Removes([("a",)]))
        flow.catch_up()
        assert read(spark, folder) == []
    with Dataflow(spark, runner="local") as flow:
        counts(log, snapshot(folder))(flow)
        with pytest.raises(SinkError, match="replace=True"):
            flow.catch_up()


def test_a_collection_that_stays_empty_is_written_once(spark, tmp_path):
    log = Log("word string")
    with Dataflow(spark, runner="local") as flow:
        words = flow.source("words", log)
        words.where("word = 'x'").sink("log", change_log(str(tmp_path / "log")))
        words.where("word = 'x'").sink("now", snapshot(str(tmp_path / "now")))
        for _ in range(2):
            log.changes.append(Inserts([("a",)]))
            flow.catch_up()
        assert read(spark, tmp_path / "now") == []
        log.changes.append(Inserts([("x",)]))
        flow.catch_up()
        assert read(spark, tmp_path / "log") == [("x", 2, 1, 3)]


@pytest.fixture
def warned(spark):
    """The warnings of Spark's log about streams and their folders."""
    jvm, name = spark._jvm, "org.apache.spark.sql.execution.streaming"
    log4j, writer = jvm.org.apache.logging.log4j, jvm.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.createAppender(
        None, None, writer, "warned", False, True
    )
    appender.start()
    logger = log4j.LogManager.getLogger(name)
    log4j.core.config.Configurator.setLevel(name, log4j.Level.WARN)
    logger.addAppender(appender)
    yield writer.toString
    logger.removeAppender(appender)
    log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)


@pytest.mark.classic_only("looks at the log of Spark in the JVM")
@pytest.mark.parametrize("sink", [change_log, snapshot])
def test_a_new_folder_is_no_warning(spark, tmp_path, warned, sink):
    log, folder = Log("word string"), str(tmp_path / "new")
    with Dataflow(spark) as flow:
        counts(log, sink(folder))(flow)
        log.changes.append(Inserts([("a",)]))
        flow.catch_up()
    assert read(spark, folder)
    assert warned() == ""


@pytest.mark.parametrize("times", [None, "struct<i: int, j: int>"])
@pytest.mark.parametrize("runner", ["local", "spark"])
@pytest.mark.parametrize("closes", [False, True])
def test_the_first_changes_have_their_times(spark, times, runner, closes):
    """The first changes also have their times when a collection keeps no history."""
    def at(time):
        return time if times is None else (time, 2 - time)

    how = {} if times is None else {"time_type": times}
    from_sink, from_inspect = [], []
    with Dataflow(spark, runner=runner, **how) as flow:
        words, session = flow.input("words", "word string")
        counts = words.count()
        counts.inspect(lambda record, time, diff: from_inspect.append((*record, time, diff)))
        counts.sink("counts", foreach(lambda changes, epoch: from_sink.extend(
            (row[0], row[1], row[2] if times is None else tuple(row[2]), row[3])
            for row in changes.collect()
        )))
        session.update([("a", at(0), 1), ("b", at(1), 1), ("b", at(2), 1)])
        if not closes:
            flow.advance_to(7 if times is None else (7, 7))
            session.update([("a", 8 if times is None else (8, 8), 1)])
            flow.advance_to(9 if times is None else (9, 9))
        session.close()
        flow.step()
    assert sorted(from_sink) == sorted(from_inspect) and len(from_inspect) >= 4
    assert {time for *_, time, _ in from_sink} >= {at(0), at(1)}


class _Rows(Sink):
    """Keep the few changes of each epoch, and its changes."""

    def __init__(self):
        self.epochs = []

    def write(self, epoch):
        few, changes = epoch.few_changes(), epoch.changes.toArrow()
        assert few.column_names == changes.column_names
        self.epochs.append([
            sorted(map(repr, table.to_pylist())) for table in (few, changes.cast(few.schema))
        ])


@pytest.mark.parametrize("times", [None, "struct<i: int, j: int>"])
@pytest.mark.parametrize("runner", ["local", "spark"])
def test_few_changes_are_the_changes(spark, times, runner, monkeypatch):
    """A step on the driver takes them from memory."""
    if runner == "local" and times is None:
        monkeypatch.setattr("pyspark_diff.dataflow.sink.few", None)
    sink, how = _Rows(), {} if times is None else {"time_type": times}
    with Dataflow(spark, runner=runner, **how) as flow:
        words, session = flow.input("words", "word string, at timestamp, x decimal(20,2)")
        words.groupBy("word").agg(
            F.max("at").alias("a.b"), F.sum("x").alias("x")).sink("out", sink)
        for step in range(2):
            time = step if times is None else (step, step)
            session.update([("a", datetime(2026, 1, 1 + step), D("1.50"), time, 1),
                            ("b", None, None, time, 1)])
            flow.advance_to(step + 1 if times is None else (step + 1, step + 1))
    assert all(few == changes for few, changes in sink.epochs)
    assert [len(few) for few, _ in sink.epochs] == [2, 2]
