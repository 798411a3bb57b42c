"""Tables without a change feed: cases of tests/connectors/test_delta.py, in a Spark with Delta.

    sum of the rows of all readings so far  =  the table
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from urllib.parse import urlparse

import pytest
from delta_cases import applied, rows_of
from delta_session import reads_files, spark, table  # noqa: F401

from pyspark_diff import Dataflow, FallbackError, SourceError
from pyspark_diff.dataflow.source import Whole
from pyspark_diff.fallbacks import FEED, SETTING, Fallbacks, counting
from pyspark_diff.sources import delta
from pyspark_diff.spark.delta_changed_files import changed_files
from pyspark_diff.spark.jvm_tables import delta_log

STATEMENTS = [
    "INSERT INTO {t} (id, v, n) VALUES ({n}, 'i', {n}), ({n}, 'i', {n}), (NULL, NULL, 1)",
    "UPDATE {t} SET v = concat(v, '!') WHERE id % 3 = {n} % 3",
    "DELETE FROM {t} WHERE id % 5 = {n} % 5",
    "DELETE FROM {t} WHERE n = {n} % 4",
    "INSERT OVERWRITE {t} (id, v, n) SELECT id, v, n FROM {t} WHERE id < 40",
    "MERGE INTO {t} t USING (SELECT {n} AS id, 'm' AS v, 1 AS n) s ON t.id = s.id AND t.v = 'i' "
    "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, v, n) VALUES (s.id, s.v, s.n)",
    "OPTIMIZE {t}",
    "TRUNCATE TABLE {t}",
    "RESTORE TABLE {t} TO VERSION AS OF 2",
]
TABLES = {
    "plain": "",
    "vectors": "TBLPROPERTIES (delta.enableDeletionVectors = true)",
    "mapped": "TBLPROPERTIES (delta.columnMapping.mode = 'name')",
    "partitioned": "PARTITIONED BY (n)",
    "partitioned and mapped": "PARTITIONED BY (v) TBLPROPERTIES (delta.columnMapping.mode = 'id', "
                              "delta.enableDeletionVectors = true)",
}


def test_changed_files_have_the_changed_rows(spark, table):  # noqa: F811
    check(spark, table, "vectors", STATEMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TABLES)
def test_changed_files_of_all_tables(spark, table, reads_files, kind):  # noqa: F811
    # Without deltalake, a source refuses RESTORE in a table with column mapping.
    mapped = "mapped" in kind and not reads_files
    check(spark, table, kind, STATEMENTS[:-1] if mapped else STATEMENTS)


def check(spark, table, kind, statements):  # noqa: F811
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING, n INT) USING delta {TABLES[kind]}")
    spark.sql(f"INSERT INTO {table} SELECT id, 's', id % 4 FROM range(0, 60, 1, 2)")
    spark.sql(f"INSERT INTO {table} SELECT id, 't', 1 FROM range(50, 80, 1, 1)")
    source = delta(table)
    source.columns(spark)
    reading = source.read(spark, None)
    content, offset = applied({}, reading), reading.offset
    draw = random.Random(kind)
    for _ in range(6):
        for _ in range(draw.choice([1, 1, 2, 3])):
            spark.sql(draw.choice(statements).format(t=table, n=draw.randrange(90)))
        with counting(Fallbacks()) as fallbacks:
            reading = source.read(spark, offset)
        if reading is None:  # no statement changed a row
            continue
        assert any(fallback.path == FEED for fallback in fallbacks)
        assert not any(isinstance(change, Whole) for change in reading.changes)
        content, offset = applied(content, reading), reading.offset
        assert content == rows_of(spark, table)


def test_keys_and_files_without_changes(spark, table, monkeypatch):  # noqa: F811
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING delta")
    spark.sql(f"INSERT INTO {table} SELECT id, 's' FROM range(0, 9, 1, 3)")
    with Dataflow(spark, runner="local") as flow:
        rows = flow.source("rows", delta(table, key="id")).keep("rows")
        flow.catch_up()
        spark.sql(f"MERGE INTO {table} t USING (SELECT explode(array(1, 20)) AS id) s "
                  "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'm' "
                  "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'new')")
        spark.sql(f"DELETE FROM {table} WHERE id = 8")
        flow.catch_up()
        assert rows_of(spark, rows.at()) == rows_of(spark, table)
        assert FEED in str(flow.explain())
        # A compaction states that it changes no row, so its files are not read.
        spark.sql(f"OPTIMIZE {table}")
        version = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0].version
        came, went = changed_files(spark, table, version, version)
        assert not came.count() + went.count()
        flow.catch_up()
        monkeypatch.setenv(SETTING, "raise")
        spark.sql(f"DELETE FROM {table} WHERE id = 7")
        with pytest.raises(FallbackError, match="does not record its changes"):
            flow.catch_up()
        monkeypatch.delenv(SETTING)
        flow.catch_up()
        assert rows_of(spark, rows.at()) == rows_of(spark, table)


def test_names_of_the_feed_and_of_patterns(spark, tmp_path):  # noqa: F811
    """A table without a feed may have the columns of one, and a folder may look like a pattern."""
    name = f"delta.`{tmp_path}/a[1]*{{b}}?`"
    spark.sql(f"CREATE TABLE {name} (id INT, _change_type STRING, _commit_version INT) "
              "USING delta")
    spark.sql(f"INSERT INTO {name} SELECT id, 'delete', id FROM range(0, 9, 1, 3)")
    with Dataflow(spark, runner="local") as flow:
        rows = flow.source("rows", delta(name, key="id")).keep("rows")
        flow.catch_up()
        spark.sql(f"UPDATE {name} SET _change_type = 'insert' WHERE id = 4")
        spark.sql(f"DELETE FROM {name} WHERE id = 8")
        flow.catch_up()
        assert FEED in str(flow.explain())
        assert rows_of(spark, rows.at()) == rows_of(spark, name)


def test_files_that_a_writer_adds_twice(spark, table):  # noqa: F811
    """Another writer may add a file again, with other statistics; the table has its rows once."""
    spark.sql(f"CREATE TABLE {table} (id INT) USING delta")
    spark.sql(f"INSERT INTO {table} SELECT id FROM range(0, 4, 1, 1)")
    source = delta(table)
    source.columns(spark)
    reading = source.read(spark, None)
    content = applied({}, reading)
    log = Path(urlparse(delta_log(spark, table).folder).path)
    lines = (log / f"{1:020d}.json").read_text().splitlines()
    added = next(json.loads(line)["add"] for line in lines if '"add"' in line)
    again = {"add": {**added, "tags": {"seen": "again"}}}
    (log / f"{2:020d}.json").write_text(json.dumps(again))
    spark.sql(f"INSERT INTO {table} VALUES (7)")
    content = applied(content, source.read(spark, reading.offset))
    assert content == rows_of(spark, table)
    assert sum(content.values()) == 5


def test_settings_that_hide_missing_files(spark, table, monkeypatch):  # noqa: F811
    spark.sql(f"CREATE TABLE {table} (id INT) USING delta")
    source = delta(table)
    source.columns(spark)
    offset = source.read(spark, None).offset
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(SourceError, match="ignoreMissingFiles is true, which hides"):
            source.read(spark, offset)
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    assert source.read(spark, offset) is not None


def test_unknown_changes_are_refused(spark, table, monkeypatch):  # noqa: F811
    spark.sql(f"CREATE TABLE {table} (id INT, v CHAR(3)) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a')")
    source = delta(table)
    source.columns(spark)
    offset = source.read(spark, None).offset
    spark.sql(f"INSERT INTO {table} VALUES (2, 'b')")
    # Spark pads the values of CHAR when it reads the whole table.
    with pytest.raises(SourceError, match="cannot tell what has changed.*ALTER TABLE"):
        source.read(spark, offset)
    spark.sql(f"CREATE OR REPLACE TABLE {table} (id INT) USING delta")
    spark.sql(f"INSERT INTO {table} SELECT id FROM range(0, 4, 1, 1)")
    source = delta(table)
    source.columns(spark)
    offset = source.read(spark, None).offset
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
    # The removed file is gone.
    with pytest.raises(SourceError, match="cannot tell what has changed.*ALTER TABLE"):
        source.read(spark, offset)
    # Over Connect no file can be read alone.
    monkeypatch.setattr("pyspark_diff.spark.delta_changed_files.delta_log", lambda *_: None)
    with pytest.raises(SourceError, match="does not record its changes, and.*ALTER TABLE"):
        source.read(spark, None)
    with pytest.raises(SourceError, match="cannot tell what has changed.*ALTER TABLE"):
        source.read(spark, offset)
