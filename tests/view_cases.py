"""The cases that tests/sql/test_views.py runs in a Spark session with Delta.

    after a refresh:  the target  =  plain Spark's answer at the recorded source versions
"""

from __future__ import annotations

import importlib
import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from delta_session import spark  # noqa: F401 - the fixture
from snippets import run_page

import pyspark_diff
from pyspark_diff import (
    ClosedError,
    FullScanError,
    ProgramChangedError,
    SchemaError,
    SinkError,
    SourceError,
)
from pyspark_diff.views.folder import FolderOfViews
from pyspark_diff.views.target import check_target, mark_of

FEED = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"


@pytest.fixture
def shop(spark, request, tmp_path):  # noqa: F811
    """A database with orders and customers; its name."""
    name = "d_" + re.sub(r"\W", "", request.node.name)[:40].lower()
    spark.sql(f"CREATE DATABASE {name}")
    spark.sql(f"CREATE TABLE {name}.orders (id INT, customer INT, amount INT) USING delta {FEED}")
    spark.sql(f"CREATE TABLE {name}.customers (customer INT, region STRING) USING delta {FEED}")
    spark.sql(f"INSERT INTO {name}.orders VALUES (1, 1, 10), (2, 2, 20), (3, 1, 5), (3, 1, 5)")
    spark.sql(f"INSERT INTO {name}.customers VALUES (1, 'north'), (2, 'south')")
    yield name
    spark.sql(f"DROP DATABASE {name} CASCADE")


def revenue(shop):
    return (
        f"SELECT region, sum(amount) AS revenue, count(*) AS n FROM {shop}.orders "
        f"JOIN {shop}.customers USING (customer) GROUP BY region"
    )


def rows(spark, table):  # noqa: F811
    frame = spark.read.table(table)
    return Counter(map(tuple, frame.drop("_row_copy").collect()))


def answer(spark, query, versions=()):  # noqa: F811
    """Plain Spark's answer, at recorded versions of sources."""
    for name, version in dict(versions).items():
        plain = name.removeprefix("spark_catalog.")
        query = re.sub(rf"\b{re.escape(plain)}\b", f"{plain} VERSION AS OF {version}", query)
    return Counter(map(tuple, spark.sql(query).collect()))


def last_write(spark, table):  # noqa: F811
    history = spark.sql(f"DESCRIBE HISTORY {table}")
    texts = [row.userMetadata for row in history.orderBy("version").collect() if row.userMetadata]
    return json.loads(texts[-1])


def change(spark, shop, draw):  # noqa: F811
    kind = draw.randrange(5)
    if kind == 0:
        spark.sql(f"INSERT INTO {shop}.orders VALUES ({draw.randrange(9)}, 1, 7), (9, 2, 1)")
    elif kind == 1:
        parity = draw.randrange(2)
        spark.sql(f"UPDATE {shop}.orders SET amount = amount + 1 WHERE id % 2 = {parity}")
    elif kind == 2:
        spark.sql(f"DELETE FROM {shop}.orders WHERE id = {draw.randrange(9)}")
    elif kind == 3:
        spark.sql(f"UPDATE {shop}.customers SET region = 'r{draw.randrange(3)}' WHERE customer = 1")
    else:
        spark.sql(f"OPTIMIZE {shop}.orders")


@pytest.mark.parametrize("kind", ["grouped", "distinct", "plain", "total"])
def test_target_is_the_answer_of_plain_spark(spark, shop, tmp_path, kind):  # noqa: F811
    query = {
        "grouped": revenue(shop),
        "distinct": f"SELECT DISTINCT customer, amount FROM {shop}.orders WHERE amount > 5",
        "plain": f"SELECT customer, amount FROM {shop}.orders",
        "total": f"SELECT sum(amount) AS total FROM {shop}.orders",
    }[kind]
    draw = random.Random(kind)
    view = pyspark_diff.materialized_view(
        spark, f"{shop}.target", query, store=tmp_path / "store", comment="of a test"
    )
    for number in range(4):
        done = view.refresh()
        # Later statements may change no row.
        assert done.changed or number
        assert rows(spark, f"{shop}.target") == answer(spark, query, done.versions)
        sources = last_write(spark, f"{shop}.target")["sources"]
        if kind == "grouped" and done.rows_out:
            versions = {name: offset["version"] for name, offset in sources.items()}
            assert versions == done.versions
        change(spark, shop, draw)
        change(spark, shop, draw)
    view.close()
    (detail,) = spark.sql(f"DESCRIBE DETAIL {shop}.target").collect()
    assert detail.description == "of a test"


def test_another_process_continues_and_nothing_is_done_twice(spark, shop, tmp_path):  # noqa: F811
    def view():
        return pyspark_diff.materialized_view(
            spark, f"{shop}.target", revenue(shop), store=tmp_path / "store"
        )

    with view() as first:
        done = first.refresh()
        assert done.recomputed == (f"{shop}.target: first load",)
        assert done.rows_in == 6
    version = last_version(spark, f"{shop}.target")
    with view() as second:
        again = second.refresh()
        assert not again.changed and "no source has changed" in str(again)
        assert last_version(spark, f"{shop}.target") == version
        spark.sql(f"INSERT INTO {shop}.orders VALUES (7, 2, 70)")
        plan = second.plan()
        assert plan.action == "change" and plan.rows == 1
        done = second.refresh()
        assert repr(second) == f"MaterializedView('{shop}.target', policy='strict')"
    with pytest.raises(ClosedError, match="this view was closed"):
        second.refresh()
    assert (done.rows_in, done.rows_out, done.recomputed) == (1, {f"{shop}.target": 2}, ())
    assert rows(spark, f"{shop}.target") == answer(spark, revenue(shop))


def last_version(spark, table):  # noqa: F811
    return spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0].version


def view_of(spark, shop, tmp_path, **options):  # noqa: F811
    return pyspark_diff.materialized_view(
        spark, f"{shop}.target", options.pop("query", None) or revenue(shop),
        store=tmp_path / "store", **options,
    )


@pytest.mark.parametrize("event", ["written", "restored", "replaced", "gone", "properties"])
def test_a_target_of_others_is_named_before_anything_is_read(
    spark, shop, tmp_path, event  # noqa: F811
):
    target = f"{shop}.target"
    view = view_of(spark, shop, tmp_path)
    view.refresh()
    spark.sql(f"INSERT INTO {shop}.orders VALUES (8, 1, 1)")
    view.refresh()
    statements, message = {
        "written": ([f"DELETE FROM {target} WHERE region = 'north'"],
                    "was written by others, DELETE in version"),
        "restored": ([f"RESTORE TABLE {target} TO VERSION AS OF {last_version(spark, target) - 1}"],
                     "was restored to an earlier version"),
        "replaced": ([f"DROP TABLE {target}", f"CREATE TABLE {target} (a INT) USING delta"],
                     "was replaced by another table"),
        "gone": ([f"DROP TABLE {target}"], "is gone"),
        "properties": ([f"ALTER TABLE {target} SET TBLPROPERTIES (note = 'mine')",
                        f"OPTIMIZE {target}"], None),
    }[event]
    for statement in statements:
        spark.sql(statement)
    spark.sql(f"INSERT INTO {shop}.orders VALUES (9, 2, 100)")
    if message is None:
        assert view.refresh().changed
    else:
        before = spark.sql(f"SELECT * FROM {target}").collect() if event != "gone" else None
        for _ in range(2):
            with pytest.raises(SinkError, match=message):
                view.refresh()
        if event != "gone":
            assert spark.sql(f"SELECT * FROM {target}").collect() == before
        if event == "replaced":
            spark.sql(f"DROP TABLE {target}")
        view.rebuild()
    assert rows(spark, target) == answer(spark, revenue(shop))
    view.close()


def test_a_target_is_checked_by_its_files_and_by_spark(
    spark, shop, tmp_path, monkeypatch  # noqa: F811
):
    """Each of both recorded the last commit, and each of both checks it."""
    target, sink = f"{shop}.target", f"{shop}.target"
    with view_of(spark, shop, tmp_path) as view:
        view.refresh()
        for number, by_spark in enumerate([False, True, True, False, False]):
            with monkeypatch.context() as patch:
                if by_spark:
                    for module in "target", "program", "forecast":
                        patch.setattr(f"pyspark_diff.views.{module}.delta_files", lambda *_: None)
                spark.sql(f"INSERT INTO {shop}.orders VALUES ({20 + number}, 1, 1)")
                assert (view.plan().rows, view.refresh().rows_in) == (1, 1)
                mark = mark_of(spark, target)
                assert ("timestamp" in mark) == by_spark
                changed = {key: "other" for key in ("timestamp", "commit") if key in mark}
                for patched in False, True:
                    if patched:
                        patch.setattr("pyspark_diff.views.target.delta_files", lambda *_: None)
                    check_target(spark, target, mark, sink)
                    with pytest.raises(SinkError, match="has another version"):
                        check_target(spark, target, {**mark, **changed}, sink)
        spark.sql(f"DELETE FROM {target} WHERE region = 'north'")
        for patched in False, True:
            with monkeypatch.context() as patch:
                if patched:
                    patch.setattr("pyspark_diff.views.target.delta_files", lambda *_: None)
                with pytest.raises(SinkError, match="was written by others, DELETE"):
                    view.refresh()


def test_a_target_with_rows_of_others_is_refused_and_rebuilt(spark, shop, tmp_path):  # noqa: F811
    spark.sql(f"CREATE TABLE {shop}.target USING delta AS SELECT 1 AS a")
    view = view_of(spark, shop, tmp_path)
    with pytest.raises(SinkError, match="has rows, and no refresh of this store wrote them"):
        view.refresh()
    assert "rebuild() was called" in view.rebuild().recomputed[0]
    assert rows(spark, f"{shop}.target") == answer(spark, revenue(shop))
    spark.sql(f"INSERT INTO {shop}.orders VALUES (9, 2, 100)")
    assert view.refresh().rows_in == 1
    view.close()


def test_strict_refuses_and_incremental_reports_a_source_that_was_replaced(
    spark, shop, tmp_path  # noqa: F811
):
    with view_of(spark, shop, tmp_path) as view:
        view.refresh()
        spark.sql(f"CREATE OR REPLACE TABLE {shop}.orders USING delta {FEED} "
                  "AS SELECT 1 AS id, 2 AS customer, 7 AS amount")
        with pytest.raises(SourceError, match="was replaced"):
            view.refresh()
    with view_of(spark, shop, tmp_path, policy="incremental") as view:
        done = view.refresh()
        assert "was replaced" in done.recomputed[0]
        assert rows(spark, f"{shop}.target") == answer(spark, revenue(shop))
        assert not view.refresh().changed


def test_a_source_without_a_feed(spark, shop, tmp_path, monkeypatch):  # noqa: F811
    spark.sql(f"CREATE TABLE {shop}.plain (customer INT) USING delta")
    spark.sql(f"INSERT INTO {shop}.plain VALUES (1), (1)")
    query = f"SELECT customer, count(*) AS n FROM {shop}.plain GROUP BY customer"
    with view_of(spark, shop, tmp_path, query=query) as view:
        view.refresh()
        for statement in "INSERT INTO {} VALUES (2)", "DELETE FROM {} WHERE customer = 1":
            spark.sql(statement.format(f"{shop}.plain"))
            assert "by its changed files: delta.enableChangeDataFeed is not set" in str(view.plan())
            done = view.refresh()
            assert done.changed and done.recomputed == ()
            assert rows(spark, f"{shop}.target") == answer(spark, query)
        assert "changed files" not in str(view.plan())
    # Another implementation of Delta does not read single files.
    monkeypatch.setattr("pyspark_diff.spark.delta_changed_files.delta_log", lambda *_: None)
    spark.sql(f"DROP TABLE {shop}.target")
    with view_of(spark, shop, tmp_path / "other", query=query) as view:
        with pytest.raises(SourceError, match="policy='strict' refuses"):
            view.refresh()
    with view_of(spark, shop, tmp_path / "other", query=query, policy="incremental") as view:
        view.refresh()
        spark.sql(f"INSERT INTO {shop}.plain VALUES (2)")
        assert "does not record its changes" in str(view.plan())
        done = view.refresh()
        assert "does not record its changes" in done.recomputed[0]
        assert rows(spark, f"{shop}.target") == answer(spark, query)


def test_strict_refuses_a_query_that_reads_the_whole_state(spark, shop, tmp_path):  # noqa: F811
    query = f"SELECT id, amount, region FROM {shop}.orders CROSS JOIN {shop}.customers"
    with view_of(spark, shop, tmp_path, query=query) as view:
        with pytest.raises(FullScanError, match="WHOLE_SIDE.*policy='incremental'"):
            view.refresh()
    assert not spark.catalog.tableExists(f"{shop}.target")
    with view_of(spark, shop, tmp_path, query=query, policy="incremental") as view:
        view.refresh()
        spark.sql(f"DELETE FROM {shop}.customers WHERE customer = 1")
        view.refresh()
        assert rows(spark, f"{shop}.target") == answer(spark, query)


def test_a_changed_query_is_planned_and_approved(spark, shop, tmp_path):  # noqa: F811
    with view_of(spark, shop, tmp_path) as view:
        view.refresh()
    query = f"SELECT customer, max(amount) AS best FROM {shop}.orders GROUP BY customer"
    with view_of(spark, shop, tmp_path, query=query) as view:
        plan = view.plan()
        assert plan.action == "rebuild" and plan.rebuilt == (f"{shop}.target",)
        assert plan.rows == 4
        with pytest.raises(ProgramChangedError, match="policy='strict' refuses"):
            view.refresh()
    plans = []
    with view_of(spark, shop, tmp_path, query=query, approve=lambda p: plans.append(p)) as view:
        with pytest.raises(ProgramChangedError, match="was not approved"):
            view.refresh()
    assert plans[0].rebuilt == (f"{shop}.target",)
    (tmp_path / "store" / "state-1" / "data" / "note.txt").write_text("not of the store")
    with view_of(spark, shop, tmp_path, query=query, approve=lambda plan: True) as view:
        view.refresh()
        assert rows(spark, f"{shop}.target") == answer(spark, query)
        assert sorted(path.name for path in (tmp_path / "store").glob("state-*")) == ["state-2"]
        view.rebuild()
        assert sorted(path.name for path in (tmp_path / "store").glob("state-*")) == ["state-3"]


def test_auto_rebuilds_when_the_forecast_is_cheaper(spark, shop, tmp_path):  # noqa: F811
    spark.sql(f"INSERT INTO {shop}.orders SELECT id, id % 2, 1 FROM range(30000)")
    with view_of(spark, shop, tmp_path, policy="auto") as view:
        view.refresh()
        spark.sql(f"INSERT INTO {shop}.orders VALUES (1, 1, 1)")
        assert view.plan().action == "change"
        view.refresh()
        spark.sql(f"UPDATE {shop}.orders SET amount = amount + 1")
        for _ in range(5):
            spark.sql(f"UPDATE {shop}.orders SET amount = amount + 1")
        plan = view.plan()
        assert plan.action == "rebuild" and "changed rows would take" in plan.reasons[0]
        assert view.refresh().recomputed
        assert rows(spark, f"{shop}.target") == answer(spark, revenue(shop))


def test_a_folder_of_views_is_one_dataflow(
    spark, shop, tmp_path, capsys, monkeypatch  # noqa: F811
):
    from pyspark_diff import __main__

    monkeypatch.setattr(pyspark_diff, "session", lambda: spark)
    folder = tmp_path / "views"
    folder.mkdir()
    (folder / f"{shop}.a_top.sql").write_text(
        f"-- comment: best regions\nSELECT region, revenue FROM {shop}.revenue WHERE revenue > 5"
    )
    (folder / f"{shop}.revenue.sql").write_text(f"{revenue(shop)};\n")
    assert __main__.main(["refresh", str(folder)]) == 0
    assert "first load" in capsys.readouterr().out
    spark.sql(f"UPDATE {shop}.orders SET amount = 1 WHERE id = 2")
    assert __main__.main(["explain", str(folder)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("read changes: 2 rows") and f"{shop}.a_top, merged by region" in output
    assert f"reads spark_catalog.{shop}.revenue" in output
    assert __main__.main(["refresh", str(folder)]) == 0
    assert "2 rows in" in capsys.readouterr().out
    query = f"SELECT region, revenue FROM ({revenue(shop)}) WHERE revenue > 5"
    assert rows(spark, f"{shop}.a_top") == answer(spark, query)
    assert rows(spark, f"{shop}.revenue") == answer(spark, revenue(shop))
    (folder / f"{shop}.revenue.sql").write_text(f"SELECT region, 1 AS revenue FROM {shop}.a_top")
    assert __main__.main(["explain", str(folder)]) == 1
    assert "in a cycle" in capsys.readouterr().err


def test_an_option_that_no_view_has(tmp_path):
    from pyspark_diff.views.folder import views_of_folder

    (tmp_path / "a.sql").write_text("-- partition: day\nSELECT 1")
    with pytest.raises(SchemaError, match="option 'partition', which no view has"):
        views_of_folder(tmp_path)


def test_page(spark, tmp_path, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(pyspark_diff, "session", lambda: spark)
    run_page("how-to/views.md", lambda: capsys.readouterr().out, {"__name__": "page"})


@pytest.mark.slow
def test_kills_of_a_refresh_lose_and_double_nothing(spark, tmp_path):  # noqa: F811
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "view_kills.py"), "4"],
        capture_output=True, text=True, timeout=850,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_a_history_of_a_view(spark, shop, tmp_path):  # noqa: F811
    """The target keeps past rows, and a changed query continues their history."""
    target, query = f"{shop}.past", revenue(shop)
    added = ("valid_from", "valid_to", "is_current")

    def current():
        frame = spark.read.table(target).where("is_current").drop(*added)
        return Counter(map(tuple, frame.collect()))

    def view(query, **options):
        return pyspark_diff.materialized_view(
            spark, target, query, store=str(tmp_path), history="scd2", comment="past", **options)

    with view(query) as opened:
        opened.refresh()
        assert current() == answer(spark, query)
        spark.sql(f"UPDATE {shop}.orders SET amount = 11 WHERE id = 1")
        opened.refresh()
        assert current() == answer(spark, query)
        assert spark.read.table(target).count() == 3
    other = query + " HAVING sum(amount) < 21"
    with view(other, approve=lambda plan: True) as opened:
        opened.refresh()
        assert current() == answer(spark, other)
        assert spark.read.table(target).count() == 3
        assert spark.read.table(target).where("valid_to IS NOT NULL").count() == 2
        (reason,) = view(query).plan().reasons
        assert "query" in reason
    # The view refuses other columns before a rebuild begins, and continues with its own.
    wider = revenue(shop).replace("count(*) AS n", "count(*) AS n, max(amount) AS most")
    with view(wider, approve=lambda plan: True) as opened:
        for call in opened.refresh, opened.rebuild:
            with pytest.raises(SinkError, match="is a history with other columns"):
                call()
    with view(other) as opened:
        spark.sql(f"UPDATE {shop}.orders SET amount = 1 WHERE id = 1")
        opened.refresh()
        assert current() == answer(spark, other)
    with pyspark_diff.materialized_view(spark, target, other, store=str(tmp_path)) as opened:
        (reason,) = opened.plan().reasons
        assert reason == f"the history of {target} is no longer wanted, and is overwritten"
        with pytest.raises(ProgramChangedError, match="no longer wanted"):
            opened.refresh()
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / f"{shop}.a.sql").write_text(f"-- history: scd2\n{query}")
    (tmp_path / "views" / f"{shop}.b.sql").write_text(f"SELECT n FROM {shop}.a")
    with pytest.raises(SchemaError, match="which is a history"):
        FolderOfViews(spark, tmp_path / "views")
    (tmp_path / "views" / f"{shop}.b.sql").write_text("-- history: yes\nSELECT 1")
    with pytest.raises(SchemaError, match="history='yes'; pass 'scd2'"):
        FolderOfViews(spark, tmp_path / "views")


def test_a_load_that_did_not_end_and_another_query(
    spark, shop, tmp_path, monkeypatch,  # noqa: F811
):
    """A changed query cannot reuse the state of an unfinished load, and starts again."""
    def fails(*_):
        raise OSError("the disk is full")

    def interrupted(**options):
        with monkeypatch.context() as patch:
            patch.setattr("pyspark_diff.views.target.GuardedSink.write", fails)
            with view_of(spark, shop, tmp_path, **options) as view:
                with pytest.raises(SinkError, match="the disk is full"):
                    view.refresh()

    query = f"SELECT customer, max(amount) AS best FROM {shop}.orders GROUP BY customer"
    interrupted(query=query.replace("max", "min"))
    with view_of(spark, shop, tmp_path, query=query) as view:
        assert view.plan().action == "load"
        view.refresh()
        assert rows(spark, f"{shop}.target") == answer(spark, query)
    # A rebuild that did not end, and the query of before.
    interrupted(query=query.replace("max", "sum"), approve=lambda plan: True)
    with view_of(spark, shop, tmp_path, query=query) as view:
        with pytest.raises(ProgramChangedError, match="a rebuild was interrupted"):
            view.refresh()
    with view_of(spark, shop, tmp_path, query=query, approve=lambda plan: True) as view:
        view.refresh()
        assert rows(spark, f"{shop}.target") == answer(spark, query)


@pytest.mark.slow
def test_columns_that_no_view_uses(spark, shop, tmp_path):  # noqa: F811
    """They may be altered between two processes, also under a star that the query narrows again."""
    query = (
        f"WITH x AS (SELECT * FROM {shop}.orders) "
        "SELECT customer, count(*) AS n FROM x GROUP BY customer"
    )
    spark.sql(f"ALTER TABLE {shop}.orders SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    with view_of(spark, shop, tmp_path, query=query) as view:
        view.refresh()
        (source,) = view._group._flow._sources.columns().values()
        assert source.names == ["customer"]
    for statement in (
        "ALTER TABLE {} ADD COLUMN extra INT FIRST", "ALTER TABLE {} DROP COLUMN amount",
        "ALTER TABLE {} RENAME COLUMN id TO number", "INSERT INTO {} VALUES (1, 2, 2)",
    ):
        spark.sql(statement.format(f"{shop}.orders"))
    with view_of(spark, shop, tmp_path, query=query) as view:
        assert view.refresh().recomputed == ()
        assert rows(spark, f"{shop}.target") == answer(spark, query)
    # A used column that is lost is named.
    spark.sql(f"ALTER TABLE {shop}.orders RENAME COLUMN customer TO person")
    with view_of(spark, shop, tmp_path, query=query) as view:
        with pytest.raises(SchemaError, match="customer"):
            view.refresh()


@pytest.mark.slow
@pytest.mark.parametrize("anew", [False, True])
def test_widened_columns_are_read_again(spark, shop, tmp_path, anew):  # noqa: F811
    """The refresh reports it; policy="strict" refuses it with the number of rows."""
    source, target = f"{shop}.wide", f"{shop}.target"
    query = f"SELECT id, f, d, n, count(*) AS c FROM {source} GROUP BY id, f, d, n"
    spark.sql(f"CREATE TABLE {source} (id INT, f FLOAT, d DATE, n DECIMAL(5,2)) USING delta {FEED}")
    spark.sql(f"INSERT INTO {source} VALUES (1, 0.1, DATE'2024-02-29', 1.25), (2, NULL, NULL, -7)")
    allowed: list[str] = []

    def approve(plan):
        allowed.append(str(plan))
        return len(allowed) > 1

    strict = {"policy": "strict", "approve": approve}
    view = view_of(spark, shop, tmp_path, query=query, **strict)
    view.refresh()
    spark.sql(f"ALTER TABLE {source} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true', "
              "'delta.feature.timestampNtz' = 'supported')")
    for column, kind in [("id", "BIGINT"), ("f", "DOUBLE"), ("d", "TIMESTAMP_NTZ"),
                         ("n", "DECIMAL(20,4)")]:
        spark.sql(f"ALTER TABLE {source} ALTER COLUMN {column} TYPE {kind}")
    spark.sql(f"INSERT INTO {source} VALUES (5000000000, 0.1, TIMESTAMP_NTZ'2024-01-01 01:02:03', "
              "123456789.1234)")
    if anew:
        view.close()
        view = view_of(spark, shop, tmp_path, query=query, **strict)
    before = rows(spark, target)
    with pytest.raises(SourceError, match="not approved.*(?s:.*)id was int and is bigint"):
        view.refresh()
    assert rows(spark, target) == before and "3 rows of version" in allowed[0]
    (part,) = view.refresh().recomputed
    assert "f was float and is double, d was date and is timestamp_ntz" in part
    assert rows(spark, target) == answer(spark, query)
    assert spark.read.table(target).schema["n"].dataType.simpleString() == "decimal(20,4)"
    spark.sql(f"DELETE FROM {source} WHERE id = 2")
    assert view.refresh().recomputed == ()
    assert rows(spark, target) == answer(spark, query)
    view.close()


@pytest.mark.slow
@pytest.mark.parametrize("column", ["amount", "customer", "s.x"])
def test_a_widened_column_of_one_table(
    spark, shop, tmp_path, monkeypatch, column,  # noqa: F811
):
    """Its table alone is read again. A refresh that failed does not change the target."""
    source, target = f"{shop}.wide", f"{shop}.target"
    query = (
        f"SELECT region, customer, s.x AS x, max(amount) AS best FROM {source} "
        f"JOIN {shop}.customers USING (customer) GROUP BY region, customer, s.x"
    )
    spark.sql(f"CREATE TABLE {source} (customer INT, amount INT, s STRUCT<x: INT>) USING delta "
              "TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.enableTypeWidening = true)")
    spark.sql(f"INSERT INTO {source} VALUES (1, 10, struct(1)), (1, 10, struct(1)), (2, 5, NULL)")
    plans = []

    def approve(plan):
        plans.append(plan)
        return len(plans) > 1

    options = {"query": query, "approve": approve}
    with view_of(spark, shop, tmp_path, **options) as view:
        view.refresh()
    spark.sql(f"ALTER TABLE {source} ALTER COLUMN {column} TYPE BIGINT")
    big = {"amount": "(2, 5000000000, NULL)", "customer": "(5000000000, 1, NULL)",
           "s.x": "(1, 1, struct(5000000000))"}[column]
    spark.sql(f"INSERT INTO {source} VALUES {big}")
    spark.sql(f"INSERT INTO {shop}.customers VALUES (3, 'west')")
    before = rows(spark, target)
    view = view_of(spark, shop, tmp_path, **options)
    with pytest.raises(SourceError, match="not approved.*(?s:.*)int.*bigint"):
        view.refresh()
    wide, customers = plans[0].sources
    assert (wide.first, wide.reads, customers.reads) == (None, 4, 1), str(plans[0])
    with monkeypatch.context() as patch:
        patch.setattr("pyspark_diff.views.target.GuardedSink.write", _full_disk)
        with pytest.raises(SinkError, match="the disk is full"):
            view.refresh()
    assert rows(spark, target) == before
    view.close()
    with view_of(spark, shop, tmp_path, **options) as view:
        done = view.refresh()
        assert rows(spark, target) == answer(spark, query)
        assert spark.read.table(target).schema == spark.sql(query).schema
        spark.sql(f"DELETE FROM {source} WHERE customer = 1")
        done = view.refresh()
        assert done.recomputed == () and rows(spark, target) == answer(spark, query)
    assert len(list((tmp_path / "store").glob("state-*"))) == 1


def _full_disk(*_):
    raise OSError("the disk is full")


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["true", "false"])
def test_a_renamed_column_keeps_the_state(spark, shop, tmp_path, feed):  # noqa: F811
    """If the query uses its new name. The old name, or another column of it, is refused."""
    orders, target = f"{shop}.orders", f"{shop}.target"

    def alter(*statements):
        for statement in statements:
            spark.sql(f"ALTER TABLE {orders} {statement}")

    def refreshed(query, **options):
        with view_of(spark, shop, tmp_path, query=query, **options) as view:
            plan, done = view.plan(), view.refresh()
        assert rows(spark, target) == answer(spark, query)
        return plan.action, done.recomputed

    alter(f"SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
          f"'delta.enableChangeDataFeed' = '{feed}', 'delta.enableTypeWidening' = 'true')")
    query = revenue(shop)
    refreshed(query)
    spark.sql(f"UPDATE {orders} SET amount = 7 WHERE id = 2")
    alter("RENAME COLUMN amount TO price", "ADD COLUMN note STRING")
    spark.sql(f"INSERT INTO {orders} VALUES (4, 2, 70, 'x')")
    with pytest.raises(SchemaError, match="column amount of .*orders was renamed to price since"):
        refreshed(query)
    query = query.replace("amount", "price")
    assert refreshed(query) == ("change", ())
    # A query with another change is another query.
    with pytest.raises(ProgramChangedError, match="the query of .* has changed"):
        refreshed(query.replace("count(*)", "max(price)"))
    alter("RENAME COLUMN price TO amount")
    with pytest.raises(ProgramChangedError, match="the query of .* has changed"):
        refreshed(revenue(shop).replace("count(*)", "max(amount)"))
    query = revenue(shop)
    assert refreshed(query) == ("change", ())
    alter("RENAME COLUMN amount TO price")
    query = query.replace("amount", "price")
    assert refreshed(query) == ("change", ())
    # Another column of this name.
    alter("RENAME COLUMN price TO old", "ADD COLUMN price INT")
    spark.sql(f"INSERT INTO {orders} (id, customer, old, price) VALUES (5, 2, 1, 9)")
    with pytest.raises(SourceError, match="price"):
        refreshed(query)
    action, (part,) = refreshed(query, policy="incremental")
    assert "price" in part
    # Two names are swapped.
    alter("RENAME COLUMN price TO tmp", "RENAME COLUMN old TO price", "RENAME COLUMN tmp TO old")
    spark.sql(f"INSERT INTO {orders} (id, customer, old, price) VALUES (6, 2, 1, 9)")
    with pytest.raises(SourceError, match="price"):
        refreshed(query)
    assert refreshed(query, policy="incremental")[1]
    # A renamed column that is widened too.
    alter("RENAME COLUMN price TO cents", "ALTER COLUMN cents TYPE BIGINT")
    spark.sql(f"INSERT INTO {orders} (id, customer, old, cents) VALUES (6, 2, 1, 5000000000)")
    with pytest.raises(SchemaError, match="price .*was renamed to cents.*because price was int"):
        refreshed(query)
    query = query.replace("price", "cents")
    assert refreshed(query, policy="incremental")[1]


@pytest.mark.slow
def test_renamed_columns_of_a_star(spark, shop, tmp_path):  # noqa: F811
    """The target has the names of the query, so it is written again; an added column is read."""
    orders, target = f"{shop}.orders", f"{shop}.target"
    query = f"SELECT * FROM {orders}"
    options = {"query": query, "policy": "incremental"}
    spark.sql(f"ALTER TABLE {orders} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    with view_of(spark, shop, tmp_path, **options) as view:
        view.refresh()
        spark.sql(f"ALTER TABLE {orders} RENAME COLUMN amount TO price")
        (part,) = view.refresh().recomputed
        assert "amount of" in part and "was renamed to price" in part
        assert rows(spark, target) == answer(spark, query)
        spark.sql(f"ALTER TABLE {orders} ADD COLUMN extra INT")
        spark.sql(f"INSERT INTO {orders} VALUES (7, 1, 2, 3)")
        (part,) = view.refresh().recomputed
        assert "extra was added, and the query uses it" in part
        assert rows(spark, target) == answer(spark, query)
        assert spark.read.table(target).columns == ["id", "customer", "price", "extra", "_row_copy"]


@pytest.mark.slow
def test_a_query_that_lost_a_column_keeps_its_state(spark, shop, tmp_path):  # noqa: F811
    """The column may get its name back. Else the query is altered, and all is read again."""
    source, target = f"{shop}.orders", f"{shop}.target"
    query = f"SELECT customer, sum(amount) AS total FROM {source} GROUP BY customer"
    spark.sql(f"ALTER TABLE {source} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    with view_of(spark, shop, tmp_path, query=query, policy="incremental") as view:
        view.refresh()
        spark.sql(f"ALTER TABLE {source} RENAME COLUMN amount TO price")
        spark.sql(f"INSERT INTO {source} VALUES (8, 1, 100)")
        with pytest.raises(SchemaError, match="amount"):
            view.refresh()
        spark.sql(f"ALTER TABLE {source} RENAME COLUMN price TO amount")
        assert view.refresh().recomputed == ()
        assert rows(spark, target) == answer(spark, query)
        spark.sql(f"ALTER TABLE {source} RENAME COLUMN amount TO price")
        with pytest.raises(SchemaError, match="amount"):
            view.refresh()
    query = query.replace("amount", "price")
    with view_of(spark, shop, tmp_path, query=query, policy="incremental") as view:
        assert view.refresh().recomputed == ()
        assert rows(spark, target) == answer(spark, query)


@pytest.mark.slow
def test_a_store_with_all_columns(spark, shop, tmp_path, monkeypatch):  # noqa: F811
    """A store of an earlier version goes on with them, and names one that is lost."""
    query = f"SELECT customer, count(*) AS n FROM {shop}.orders GROUP BY customer"
    spark.sql(f"ALTER TABLE {shop}.orders SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    with monkeypatch.context() as patch:
        patch.setattr("pyspark_diff.views.program.used_columns", lambda *_: {})
        with view_of(spark, shop, tmp_path, query=query) as view:
            view.refresh()
    spark.sql(f"INSERT INTO {shop}.orders VALUES (1, 2, 2)")
    with view_of(spark, shop, tmp_path, query=query) as view:
        assert view.refresh().recomputed == ()
        assert rows(spark, f"{shop}.target") == answer(spark, query)
    spark.sql(f"ALTER TABLE {shop}.orders DROP COLUMN amount")
    with view_of(spark, shop, tmp_path, query=query) as view:
        with pytest.raises(SourceError, match="amount was dropped"):
            view.refresh()
        view.rebuild()
        assert rows(spark, f"{shop}.target") == answer(spark, query)


@pytest.mark.slow
def test_a_log_of_refreshes(spark, shop, tmp_path):  # noqa: F811
    """A row for each view and each refresh that changed something."""
    folder, log = tmp_path / "views", f"{shop}.log"
    folder.mkdir()
    (folder / f"{shop}.revenue.sql").write_text(revenue(shop))
    (folder / f"{shop}.top.sql").write_text(f"SELECT region FROM {shop}.revenue WHERE n > 2")
    (folder / f"{shop}.regions.sql").write_text(f"SELECT DISTINCT region FROM {shop}.customers")
    views = FolderOfViews(spark, folder, log=log)
    views.refresh()
    spark.sql(f"INSERT INTO {shop}.orders VALUES (7, 2, 70), (8, 2, 1), (9, 2, 1)")
    done = views.refresh()
    assert not views.refresh().changed
    views.close()
    columns = "view", "rows_in", "rows_out", "recomputed"
    logged = [tuple(row) for row in spark.read.table(log).orderBy("refreshed_at", "view").select(
        *columns).collect()]
    names = [f"{shop}.{name}" for name in ("regions", "revenue", "top")]
    assert logged == [
        *((name, rows_in, rows_out, [f"{name}: first load"])
          for name, rows_in, rows_out in zip(names, (2, 6, 6), (2, 2, 1))),
        (names[0], 0, 0, []), (names[1], 3, 2, []), (names[2], 3, 1, []),
    ]
    assert [report.view for report in done.views] == [view.target for view in views.views]
    spark.sql(f"CREATE TABLE {shop}.other (a INT) USING delta")
    views = FolderOfViews(spark, folder, log=f"{shop}.other")
    with pytest.raises(SchemaError, match="lacks refreshed_at.*Name a table that is not there"):
        views.refresh()


@pytest.mark.slow
def test_the_medallion_example(spark, tmp_path, monkeypatch):  # noqa: F811
    """Each target is plain Spark's answer after the load and after each hour, or it exits."""
    root = Path(__file__).parent.parent / "examples" / "medallion"
    assert len(list((root / "views").glob("*.sql"))) == 17
    monkeypatch.syspath_prepend(str(root))
    try:
        figures = importlib.import_module("run").run(spark, 2_000, 100, 2, str(tmp_path))
    finally:
        for name in "bronze", "gold":
            spark.sql(f"DROP DATABASE IF EXISTS {name} CASCADE")
    assert figures["hours"] == 2


#: Statements about the source of a view with the feed, or without it; the refusal of the next
#: refresh, if there is one; and whether the query is the same after it.
EVENTS = {
    "optimize": (["OPTIMIZE {t}"], None),
    "z-order": (["OPTIMIZE {t} ZORDER BY (amount)"], None),
    "vacuum past the version that was read": (
        ["DELETE FROM {t} WHERE id = 1", "VACUUM {t} RETAIN 0 HOURS"],
        {"feed": "cannot tell what has changed",
         "no feed": "cannot tell what has changed"}),
    "rewritten and vacuumed": (
        ["UPDATE {t} SET amount = amount + 1", "OPTIMIZE {t}", "VACUUM {t} RETAIN 0 HOURS"],
        {"feed": "cannot tell what has changed",
         "no feed": "cannot tell what has changed"}),
    "an added column": (["ALTER TABLE {t} ADD COLUMN extra STRING FIRST"], None),
    "an added column with a default": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
         "ALTER TABLE {t} ADD COLUMN extra INT",
         "ALTER TABLE {t} ALTER COLUMN extra SET DEFAULT 7"],
        None),
    "a renamed column that is not used": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
         "UPDATE {t} SET amount = 7 WHERE id = 2",
         "ALTER TABLE {t} RENAME COLUMN unused TO other",
         "UPDATE {t} SET amount = 8 WHERE id = 1"], None),
    "a renamed column": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
         "ALTER TABLE {t} RENAME COLUMN amount TO price"],
        {"feed": "amount", "no feed": "amount"}),
    "a dropped column that is not used": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
         "DELETE FROM {t} WHERE id = 3", "ALTER TABLE {t} DROP COLUMN unused",
         "UPDATE {t} SET amount = 8 WHERE id = 1"], None),
    "a dropped column": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
         "ALTER TABLE {t} DROP COLUMN amount"],
        {"feed": "amount", "no feed": "amount"}),
    "a widened column": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
         "ALTER TABLE {t} ALTER COLUMN amount TYPE BIGINT"],
        {"feed": "amount", "no feed": "amount"}),
    "a widened column that is not used": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
         "UPDATE {t} SET amount = 7 WHERE id = 2",
         "ALTER TABLE {t} ALTER COLUMN unused TYPE BIGINT",
         "UPDATE {t} SET amount = 8, unused = 5000000000 WHERE id = 1"], None),
    "deletion vectors": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
         "DELETE FROM {t} WHERE id = 2", "REORG TABLE {t} APPLY (PURGE)"], None),
    "a restore": (
        ["DELETE FROM {t} WHERE id = 1", "UPDATE {t} SET amount = 0 WHERE id = 3",
         "RESTORE TABLE {t} TO VERSION AS OF 1"], None),
    "an overwrite": (["INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id <> 2"], None),
    "a truncate": (["TRUNCATE TABLE {t}"], None),
    "a merge": (
        ["MERGE INTO {t} t USING (SELECT explode(array(1, 50)) AS id) s ON t.id = s.id "
         "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, customer, amount) "
         "VALUES (s.id, 2, 9)"], None),
    "a table replaced by a query": (
        ["CREATE OR REPLACE TABLE {t} USING delta AS SELECT * FROM {t} WHERE id = 1"],
        {"feed": "replaced", "no feed": "replaced"}),
    "a table that was made anew": (
        ["DROP TABLE {t}", "CREATE TABLE {t} (id INT, unused INT, customer INT, amount INT) USING "
         "delta", "INSERT INTO {t} VALUES (1, 1, 1, 1)"],
        {"feed": "replaced", "no feed": "replaced"}),
    "a feed that is enabled later": (
        ["UPDATE {t} SET amount = 1 WHERE id = 1",
         "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
         "UPDATE {t} SET amount = 2 WHERE id = 2"], None),
    "a feed that is disabled": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')",
         "UPDATE {t} SET amount = 2 WHERE id = 2"], None),
    "an upgrade of the protocol": (
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.minReaderVersion' = '3', "
         "'delta.minWriterVersion' = '7')", "DELETE FROM {t} WHERE id = 1"], None),
    "a constraint and a comment": (
        ["ALTER TABLE {t} ADD CONSTRAINT some CHECK (amount > -100)",
         "COMMENT ON TABLE {t} IS 'text'", "ALTER TABLE {t} ALTER COLUMN amount COMMENT 'money'"],
        None),
}


def follow(spark, shop, store, event, feed):  # noqa: F811
    """Refresh a view after an event, or rebuild it after the refusal."""
    statements, refusals = EVENTS[event]
    source, target = f"{shop}.events", f"{shop}.of_events"
    spark.sql(f"CREATE TABLE {source} (id INT, unused INT, customer INT, amount INT) USING delta "
              + (FEED if feed == "feed" else ""))
    spark.sql(f"INSERT INTO {source} VALUES (1, 0, 1, 10), (2, 0, 2, 20), (3, 0, 1, 5)")
    query = f"SELECT customer, sum(amount) AS total, count(*) AS n FROM {source} GROUP BY customer"
    refusal = (refusals or {}).get(feed)
    with pyspark_diff.materialized_view(spark, target, query, store=store) as view:
        view.refresh()
        for statement in statements:
            spark.sql(statement.format(t=source))
        if refusal is None:
            done = view.refresh()
            assert done.recomputed == ()
            assert rows(spark, target) == answer(spark, query)
            spark.sql(f"INSERT INTO {source} (id, customer, amount) VALUES (9, 7, 70)")
            view.refresh()
            assert rows(spark, target) == answer(spark, query)
            return
        before = rows(spark, target)
        with pytest.raises((SourceError, SchemaError, ProgramChangedError), match=refusal):
            view.refresh()
        assert rows(spark, target) == before
        if "amount" not in spark.read.table(source).columns:
            query = query.replace("amount", "price" if "renamed" in event else "unused")
    with pyspark_diff.materialized_view(spark, target, query, store=store) as view:
        view.rebuild()
        assert rows(spark, target) == answer(spark, query)
        spark.sql(f"DELETE FROM {source} WHERE id = 1")
        view.refresh()
        assert rows(spark, target) == answer(spark, query)


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["feed", "no feed"])
@pytest.mark.parametrize("event", list(EVENTS)[0::4])
def test_the_first_events_of_a_source(spark, shop, tmp_path, event, feed):  # noqa: F811
    follow(spark, shop, tmp_path, event, feed)


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["feed", "no feed"])
@pytest.mark.parametrize("event", list(EVENTS)[1::4])
def test_the_second_events_of_a_source(spark, shop, tmp_path, event, feed):  # noqa: F811
    follow(spark, shop, tmp_path, event, feed)


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["feed", "no feed"])
@pytest.mark.parametrize("event", list(EVENTS)[2::4])
def test_the_third_events_of_a_source(spark, shop, tmp_path, event, feed):  # noqa: F811
    follow(spark, shop, tmp_path, event, feed)


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["feed", "no feed"])
@pytest.mark.parametrize("event", list(EVENTS)[3::4])
def test_the_fourth_events_of_a_source(spark, shop, tmp_path, event, feed):  # noqa: F811
    follow(spark, shop, tmp_path, event, feed)
