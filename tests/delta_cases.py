"""The cases that tests/connectors/test_delta.py runs in a Spark session with Delta.

    table at version v  +  changes that a source reads from v to w  =  table at version w

    table of a sink after its epochs, each any number of times  =  the collection, recomputed
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import delta_session
import pytest
from delta_session import MODULES
from pyspark.sql import Row
from pyspark.sql import functions as F
from snippets import run_notebook, run_page

from pyspark_diff import Dataflow, ProgramChangedError, SinkError, SourceError
from pyspark_diff.sinks import Sink, delta_append, delta_merge, delta_snapshot
from pyspark_diff.sources import Deletes, Inserts, Removes, Upserts, Whole, delta
from pyspark_diff.spark.delta import delta_table
from pyspark_diff.spark.delta_files import _library_reason, delta_files

spark, table, reads_files = (
    delta_session.spark, delta_session.table, delta_session.reads_files
)
CHANGES = "spark.databricks.delta.changelogV2.enabled"
FEED = "delta.enableChangeDataFeed=true"
ALL = f"{FEED}, delta.enableRowTracking=true, delta.enableDeletionVectors=true"


@pytest.fixture
def only_files(monkeypatch):
    """The reads and merges that reach Spark. It always creates the table."""
    asked = []
    monkeypatch.setattr(
        MODULES[0]._Delta, "_changes",
        lambda *args: asked.append(args) or 1 / 0,
    )
    monkeypatch.setattr(
        MODULES[1], "merged_in_own_session",
        lambda *args: asked.append(args) or 1 / 0,
    )
    return asked


class Killed(BaseException):
    """The process ends here."""


class Faulty(Sink):
    """A wrapped sink that fails on demand, before or after a write."""

    def __init__(self, sink):
        self.sink, self.fails, self.calls = sink, [], 0

    def check(self, schema, spark):
        self.sink.check(schema, spark)

    def write(self, epoch):
        self.calls += 1
        where, error = self.fails.pop(0) if self.fails else (None, None)
        if where == "before":
            raise error
        self.sink.write(epoch)
        if where == "after":
            raise error


def rows_of(spark, table):
    frame = spark.read.table(table) if isinstance(table, str) else table
    return Counter(listed(frame))


def listed(rows):
    """Rows of a frame or of an Arrow table."""
    if hasattr(rows, "to_pylist"):
        return [tuple(map(hashable, row.values())) for row in rows.to_pylist()]
    return [tuple(map(hashable, row)) for row in rows.collect()]


def hashable(value):
    """A value of either; a map has one entry, as its entries have no order."""
    if isinstance(value, (list, tuple)) and not isinstance(value, Row):
        return tuple(map(hashable, value))
    if isinstance(value, (Row, dict)):
        pairs = value.asDict() if isinstance(value, Row) else value
        return tuple((name, hashable(inner)) for name, inner in pairs.items())
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone().replace(tzinfo=None)  # as Spark collects it
    if isinstance(value, float) and value != value:
        return "NaN"
    return bytes(value) if isinstance(value, bytearray) else value


def applied(content, reading):
    """A multiset after the changes of a reading; the first column is the key if there is one."""
    content = Counter(content)
    for change in () if reading is None else reading.changes:
        rows = listed(change[0])
        if isinstance(change, Inserts):
            content.update(rows)
        elif isinstance(change, Removes):
            content.subtract(rows)
        elif isinstance(change, Whole):
            content = Counter(rows)
        else:
            assert isinstance(change, (Upserts, Deletes))
            keys = {row[0] for row in rows}
            assert len(keys) == len(rows)
            content = Counter(row for row in content.elements() if row[0] not in keys)
            content.update(rows if isinstance(change, Upserts) else [])
    assert min(content.values(), default=0) >= 0
    return +content


def at_version(offset, version):
    """An offset as an earlier reading would have given it."""
    return {"table": offset["table"], "version": version}


def version_of(spark, table):
    return spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").head().version


@pytest.mark.slow
def test_a_source_follows_a_table(spark, table, monkeypatch):
    """All that Delta does to rows, read by a key and without, by each of the three readers."""
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING delta TBLPROPERTIES ({ALL})")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, NULL)")
    begin = version_of(spark, table)
    source = spark.createDataFrame([(2, "m"), (3, None), (7, "n")], "id int, v string")
    source.createOrReplaceTempView("s")
    for statement in (
        f"UPDATE {table} SET v = 'z' WHERE id = 2",
        f"UPDATE {table} SET v = v WHERE id = 1",  # no change of any row
        f"DELETE FROM {table} WHERE id = 3",
        f"INSERT INTO {table} VALUES (3, 'again')",
        f"MERGE INTO {table} t USING s ON t.id = s.id WHEN MATCHED AND s.v IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *",
        f"OPTIMIZE {table}",
        f"INSERT OVERWRITE {table} VALUES (1, 'a'), (9, 'o')",
        f"RESTORE TABLE {table} TO VERSION AS OF {begin + 1}",
        f"DELETE FROM {table}",
    ):
        spark.sql(statement)
    end = version_of(spark, table)

    def at(version):
        return Counter(map(tuple, spark.read.option("versionAsOf", version).table(table).collect()))

    tables = {version: at(version) for version in range(begin, end + 1)}
    assert tables[begin + 6] == tables[begin + 5] and not tables[end]
    module, read_by_files = MODULES[0], 0
    latest, files_of = module.latest_version, module.delta_files
    for files, by_spark, key, stride in (
        (True, "false", (), 1), (True, "true", ("id",), 1), (True, "false", ("id",), 3),
        (False, "false", (), 1), (False, "false", ("id",), 4),
        (False, "true", (), 4), (False, "true", ("id",), end - begin),
    ):
        spark.conf.set(CHANGES, by_spark)
        source = delta(table, key=key)
        source.columns(spark)
        reading = source.read(spark, None)
        assert reading.offset["version"] == end and not applied({}, reading)
        content, offset = tables[begin], at_version(reading.offset, begin)
        for version in [*range(begin + stride, end, stride), end]:
            def files_until(*args, version=version):
                files_at_version = files_of(*args)
                files_at_version.version = version
                ask = files_at_version.changes

                def changes(*args):
                    nonlocal read_by_files
                    table = ask(*args)
                    read_by_files += table is not None
                    return table

                files_at_version.changes = changes
                return files_at_version

            monkeypatch.setattr(module, "latest_version", lambda *_: version)
            monkeypatch.setattr(module, "delta_files", files_until if files else lambda *_: None)
            reading = source.read(spark, offset)
            content = applied(content, reading)
            assert content == tables[version], (files, by_spark, key, version)
            offset = reading.offset
            assert offset["version"] == version
        monkeypatch.setattr(module, "latest_version", latest)
        monkeypatch.setattr(module, "delta_files", files_of)
        assert source.read(spark, offset) is None
    # Spark reads only the changes that deletion vectors encode.
    assert read_by_files >= 10
    spark.conf.set(CHANGES, "false")


@pytest.mark.slow
def test_gaps_are_told_or_bridged(spark, table, reads_files):
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (1, 'a'), (2, 'b')")
    strict, lenient = delta(table), delta(table, on_gap="snapshot")
    assert not strict.is_whole and lenient.is_whole
    assert not delta(table, on_gap="snapshot", key="id").is_whole
    for source in strict, lenient:
        source.columns(spark)
    strict.read(spark, None)
    reading = lenient.read(spark, None)
    offset, content = reading.offset, applied({}, reading)

    def gap(match):
        nonlocal offset, content
        with pytest.raises(SourceError, match=f"(?s){match}.*on_gap='snapshot'"):
            strict.read(spark, offset)
        reading = lenient.read(spark, offset)
        assert [type(change) for change in reading.changes] == [Whole]
        content, offset = applied(content, reading), reading.offset
        assert content == rows_of(spark, table)
        assert strict.read(spark, offset) is None

    # The feed begins after the deletion, whose removed file is gone.
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({FEED})")
    gap("cannot tell what has changed in versions.*ALTER TABLE")
    spark.sql(f"UPDATE {table} SET v = 'z'")
    reading = strict.read(spark, offset)
    assert applied(content, reading) == rows_of(spark, table)
    # The vacuum removes the recorded changes.
    spark.sql(f"UPDATE {table} SET v = 'y'")
    spark.sql(f"INSERT INTO {table} VALUES (3, 'x')")
    spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
    gap("cannot tell what has changed in versions")
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING delta "
              f"TBLPROPERTIES ({FEED}) AS SELECT 5 AS id, 'e' AS v")
    gap("replaced by another table")
    with pytest.raises(SourceError, match="set back"):
        strict.read(spark, at_version(offset, offset["version"] + 9))
    # It is truncated, which is recorded.
    spark.sql(f"TRUNCATE TABLE {table}")
    assert not applied(content, strict.read(spark, offset))


@pytest.mark.slow
def test_an_older_state_that_went_on_is_told(spark, tmp_path):
    """A backup replaces the table, and later commits bring it to the same number of versions."""
    name, folder = f"delta.`{tmp_path}/t`", tmp_path / "t"
    spark.sql(f"CREATE TABLE {name} (id INT) USING delta TBLPROPERTIES ({FEED})")
    shutil.copytree(folder, tmp_path / "backup")
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    strict, lenient = delta(folder), delta(folder, on_gap="snapshot")
    strict.columns(spark), lenient.columns(spark)
    offset = strict.read(spark, None).offset
    assert strict.read(spark, offset) is None
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    for number in 2, 3:
        spark.sql(f"INSERT INTO {name} VALUES ({number})")
        with pytest.raises(SourceError, match="another version 1 than was read.*brought back"):
            strict.read(spark, offset)
    assert applied({}, lenient.read(spark, offset)) == {(2,): 1, (3,): 1}
    # Commits that are not there any more are not asked.
    (folder / "_delta_log" / f"{1:020d}.json").rename(tmp_path / "gone")
    assert delta_files(spark, name) is None or delta_files(spark, name).mark(1) is None


@pytest.mark.slow
@pytest.mark.parametrize("statement, message", [
    ("DROP COLUMN v", "v was dropped"),
    ("ALTER COLUMN id TYPE BIGINT", "id was int and is bigint"),
])
def test_other_columns_are_refused(spark, table, statement, message):
    spark.sql(
        f"CREATE TABLE {table} (id INT, v STRING) USING delta TBLPROPERTIES ({FEED}, "
        "delta.columnMapping.mode='name', delta.enableTypeWidening=true)"
    )
    for on_gap in "refuse", "snapshot":
        source = delta(table, on_gap=on_gap)
        source.columns(spark)
        offset = at_version(source.read(spark, None).offset, 0)
        if on_gap == "refuse":
            spark.sql(f"ALTER TABLE {table} {statement}")
            with pytest.raises(SourceError, match=f"{message}.*on_change='rebuild'"):
                source.read(spark, offset)


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["true", "false"])
def test_a_renamed_column_stays_the_same_column(spark, tmp_path, feed, reads_files, caplog):
    """The input keeps the name of its first reading, through several renames and processes."""
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING, n INT) USING delta TBLPROPERTIES "
              f"(delta.enableChangeDataFeed={feed})")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2)")

    def read(use="v"):
        def program(flow):
            rows = flow.source("rows", delta(tmp_path / "t"))
            rows.select("id", use, "n").keep("rows")

        with Dataflow.open(tmp_path / "store", program, spark=spark, buckets=2) as flow:
            flow.catch_up()
            return flow["rows"].at()

    assert rows_of(spark, table) == Counter(map(tuple, read().collect()))
    # A table without column mapping has its own names in its files.
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    for statements in (
        ["UPDATE {t} SET v = 'z' WHERE id = 1", "ALTER TABLE {t} RENAME COLUMN v TO w",
         "INSERT INTO {t} VALUES (3, 'c', 3)"],
        ["UPDATE {t} SET w = 'y' WHERE id = 2"],
        ["ALTER TABLE {t} RENAME COLUMN w TO x", "DELETE FROM {t} WHERE id = 1"],
    ):
        for statement in statements:
            spark.sql(statement.replace("{t}", table))
        rows = read()
        assert rows.columns == ["id", "v", "n"]
        assert rows_of(spark, table) == Counter(map(tuple, rows.collect()))
    assert "renamed to w; this input still has it as v" in caplog.text
    with pytest.raises(ProgramChangedError, match="uses column x.*the new name of v"):
        read("x")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN x TO v")
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    assert rows_of(spark, table) == Counter(map(tuple, read().collect()))
    # Another column of the name is another column.
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN v TO w")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN v STRING")
    with pytest.raises(SourceError, match="other columns of the names v"):
        read()


def test_what_is_no_table_is_told(spark, tmp_path):
    spark.range(1).write.parquet(str(tmp_path / "p"))
    spark.sql("CREATE OR REPLACE TEMP VIEW v AS SELECT 1 AS a")
    for name, message in (
        ("nosuch", "no Delta table nosuch"), (tmp_path / "p", "no Delta table delta")
    ):
        with pytest.raises(SourceError, match=message):
            delta(name).columns(spark)
    with pytest.raises(ValueError, match="'refuse' or 'snapshot'"):
        delta("t", on_gap="skip")


class Shop:
    """Two Delta tables, views of them in Delta, and the expected rows of the views."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        for name, columns in ("orders", "id INT, customer INT, amount INT"), (
            "customers", "customer INT, region STRING"
        ):
            spark.sql(f"CREATE TABLE {self.name(name)} ({columns}) USING delta "
                      f"TBLPROPERTIES ({FEED}, delta.enableDeletionVectors=true)")
        self.view = Faulty(delta_merge(self.folder / "view", key="REGION"))
        self.log = Faulty(delta_append(self.folder / "log"))

    def name(self, name):
        return f"delta.`{self.folder}/{name}`"

    def program(self, flow):
        orders = flow.source("orders", delta(self.folder / "orders", key="id"))
        customers = flow.source("customers", delta(self.folder / "customers"))
        joined = orders.join(customers, "customer")
        joined.groupBy("region").agg(F.sum("amount").alias("n")).sink("view", self.view)
        joined.select("region", "amount").sink("log", self.log)

    def check(self):
        read = self.spark.read.table
        joined = read(self.name("orders")).join(read(self.name("customers")), "customer")
        view = joined.groupBy("region").agg(F.sum("amount").alias("n"))
        assert rows_of(self.spark, self.name("view")) == Counter(map(tuple, view.collect()))
        log = Counter()
        for *row, _, diff in read(self.name("log")).collect():
            log[tuple(row)] += diff
        pairs = joined.select("region", "amount").collect()
        assert {row: n for row, n in log.items() if n} == Counter(map(tuple, pairs))


@pytest.mark.slow
def test_nights_with_failures(spark, tmp_path, reads_files):
    choose, shop = random.Random(5), Shop(spark, tmp_path)
    orders, customers = shop.name("orders"), shop.name("customers")
    sinks = shop.view, shop.log

    def opened():
        return Dataflow.open(tmp_path / "store", shop.program, spark=spark, buckets=2)

    flow = opened()
    nights = [None, "before", "killed before", "killed after"]
    for night, how in enumerate(nights):
        values = ", ".join(f"({night * 10 + i}, {choose.randrange(3)}, {i})" for i in range(4))
        spark.sql(f"INSERT INTO {orders} VALUES {values}")
        region = "'é'" if night % 2 else "NULL"
        spark.sql(f"INSERT INTO {customers} VALUES ({night % 3}, {region})")
        if night:
            spark.sql(f"DELETE FROM {orders} WHERE id % 4 = {choose.randrange(4)}")
            spark.sql(f"UPDATE {orders} SET amount = amount + 1 WHERE customer = 1")
        if how is not None:
            error = Killed() if "killed" in how else OSError("full")
            for sink in sinks:
                sink.fails = [(how.split()[-1], error)]
            with pytest.raises(Killed if "killed" in how else SinkError):
                flow.catch_up()
            for sink in sinks:
                sink.fails = []
            if "killed" in how:
                flow = opened()
        flow.catch_up()
        shop.check()
    versions = version_of(spark, shop.name("view"))
    assert not flow.catch_up() and version_of(spark, shop.name("view")) == versions
    flow.close()
    assert not spark.conf.get("spark.databricks.delta.write.txnAppId", None)


@pytest.mark.slow
def test_an_epoch_that_is_given_again_does_nothing(spark, tmp_path, reads_files):
    name, numbers = f"delta.`{tmp_path}/t`", []

    class Twice(Faulty):
        def write(self, epoch):
            self.sink.write(epoch)
            before = version_of(spark, name), rows_of(spark, name)
            self.sink.write(epoch)
            # A writer that was thought to be gone.
            for old in numbers:
                self.sink.write(replace(epoch, number=old, is_first=False))
            assert (version_of(spark, name), rows_of(spark, name)) == before
            numbers.append(epoch.number)

    for make in (lambda: delta_merge(tmp_path / "t", key="a", replace=True),
                 lambda: delta_append(tmp_path / "t", replace=True),
                 lambda: delta_snapshot(tmp_path / "t", replace=True)):
        numbers.clear()
        with Dataflow(spark, runner="local", keep_history=True) as flow:
            rows, feed = flow.input("rows", "a int, b string")
            rows.sink("out", Twice(make()))
            for at, changes in enumerate([[(1, "x"), (2, "y")], [(3, None)]], 1):
                feed.insert(changes)
                flow.advance_to(at)
            feed.remove([(1, "x")])
            flow.advance_to(3)
            assert len(numbers) == 3


@pytest.mark.parametrize("make", [
    delta_append, lambda folder, **options: delta_merge(folder, key="a", **options)])
def test_an_epoch_whose_number_delta_forgets_is_written_once(spark, tmp_path, make):
    """Delta keeps the numbers of writers as long as a property states."""
    name, forget = f"delta.`{tmp_path}/t`", "delta.setTransactionRetentionDuration"
    versions = []

    class Twice(Faulty):
        def write(self, epoch):
            for _ in range(1 if epoch.is_first else 2):
                self.sink.write(epoch)
                versions.append(version_of(spark, name))

    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "a int")
        rows.sink("out", Twice(make(tmp_path / "t", properties={forget: "interval 0 seconds"})))
        for number in 1, 2:
            feed.insert([(number,)])
            flow.advance_to(number)
    assert versions == [0, 1, 1]


TYPES = (
    "id BIGINT, b BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INT, f FLOAT, d DOUBLE, m DECIMAL(20,4), "
    "s STRING, y BINARY, dt DATE, ts TIMESTAMP, nz TIMESTAMP_NTZ"
)
VALUES = (
    "id, id % 2 = 0, cast(id % 100 as tinyint), cast(id as smallint), cast(id as int), "
    "if(id % 7 = 0, float('NaN'), float(id)), if(id % 5 = 0, double('-0.0'), double(id)), "
    "cast(id * 1.5 as decimal(20,4)), if(id % 3 = 0, null, concat('é', id)), "
    "if(id % 3 = 1, null, cast(string(id) as binary)), date_add(date'1969-12-30', cast(id as int)),"
    "timestamp_micros(id * 1234567), timestamp_ntz'2024-03-31 02:30:00.123456'"
)


@pytest.mark.slow
def test_all_types_by_files(spark, tmp_path, only_files):
    """A partitioned table of all types is followed, and a view of it kept, without Spark."""
    source, target = f"delta.`{tmp_path}/s p`", f"delta.`{tmp_path}/t é`"
    spark.sql(f"CREATE TABLE {source} ({TYPES}, p STRING) USING delta PARTITIONED BY (p) "
              f"TBLPROPERTIES ({FEED})")

    def insert_rows(first, last):
        spark.range(first, last).selectExpr(
            *(f"{text} AS {name.split()[0]}" for text, name in zip(
                split(VALUES), split(f"{TYPES}"))),
            "if(id % 4 = 0, null, concat('p', id % 4)) AS p",
        ).write.format("delta").mode("append").save(f"{tmp_path}/s p")

    def program(flow):
        rows = flow.source("rows", delta(tmp_path / "s p"))
        rows.sink("out", delta_merge(tmp_path / "t é", key=["ts", "id"]))
        flow.source("keyed", delta(tmp_path / "s p", key=["i16", "id"])).sink(
            "keyed", delta_merge(tmp_path / "k", key=["s", "dt", "id"], properties={
                "delta.enableChangeDataFeed": "true"}))

    insert_rows(0, 40)
    with Dataflow.open(tmp_path / "store", program, spark=spark, buckets=2) as flow:
        assert flow.catch_up()
        insert_rows(40, 60)
        spark.sql(f"DELETE FROM {source} WHERE id % 10 = 3")
        spark.sql(f"UPDATE {source} SET d = -d, p = 'moved', i8 = null WHERE id % 10 = 4")
        assert flow.catch_up()
        # A view may be followed as a table.
        follower = delta(tmp_path / "k")
        follower.columns(spark)
        before = follower.read(spark, None)
        insert_rows(60, 61)
        spark.sql(f"DELETE FROM {source} WHERE id = 5")
        assert flow.catch_up() and not only_files
        shown = [F.to_json(F.struct(F.col("*"), F.hex("y").alias("hex"))).alias("row")]
        # Both zeros are one value.
        rows = spark.read.table(source).withColumn("d", F.col("d") + 0)
        expected = rows_of(spark, rows.select(*shown))
        assert len(expected) == 54
        columns = spark.read.table(source).columns
        for name in target, f"delta.`{tmp_path}/k`":
            actual = spark.read.table(name).select(*columns).select(*shown)
            assert rows_of(spark, actual) == expected
        after = follower.read(spark, before.offset)
        assert [len(listed(change[0])) for change in after.changes] == [1, 1]


def split(columns):
    """The parts of a text between the commas outside of parentheses."""
    parts, depth = [""], 0
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


@pytest.mark.slow
def test_two_who_merge_at_once(spark, tmp_path):
    """A merge by an overtaken writer changes nothing, and neither does Spark after it."""
    name = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {name} USING delta AS SELECT id, 'a' AS v FROM range(9)")
    files_of = [delta_files(spark, name) for _ in range(3)]
    rows = pa.table({"id": pa.array([1, 2, 20]), "v": ["b", None, "n"],
                     "kind": ["update", "delete", "insert"]})
    assert files_of[0].can_be_merged_into() and files_of[0].last_number("me") == -1
    assert files_of[0].merge(rows, ["id"], "kind", "me", 4)
    assert not files_of[1].merge(rows, ["id"], "kind", "me", 4)
    assert not files_of[2].merge(rows, ["id"], "kind", "another", 4)
    now = delta_files(spark, name)
    assert now.last_number("me") == 4 and now.last_number("another") == -1
    assert sorted(now.among(rows, ["id"])["id"].to_pylist()) == [1, 20]
    there = rows_of(spark, name)
    assert there[1, "b"] == there[20, "n"] == 1 and len(there) == 9
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "deltalake", None)
        _library_reason.cache_clear()
        assert delta_files(spark, name) is None
    _library_reason.cache_clear()
    spark.sql(f"CREATE TABLE named USING delta LOCATION '{tmp_path}/a b' AS SELECT 1 AS id")
    assert delta_files(spark, "default.NAMED").id == delta_table(spark, "named").id
    spark.sql("DROP TABLE named")
    spark.sql(f"CREATE TABLE named USING parquet LOCATION '{tmp_path}/a b'")
    for other in "named", "nosuch.name", "a.b.c", "not a name", f"delta.`{tmp_path}/nothing`":
        assert delta_files(spark, other) is None
    spark.sql("DROP TABLE named")


#: Values of each type, as Spark writes them, with the extreme ones.
EXTREMES: dict[str, list[str]] = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128Y", "127Y", "0Y"],
    "SMALLINT": ["-32768S", "32767S"],
    "INT": ["-2147483648", "2147483647", "0"],
    "BIGINT": ["-9223372036854775808L", "9223372036854775807L", "0L"],
    "FLOAT": ["float('NaN')", "float('-Infinity')", "float('Infinity')", "float('-0.0')",
              "float('1.4E-45')", "float('3.4028235E38')"],
    "DOUBLE": ["double('NaN')", "double('-Infinity')", "double('Infinity')", "double('-0.0')",
               "double('4.9E-324')", "double('1.7976931348623157E308')"],
    "DECIMAL(4,2)": ["-99.99", "99.99", "0.01"],
    "DECIMAL(15,3)": ["-999999999999.999", "999999999999.999"],
    "DECIMAL(18,0)": ["-999999999999999999", "999999999999999999"],
    "DECIMAL(38,0)": ["-" + "9" * 38, "9" * 38, "1"],
    "DECIMAL(38,38)": ["-0." + "9" * 38, "0." + "9" * 38, "0." + "0" * 37 + "1"],
    "STRING": ["''", "concat('a', char(0), 'b')", "' '", "'é=/%:#'", f"'{'z' * 300}'",
               f"'{chr(0x10FFFF) * 40}'"],
    "BINARY": ["X''", "X'00'", "X'FF'", "X'C3'"],
    "DATE": ["DATE'0001-01-01'", "DATE'9999-12-31'", "DATE'1582-10-04'", "DATE'1582-10-15'",
             "DATE'1969-12-31'"],
    "TIMESTAMP": ["TIMESTAMP'2024-03-31 02:30:00.123456'", "TIMESTAMP'1969-12-31 23:59:59.999999'",
                  "TIMESTAMP'1677-09-22 00:00:00'", "TIMESTAMP'2262-04-11 00:00:00.000001'"],
    "TIMESTAMP /* far */": ["TIMESTAMP'0001-01-01 00:00:00'", "TIMESTAMP'1582-10-04 01:02:03.4'",
                            "TIMESTAMP'9999-12-31 23:59:59.999999'"],
    "TIMESTAMP_NTZ": ["TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'1969-12-31 23:59:59.9'",
                      "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'"],
    "ARRAY<INT>": ["array(1, null)", "array()"],
    "ARRAY<TIMESTAMP>": ["array(TIMESTAMP'9999-12-31 00:00:00', null)"],
    "MAP<STRING,DATE>": ["map('a', DATE'0001-01-01', 'b', null)", "map()"],
    "STRUCT<a: INT, B: STRUCT<c: STRING>>": [
        "named_struct('a', 1, 'B', named_struct('c', ''))",
        "named_struct('a', null, 'B', null)"],
    "STRUCT<t: TIMESTAMP>": ["named_struct('t', TIMESTAMP'9999-12-31 00:00:00')"],
    "CHAR(4)": ["'a'", "'abcd'"],
    "VARCHAR(4)": ["'a'", "''"],
    "VARIANT": ["parse_json('{\"a\": [1, null]}')"],
}
#: Settings of a session, by which files of tables differ.
WRITERS: dict[str, dict[str, str]] = {
    "INT96": {}, "micros": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
    "millis": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"},
    "Spark 2": {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
                "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
                "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
    "INT96 of Spark 2": {"spark.sql.parquet.int96RebaseModeInWrite": "LEGACY"},
    "plain decimals": {"spark.sql.parquet.writeLegacyFormat": "true"},
    "in Chatham": {"spark.sql.session.timeZone": "Pacific/Chatham"},
}
#: Properties of tables; "partitions" are by the column of the type.
FEATURES = {
    "plain": "", "vectors": "delta.enableDeletionVectors=true", "partitions": "",
    "names": "delta.columnMapping.mode='name'", "ids": "delta.columnMapping.mode='id'",
    "tracked": "delta.enableRowTracking=true",
}
#: Texts of a partition, whose folders have no escapes.
PARTITIONS = {"STRING": ["'a'", "''", "' '", "'ZZ'"]}
#: Types, settings of the writer and features of tables, and whether deltalake reads all of them.
NO_NANOSECONDS = ["TIMESTAMP /* far */", "ARRAY<TIMESTAMP>", "STRUCT<t: TIMESTAMP>"]
READS: list[tuple[list[str], str, str, bool]] = [
    ([kind for kind in EXTREMES if kind not in (*NO_NANOSECONDS, "CHAR(4)", "VARIANT")],
     "INT96", "plain", True),
    ([*NO_NANOSECONDS, "CHAR(4)", "VARIANT"], "INT96", "plain", False),
    (["TIMESTAMP /* far */", "ARRAY<TIMESTAMP>", "MAP<STRING,DATE>"], "micros", "plain", True),
    (["DATE", "TIMESTAMP", "TIMESTAMP_NTZ"], "Spark 2", "plain", False),
    (["TIMESTAMP"], "INT96 of Spark 2", "plain", False),
    (["TIMESTAMP"], "millis", "plain", False),
    (["TIMESTAMP", "DATE"], "in Chatham", "plain", True),
    (["DECIMAL(4,2)", "DECIMAL(15,3)", "DECIMAL(38,38)"], "plain decimals", "plain", True),
    (["BOOLEAN", "INT", "STRING", "DATE"], "INT96", "partitions", True),
    (["TIMESTAMP", "DOUBLE", "DECIMAL(4,2)"], "in Chatham", "partitions", False),
    (["INT"], "micros", "vectors", True), (["STRING"], "micros", "names", False),
    (["TIMESTAMP"], "micros", "ids", False), (["STRING"], "micros", "tracked", True),
]


def create(spark, folder, dtype, values, feature, writer):
    """A table with a key and a value of each kind, in files of one kind."""
    name, before = f"delta.`{folder}`", {}
    for setting, value in WRITERS[writer].items():
        before[setting] = spark.conf.get(setting, None)
        spark.conf.set(setting, value)
    properties = ", ".join(filter(None, (FEED, FEATURES[feature])))
    if feature != "vectors":
        properties += ", delta.enableDeletionVectors=false"
    spark.sql(f"CREATE TABLE {name} (k BIGINT, v {dtype}) USING delta "
              f"{'PARTITIONED BY (v)' if feature == 'partitions' else ''} "
              f"TBLPROPERTIES ({properties})")
    cells = enumerate([*values, "NULL"])
    spark.sql(f"INSERT INTO {name} VALUES " + ", ".join(f"({i}, {cell})" for i, cell in cells))
    spark.sql(f"UPDATE {name} SET k = k + 100 WHERE k = 1")
    for setting, value in before.items():
        spark.conf.unset(setting) if value is None else spark.conf.set(setting, value)
    return name


def exact_rows(rows):
    """A multiset of rows, in which NaN equals NaN, and zero does not equal its negative."""
    return Counter(map(repr, rows.to_pylist()))


@pytest.mark.slow
@pytest.mark.parametrize("types, writer, feature, is_read", READS)
def test_changes_by_files_are_those_of_spark(spark, tmp_path, types, writer, feature, is_read):
    for number, dtype in enumerate(types):
        values = EXTREMES[dtype] if feature != "partitions" else PARTITIONS.get(
            dtype, EXTREMES[dtype])
        name = create(spark, tmp_path / f"t{number}", dtype, values, feature, writer)
        changes = delta_files(spark, name).changes(["k", "v"], 1, 1000)
        assert (changes is not None) == is_read, dtype
        if is_read:
            feed = spark.read.options(readChangeFeed="true", startingVersion=1).table(name)
            expected = feed.select("k", "v", "_change_type", "_commit_version").toArrow()
            assert exact_rows(changes) == exact_rows(expected.cast(changes.schema)), dtype


NAMES = "`A.b` int, `c``d` string, `e f` int"


@pytest.mark.parametrize("by", [
    "files", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Spark", "history"))])
def test_columns_replaced_under_their_names_are_gaps(spark, table, monkeypatch, by):
    if by != "files":
        monkeypatch.setattr(MODULES[0], "delta_files", lambda *_: None)
    if by == "history":  # as over Connect, which has no log
        monkeypatch.setattr(MODULES[0], "delta_schemas", lambda *_: None)
    spark.sql(f"CREATE TABLE {table} (id INT, x STRING, s STRUCT<z: INT, y: STRING>) USING delta "
              f"TBLPROPERTIES ({FEED}, delta.columnMapping.mode = 'name')")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'x', struct(0, 'y'))")
    strict, lenient = delta(table), delta(table, on_gap="snapshot", key="id")
    for source in strict, lenient:
        source.columns(spark)
    offset = strict.read(spark, None).offset
    for name in "x", "s.y":
        spark.sql(f"ALTER TABLE {table} DROP COLUMN {name}")
        spark.sql(f"ALTER TABLE {table} ADD COLUMN {name} STRING {'AFTER id' * (name == 'x')}")
        with pytest.raises(SourceError, match=rf"other columns of the names .*{name[0]}.*on_gap"):
            strict.read(spark, offset)
        reading = lenient.read(spark, offset)
        assert [type(change) for change in reading.changes] == [Whole]
        assert applied({}, reading) == rows_of(spark, table)
        offset = reading.offset
    spark.sql(f"INSERT INTO {table} VALUES (2, 'x', struct(0, 'y'))")
    assert [type(change) for change in strict.read(spark, offset).changes] == [Removes, Inserts]


@pytest.mark.slow
def test_names_nulls_and_nothing(spark, table, reads_files):
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", NAMES)
        rows.sink("out", delta_merge(table, key=["a.B", "E F"]))
        nothing, unfed = flow.input("nothing", NAMES)
        nothing.sink("nothing", delta_merge(f"{table}_0", key="a.b"))
        feed.insert([(1, "x", None), (None, None, None), (None, "n", 4)])
        flow.advance_to(1)
        feed.remove([(None, None, None), (1, "x", None)])
        feed.insert([(None, "new", None)])
        flow.advance_to(2)
        assert rows_of(spark, table) == {(None, "new", None): 1, (None, "n", 4): 1}
        assert not rows_of(spark, f"{table}_0")
        assert spark.read.table(table).columns == ["A.b", "c`d", "e f"]
    spark.sql(f"DROP TABLE {table}_0")


@pytest.mark.slow
def test_two_rows_of_a_key_are_refused(spark, table, reads_files):
    for first, then in (
        ([(1, "a"), (1, "b")], []), ([(1, "a")], [(2, "a"), (2, "b")]), ([(1, "a")], [(1, "c")]),
    ):
        with Dataflow(spark, runner="local") as flow:
            rows, feed = flow.input("rows", "k int, v string")
            rows.sink("out", delta_merge(table, key="k", replace=True))
            feed.insert(first)
            if then:
                flow.advance_to(1)
                feed.insert(then)
            before = rows_of(spark, table) if then else None
            with pytest.raises(SinkError, match="more than one row has the key.*[12]"):
                flow.advance_to(flow.session("rows").time() + 1)
            assert not then or rows_of(spark, table) == before


@pytest.mark.slow
def test_tables_of_others_are_left_alone(spark, table):
    spark.sql(f"CREATE TABLE {table} (k INT) USING delta")
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "k int")
        # The table exists and is empty.
        rows.sink("out", delta_append(table))
        feed.insert([(1,)])
        flow.advance_to(1)
        assert rows_of(spark, table) == {(1, 0, 1): 1}
        spark.sql(f"ALTER TABLE {table} ADD COLUMN more INT")
        feed.insert([(2,)])
        with pytest.raises(SinkError, match="have changed since this sink created them.*more"):
            flow.advance_to(2)
        spark.sql(f"CREATE OR REPLACE TABLE {table} USING delta AS SELECT 5 AS k")
        with pytest.raises(SinkError, match="replaced by another one"):
            flow.step()
    with Dataflow(spark, runner="local") as flow:
        rows, feed = flow.input("rows", "k int")
        rows.sink("out", delta_append(table))
        feed.insert([(1,)])
        with pytest.raises(SinkError, match=r"not written by this sink.*delta_append\(..., repl"):
            flow.advance_to(1)
        assert rows_of(spark, table) == {(5,): 1}
        spark.sql(f"DROP TABLE {table}")
        spark.sql(f"CREATE TABLE {table} USING parquet AS SELECT 1 AS k")
        with pytest.raises(SinkError, match="of format parquet"):
            flow.step()


@pytest.mark.slow
def test_a_name_that_leads_to_another_table_is_a_gap(spark, table):
    other, moved = f"{table}_other", f"{table}_moved"
    for name in table, other:
        spark.sql(f"CREATE TABLE {name} USING delta TBLPROPERTIES ({FEED}) AS SELECT 1 AS id")
    source = delta(table)
    source.columns(spark)
    first = source.read(spark, None)
    spark.sql(f"ALTER TABLE {table} RENAME TO {moved}")
    with pytest.raises(SourceError, match="no Delta table"):
        source.read(spark, first.offset)
    spark.sql(f"ALTER TABLE {moved} RENAME TO {table}")
    spark.sql(f"INSERT INTO {table} VALUES (2)")
    second = source.read(spark, first.offset)
    assert applied(applied({}, first), second) == {(1,): 1, (2,): 1}
    (place,) = spark.sql(f"DESCRIBE DETAIL {other}").select("location").collect()
    spark.sql(f"ALTER TABLE {table} SET LOCATION '{place.location}'")
    with pytest.raises(SourceError, match="replaced by another table.*on_gap='snapshot'"):
        source.read(spark, second.offset)
    spark.sql(f"DROP TABLE {other}")


@pytest.mark.slow
def test_a_program_that_has_changed_begins_anew(spark, table, tmp_path):
    source = f"{table}_source"
    spark.sql(f"CREATE TABLE {source} USING delta TBLPROPERTIES ({FEED}) AS SELECT 1 AS k, 2 AS v")

    def program(aggregate):
        return lambda flow: flow.source("rows", delta(source)).groupBy("k").agg(
            aggregate).sink("out", delta_merge(table, key="k"))

    store = tmp_path / "store"
    with Dataflow.open(store, program(F.sum("v").alias("n")), spark=spark, buckets=2) as flow:
        flow.catch_up()
    changed = program(F.max("v").cast("string").alias("most"))
    with Dataflow.open(store, changed, spark=spark, buckets=2, on_change="rebuild") as flow:
        spark.sql(f"INSERT INTO {source} VALUES (1, 7), (3, 3)")
        flow.catch_up()
        assert rows_of(spark, table) == {(1, "7"): 1, (3, "3"): 1}
    spark.sql(f"DROP TABLE {source}")


def test_snippets_of_the_page_run(spark, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_page("how-to/delta.md", lambda: capsys.readouterr().out, {"__name__": "page"})


def test_the_notebook_of_a_nightly_view_runs(spark, tmp_path, monkeypatch):
    spark.sql("CREATE DATABASE nights")
    monkeypatch.setenv("PYSPARK_DIFF_SCHEMA", "nights")
    monkeypatch.setenv("PYSPARK_DIFF_STORE", str(tmp_path / "store"))
    first, second = run_notebook("nightly_delta")
    assert first == [("north", 900), ("online", 1200)]
    assert second == [("online", 500), ("south", 900)]
    spark.sql("DROP DATABASE nights CASCADE")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["double", "float", "struct<x: double>"])
def test_zeros_and_nan_in_the_key_of_a_merge(spark, tmp_path, reads_files, kind):
    """A zero has no sign, and NaN is equal to itself, in an update and a removal."""
    def key(number):
        return (number,) if kind.startswith("struct") else number

    nan = float("nan")
    with Dataflow(spark, runner="local", buckets=2) as flow:
        rows, session = flow.input("rows", f"k {kind}, v int")
        rows.sink("merged", delta_merge(tmp_path / "t", key="k"))
        collection = rows.keep()
        for time, (came, went) in enumerate([
            ([(key(-0.0), 1), (key(nan), 2), (None, 3), (key(1.5), 4)], []),
            ([(key(0.0), 5), (key(nan), 6)], [(key(0.0), 1), (key(nan), 2)]),
            ([], [(key(-0.0), 5), (key(nan), 6), (None, 3)]),
        ], 1):
            session.insert(came)
            if went:
                session.remove(went)
            flow.advance_to(time)
            table = spark.read.format("delta").load(str(tmp_path / "t"))
            written, expected = (
                sorted(map(repr, listed(frame))) for frame in (table, collection.at())
            )
            assert written == expected
            assert table.count() == [4, 4, 1][time - 1]
