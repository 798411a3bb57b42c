"""State that outlives the application, and the messages that a user of a store gets."""

from __future__ import annotations

import logging
import warnings

import pytest
from pyspark.sql import functions as F

from pyspark_diff import (
    ConcurrentWriteError,
    Dataflow,
    NotReadableError,
    ProgramChangedError,
    RepeatedTokenError,
    SchemaError,
    StaleWarning,
    StalledError,
    StateReader,
)
from pyspark_diff.trace import storage

ORDERS = "id long, region string, amount long"


def orders(flow):
    rows, _ = flow.input("orders", ORDERS)
    rows.groupBy("region").agg(F.sum("amount").alias("revenue")).keep("revenue")
    return rows


def opened(path, program, spark, **options):
    options.setdefault("runner", "local")
    options.setdefault("buckets", None)
    return Dataflow.open(path, program, spark=spark, **options)


def fed(flow, time, *rows, **options):
    flow.session("orders").insert(list(rows))
    return flow.advance_to(time, **options)


def revenue(reader, time=None):
    return {row["region"]: row["revenue"] for row in reader["revenue"].at(time).collect()}


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "store")


def test_goes_on_in_another_application(spark, store):
    with opened(store, orders, spark) as flow:
        fed(flow, 1, (1, "north", 10), (2, "south", 5))
        flow.session("orders").update([(3, "south", 7, 9, 1)])  # waits for its time
        fed(flow, 2, (4, "north", 1))
    with opened(store, orders, spark) as flow:
        assert flow.session("orders").time() == 2
        assert revenue(flow) == {"north": 11, "south": 5}
        flow.session("orders").remove([(1, "north", 10)])
        flow.advance_to(10)
        assert revenue(flow) == {"north": 1, "south": 12}


def test_older_commits_are_read_as_they_were(spark, store):
    with opened(store, orders, spark, retain=3) as flow:
        for time in range(1, 8):
            fed(flow, time, (time, "north", 1))
        history = flow.history().collect()
        assert [row["step"] for row in history][-3:] == [5, 6, 7]
        for row in history[-3:]:
            with flow.at(row["commit"]) as then:
                assert revenue(then) == {"north": row["step"]}
                assert list(then) == ["revenue"] and "revenue" in then
        with pytest.raises(NotReadableError, match="there is no commit 1"):
            flow.at(1)
        with pytest.raises(NotReadableError, match="'nosuch'.*The kept names: 'revenue'"):
            flow.at(history[-1]["commit"])["nosuch"]


@pytest.mark.parametrize("rows_max", [0, 4096])
def test_changes_are_the_difference_of_two_times(spark, store, use_thresholds, rows_max):
    use_thresholds(in_memory_rows_max=rows_max)
    with opened(store, orders, spark, keep_history=True) as flow:
        for time in range(1, 5):
            fed(flow, time, (time, "north", time))
        with StateReader(store, spark=spark) as reader:
            for where in flow["revenue"], reader["revenue"]:
                changes = where.changes(1, 3).collect()
                assert [tuple(row) for row in sorted(changes, key=lambda r: (r.time, r.diff))] == [
                    ("north", 3, 2, -1), ("north", 6, 2, 1),
                    ("north", 6, 3, -1), ("north", 10, 3, 1),
                ]
                assert where.changes(3, 3).collect() == []
                with pytest.raises(NotReadableError, match="not complete"):
                    where.changes(1, 4)


def test_a_reader_sees_one_commit_while_the_writer_goes_on(spark, store):
    with opened(store, orders, spark, retain=1) as flow:
        fed(flow, 1, (1, "north", 10))
        with StateReader(store, spark=spark) as reader:
            for time in range(2, 8):
                fed(flow, time, (time, "north", 1))
                assert revenue(reader) == {"north": 10}
            assert reader.refresh() and revenue(reader) == {"north": 16}
            assert not reader.refresh()
    with StateReader(store, spark=spark) as reader:
        assert revenue(reader) == {"north": 16}


def test_a_dead_readers_hold_expires_and_is_said(spark, store, caplog):
    with opened(store, orders, spark, retain=1) as flow:
        fed(flow, 1, (1, "north", 10))
        reader = StateReader(store, spark=spark, seconds=-100.0)
        fed(flow, 2, (1, "north", 10))
        with caplog.at_level(logging.WARNING, "pyspark_diff"):
            report = flow.vacuum(dry_run=False, older_than=0)
        assert report.expired_holds or "had expired" in caplog.text
        with pytest.raises(NotReadableError, match="expired"):
            reader["revenue"]
        reader.close()


def test_the_later_writer_wins(spark, store):
    with opened(store, orders, spark) as first:
        fed(first, 1, (1, "north", 10))
        with opened(store, orders, spark) as second:
            fed(second, 2, (2, "north", 1))
            with pytest.raises(ConcurrentWriteError, match="epoch"):
                fed(first, 2, (3, "north", 100))
            assert revenue(second) == {"north": 11}
    with opened(store, orders, spark) as third:
        assert revenue(third) == {"north": 11}


def test_tokens_tell_what_was_done(spark, store):
    with opened(store, orders, spark) as flow:
        assert flow.token is None
        fed(flow, 1, (1, "north", 10), token="monday")
    with opened(store, orders, spark) as flow:
        assert flow.token == "monday"
        assert not flow.step(token="monday")
        flow.session("orders").insert([(1, "north", 10)])
        with pytest.raises(RepeatedTokenError, match="'monday' is that of commit 1"):
            flow.step(token="monday")
        flow.discard()
        fed(flow, 2, (2, "north", 1), token="tuesday")
        fed(flow, 3, (3, "north", 1))
        assert flow.token == "tuesday" and revenue(flow) == {"north": 12}
    with Dataflow(spark) as flow:
        with pytest.raises(NotReadableError, match="Dataflow.open"):
            flow.step(token="monday")


def test_a_changed_program_is_refused_in_words(spark, store):
    def changed(flow):
        rows, _ = flow.input("orders", ORDERS)
        rows.groupBy("region").agg(F.max("amount").alias("revenue")).keep("revenue")

    with opened(store, orders, spark) as flow:
        fed(flow, 1, (1, "north", 10))
        before = flow.history().count()
    with pytest.raises(ProgramChangedError, match="Nothing has been done") as refused:
        opened(store, changed, spark)
    message = str(refused.value)
    assert "kept collection 'revenue' is rebuilt" in message
    # The collection cannot be backfilled, so that the message names only the other remedy.
    assert "on_change='rebuild'" in message and "on_change='extend'" not in message
    assert message.endswith("again from the beginning: 'orders'")
    with opened(store, orders, spark) as flow:
        assert flow.history().count() == before + 1


def test_a_changed_condition_is_named_with_its_collection(spark, store):
    def program(flow, least=1):
        rows, _ = flow.input("orders", ORDERS)
        collection = rows.keep("rows")
        collection.where(F.col("amount") > least).keep("large")

    with opened(store, program, spark) as flow:
        fed(flow, 1, (1, "north", 10), (2, "south", 5))
    with pytest.raises(ProgramChangedError) as refused:
        opened(store, lambda flow: program(flow, 7), spark)
    for part in (
        "changed: its condition differs; kept collection 'large' is rebuilt",
        "on_change='extend'", "reads at most 2 rows",
    ):
        assert part in str(refused.value)
    assert "no longer" not in str(refused.value)
    with opened(store, lambda flow: program(flow, 7), spark, on_change="extend") as flow:
        fed(flow, 2, (3, "south", 9))
        assert sorted(row.amount for row in flow["large"].at().collect()) == [9, 10]


def test_what_is_new_is_filled_from_what_is_kept(spark, store):
    def more(flow):
        orders(flow)
        flow["revenue"].where("revenue > 5").select("region").keep("large")

    with opened(store, orders, spark) as flow:
        fed(flow, 1, (1, "north", 10), (2, "south", 5))
    with pytest.raises(ProgramChangedError, match="kept as 'large' now"):
        opened(store, more, spark)
    with opened(store, more, spark, on_change="extend") as flow:
        fed(flow, 2, (3, "south", 1))
        assert {row[0] for row in flow["large"].at().collect()} == {"north", "south"}
    with opened(store, orders, spark, on_change="extend") as flow:
        assert revenue(flow) == {"north": 10, "south": 6} and "large" not in flow


def test_what_cannot_be_filled_begins_anew_if_that_is_wanted(spark, store):
    def program(flow, over="amount"):
        orders(flow)
        rows, _ = flow.input("others", "n long, m long")
        rows.groupBy().agg(F.max("n" if over == "amount" else "m").alias("most")).keep("most")

    with opened(store, program, spark) as flow:
        flow.session("others").insert([(1, 9)])
        fed(flow, 1, (1, "north", 10))

    def other(flow):
        program(flow, over="other")

    with pytest.raises(ProgramChangedError, match="rebuild") as refused:
        opened(store, other, spark, on_change="extend")
    # The two state rows derived from `orders` stay.
    assert "of the same inputs, 4 rows of 6, and these" in str(refused.value), refused.value
    with pytest.warns(StaleWarning, match="begin anew that depend on 'others'"):
        flow = opened(store, other, spark, on_change="rebuild")
    with flow:
        assert revenue(flow) == {"north": 10}
        assert flow.session("others").time() == 0 and flow.session("orders").time() == 1
        flow.session("others").insert([(1, 9)])
        flow.advance_to(2)
        assert flow["most"].at().collect()[0][0] == 9


def test_consumers_are_given_the_last_step_again_after_a_kill(spark, store):
    calls = []

    def program(flow):
        orders(flow)
        flow["revenue"].inspect(lambda row, time, diff: calls.append((row["revenue"], time, diff)))

    flow = opened(store, program, spark)
    fed(flow, 1, (1, "north", 10))
    fed(flow, 2, (2, "north", 1))
    assert calls == [(10, 0, 1), (10, 1, -1), (11, 1, 1)]
    with opened(store, program, spark) as again:  # `flow` is not closed yet
        fed(again, 3, (3, "north", 1))
        assert calls[3:] == [(10, 1, -1), (11, 1, 1), (11, 2, -1), (12, 2, 1)]
    with opened(store, program, spark) as third:
        third.step()
        assert len(calls) == 7, "all was handed over, and the store was closed"
    flow.close()


def test_what_was_discarded_stays_discarded(spark, store):
    def program(flow):
        rows, _ = flow.input("orders", ORDERS)
        others, _ = flow.input("others", "region string")
        rows.join(others, "region").selectExpr("amount div id AS share").keep("shares")

    flow = opened(store, program, spark)
    flow.session("orders").insert([(1, "north", 10), (0, "north", 1)])
    flow.session("orders").advance_to(5)
    flow.step()
    flow.discard(waiting=True)
    with opened(store, program, spark) as again:
        again.session("others").insert([("north",)])
        again.session("orders").close()
        again.session("others").close()
        again.step()
        assert again["shares"].at().count() == 0
    flow.close()


def test_settings_of_the_store_stay(spark, store, caplog):
    with opened(store, orders, spark, buckets=3) as flow:
        fed(flow, 1, (1, "north", 10))
    for options, message in (
        ({"buckets": 4}, "has 3 buckets"),
        ({"time_type": "date"}, "time_type='bigint'"),
        ({"time": "at"}, "time='time'"),
    ):
        with pytest.raises(SchemaError, match=message):
            opened(store, orders, spark, **options)
    with opened(store, orders, spark) as flow:
        assert flow._buckets == 3
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with caplog.at_level(logging.WARNING, "pyspark_diff"):
            opened(store, orders, spark).close()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert "Asia/Tokyo" in caplog.text


def test_a_program_does_not_run_while_it_is_written(spark, store):
    def impatient(flow):
        orders(flow)
        flow.step()

    with pytest.raises(StalledError, match="while the program is being written"):
        opened(store, impatient, spark)
    with opened(store, orders, spark) as flow:
        assert not flow.step()


def test_a_dataflow_without_a_store_says_so(spark):
    with Dataflow(spark) as flow:
        for call in (flow.history, flow.vacuum, flow.verify, lambda: flow.at(1)):
            with pytest.raises(NotReadableError, match="Dataflow.open"):
                call()
        with pytest.raises(NotReadableError, match="no input 'nosuch'; the inputs are none"):
            flow.session("nosuch")


def test_a_file_that_was_changed_is_found_before_it_is_used(spark, store, use_thresholds, tmp_path):
    use_thresholds(in_memory_rows_max=0)
    with opened(store, orders, spark) as flow:
        fed(flow, 1, (1, "north", 10))
        assert flow.verify() == []
    for path in (tmp_path / "store" / "data").rglob("*.arrow"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    storage._checked.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with opened(store, orders, spark) as flow:
            assert len(flow.verify()) > 0
            with pytest.raises(Exception, match="has other bytes"):
                revenue(flow)
