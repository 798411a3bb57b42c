"""The data source ``diff`` returns the rows of a `StateReader` at the same commit."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import reduce

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import datasource
from pyspark.sql import functions as F
from stores import environment

import pyspark_diff
from pyspark_diff import Dataflow, thresholds
from pyspark_diff.data_source import scan
from pyspark_diff.dataflow.stored import StateReader
from pyspark_diff.kernels.consolidate import consolidate
from pyspark_diff.kernels.standing import snapshot
from pyspark_diff.kernels.updates import UpdateChunk
from pyspark_diff.sources import inbox
from pyspark_diff.trace.read_holds import stored_holds
from pyspark_diff.trace.roots import objects_at

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

#: A client sends the frame at each evaluation, and the server plans it each time.
planned_once = pytest.mark.classic_only("a frame of a client is planned anew at each evaluation")


def program(flow):
    orders, _ = flow.input("orders", "id long, region string, amount long")
    orders.keep("orders")
    totals = orders.groupBy("region").agg(F.sum("amount").alias("total"))
    totals.arrange_by_key("region").keep("totals")


def opened(store, spark, **settings):
    return Dataflow.open(store, program, spark=spark, **{"buckets": 4, **settings})


def fed(flow, time, *rows):
    for row in rows:
        session = flow.session("orders")
        (session.remove if row[0] < 0 else session.insert)([(abs(row[0]), *row[1:])])
    flow.advance_to(time)


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "store")


def read(spark, store, name="orders", **options):
    frame = spark.read.format("diff").option("path", store).option("name", name)
    return frame.options(**options).load()


def rows(frame):
    return Counter(tuple(row) for row in frame.collect())


# A table.


@pytest.mark.parametrize("settings", [
    {}, pytest.param({"keep_history": True}, marks=pytest.mark.slow)])
def test_it_reads_what_a_reader_reads(spark, store, settings):
    rng = np.random.default_rng(7)
    with opened(store, spark, **settings) as flow:
        for time in range(1, 6):
            n = int(rng.integers(1, 200))
            fed(flow, time)
            flow.session("orders").insert([
                (int(i), [None, "north", "south"][int(i) % 3], int(i)) for i in
                rng.integers(0, 50, n)
            ])
            flow.advance_to(time + 1)
    with StateReader(store, spark=spark) as reader:
        for name in reader:
            assert rows(read(spark, store, name)) == rows(reader[name].at())
            assert rows(read(spark, store, name, shape="changes")) == rows(reader[name].to_df())
            assert read(spark, store, name).schema == reader[name].schema
            for time in [3] if settings else [5]:
                assert rows(read(spark, store, name, time=time)) == rows(reader[name].at(time))
            if settings:
                assert rows(read(spark, store, name, since=1, until=4)) == rows(
                    reader[name].changes(1, 4))
                assert rows(read(spark, store, name, since=2)) == rows(reader[name].changes(2))


@planned_once
def test_a_frame_reads_one_commit_however_the_store_goes_on(spark, store):
    with opened(store, spark, retain=1) as flow:
        fed(flow, 1, (1, "north", 10))
        frame = read(spark, store)
        commit = max(flow.commits().collect()).commit if hasattr(flow, "commits") else None
        for time in range(2, 8):
            fed(flow, time, (time, "north", 1))
            flow.vacuum(dry_run=False, older_than=0)
        assert rows(frame) == {(1, "north", 10): 1} == rows(frame)
        assert read(spark, store).count() == 7
        holds, _ = stored_holds(objects_at(store), 0.0)
        assert {hold.commit for hold in holds} >= {1} and commit in (None, commit)


@planned_once
def test_a_hold_that_has_expired_is_told(spark, store):
    with opened(store, spark, retain=1) as flow:
        fed(flow, 1, (1, "north", 10))
        frame = read(spark, store, holdSeconds="0.01")
        for time in range(2, 8):
            fed(flow, time, (time, "north", 1))
        for hold in glob.glob(f"{store}/readers/*"):
            os.unlink(hold)  # as a vacuum does with an expired hold
        flow.vacuum(dry_run=False, older_than=0)
        with pytest.raises(Exception, match="there is no commit 1"):
            frame.collect()
        with pytest.raises(Exception, match="there is no commit 1"):
            read(spark, store, commit=1)


def test_an_older_commit(spark, store):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "north", 10))
        fed(flow, 2, (2, "north", 1))
    with StateReader(store, spark=spark) as last:
        for commit in range(1, last.commit + 1):
            with StateReader(store, spark=spark, commit=commit) as reader:
                if "orders" in reader:
                    assert rows(read(spark, store, commit=commit)) == rows(reader["orders"].at())


def test_multiplicities_and_negative_ones(spark, store):
    with opened(store, spark) as flow:
        flow.session("orders").insert([(1, "a", 1)] * 3 + [(2, "a", 1)] * 100_000)
        fed(flow, 1, (-3, "b", 7))
    with pytest.raises(Exception, match="negative multiplicity.*'b'"):
        read(spark, store).count()
    frame = read(spark, store, allowNegative=True)
    assert rows(frame.groupBy("id").count()) == {(1, 3): 1, (2, 100_000): 1}


TYPED = """l long, i int, h short, y byte, f float, d double, s string, b binary, c decimal(9,2),
    e decimal(30,3), t timestamp, n timestamp_ntz, a date, o boolean, r array<int>,
    u struct<x: int, z: string>, `odd .name` string"""
VALUES = [
    (1, 2, 3, 4, 1.5, 2.5, "s", b"b", Decimal("1.50"), Decimal("12345678901234567890.123"),
     datetime(2020, 1, 1, tzinfo=timezone.utc), datetime(2020, 1, 1), date(2020, 1, 2), True,
     [1, None], (1, "z"), "odd"),
    (None,) * 17,
    (2**63 - 1, -1, -1, -1, float("nan"), -0.0, "", b"", Decimal("-1.50"), Decimal("0"),
     datetime(1960, 1, 1, tzinfo=timezone.utc), datetime(1960, 1, 1), date(1900, 1, 2), False,
     [], (None, None), "é"),
]


def typed(flow):
    flow.input("typed", TYPED)[0].keep("typed")
    for name in ("l", "s", "c", "t", "a", "d", "odd .name"):
        flow.input(f"in {name}", TYPED)[0].arrange_by_key(name).keep(f"by {name}")
    words, _ = flow.input("words", "Word string")
    words.select().keep("no columns")
    words.keep("strange.`name`")
    words.withColumnRenamed("Word", "time2").keep("empty")


@pytest.mark.slow
def test_all_types(spark, store):
    with Dataflow.open(store, typed, spark=spark, buckets=3) as flow:
        flow.session("typed").insert(VALUES)
        for name in ("l", "s", "c", "t", "a", "d", "odd .name"):
            flow.session(f"in {name}").insert(VALUES)
        flow.session("words").insert([("a",)])
        flow.advance_to(1)
    with StateReader(store, spark=spark) as reader:
        shown = sorted(map(repr, reader["typed"].at().collect()))
        assert sorted(map(repr, read(spark, store, "typed").collect())) == shown
        whole = reader["typed"].at()
        spark.conf.set(PUSHDOWN, "true")
        try:
            for name in ("l", "s", "c", "t", "a", "d", "odd .name"):
                column = F.col(f"`{name}`")
                for row in VALUES:
                    row = dict(zip(whole.columns, row))
                    value = F.lit(row[name]).cast(whole.schema[name].dataType)
                    for wanted in column.eqNullSafe(value), column.isin(value, F.lit(None)):
                        assert sorted(map(repr, read(spark, store, f"by {name}").where(
                            wanted).collect())) == sorted(map(repr, whole.where(wanted).collect()))
        finally:
            spark.conf.unset(PUSHDOWN)
    assert rows(read(spark, store, "strange.`name`")) == {("a",): 1}
    with pytest.raises(Exception, match="no columns, and Spark's"):
        read(spark, store, "no columns")


@pytest.mark.classic_only("looks at the partitions of an RDD")
def test_filters_leave_out_buckets_and_keys(spark, store):
    with opened(store, spark) as flow:
        fed(flow, 1)
        flow.session("orders").insert([(i, f"r{i % 40}", i) for i in range(400)])
        flow.advance_to(2)
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = read(spark, store, "totals")
        assert frame.rdd.getNumPartitions() == 4
        group = frame.where("region = 'r7'")
        assert group.rdd.getNumPartitions() == 1 and group.count() == 1
        assert frame.where("REGION IN ('r1', 'r2', 'none')").count() == 2
        assert frame.where("region IS NULL").count() == 0
        assert frame.where("region > 'r7'").rdd.getNumPartitions() == 4
        assert frame.where("region = 'r1' AND total > 1000000").count() == 0
        assert frame.where("region = 'r1' AND region = 'r2'").count() == 0
    finally:
        spark.conf.unset(PUSHDOWN)
    frame = read(spark, store, "totals")
    group = frame.where("region = 'r7'")
    assert group.rdd.getNumPartitions() == 4 and group.count() == 1  # and reads right without


def test_filters_on_several_columns_of_a_key():
    from pyspark_diff.data_source.opened import Rows
    from pyspark_diff.kernels.layout import Layout

    layout = Layout((pa.int64(), pa.string()), value=Layout((pa.int64(),)))
    rows = Rows("/", layout, ("n", "s", "v"), 2, None, "rows", 1, pa.int64())
    n, s = datasource.In(("n",), (1, 2)), datasource.EqualTo(("s",), "x")
    keys = scan.keys_of([n, s, datasource.EqualTo(("v",), 3)], rows, 5)
    assert sum(map(len, keys.by_bucket.values())) == 2
    assert scan.keys_of([n], rows, 5) is None
    assert scan.keys_of([n, datasource.EqualTo(("s", "deep"), "x")], rows, 5) is None
    assert scan.keys_of([n, datasource.EqualTo(("s",), 7.5)], rows, 5) is None
    many = datasource.In(("n",), tuple(range(thresholds.current.look_up_keys_max + 1)))
    assert scan.keys_of([many, s], rows, 5) is None


@pytest.mark.parametrize(("options", "said"), [
    ({"tme": 1}, "no option 'tme'; the options are path, name"),
    ({"time": "x"}, "times of this store are of type bigint; give one as '17'"),
    ({"time": 9}, "time 9 is not complete"),
    ({"commit": "-1"}, "give a whole number"),
    ({"commit": 99}, "there is no commit 99"),
    ({"name": "nosuch"}, "under the name 'nosuch' at commit .* The kept names: 'orders', 'totals'"),
    ({"name": "ORDERS"}, "under the name 'ORDERS'"),
    ({"name": ""}, "needs .option.'name'"),
    ({"path": "/nowhere/at/all"}, "there is no store"),
    ({"shape": "odd"}, "give rows or changes or cdc"),
    ({"allowNegative": "perhaps"}, "give true or false"),
    ({"holdSeconds": "long"}, "give a number of seconds"),
    ({"time": 0, "shape": "cdc"}, "'time' has no meaning"),
    ({"since": 1, "until": 0}, "not complete|run backwards"),
    ({"start": "latest"}, "no option 'start'"),
])
def test_bad_options_say_what_was_wrong(spark, store, options, said):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "a", 1))
    before = len(glob.glob(f"{store}/readers/*"))
    with pytest.raises(Exception, match=said):
        read(spark, store, **options).collect()
    assert len(glob.glob(f"{store}/readers/*")) <= before + 1


def test_another_schema_is_refused(spark, store):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "a", 1))
    frame = spark.read.format("diff").schema("id long").options(path=store, name="orders")
    with pytest.raises(Exception, match="leave the schema out"):
        frame.load().collect()


def test_nothing_is_there(spark, store):
    with opened(store, spark) as flow:
        fed(flow, 1)
        assert read(spark, store).collect() == []
        assert read(spark, store, shape="changes").columns == [
            "id", "region", "amount", "time", "diff"]
        assert read(spark, store, "totals", shape="cdc").collect() == []


def test_times_of_other_types(spark, store):
    def dated(flow):
        flow.input("n", "n int")[0].keep("n")

    with Dataflow.open(
        store, dated, spark=spark, time_type="timestamp", keep_history=True
    ) as flow:
        for day in 1, 2:
            flow.session("n").insert([(day,)])
            flow.advance_to(datetime(2026, 7, day, tzinfo=timezone.utc))
    at = read(spark, store, "n", time="2026-06-30T12:00:00+00:00")
    assert rows(at) == {(1,): 1}
    assert read(spark, store, "n", shape="changes").schema["time"].dataType.simpleString() == (
        "timestamp")
    with pytest.raises(Exception, match="give one as '2026"):
        read(spark, store, "n", time="yesterday").collect()


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "commit"])
def test_a_damaged_store_is_refused_and_not_read(spark, store, damage):
    with opened(store, spark, runner="spark") as flow:
        flow.session("orders").insert([(i, "a", i) for i in range(20_000)])
        flow.advance_to(1)
    names = glob.glob(f"{store}/data/*/*.arrow")
    if damage == "commit":
        names = sorted(glob.glob(f"{store}/commits/*"))[-1:]
    assert names
    for name in names:
        if damage == "gone":
            os.unlink(name)
            continue
        with open(name, "r+b") as file:
            if damage == "cut":
                file.truncate(os.path.getsize(name) // 2)
            else:
                file.seek(os.path.getsize(name) // 2)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(Exception, match="DamagedStateError"):
        read(spark, store).collect()


@pytest.mark.slow
def test_threads_read_at_once(spark, store):
    with opened(store, spark) as flow:
        fed(flow, 1, *[(i, "a", i) for i in range(1, 20)])
    tables = []
    threads = [
        threading.Thread(target=lambda: tables.append(rows(read(spark, store)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tables) == 4 and all(table == tables[0] and len(table) == 19 for table in tables)


# How Spark finds it.


def test_it_is_found_quickly_and_breaks_nobody(tmp_path):
    program = """
import sys, time
begin = time.perf_counter()
import pyspark_diff
from pyspark.sql.datasource import DataSource
assert issubclass(pyspark_diff.DefaultSource, DataSource)
assert pyspark_diff.DefaultSource.name() == "diff"
heavy = [name for name in ("numba", "pyspark_diff.kernels", "pandas") if name in sys.modules]
print([name for name in heavy if name != "pandas"])
sys.modules["pyspark_diff.data_source.source"] = None
del pyspark_diff.DefaultSource
print(hasattr(pyspark_diff, "DefaultSource"))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["[]", "False"], ran.stderr


@pytest.mark.slow
def test_a_session_that_knows_nothing_of_the_package_reads(spark, store):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "north", 10), (2, "south", 5))
    program = f"""
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
frame = spark.read.format("diff").option("path", {store!r}).option("name", "orders").load()
print(sorted(map(tuple, frame.collect())))
print([name for name in sys.modules if name.startswith("pyspark_diff")])
"""
    folder = os.path.dirname(store)
    call = [sys.executable, "-c", program]
    # An editable installation is in no folder of Python, so that its folder is passed.
    package = os.path.dirname(os.path.dirname(pyspark_diff.__file__))
    ran = subprocess.run(call, cwd=folder, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": package})
    shown = [(1, "north", 10), (2, "south", 5)]
    assert ran.stdout.splitlines() == [repr(shown), "[]"], ran.stderr


# A stream.


def streamed(spark, folder, store, name="orders", **options):
    """The writer of a stream of the store into a folder."""
    frame = spark.readStream.format("diff").options(path=store, name=name, **options).load()
    return frame.writeStream.format("parquet").option("path", f"{folder}/out").option(
        "checkpointLocation", f"{folder}/checkpoint")


def ran(writer):
    """Run a stream until it has read all commits."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


def collected(spark, folder):
    return spark.read.parquet(f"{folder}/out")


def net(frame):
    """The sum of the changes of each record, without their times."""
    total = Counter()
    for *record, _, diff in map(tuple, frame.collect()):
        total[tuple(record)] += diff
    return {record: n for record, n in total.items() if n}


@pytest.mark.slow
@pytest.mark.parametrize(("keep_history", "retain"), [(False, 1), (True, 100)])
def test_a_stream_adds_up_to_what_is_there(spark, store, tmp_path, keep_history, retain):
    rng = np.random.default_rng(3)
    settings = dict(keep_history=keep_history, retain=retain)
    there = []
    with opened(store, spark, **settings) as flow:
        for time in range(1, 7):
            for _ in range(int(rng.integers(0, 4))):
                there.append((int(rng.integers(1, 9)), "ab"[int(rng.integers(2))], 1))
                fed_row = there[-1]
                flow.session("orders").insert([fed_row])
            if there and rng.random() < 0.6:
                flow.session("orders").remove([there.pop(int(rng.integers(len(there))))])
            flow.advance_to(time)
            if time == 4:
                flow.vacuum(dry_run=False, older_than=0)
            if time in (2, 4, 6):
                for name in "orders", "totals":
                    folder = tmp_path / name
                    ran(streamed(spark, folder, store, name, shape="changes"))
                    assert net(collected(spark, folder)) == dict(rows(flow[name].at())), time
        if keep_history:
            assert rows(collected(spark, tmp_path / "orders")) == rows(flow["orders"].to_df())


def test_changes_as_change_data_capture_has_them(spark, store, tmp_path):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "a", 1), (2, "b", 2))
        ran(streamed(spark, tmp_path, store, "totals", shape="cdc"))
        fed(flow, 2, (3, "a", 5), (-2, "b", 2), (4, "c", 4), (4, "c", 4))
        ran(streamed(spark, tmp_path, store, "totals", shape="cdc"))
    assert rows(collected(spark, tmp_path)) == {
        ("a", 1, "insert", 1): 1, ("b", 2, "insert", 1): 1,
        ("a", 1, "update_preimage", 2): 1, ("a", 6, "update_postimage", 2): 1,
        ("b", 2, "delete", 2): 1, ("c", 8, "insert", 2): 1,
    }
    last = read(spark, store, "totals", shape="cdc").collect()
    assert {row._change_type for row in last} == {"insert"}


@pytest.mark.slow
def test_rows_of_what_only_grows(spark, store, tmp_path):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "a", 1), (1, "a", 1))
        ran(streamed(spark, tmp_path, store))
        fed(flow, 2, (2, "a", 1))
        ran(streamed(spark, tmp_path, store))
        assert rows(collected(spark, tmp_path)) == {(1, "a", 1): 2, (2, "a", 1): 1}
        fed(flow, 3, (-1, "a", 1))
        with pytest.raises(Exception, match="taken back.*shape"):
            ran(streamed(spark, tmp_path, store))


@pytest.mark.parametrize(("start", "wanted"), [
    ("earliest", {1, 2, 3}), ("latest", {3}), ("1", {2, 3})])
def test_where_a_stream_begins(spark, store, tmp_path, start, wanted):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "a", 1))
        fed(flow, 2, (2, "a", 1))
        query = streamed(spark, tmp_path, store, start=start, shape="changes").start()
        query.processAllAvailable()
        fed(flow, 3, (3, "a", 1))
        query.processAllAvailable()
        query.stop()
    assert {row.id for row in collected(spark, tmp_path).collect()} == wanted


@pytest.mark.classic_only(
    "foreachBatch runs in a process of the server, which has no dataflow"
)
def test_a_stream_that_failed_goes_on_where_it_was(spark, store, tmp_path):
    calls = []

    def consumer(frame, number):
        calls.append(number)
        if number == 1 and calls.count(1) == 1:
            raise RuntimeError("the consumer fails")
        frame.write.mode("overwrite").parquet(f"{tmp_path}/out/batch={number}")

    def run(flow):
        frame = spark.readStream.format("diff").options(
            path=store, name="orders", shape="changes").load()
        query = frame.writeStream.foreachBatch(consumer).option(
            "checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()

    with opened(store, spark, retain=1) as flow:
        fed(flow, 1, (1, "a", 1), (2, "a", 1))
        run(flow)
        fed(flow, 2, (-1, "a", 1), (3, "a", 1))
        with pytest.raises(Exception, match="the consumer fails"):
            run(flow)
        for time in 3, 4, 5:
            fed(flow, time, (time * 10, "a", 1))
            flow.vacuum(dry_run=False, older_than=0)
        run(flow)
        if pyspark.__version__.startswith("4.1."):
            run(flow)  # the first run ends with the failed batch
        assert calls[:3] == [0, 1, 1]
        changes = spark.read.parquet(f"{tmp_path}/out").drop("batch")
        assert net(changes) == dict(rows(flow["orders"].at()))


def test_a_commit_that_is_not_retained_any_more_is_told(spark, store, tmp_path):
    with opened(store, spark, retain=1) as flow:
        fed(flow, 1, (1, "a", 1))
        ran(streamed(spark, tmp_path, store, shape="changes"))
        for time in range(2, 6):
            fed(flow, time, (time, "a", 1))
        for hold in glob.glob(f"{store}/readers/*"):
            os.unlink(hold)
        flow.vacuum(dry_run=False, older_than=0)
        with pytest.raises(Exception, match="not retained any more.*Begin the stream anew"):
            ran(streamed(spark, tmp_path, store, shape="changes"))


def test_another_store_in_its_place_is_told(spark, store, tmp_path):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "a", 1))
        ran(streamed(spark, tmp_path, store, shape="changes"))
    shutil.rmtree(store)
    with opened(store, spark) as flow:
        for time in range(1, 4):
            fed(flow, time, (time, "b", 1))
    with pytest.raises(Exception, match="another one than the stream has read"):
        ran(streamed(spark, tmp_path, store, shape="changes"))


@pytest.mark.parametrize(("options", "said"), [
    ({"start": "soon"}, "earliest, latest or the number of a commit"),
    ({"time": 1}, "no option 'time'"),
    ({"start": "99"}, "there is no commit 99"),
])
def test_bad_options_of_a_stream(spark, store, tmp_path, options, said):
    with opened(store, spark) as flow:
        fed(flow, 1, (1, "a", 1))
    with pytest.raises(Exception, match=said):
        ran(streamed(spark, tmp_path, store, **options))


# Its kernel.


@pytest.mark.parametrize("seed", range(40))
def test_what_stands_is_the_sum_of_what_came(seed, use_thresholds):
    use_thresholds(standing_piece_rows=16)
    rng = np.random.default_rng(seed)
    batches = []
    for n in (int(rng.integers(0, 400)), *rng.integers(0, 30, size=int(rng.integers(0, 4)))):
        batches.append(consolidate(UpdateChunk(
            rng.integers(0, 60, n), None, rng.integers(0, 5, n), rng.integers(-2, 3, n),
            rng.integers(0, 3, n),
        )).updates)
    for time in range(-1, 6):
        wanted = Counter()
        for updates in filter(len, batches):
            for key, value, at, diff in zip(
                updates.key64, updates.val64, updates.times(), updates.diffs()
            ):
                if at <= time:
                    wanted[int(key), int(value)] += int(diff)
        actual = [
            ((int(key), int(value)), int(diff)) for records in snapshot(batches, time)
            for key, value, diff in zip(
                records.key64, () if records.val64 is None else records.val64, records.diffs())
        ]
        assert len(dict(actual)) == len(actual)
        assert dict(actual) == {record: n for record, n in wanted.items() if n}


def test_sums_that_leave_64_bits_are_told():
    updates = UpdateChunk(np.array([1, 1]), None, np.array([0, 1]), np.array([2**62, 2**62]))
    with pytest.raises(pyspark_diff.DiffOverflowError):
        list(snapshot([updates], 1))
    assert reduce(lambda a, b: a + len(b), snapshot([updates], 0), 0) == 1


@pytest.mark.classic_only("sets the environment of workers by Spark's context")
@pytest.mark.slow
def test_a_store_in_a_bucket(another, tmp_path, monkeypatch):
    """Credentials are only in the environment of the processes that Spark starts."""
    pytest.importorskip("obstore")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(another.sparkContext.environment, name, value)
    # Spark reads that environment now; a new session would have it from the start.
    another.dataSource.register(pyspark_diff.DefaultSource)
    store = f"s3://bucket/{uuid.uuid4().hex}"

    def with_inbox(flow):
        program(flow)
        flow.source("clicks", inbox(store, "clicks", schema="id long")).keep("clicks")

    with Dataflow.open(store, with_inbox, spark=another, buckets=2) as flow:
        fed(flow, 1, (1, "a", 10), (2, "b", 5))
        fed(flow, 2, (-1, "a", 10), (3, "c", 7))
        ran(streamed(another, tmp_path, store, shape="changes"))
        there = {(2, "b", 5): 1, (3, "c", 7): 1}
        assert net(collected(another, tmp_path)) == there == rows(read(another, store))
        assert rows(read(another, store, "totals").where("region = 'c'")) == {("c", 7): 1}
        written = another.readStream.format("diff").options(path=store, name="orders", start=1,
                                                            shape="changes").load()
        ran(written.select("id").writeStream.format("diff").options(path=store, name="clicks")
            .option("checkpointLocation", f"{tmp_path}/clicks"))
        flow.catch_up()
        assert rows(flow["clicks"].at()) == {(1,): 1, (3,): 1}
