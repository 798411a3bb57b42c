"""An Iceberg table that other writers change, and a source reads.

    the rows before  +  the changes since  =  the table, or an error of the reason

After an error, the remedy of its message is followed, and the source has the rows of the table.
"""

from __future__ import annotations

import functools
import re

import iceberg_cases
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_cases import applied, rows_of

from pyspark_diff import Dataflow, SourceError
from pyspark_diff.sources import Whole, iceberg, snapshots
from pyspark_diff.spark import iceberg as metadata
from pyspark_diff.spark.schema import quoted

spark, table = iceberg_cases.spark, iceberg_cases.table
COLUMNS = (
    "id INT, v STRING, n INT, f FLOAT, d DECIMAL(5, 2), s STRUCT<a: INT, b: STRING>, "
    "l ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>"
)
ROW = "'a', 1, 1.5F, 1.25, named_struct('a', 1, 'b', 'x'), array(named_struct('x', 1)), map('k', 1)"
INSERT = "INSERT INTO {t} (id, v) VALUES (90, 'new')"
SNAPSHOTS = "SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at"
#: The snapshot before the last one.
PARENT = (
    "SELECT parent_id FROM {t}.snapshots WHERE snapshot_id IN "
    "(SELECT snapshot_id FROM {t}.refs WHERE name = 'main')"
)


class Followed:
    """A table, and two sources of it with the rows that they have."""

    def __init__(self, spark, name, columns=COLUMNS, row=ROW, properties="", **sources):
        self.spark, self.name = spark, name
        self.run(f"CREATE TABLE {{t}} ({columns}) USING iceberg {properties}")
        if row:
            self.run(f"INSERT INTO {{t}} SELECT CAST(id AS INT), {row} FROM range(0, 4, 1, 1)")
        self.sources, self.offsets, self.rows = {}, {}, {}
        self.opened = sources or {
            on_gap: functools.partial(iceberg, on_gap=on_gap) for on_gap in ("refuse", "snapshot")
        }
        for source in self.opened:
            self.open(source)

    def run(self, *statements):
        for statement in statements:
            text = statement.replace("{t}", self.name)
            if "{s}" in text:
                (row,) = self.spark.sql(PARENT.replace("{t}", self.name)).collect()
                text = text.replace("{s}", str(row.parent_id))
            self.spark.sql(text)

    def open(self, on_gap):
        """Read all of the table, as another dataflow."""
        source = self.opened[on_gap](self.name)
        source.columns(self.spark)
        self.sources[on_gap], self.offsets[on_gap], self.rows[on_gap] = source, None, {}
        self.read(on_gap)

    def read(self, on_gap="refuse"):
        """Read the table on; the changes, or None if there are none."""
        source = self.sources[on_gap]
        reading = source.read(self.spark, self.offsets[on_gap])
        rows = applied(self.rows[on_gap], reading)
        known = [quoted(name) for name in source._known().names]
        assert rows == rows_of(self.spark, self.spark.table(self.name).select(*known))
        if reading is None:
            return None
        self.rows[on_gap], self.offsets[on_gap] = rows, reading.offset
        return reading.changes

    def refused(self, match, on_gap="refuse"):
        with pytest.raises(SourceError, match=f"(?s){match}") as raised:
            self.read(on_gap)
        return str(raised.value)


def both(followed):
    """Both sources read the changes, and not the whole table."""
    for on_gap in followed.sources:
        changes = followed.read(on_gap)
        assert not any(isinstance(change, Whole) for change in changes or ())


def alter(*parts):
    return [f"ALTER TABLE {{t}} {part}" for part in parts]


#: Statements after which a source reads on, in a table of format 1; a row changes after each.
HARMLESS = alter(
    "ADD COLUMN w INT", "ADD COLUMN q INT FIRST", "ALTER COLUMN n FIRST", "ALTER COLUMN n AFTER v",
    "ALTER COLUMN v COMMENT 'text'", "RENAME COLUMN w TO w2", "ALTER COLUMN w2 TYPE BIGINT",
    "DROP COLUMN w2", "ADD COLUMN w STRING", "ADD PARTITION FIELD bucket(4, id)",
    "REPLACE PARTITION FIELD bucket(4, id) WITH truncate(2, v) AS part", "ADD PARTITION FIELD n",
    "DROP PARTITION FIELD part", "WRITE ORDERED BY v DESC, id",
    "WRITE DISTRIBUTED BY PARTITION", "WRITE UNORDERED", "CREATE BRANCH other", "CREATE TAG good",
    "DROP TAG good", "SET TBLPROPERTIES ('write.format.default' = 'avro')",
    "SET TBLPROPERTIES ('write.format.default' = 'orc')",
    "SET TBLPROPERTIES ('write.metadata.compression-codec' = 'gzip')",
    "SET TBLPROPERTIES ('write.metadata.previous-versions-max' = '1', "
    "'write.metadata.delete-after-commit.enabled' = 'true')",
    "SET TBLPROPERTIES ('write.object-storage.enabled' = 'true')",
    "SET TBLPROPERTIES ('format-version' = '2')", "SET TBLPROPERTIES ('format-version' = '3')",
) + [
    "INSERT INTO {t}.branch_other (id) VALUES (80)",
    "CALL lake.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))",
    "CALL lake.system.rewrite_manifests('{t}')",
    "CALL lake.system.remove_orphan_files(table => '{t}')",
    "COMMENT ON TABLE {t} IS 'text'",
    "DELETE FROM {t} WHERE n IS NULL",
    "INSERT OVERWRITE {t} (id, v) VALUES (2, 'over'), (3, NULL)",
]


def test_what_changes_no_column_that_is_read_goes_on(spark, table):
    followed = Followed(
        spark, table, COLUMNS.replace("id INT,", "id INT NOT NULL,"),
        properties="TBLPROPERTIES ('format-version' = '1')",
        refuse=iceberg, keyed=functools.partial(iceberg, key="ID"),
    )
    followed.run(*alter("SET IDENTIFIER FIELDS id"))
    for number, statement in enumerate(HARMLESS):
        followed.run(statement)
        followed.read()
        followed.run(f"UPDATE {{t}} SET v = 'u{number}' WHERE id = {number % 2 + 2}")
        both(followed)
    followed.run("TRUNCATE TABLE {t}")
    both(followed)


#: Changes of columns that are read, and the reasons of the errors.
GAPS = {
    "DROP COLUMN v|ADD COLUMN v STRING": "v was dropped and added again",
    "RENAME COLUMN v TO w|ADD COLUMN v STRING": "v was dropped and added again",
    "RENAME COLUMN id TO x|RENAME COLUMN n TO id|RENAME COLUMN x TO n":
        "id is the column that was n, n is the column that was id",
    "DROP COLUMN s.a|ADD COLUMN s.a INT FIRST": "s.a was dropped and added again",
    "DROP COLUMN s|ADD COLUMN s STRUCT<a: INT, b: STRING>": ": s was dropped and added again",
    "ADD COLUMN l.element.y INT|DROP COLUMN l.element.x|RENAME COLUMN l.element.y TO x":
        "l.element.x was dropped and added again",
    "DROP COLUMN m|ADD COLUMN m MAP<STRING, INT>": ": m was dropped and added again",
}
REFUSALS = {
    "DROP COLUMN v": "v was dropped",
    "RENAME COLUMN v TO w": "have changed: v was renamed to w",
    "RENAME COLUMN v TO x|RENAME COLUMN x TO V": "v was renamed to V",
    "RENAME COLUMN v TO `a.b`": "v was renamed to a.b",
    "ALTER COLUMN n TYPE BIGINT": "n was int and is bigint",
    "ALTER COLUMN f TYPE DOUBLE": "f was float and is double",
    "ALTER COLUMN d TYPE DECIMAL(9, 2)": r"d was decimal\(5,2\) and is decimal\(9,2\)",
    "ALTER COLUMN s.a TYPE BIGINT": "s was struct<.*> and is struct<a:bigint,b:string>",
    "RENAME COLUMN s.a TO z": "s was struct<.*> and is struct<z:int,b:string>",
    "DROP COLUMN s.a": "s was struct<.*> and is struct<b:string>",
    "ADD COLUMN s.c INT": "s was struct<.*> and is struct<a:int,b:string,c:int>",
    "ALTER COLUMN s.b FIRST": "s was struct<.*> and is struct<b:string,a:int>",
    "ADD COLUMN l.element.y INT": "l was array<.*> and is array<struct<x:int,y:int>>",
}
NEW = "INSERT INTO {t} (id) VALUES (91)"


@pytest.mark.parametrize("parts, over_connect", [
    *((parts, False) for parts in GAPS), *((parts, True) for parts in list(GAPS)[:4:3]),
])
def test_another_column_of_a_name_is_a_gap(spark, table, parts, over_connect, monkeypatch):
    if over_connect:
        monkeypatch.setattr(metadata, "iceberg_metadata", lambda *_: None)
    followed, reason = Followed(spark, table), f"{GAPS[parts]}.*on_gap='snapshot'"
    statements = alter(*parts.split("|"))
    followed.run(*statements)
    followed.refused(reason)
    text = followed.refused("altered after its last snapshot", "snapshot")
    followed.run(re.search("INSERT INTO .* WHERE false", text)[0])
    followed.refused(reason)
    assert [type(change) for change in followed.read("snapshot")] == [Whole]
    followed.run(NEW)
    followed.refused(reason)
    assert followed.read("snapshot") is not None
    followed.open("refuse")
    # At once with a change of rows.
    followed.run(*alter("DROP COLUMN f", "ADD COLUMN f FLOAT"), "DELETE FROM {t} WHERE id = 2", NEW)
    followed.refused("f was dropped and added again")


@pytest.mark.parametrize("parts", REFUSALS)
def test_other_columns_are_refused(spark, table, parts):
    followed, reason = Followed(spark, table), f"{REFUSALS[parts]}.*on_change='rebuild'"
    followed.run(*alter(*parts.split("|")))
    for on_gap in followed.sources:
        followed.refused(reason, on_gap)
    if parts == "RENAME COLUMN v TO w":
        for _ in range(2):
            followed.run(*alter("RENAME COLUMN w TO v"))
            both(followed)
            # A snapshot has the other name, and the table has the name that the source reads.
            followed.run(*alter(parts), NEW)
        followed.run(*alter("RENAME COLUMN w TO v"))
        both(followed)
        assert "v" in followed.offsets["refuse"]["columns"]
        followed.run(*alter(parts))
    followed.run(NEW)
    for on_gap in followed.sources:
        followed.refused(reason, on_gap)
        followed.open(on_gap)
    followed.run("DELETE FROM {t} WHERE id = 1")
    both(followed)


def test_metadata_that_connect_cannot_read_is_told(spark, table, monkeypatch):
    followed = Followed(spark, table)
    monkeypatch.setattr(metadata, "iceberg_metadata", lambda *_: None)
    both(followed)
    spark.conf.set("spark.sql.sources.binaryFile.maxLength", 1)
    try:
        text = followed.refused("Spark cannot read the metadata file .*metadata.json .*[.] Give")
        source = eval(re.search(r"snapshots\(.*\)$", text)[0], {"snapshots": snapshots})
        source.columns(spark)
        assert applied({}, source.read(spark, None)) == rows_of(spark, table)
    finally:
        spark.conf.unset("spark.sql.sources.binaryFile.maxLength")
    both(followed)


def test_columns_of_a_table_without_rows(spark, table):
    followed = Followed(spark, table, row="")
    followed.run(*alter("ADD COLUMN w INT"))
    both(followed)
    followed.run(*alter("DROP COLUMN v", "ADD COLUMN v STRING"))
    followed.refused("v was dropped and added again")
    followed.run(NEW)
    both(followed)
    followed.run(*alter("DROP COLUMN v"))
    followed.refused("v was dropped")


def test_snapshots_that_are_put_in_another_order(spark, table):
    """Rolled back, cherry-picked, fast-forwarded, expired and replaced ones."""
    followed = Followed(spark, table, "id INT, v STRING", "'a'")

    def gap(reason):
        followed.refused(f"{reason}.*on_gap='snapshot'")
        assert [type(change) for change in followed.read("snapshot")] == [Whole]
        followed.open("refuse")

    followed.run(*alter("CREATE BRANCH b"), "INSERT INTO {t}.branch_b VALUES (51, 'b')",
                 "DELETE FROM {t}.branch_b WHERE id = 1")
    both(followed)
    followed.run("CALL lake.system.fast_forward('{t}', 'main', 'b')")
    both(followed)
    for _ in range(2):
        followed.run(INSERT)
        both(followed)
        followed.run("CALL lake.system.rollback_to_snapshot('{t}', {s})")
        gap("set back")
    followed.run(INSERT)
    both(followed)
    followed.run("CALL lake.system.set_current_snapshot('{t}', {s})")
    gap("set back")
    # Set back in between, to an ancestor of the snapshot that was read.
    followed.run(INSERT)
    both(followed)
    followed.run(INSERT, "CALL lake.system.rollback_to_snapshot('{t}', {s})")
    both(followed)
    for statement in alter("SET TBLPROPERTIES ('write.wap.enabled' = 'true')"):
        followed.run(statement)
    for procedure in "cherrypick_snapshot('{t}', {s})", "publish_changes('{t}', 'staged{n}')":
        number = str(len(procedure))
        spark.conf.set("spark.wap.id", f"staged{number}")
        followed.run(INSERT)
        spark.conf.unset("spark.wap.id")
        both(followed)
        followed.run("DELETE FROM {t} WHERE id = 2", INSERT.replace("90", number))
        both(followed)
        if "{s}" in procedure:
            snapshot = spark.sql(SNAPSHOTS.replace("{t}", table)).collect()[-3].snapshot_id
            procedure = procedure.replace("{s}", str(snapshot))
        followed.run(f"CALL lake.system.{procedure.replace('{n}', number)}")
        assert followed.read() is not None
        both(followed)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rows_are_changed_by_copies(spark, table, version):
    followed = Followed(spark, table, "id INT, v STRING", "'a'",
                        f"TBLPROPERTIES ('format-version' = '{version}')")
    for statement in (
        "DELETE FROM {t} WHERE id = 1", "UPDATE {t} SET v = 'u' WHERE id = 2", INSERT,
        "MERGE INTO {t} t USING (SELECT 2 AS id UNION ALL SELECT 77) s ON t.id = s.id WHEN MATCHED "
        "THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'n')",
        "INSERT INTO {t} SELECT * FROM {t}", "DELETE FROM {t}",
    ):
        followed.run(statement)
        both(followed)


TYPES = {
    "BOOLEAN": "true", "BIGINT": "5L", "FLOAT": "CAST('NaN' AS FLOAT)", "DOUBLE": "-0.0D",
    "DECIMAL(38, 10)": "12345678901234567890.1234567890", "DATE": "DATE'1001-01-01'",
    "TIMESTAMP": "TIMESTAMP'2024-01-01 00:00:00.123456'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ'2024-01-01 00:00:00.123456'", "BINARY": "X'00ff'",
    "STRUCT<a: INT, b: STRUCT<c: STRING>>": "named_struct('a', 1, 'b', named_struct('c', 'x'))",
    "MAP<STRING, ARRAY<INT>>": "map('k', array(1, 2))",
    "ARRAY<STRUCT<x: MAP<INT, INT>>>": "array(named_struct('x', map(1, 2)))",
}


def test_types(spark, table):
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))
    followed = Followed(spark, table, f"id INT, {columns}", ", ".join(TYPES.values()))
    for statement in (
        f"INSERT INTO {{t}} VALUES (8, {', '.join(TYPES.values())})",
        "DELETE FROM {t} WHERE id = 1",
        f"INSERT INTO {{t}} VALUES (9, {', '.join('NULL' for _ in TYPES)})",
        "UPDATE {t} SET c1 = 6 WHERE id = 8",
    ):
        followed.run(statement)
        assert all(followed.read(on_gap) is not None for on_gap in followed.sources)


#: Names that need quoting, that SQL reserves, and that Iceberg uses in its own tables.
NAMES = [
    "a.B", "c`d", "e f", "g'h", 'i"j', "Éf", "日本", "user", "order", "select", "Mixed", "%s", "x/y",
    "$1", "\\n", "k=V", "a,b", "(c)", "{d};", "*", "op2", "row", "time", "diff", "snapshot", "1",
    "_commit_version", "_metadata",
]


def test_names_of_columns(spark, table):
    declared = ", ".join(f"{quoted(name)} STRING" for name in NAMES)
    values = ", ".join(f"concat('v', id, '{number}')" for number, _ in enumerate(NAMES))
    key = ["ID", *(name.swapcase() for name in NAMES[:3])]
    followed = Followed(spark, table, f"id INT, {declared}", values,
                        refuse=iceberg, keyed=functools.partial(iceberg, key=key))
    new = ", ".join(f"{quoted(name)} = 'new'" for name in NAMES[3:])
    followed.run(f"UPDATE {{t}} SET {new} WHERE id = 2")
    both(followed)
    followed.run("DELETE FROM {t} WHERE `a.B` = 'v10'")
    both(followed)
    followed.run(*alter("DROP COLUMN `a.B`", "ADD COLUMN `a.B` STRING"), NEW)
    followed.refused("`a.B` was dropped and added again")


@pytest.mark.parametrize("full", ["lake.db.`we.ird`", "lake.`we.ird`.t"])
def test_a_dot_in_the_name_of_a_table_is_told(spark, full):
    """Iceberg's cache has the tables of metadata under a text with dots between the parts."""
    spark.sql(f"CREATE TABLE {full} USING iceberg AS SELECT 1 AS id")
    with pytest.raises(SourceError, match="has a dot") as raised:
        iceberg(full).columns(spark)
    setting = re.search(r"Start Spark with (\S+)=false", str(raised.value))[1]
    other = full.replace("lake", "uncached", 1)
    spark.conf.set(setting.replace("lake", "uncached"), "false")
    try:
        followed = iceberg(other)
        followed.columns(spark)
        reading = followed.read(spark, None)
        for number in 2, 3:
            spark.sql(f"INSERT INTO {other} VALUES ({number})")
            reading = followed.read(spark, reading.offset)
            assert applied({}, reading) == {(number,): 1}
    finally:
        spark.conf.unset(setting.replace("lake", "uncached"))
        spark.sql(f"DROP TABLE {full}")


@pytest.mark.parametrize("name", [
    "we`ird", "we ird", "q'uote", 'd"q', "日本", "select", "Mixed", "a\\b", "snapshots",
    "refs", "b{1}c*?[x]", "%41", "changes", "100",
])
def test_names_of_tables(spark, name, monkeypatch):
    for full in f"lake.db.{quoted(name)}", f"lake.{quoted(name)}.t":
        followed = Followed(spark, full, "id INT, v STRING", "'a'", refuse=iceberg)
        followed.run("UPDATE {t} SET v = 'n' WHERE id = 1")
        both(followed)
        monkeypatch.setattr(metadata, "iceberg_metadata", lambda *_: None)
        followed.run("UPDATE {t} SET v = 'o' WHERE id = 1")
        both(followed)
        monkeypatch.undo()
        spark.sql(f"DROP TABLE {full}")


def test_variants(spark, table):
    spark.sql(f"CREATE TABLE {table} (id INT, v VARIANT) USING iceberg "
              "TBLPROPERTIES ('format-version' = '3')")
    insert = f"INSERT INTO {table} SELECT {{}}, parse_json('{{}}')"
    spark.sql(insert.format(1, '{"a": [1, null, "x"]}'))
    with Dataflow(spark, runner="local") as flow:
        all_rows = flow.source("rows", iceberg(table)).keep("rows")
        newest = flow.source("newest", iceberg(table, key="id")).keep("newest")
        flow.catch_up()
        spark.sql(insert.format(2, "1.50"))
        spark.sql(insert.format(4, "[]"))
        spark.sql(f"INSERT INTO {table} VALUES (3, NULL)")
        spark.sql(f"UPDATE {table} SET v = parse_json('2') WHERE id = 2")
        spark.sql(f"DELETE FROM {table} WHERE id IN (1, 4)")
        flow.catch_up()
        for rows in all_rows, newest:
            texts = rows.at().selectExpr("id", "to_json(v)")
            assert rows_of(spark, texts) == {(2, "2"): 1, (3, None): 1}


def test_replaced_columns_are_a_gap(spark, table):
    """REPLACE COLUMNS drops all columns and adds others, also under the same names."""
    followed = Followed(spark, table, "id INT, v STRING", "'a'")
    followed.run(*alter("REPLACE COLUMNS (id INT, v STRING)"), INSERT)
    followed.refused("columns? of (these|the) names?|other column")
    changes = followed.read("snapshot")
    assert any(isinstance(change, Whole) for change in changes)


@pytest.mark.parametrize("partitioned", [False, True])
def test_files_that_others_wrote(spark, table, tmp_path, partitioned):
    """`add_files` takes Parquet files, which have no field identities."""
    part = "PARTITIONED BY (v)" if partitioned else ""
    followed = Followed(spark, table, "id INT, v STRING", "'a'", properties=part)
    files = spark.range(50, 55).selectExpr("CAST(id AS INT) AS id", "'from files' AS v")
    writer = files.write.partitionBy("v") if partitioned else files.write
    writer.parquet(str(tmp_path / "files"))
    followed.run(f"CALL lake.system.add_files(table => '{{t}}', source_table => "
                 f"'`parquet`.`{tmp_path}/files`')")
    both(followed)
    followed.run("DELETE FROM {t} WHERE id IN (1, 51)", INSERT)
    both(followed)


def test_equality_deletes_are_a_gap(spark, table, tmp_path):
    """Flink deletes rows by a file with their keys."""
    followed = Followed(
        spark, table, "id INT, v STRING", "'a'", properties="TBLPROPERTIES ('format-version' = '2')"
    )
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    opened = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
    key = pa.field("id", pa.int32(), metadata={"PARQUET:field_id": "1"})
    path = tmp_path / "deleted.parquet"
    pq.write_table(pa.table([pa.array([2], pa.int32())], pa.schema([key])), path)
    fields = gateway.new_array(jvm.int, 1)
    fields[0] = 1
    deleted = (
        jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(opened.spec())
        .ofEqualityDeletes(fields).withPath(str(path)).withRecordCount(1)
        .withFileSizeInBytes(path.stat().st_size).build()
    )
    opened.newRowDelta().addDeletes(deleted).commit()
    spark.sql(f"REFRESH TABLE {table}")
    followed.refused("delete files")
    changes = followed.read("snapshot")
    assert any(isinstance(change, Whole) for change in changes)
    assert sum(followed.rows["snapshot"].values()) == 3
