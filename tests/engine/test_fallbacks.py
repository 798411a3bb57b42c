"""Fallbacks: each of the fast paths counts the work that it leaves to a slower one.

    answer of a step with fallbacks  =  answer of plain Spark
    number of fallbacks  =  0                           for programs of the fast paths alone
"""

from __future__ import annotations

import logging
import tempfile
import zlib

import pytest
from pyspark.sql import functions as F

import pyspark_diff.runners.fused as fused
from pyspark_diff import Dataflow, FallbackError
from pyspark_diff.fallbacks import (
    CACHE,
    COMPILED,
    DELTALAKE,
    FUSED,
    INTEGERS,
    MEMORY,
    PYARROW,
    SETTING,
    Fallback,
    Fallbacks,
    counting,
    fall_back,
    move,
)
from pyspark_diff.spark import delta_files
from pyspark_diff.trace.cache import local_copy
from pyspark_diff.trace.roots import objects_at


def paths(flow):
    """The number of fallbacks of the last step by path."""
    numbers: dict[str, int] = {}
    for kind, number in flow.last_report.fallbacks.items():
        numbers[kind.path] = numbers.get(kind.path, 0) + number
    return numbers


def test_a_program_of_fast_paths_has_none(spark):
    with Dataflow(spark) as flow:
        numbers, numbers_in = flow.input("numbers", "n long, m long")
        counts = numbers.where(F.col("n") > 1).groupBy("m").count().keep()
        numbers_in.insert([(1, 2), (2, 2)])
        flow.advance_to(1)
        assert counts.at().collect() == [(2, 1)]
        assert paths(flow) == {}
        assert "fallback" not in str(flow.explain())


def test_an_expression_of_spark_counts(spark):
    with Dataflow(spark) as flow:
        words, words_in = flow.input("words", "word string")
        sounds = words.select(F.soundex("word").alias("sound")).keep()
        words_in.insert([("tea",)])
        flow.advance_to(1)
        assert sounds.at().collect() == [("T000",)]
        assert paths(flow) == {COMPILED: 1}
        (kind,) = flow.last_report.fallbacks
        assert (kind.operator, kind.reason) == ("select", "Spark evaluates (sound)")
        assert str(kind) in str(flow.explain())
        assert "Spark evaluates" in flow.explain()._repr_html_()
        flow.advance_to(2)
        assert paths(flow) == {}


def test_parquet_that_spark_reads_counts(spark, tmp_path):
    spark.range(4).withColumn("part", F.col("id") % 2).write.partitionBy("part").parquet(
        str(tmp_path / "t"))
    with Dataflow(spark) as flow:
        rows, rows_in = flow.input("rows", "id long, part int")
        copy = rows.keep()
        rows_in.insert(spark.read.parquet(str(tmp_path / "t")))
        assert not flow.last_report.fallbacks
        flow.advance_to(1)
        assert sorted(copy.at().collect()) == [(0, 0), (1, 1), (2, 0), (3, 1)]
        assert flow.last_report.fallbacks == {
            Fallback("input", PYARROW, "the table has buckets or partitions"): 1}


def test_parquet_that_pyarrow_reads_does_not(spark, tmp_path):
    spark.range(4).write.parquet(str(tmp_path / "t"))
    with Dataflow(spark) as flow:
        rows, rows_in = flow.input("rows", "id long")
        rows.keep()
        rows_in.insert(spark.read.parquet(str(tmp_path / "t")))
        flow.advance_to(1)
        assert paths(flow) == {}


def test_a_loop_that_leaves_the_integers_counts(spark):
    with Dataflow(spark) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        roots, roots_in = flow.input("roots", "node long")
        ways = edges.withColumnRenamed("src", "node")
        reachable = roots.iterate(lambda reached: reached.join(ways, "node").select(
            F.col("dst").alias("node")).union(reached).distinct()).keep()
        edges_in.insert([(0, 1), (1, 2)])
        roots_in.insert([(0,)])
        flow.advance_to(1)
        assert sorted(reachable.at().collect()) == [(0,), (1,), (2,)]
        assert paths(flow) == {}
        roots_in.insert([(None,)])
        edges_in.insert([(None, 4)])
        flow.advance_to(2)
        assert {row[0] for row in reachable.at().collect()} == {None, 0, 1, 2}
        assert paths(flow) == {INTEGERS: 1}


def test_a_failing_fused_operator_is_counted_by_its_task():
    class Failing:
        name, needs, source = "join-3", {0}, 0

        def run(self, bucket, done):
            raise fused.NotHere("the output of a bucket belongs to another bucket")

    with counting(Fallbacks()) as fallbacks:
        assert list(fused.run_behind([Failing()], 0, None)) == []
    assert fallbacks == {
        Fallback("join-3", FUSED, "the output of a bucket belongs to another bucket"): 1}


def test_fallbacks_of_a_task_reach_the_report(spark, monkeypatch):
    """The driver adds the list of a task to the report of the step."""
    from pyspark_diff.runners import spark as spark_runner

    runner = object.__new__(spark_runner.SparkRunner)
    with counting(Fallbacks()) as fallbacks:
        results = runner._decoded([(-2, '[["join-3", "fused task", "a reason", 2]]', None, None)])
    assert results == [] and fallbacks == {Fallback("join-3", FUSED, "a reason"): 2}


def test_work_on_delta_files_that_spark_does_counts():
    def ask():
        raise delta_files._Refused("the table has column mapping")

    with counting(Fallbacks()) as fallbacks:
        assert delta_files._or_none("delta", "/data/orders", ask) is None
    assert fallbacks == {
        Fallback("delta", DELTALAKE, "/data/orders: the table has column mapping"): 1}


def test_the_setting_makes_each_an_error(spark, monkeypatch):
    with Dataflow(spark) as flow:
        words, words_in = flow.input("words", "word string")
        sounds = words.select(F.soundex("word").alias("sound")).keep()
        words_in.insert([("tea",)])
        monkeypatch.setenv(SETTING, "raise")
        with pytest.raises(FallbackError, match="Spark evaluates .sound.*unset"):
            flow.advance_to(1)
        monkeypatch.delenv(SETTING)
        flow.step()
        assert sounds.at().collect() == [("T000",)]


def test_each_kind_is_logged_once(caplog):
    with caplog.at_level(logging.INFO, logger="pyspark_diff"):
        for _ in range(3):
            fall_back("select", COMPILED, "a reason that no other test has")
    assert [r.message for r in caplog.records] == [
        "select left the path 'compiled expression': a reason that no other test has"]


def test_moving_keeps_the_sum():
    kind = Fallback("a", "b", "c")
    source, target = Fallbacks({kind: 2}), Fallbacks({kind: 1})
    move(source, target)
    assert not source and target == {kind: 3}


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_spill_counts(spark, runner):
    with Dataflow(spark, runner=runner, buckets=2) as flow:
        flow._piece_rows = 60
        rows, rows_in = flow.input("rows", "n long")
        counts = rows.groupBy("n").count().keep()
        rows_in.insert([(n,) for n in range(400)])
        flow.advance_to(1)
        assert counts.at().count() == 400
        spills = [kind for kind in flow.last_report.fallbacks if kind.path == MEMORY]
        assert spills and "spilled" in str(flow.explain(full=True))


def test_a_cache_miss_counts(tmp_path, monkeypatch):
    data = b"some rows"
    name = f"e0001-x-0123456789ab.durable/00000-crc{zlib.crc32(data):08x}-{len(data)}.arrow"
    url = f"memory://test-fallbacks/data/{name}"
    objects_at("memory://test-fallbacks").create(f"data/{name}", [data])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with counting(Fallbacks()) as fallbacks:
        local_copy(url)
        local_copy(url)
    assert [(kind.path, number) for kind, number in fallbacks.items()] == [(CACHE, 1)]
