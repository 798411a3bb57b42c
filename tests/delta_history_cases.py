"""Cases of tests/connectors/test_delta.py for histories, in a Spark that knows Delta.

    the rows of a history at the time of each epoch  =  the collection after it
"""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from delta_cases import rows_of
from delta_session import reads_files, spark, table  # noqa: F401

from pyspark_diff import Dataflow, SchemaError, SinkError
from pyspark_diff.sinks import delta_history
from pyspark_diff.spark.delta import identifier
from pyspark_diff.spark.schema import quoted

COLUMNS = "k INT, s STRING, v DOUBLE"


def history(spark, table, when=None):  # noqa: F811
    """The rows of a history at a time in microseconds, or its current rows."""
    rows = spark.read.table(table)
    if when is None:
        rows = rows.where("is_current")
    else:
        now = f"timestamp_micros({when})"
        rows = rows.where(f"valid_from <= {now} AND coalesce({now} < valid_to, true)")
    return rows_of(spark, rows.drop("valid_from", "valid_to", "is_current"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_each_epoch_can_be_read_later(spark, table, reads_files, tmp_path, seed):  # noqa: F811
    draw, rows, states = random.Random(seed), {}, []

    def program(flow):
        rows, _ = flow.input("rows", COLUMNS)
        rows.keep("rows").sink("out", delta_history(table, key=["k", "s"]))

    def check(when=None):
        assert history(spark, table, when) == Counter((*key, v) for key, v in rows.items())

    with Dataflow.open(str(tmp_path), program, spark=spark, runner="local") as flow:
        for number in range(6):
            session = flow.session("rows")
            for _ in range(draw.randrange(6)):
                key = draw.choice([None, 1, 2, 3, 4]), draw.choice(["a", "b", None])
                if key in rows:
                    session.remove([(*key, rows.pop(key))])
                if draw.random() < 0.6:
                    rows[key] = draw.choice([None, 0.0, 1.5, float(number)])
                    session.insert([(*key, rows[key])])
            flow.advance_to(number + 1)
            check()
            states.append((time.time_ns() // 1000, dict(rows)))
            time.sleep(0.002)
    for when, rows in states:
        check(when)
    table_rows = spark.read.table(table)
    assert table_rows.where("is_current <> (valid_to IS NULL) OR valid_to < valid_from").isEmpty()
    # Only the rows that change are written.
    assert table_rows.count() <= 6 * 6


@pytest.mark.slow
def test_a_changed_program_continues_a_history(spark, table, tmp_path):  # noqa: F811
    def program(least, replace=False):
        def declare(flow):
            rows, _ = flow.input("rows", COLUMNS)
            rows.where(f"k >= {least}").keep("rows").sink(
                f"out{least}", delta_history(table, key="k", replace=replace))
        return declare

    with Dataflow.open(str(tmp_path / "a"), program(0), spark=spark, runner="local") as flow:
        flow.session("rows").insert([(1, "a", 1.0), (2, "b", 2.0)])
        flow.advance_to(1)
    before = rows_of(spark, spark.read.table(table).where("k = 2"))
    with Dataflow.open(str(tmp_path / "b"), program(2), spark=spark, runner="local") as flow:
        flow.session("rows").insert([(2, "b", 2.0), (3, "c", 3.0)])
        with pytest.raises(SinkError, match="was not written by this sink"):
            flow.advance_to(1)
    with Dataflow.open(str(tmp_path / "c"), program(2, True), spark=spark, runner="local") as flow:
        flow.session("rows").insert([(2, "b", 2.0), (3, "c", 3.0)])
        flow.advance_to(1)
        assert history(spark, table) == {(2, "b", 2.0): 1, (3, "c", 3.0): 1}
        assert spark.read.table(table).count() == 3
        # An unchanged row keeps its times.
        assert rows_of(spark, spark.read.table(table).where("k = 2")) == before
        flow.session("rows").insert([(3, "twice", 0.0)])
        with pytest.raises(SinkError, match="(?s)more than one row has the key"):
            flow.advance_to(2)

    def other(flow):
        rows, _ = flow.input("rows", "k INT, other STRING")
        rows.sink("out", delta_history(table, key="k", replace=True))

    with Dataflow.open(str(tmp_path / "d"), other, spark=spark, runner="local") as flow:
        flow.session("rows").insert([(1, "x")])
        with pytest.raises(SinkError, match="is a history with other columns"):
            flow.advance_to(1)


def test_an_epoch_that_is_written_again(spark, table, tmp_path, monkeypatch):  # noqa: F811
    """A process that ends after its commit writes the epoch once more."""
    sink = delta_history(table, key="k")
    write = type(sink).write

    def lost(self, epoch):
        write(self, epoch)
        raise OSError("the answer was lost")

    def program(flow):
        rows, _ = flow.input("rows", COLUMNS)
        rows.keep("rows").sink("out", sink)

    with Dataflow.open(str(tmp_path), program, spark=spark, runner="local") as flow:
        for number in range(3):
            monkeypatch.setattr(type(sink), "write", lost)
            flow.session("rows").insert([(number, "a", 1.0)])
            if number:
                flow.session("rows").remove([(number - 1, "a", 1.0)])
            with pytest.raises(SinkError, match="lost"):
                flow.advance_to(number + 1)
            monkeypatch.setattr(type(sink), "write", write)
            flow.step()
            assert history(spark, table) == {(number, "a", 1.0): 1}
            assert spark.read.table(table).count() == number + 1
    spark.sql(f"DELETE FROM {table} WHERE k = 0")
    with Dataflow.open(str(tmp_path), program, spark=spark, runner="local") as flow:
        flow.session("rows").insert([(9, "a", 1.0)])
        with pytest.raises(SinkError, match="was written by others"):
            flow.advance_to(9)


@pytest.mark.slow
def test_a_history_of_names_that_need_quoting(spark, tmp_path):  # noqa: F811
    names, folder = ["a.B", "c d", "g'h", "from", "s", "t"], tmp_path / "it's `t`"
    old, new = (2, *"ywxyz"), (2, *"yvxyz")
    with Dataflow(spark, runner="local") as flow:
        rows, session = flow.input("rows", ", ".join(
            f"{quoted(name)} {'STRING' if number else 'INT'}" for number, name in enumerate(names)))
        rows.sink("out", delta_history(folder, key=["A.b", "C D"]))
        session.insert([(1, *"xvwyz"), old, (3, *"xvwyz")])
        flow.advance_to(1)
        session.remove([old, (3, *"xvwyz")])
        session.insert([new])
        flow.advance_to(2)
        versions = spark.table(identifier(folder))
        assert versions.columns[:6] == names and versions.count() == 4
        now = versions.where("is_current").select(*map(quoted, names))
        assert sorted(map(tuple, now.collect())) == [(1, *"xvwyz"), new]


def test_names_that_a_history_adds(spark, table):  # noqa: F811
    with Dataflow(spark, runner="local") as flow:
        rows, _ = flow.input("rows", "k INT, Valid_From DATE")
        with pytest.raises(SchemaError, match="'valid_from', which a history adds"):
            rows.sink("out", delta_history(table, key="k"))
