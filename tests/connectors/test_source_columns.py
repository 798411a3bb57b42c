"""Source tables that change: columns come, go, move, and have other types."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import functions as F
from test_sources import Table, rows_of

from pyspark_diff import Dataflow, ProgramChangedError, SourceError
from pyspark_diff.dataflow import source as sources
from pyspark_diff.sources import snapshots, updates, upserts

#: Kinds of sources of tables: the function, the further columns that it needs, and their values.
KINDS = {
    "by row": (snapshots, "", ()),
    "by key": (lambda table: snapshots(table, key="ID"), "", ()),
    "upserts": (lambda table: upserts(table, key="ID", order="at"), ", at int", (1,)),
    "updates": (lambda table: updates(table), ", time long, diff long", (0, 1)),
}


def opened(spark, path, source, use=("id", "v"), **how):
    def program(flow):
        flow.source("rows", source()).select(*use).keep("rows")

    return Dataflow.open(str(path), program, spark=spark, buckets=2, **how)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("anew", [True, False], ids=["reopened", "open"])
def test_a_column_that_a_table_gains_is_left_out(spark, tmp_path, caplog, kind, anew):
    make, more_columns, values = KINDS[kind]
    table = Table(spark, f"id int, v string{more_columns}", [(1, "a", *values)])
    flow = opened(spark, tmp_path, lambda: make(table))
    flow.catch_up()
    table.columns = f"w string, v string, Id int{more_columns}"
    later = tuple(value + 1 if name != "diff" else value for name, value in zip(
        [part.split()[0] for part in more_columns.split(", ")[1:]], values))
    table.rows = [("x", "a", 1, *values), ("x", "b", 2, *later)]
    if anew:
        flow.close()
        flow = opened(spark, tmp_path, lambda: make(table))
    with caplog.at_level(logging.WARNING, "pyspark_diff"):
        flow.catch_up()
        assert rows_of(flow["rows"]) == [(1, "a"), (2, "b")]
        table.rows = [*table.rows, ("x", "c", 3, *(value and value + 2 for value in values[:1]),
                                    *values[1:])] if kind != "updates" else [
            *table.rows, ("x", "c", 3, 9, 1)]
        flow.catch_up()
        assert rows_of(flow["rows"]) == [(1, "a"), (2, "b"), (3, "c")]
    flow.close()
    assert caplog.text.count("has new columns, w, which are not read") <= 1
    assert anew or "has new columns, w, which are not read" in caplog.text


@pytest.mark.parametrize("kind", ["by row", "upserts"])
@pytest.mark.parametrize("columns, message", [
    ("id int, w string", "w was added, v was dropped"),
    ("id int, v long", "v was string and is bigint"),
])
def test_a_column_that_is_lost_is_named(spark, tmp_path, kind, columns, message):
    make, more_columns, values = KINDS[kind]
    table = Table(spark, f"id int, v string{more_columns}", [(1, "a", *values)])
    with opened(spark, tmp_path, lambda: make(table)) as flow:
        flow.catch_up()
        table.columns, before = f"{columns}{more_columns}", table.columns
        table.rows = [(1, None, *values), (2, None, *(value + 1 for value in values))]
        with pytest.raises(SourceError, match=f"frame have changed: {message}.*rebuild"):
            flow.catch_up()
    with pytest.raises(SourceError, match=f"frame have changed: {message}.*rebuild"):
        opened(spark, tmp_path, lambda: make(table))
    use = [part.split()[0] for part in columns.split(", ")]
    table.rows = [(1, None, *values)]
    with opened(spark, tmp_path, lambda: make(table), use, on_change="rebuild") as flow:
        flow.catch_up()
        assert rows_of(flow["rows"]) == [(1, None)]
    assert before != table.columns


def test_a_column_that_the_store_lacks_can_be_used_with_rebuild(spark, tmp_path):
    table = Table(spark, "id int, v string", [(1, "a")])
    with opened(spark, tmp_path, lambda: snapshots(table, key="id")) as flow:
        flow.catch_up()
    table.columns, table.rows = "id int, v string, w int", [(1, "a", 7)]
    for how in "refuse", "extend":
        with pytest.raises(ProgramChangedError, match="column w of input 'rows'.*'rebuild'"):
            opened(spark, tmp_path, lambda: snapshots(table, key="id"), ["id", "w"], on_change=how)
    # Other mistakes keep their error.
    with pytest.raises(Exception, match="nosuch") as caught:
        opened(spark, tmp_path, lambda: snapshots(table, key="id"), ["id", "nosuch"])
    assert not isinstance(caught.value, ProgramChangedError)
    with opened(
        spark, tmp_path, lambda: snapshots(table, key="id"), ["id", "w"], on_change="rebuild"
    ) as flow:
        flow.catch_up()
        assert rows_of(flow["rows"]) == [(1, 7)]


def test_extend_reads_a_table_with_other_types_alone(spark, tmp_path):
    """`extend` keeps the state of the other tables and does not read their rows again."""
    orders = Table(spark, "id int, shop int, n int", [(1, 1, 5), (2, 1, 7), (3, 2, 1)])
    shops = Table(spark, "shop int, name string", [(1, "a"), (2, "b")])

    def program(flow):
        left = flow.source("orders", snapshots(orders, key="id"))
        right = flow.source("shops", snapshots(shops, key="shop"))
        joined = left.join(right, "shop")
        joined.groupBy("name").agg(F.max("n").alias("n")).keep("best")

    def open_store(**how):
        return Dataflow.open(str(tmp_path), program, spark=spark, buckets=2, **how)

    with open_store() as flow:
        flow.catch_up()
    orders.columns = "id int, shop long, n long"
    orders.rows = [(1, 1, 5), (2, 1, 7), (3, 2, 5_000_000_000), (4, 2, 2)]
    with pytest.raises(SourceError, match="n was int and is bigint.*on_change='extend' reads this"):
        open_store()
    shops.rows = [(1, "a"), (2, "b"), (3, "c")]
    with open_store(on_change="extend") as flow:
        # Only the other table keeps its offset.
        assert flow._state.offsets.keys() == {"shops"}
        flow.catch_up()
        assert rows_of(flow["best"]) == [("a", 7), ("b", 5_000_000_000)]
    with open_store() as flow:
        orders.rows = orders.rows[1:3]
        flow.catch_up()
        assert rows_of(flow["best"]) == [("a", 7), ("b", 5_000_000_000)]
        orders.rows = orders.rows[:1]
        flow.catch_up()
        assert rows_of(flow["best"]) == [("a", 7)]


def test_columns_that_a_program_declares_are_its_own(spark, tmp_path):
    class Declared(sources.Source):
        def __init__(self, columns):
            self._columns = columns

        def columns(self, spark):
            return spark.createDataFrame([], self._columns).schema

        def read(self, spark, offset):
            return None if offset else sources.Reading(
                1, [sources.Inserts(spark.createDataFrame([], self._columns))])

    with opened(spark, tmp_path, lambda: Declared("id int, v string")) as flow:
        flow.catch_up()
    with pytest.raises(ProgramChangedError, match="had"):
        opened(spark, tmp_path, lambda: Declared("id int, v string, w int"))


def test_a_store_that_does_not_tell_its_columns(spark, tmp_path, monkeypatch):
    table = Table(spark, "id int, v string", [(1, "a")])
    with monkeypatch.context() as patch:
        patch.setattr(sources.Sources, "columns", lambda self: {})
        with opened(spark, tmp_path, lambda: snapshots(table)) as flow:
            flow.catch_up()
    table.columns, table.rows = "id int, v string, w int", []
    with pytest.raises(ProgramChangedError, match="had"):
        opened(spark, tmp_path, lambda: snapshots(table))
