"""The cases of tests/connectors/test_iceberg.py, in a Spark that knows Iceberg.

    the table at snapshot s  +  the changes of a source from s to t  =  the table at snapshot t
"""

from __future__ import annotations

import os
import random

import pytest
from delta_cases import applied, rows_of
from own_spark import spark_of
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, SourceError
from pyspark_diff.sources import Whole, iceberg, versioned

MODES = ("write.delete.mode", "write.update.mode", "write.merge.mode")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    yield from spark_of("iceberg tests", folder, {
        "spark.jars": os.environ["ICEBERG_JAR"],
        "spark.sql.extensions":
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        # The same tables, for a test of Iceberg's cache.
        "spark.sql.catalog.uncached": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.uncached.type": "hadoop",
        "spark.sql.catalog.uncached.warehouse": str(folder / "lake"),
    })


@pytest.fixture
def table(spark, request):
    """The name of a table that is not there yet."""
    name = "lake.db.t_" + "".join(letter for letter in request.node.name if letter.isalnum())
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


class Read:
    """A source of a table, and the changes that it has returned."""

    def __init__(self, spark, table, **options):
        self.spark, self.table, self.source = spark, table, iceberg(table, **options)
        self.source.columns(spark)
        self.offset, self.content = None, {}

    def on(self):
        reading = self.source.read(self.spark, self.offset)
        self.content = applied(self.content, reading)
        if reading is not None:
            self.offset = reading.offset
        assert self.content == rows_of(self.spark, self.table)
        assert self.source.read(self.spark, self.offset) is None
        return reading


@pytest.mark.parametrize("few", [True, False])
def test_a_source_follows_a_table(spark, table, monkeypatch, few):
    """All that Iceberg does to rows, read by a key and without, one snapshot at a time or more."""
    if not few:
        monkeypatch.setattr(versioned, "few", lambda _: None)
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING, d DOUBLE) USING iceberg")
    readers = [(stride, Read(spark, table, key=key))
               for stride in (1, 3) for key in ((), "id")]
    for _, reader in readers:
        assert reader.on().offset["snapshot"] is None
    source = spark.createDataFrame([(2, "m"), (3, None), (7, "n")], "id int, v string")
    source.createOrReplaceTempView("s")
    for number, statement in enumerate((
        f"INSERT INTO {table} VALUES (1, 'a', 1.5), (2, 'b', 1.0), (3, 'c', NULL), (4, 'd', 2.0)",
        f"INSERT INTO {table} VALUES (5, NULL, -0.0)",
        f"UPDATE {table} SET v = 'z' WHERE id = 2",
        f"UPDATE {table} SET v = v WHERE id = 1",  # no change of any row
        f"DELETE FROM {table} WHERE id = 3",
        f"INSERT INTO {table} VALUES (3, 'again', 3)",
        f"MERGE INTO {table} t USING s ON t.id = s.id WHEN MATCHED AND s.v IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)",
        f"CALL lake.system.rewrite_data_files(table => '{table}', "
        "options => map('rewrite-all', 'true'))",
        f"INSERT OVERWRITE {table} VALUES (1, 'a', 1.5), (9, 'o', 9)",
        f"INSERT INTO {table} SELECT * FROM {table} WHERE false",
        f"TRUNCATE TABLE {table}",
        f"INSERT INTO {table} VALUES (1, 'b', 1)",
    )):
        spark.sql(statement)
        for stride, reader in readers:
            if number % stride == stride - 1:
                assert not any(isinstance(change, Whole) for change in reader.on().changes)


def test_rows_that_are_there_more_than_once(spark, table):
    spark.sql(f"CREATE TABLE {table} (a INT, b STRING) USING iceberg")
    chance, reader = random.Random(5), Read(spark, table)
    for _ in range(8):
        for _ in range(chance.randint(1, 3)):
            spark.sql(chance.choice([
                f"INSERT INTO {table} SELECT id % 3, 'x' FROM range({chance.randint(1, 9)})",
                f"DELETE FROM {table} WHERE a = {chance.randint(0, 3)}",
                f"UPDATE {table} SET a = a + 1 WHERE a = {chance.randint(0, 3)}",
            ]))
        reader.on()


def test_gaps_are_told_or_bridged(spark, table):
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (1, 'a'), (2, 'b')")
    lenient = Read(spark, table, on_gap="snapshot")
    lenient.on()
    strict = iceberg(table)
    strict.columns(spark)

    def gap(match):
        with pytest.raises(SourceError, match=f"(?s){match}.*on_gap='snapshot'"):
            strict.read(spark, lenient.offset)
        assert [type(change) for change in lenient.on().changes] == [Whole]
        assert strict.read(spark, lenient.offset) is None

    first = lenient.offset["snapshot"]
    spark.sql(f"UPDATE {table} SET v = 'z'")
    lenient.on()
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")
    gap("set back")
    spark.sql(f"INSERT INTO {table} VALUES (3, 'c')")
    lenient.on()
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd')")
    gap("set back")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd')")
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    expire = (f"CALL lake.system.expire_snapshots(table => '{table}', "
              "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => {})")
    spark.sql(expire.format(1))
    gap("they have expired")
    # The last snapshot read may expire if the later ones exist.
    spark.sql(f"INSERT INTO {table} VALUES (5, 'e')")
    spark.sql(expire.format(1))
    assert [len(change[0]) for change in lenient.on().changes] == [0, 1]
    spark.sql(f"CREATE OR REPLACE TABLE {table} (id INT, v STRING) USING iceberg")
    gap("has no snapshot.*replaced")
    spark.sql(f"INSERT INTO {table} VALUES (5, 'e')")
    lenient.on()
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT 5 AS id, 'e' AS v")
    gap("replaced")
    spark.sql(f"DROP TABLE {table}")
    with pytest.raises(SourceError, match="no table"):
        strict.read(spark, lenient.offset)
    spark.sql(f"CREATE TABLE {table} USING iceberg AS SELECT 6 AS id, 'f' AS v")
    gap("replaced")


def test_delete_files_are_told(spark, table):
    modes = ", ".join(f"'{mode}'='merge-on-read'" for mode in MODES)
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING iceberg TBLPROPERTIES ({modes})")
    # In one file, which is not deleted as a whole.
    spark.sql(f"INSERT INTO {table} SELECT id, 'a' FROM range(0, 9, 1, 1)")
    strict, lenient = Read(spark, table), Read(spark, table, on_gap="snapshot")
    for reader in strict, lenient:
        reader.on()
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd')")
    strict.on()
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    with pytest.raises(SourceError, match="(?s)delete files.*SET TBLPROPERTIES") as raised:
        strict.on()
    assert isinstance(lenient.on().changes[0], Whole)
    # The remedy of the message works, from the next read on.
    for statement in str(raised.value).partition("ALTER TABLE")[2].split("; and ")[0].split(
        " makes no more of them, and "
    ):
        spark.sql(statement.split(" does away")[0] if statement.startswith("CALL")
                  else f"ALTER TABLE{statement}")
    lenient.on()
    strict = Read(spark, table)
    strict.on()
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    strict.on()
    assert not isinstance(lenient.on().changes[0], Whole)


@pytest.mark.parametrize("statement, message", [
    ("DROP COLUMN v", "v was dropped"),
    ("RENAME COLUMN v TO w", "v was renamed to w"),
    ("ALTER COLUMN id TYPE BIGINT", "id was int and is bigint"),
])
def test_other_columns_are_refused(spark, table, statement, message):
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a')")
    readers = [Read(spark, table, on_gap=on_gap) for on_gap in ("refuse", "snapshot")]
    for reader in readers:
        reader.on()
    spark.sql(f"INSERT INTO {table} VALUES (2, 'a')")
    spark.sql(f"ALTER TABLE {table} {statement}")
    for reader in readers:
        with pytest.raises(SourceError, match=f"{message}.*on_change='rebuild'"):
            reader.on()
    anew = Read(spark, table)
    if "was dropped" in message:  # the last snapshot has the columns that are left
        anew.on()
    else:
        with pytest.raises(SourceError, match="altered after its last snapshot.*INSERT") as raised:
            anew.on()
        text = str(raised.value)
        spark.sql(text[text.index("INSERT"):].partition(", and")[0])
        anew.on()
    for reader in readers:
        with pytest.raises(SourceError, match=f"{message}.*on_change='rebuild'"):
            reader.on()


def test_what_others_write_is_seen(spark, table):
    """A catalog caches a table while readers ask for it."""
    spark.sql(f"CREATE TABLE {table} (id INT) USING iceberg")
    reader, other = Read(spark, table), spark.newSession()
    for number in range(3):
        other.sql(f"INSERT INTO {table} VALUES ({number})")
        assert reader.on() is not None


def test_names(spark):
    spark.sql("CREATE TABLE lake.`d'b`.`we``ird na me` (`a.b` INT, `c d` STRING) USING iceberg")
    spark.sql("INSERT INTO lake.`d'b`.`we``ird na me` VALUES (1, 'a')")
    reader = Read(spark, "lake.`d'b`.`we``ird na me`", key="a.b")
    reader.on()
    spark.sql("UPDATE lake.`d'b`.`we``ird na me` SET `c d` = 'b'")
    reader.on()
    spark.sql("CREATE TABLE lake.db.short (id INT) USING iceberg")
    here = spark.catalog.currentCatalog(), spark.catalog.currentDatabase()
    spark.sql("USE lake.db")
    try:
        readers = [Read(spark, "short"), Read(spark, "db.short"), Read(spark, "lake.db.short")]
        for reader in readers:
            reader.on()
    finally:
        spark.catalog.setCurrentCatalog(here[0])
        spark.catalog.setCurrentDatabase(here[1])
    spark.sql("INSERT INTO lake.db.short VALUES (1)")
    for reader in readers:
        assert reader.source.read(spark, reader.offset).offset["snapshot"]


def test_what_is_no_table_is_told(spark):
    spark.sql("CREATE TABLE plain USING parquet AS SELECT 1 AS a")
    for name, message in (
        ("nosuch", "no table `spark_catalog`.default.nosuch"), ("lake.db.nosuch", "no table"),
        ("plain", "no Iceberg table"), ("default.plain", "no Iceberg table"),
    ):
        with pytest.raises(SourceError, match=f"{message}.*iceberg-spark-runtime"):
            iceberg(name).columns(spark)


def test_a_dataflow_follows_two_tables(spark, table, tmp_path):
    """Nights in a store, each of them another dataflow."""
    other = f"{table}_other"
    spark.sql(f"CREATE TABLE {table} (id INT, customer INT, amount INT) USING iceberg")
    spark.sql(f"CREATE TABLE {other} (customer INT, region STRING) USING iceberg")

    def program(flow):
        orders = flow.source("orders", iceberg(table, key="id"))
        customers = flow.source("customers", iceberg(other, on_gap="snapshot"))
        orders.join(customers, "customer").groupBy("region").agg(
            F.sum("amount").alias("amount")
        ).keep("revenue")

    for night, statements in enumerate((
        [f"INSERT INTO {table} SELECT id, id % 5, id FROM range(100)",
         f"INSERT INTO {other} SELECT id, concat('r', id % 2) FROM range(5)"],
        [f"UPDATE {table} SET amount = 7 WHERE id % 10 = 0", f"DELETE FROM {table} WHERE id = 3",
         f"UPDATE {other} SET region = 'r1' WHERE customer = 4"],
        [],
        [f"CREATE OR REPLACE TABLE {other} USING iceberg AS "
         "SELECT CAST(id AS INT) AS customer, 'all' AS region FROM range(4)"],
    )):
        for statement in statements:
            spark.sql(statement)
        with Dataflow.open(tmp_path / "store", program, spark=spark, buckets=2) as flow:
            assert flow.catch_up() or not statements
            wanted = spark.sql(
                f"SELECT region, sum(amount) FROM {table} JOIN {other} USING (customer) GROUP BY 1"
            )
            assert rows_of(spark, flow["revenue"].at()) == rows_of(spark, wanted), night
    spark.sql(f"DROP TABLE {other}")
