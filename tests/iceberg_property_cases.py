"""All properties, statements, procedures and types of the Iceberg of this session.

    the rows before  +  the changes since  =  the table, or an error of the reason

Iceberg and Spark list them. A new one fails the first test until it has an entry here.
"""

from __future__ import annotations

import contextlib
import json
import re
from datetime import timedelta

import iceberg_cases
import pytest
from delta_cases import applied, rows_of
from delta_property_cases import OTHERS as NO_TABLES
from delta_property_cases import rules
from iceberg_change_cases import Followed, alter, both
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pyspark_diff import Dataflow, DiffError, SourceError
from pyspark_diff.dataflow.source import Reading
from pyspark_diff.sources import Whole, iceberg
from pyspark_diff.sources.iceberg import RESERVED
from pyspark_diff.spark import iceberg as metadata

spark, table = iceberg_cases.spark, iceberg_cases.table
#: Values of properties that are set together; ``{d}`` is a folder.
GROUPS = {
    "commits": {
        "comment": "x", "commit.retry.num-retries": "2", "commit.retry.min-wait-ms": "10",
        "commit.retry.max-wait-ms": "20", "commit.retry.total-timeout-ms": "1000",
        "commit.status-check.num-retries": "2", "commit.status-check.min-wait-ms": "10",
        "commit.status-check.max-wait-ms": "20", "commit.status-check.total-timeout-ms": "1000",
        "commit.manifest.target-size-bytes": "1000", "commit.manifest.min-count-to-merge": "2",
        "commit.manifest-merge.enabled": "true", "write.manifest.compression-codec": "zstd",
        "write.manifest.compression-level": "3", "write.metadata.compression-codec": "gzip",
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.metrics.default": "none", "write.metadata.metrics.column.v": "truncate(1)",
        "write.summary.partition-limit": "1", "compatibility.snapshot-id-inheritance.enabled":
        "true", "engine.hive.enabled": "false", "engine.hive.lock-enabled": "false",
        "gc.enabled": "false", "history.expire.max-snapshot-age-ms": "86400000",
        "history.expire.min-snapshots-to-keep": "1", "history.expire.max-ref-age-ms": "86400000",
        "identifier-fields.rely": "true",
    },
    "Parquet": {
        f"write.{kind}parquet.{name}": value for kind in ("", "delete.") for name, value in {
            "row-group-size-bytes": "1000", "page-size-bytes": "100", "page-version": "v2",
            "page-row-limit": "1", "dict-size-bytes": "100", "compression-codec": "zstd",
            "compression-level": "3", "row-group-check-min-record-count": "1",
            "row-group-check-max-record-count": "2",
        }.items()
    } | {
        "write.parquet.shred-variants": "true",
        "write.parquet.variant-inference-buffer-size": "1",
        "write.parquet.row-group-size-track-uncompressed": "true",
        "write.parquet.bloom-filter-max-bytes": "1024",
        "write.parquet.bloom-filter-adaptive-enabled": "true",
        "write.parquet.bloom-filter-fpp.column.v": "0.1",
        "write.parquet.bloom-filter-ndv.column.v": "10",
        "write.parquet.bloom-filter-enabled.column.v": "true",
        "write.parquet.stats-enabled.column.v": "false",
        "write.parquet.dict-encoding-enabled.column.v": "false",
    },
    "reads": {
        "read.split.target-size": "1000", "read.split.metadata-target-size": "1000",
        "read.split.planning-lookback": "1", "read.split.open-file-cost": "1",
        "read.split.adaptive-size.enabled": "false", "read.parquet.vectorization.enabled": "false",
        "read.parquet.vectorization.batch-size": "1", "read.orc.vectorization.enabled": "true",
        "read.orc.vectorization.batch-size": "2", "read.data-planning-mode": "distributed",
        "read.delete-planning-mode": "local",
    },
    "Avro": {
        "write.format.default": "avro", "write.avro.compression-codec": "zstd",
        "write.delete.avro.compression-codec": "gzip", "write.avro.compression-level": "3",
        "write.delete.avro.compression-level": "3", "write.delete.format.default": "avro",
    },
    "ORC": {
        "write.format.default": "orc", **{
            f"write.{kind}orc.{name}": value for kind in ("", "delete.") for name, value in {
                "stripe-size-bytes": "100000", "block-size-bytes": "100000",
                "vectorized.batch-size": "2", "compression-codec": "zstd",
                "compression-strategy": "compression",
            }.items()},
        "write.orc.bloom.filter.columns": "v", "write.orc.bloom.filter.fpp": "0.1",
    },
    "places": {
        "write.format.default": "parquet", "write.object-storage.enabled": "true",
        "write.object-storage.partitioned-paths": "false", "write.data.path": "{d}/data",
        "write.object-storage.path": "{d}/objects", "write.folder-storage.path": "{d}/folder",
    },
    "writes": {
        "write.object-storage.enabled": "false", "write.target-file-size-bytes": "1000",
        "write.delete.target-file-size-bytes": "1000", "write.spark.fanout.enabled": "true",
        "write.spark.auto-schema-evolution.enabled": "true",
        "write.spark.advisory-partition-size-bytes": "1000", "write.distribution-mode": "range",
        "write.upsert.enabled": "true", "write.delete.granularity": "partition",
        **{f"write.{kind}.{name}": value for kind in ("delete", "update", "merge")
           for name, value in {"isolation-level": "snapshot", "mode": "copy-on-write",
                               "distribution-mode": "hash"}.items()},
    },
    "any schema": {"write.spark.accept-any-schema": "true"},
    "versions": {"format-version": "3"},
    "staged": {"write.wap.enabled": "true"},
}
#: Properties that describe a table, and that Iceberg refuses or ignores if a user sets them.
REFUSED = {
    "uuid", "snapshot-count", "current-snapshot-summary", "current-snapshot-id",
    "current-snapshot-timestamp-ms", "current-schema", "default-partition-spec",
    "default-sort-order",
}
#: Properties that need a key service, a class of a user, or another catalog.
OTHERS = {
    "encryption.key-id", "encryption.data-key-length", "write.location-provider.impl",
    "write.metadata.path",
}
#: Statements of Iceberg's parser, by their rules.
STATEMENTS = {
    "AddPartitionField": alter(
        "ADD PARTITION FIELD bucket(4, id)", "ADD PARTITION FIELD truncate(1, v) AS short",
        "ADD PARTITION FIELD days(d)", "ADD PARTITION FIELD n"),
    "ReplacePartitionField": alter(
        "REPLACE PARTITION FIELD days(d) WITH months(d) AS part",
        "REPLACE PARTITION FIELD part WITH years(d)"),
    "DropPartitionField": alter(
        "DROP PARTITION FIELD bucket(4, id)", "DROP PARTITION FIELD short",
        "DROP PARTITION FIELD years(d)"),
    "SetWriteDistributionAndOrdering": alter(
        "WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY v DESC NULLS LAST, bucket(4, id)",
        "WRITE LOCALLY ORDERED BY id", "WRITE ORDERED BY days(d)", "WRITE UNORDERED"),
    "SetIdentifierFields": alter("SET IDENTIFIER FIELDS id, s.a"),
    "DropIdentifierFields": alter("DROP IDENTIFIER FIELDS s.a", "DROP COLUMN w"),
    "CreateOrReplaceBranch": alter(
        "CREATE BRANCH other", "CREATE BRANCH IF NOT EXISTS other", "REPLACE BRANCH other",
        "CREATE OR REPLACE BRANCH other RETAIN 7 DAYS WITH SNAPSHOT RETENTION 2 SNAPSHOTS 3 DAYS",
        "CREATE OR REPLACE BRANCH main"),
    "CreateOrReplaceTag": alter(
        "CREATE TAG good", "CREATE OR REPLACE TAG good RETAIN 1 DAYS", "REPLACE TAG good"),
    "DropBranch": alter("DROP BRANCH other", "DROP BRANCH IF EXISTS other"),
    "DropTag": alter("DROP TAG good", "DROP TAG IF EXISTS good"),
}
#: Statements of Spark's parser that a table of Iceberg takes, by their rules.
TAKEN = {
    "AddTableColumns": alter("ADD COLUMNS (w1 INT COMMENT 'x' FIRST, w2 STRUCT<a: INT>)",
                             "ADD COLUMN w2.b STRING AFTER a"),
    "RenameTableColumn": alter("RENAME COLUMN w1 TO w3", "RENAME COLUMN w2.a TO c"),
    "AlterTableAlterColumn": alter(
        "ALTER COLUMN w3 TYPE BIGINT", "ALTER COLUMN w2.c TYPE BIGINT", "ALTER COLUMN w2.b FIRST",
        "ALTER COLUMN id DROP NOT NULL", "ALTER COLUMN s.a DROP NOT NULL",
        "ALTER COLUMN s.a COMMENT 'x'"),
    "HiveChangeColumn": alter("CHANGE COLUMN v v STRING COMMENT 'x'"),
    "DropTableColumns": alter("DROP COLUMNS w2.b, w3", "DROP COLUMN IF EXISTS w3"),
    "SetTableProperties": alter("SET TBLPROPERTIES (own = 'x')"),
    "UnsetTableProperties": alter("UNSET TBLPROPERTIES (own, nothing)"),
    "AlterTableCollation": alter("DEFAULT COLLATION UTF8_LCASE"),
    "CommentTable": ["COMMENT ON TABLE {t} IS 'x'"],
    "CreateTable": ["CREATE TABLE IF NOT EXISTS {t} (x INT) USING iceberg"],
    "CacheTable RefreshTable UncacheTable ClearCache": [
        "CACHE TABLE {t}", "INSERT INTO {t} (id) VALUES (77)", "REFRESH TABLE {t}",
        "UNCACHE TABLE {t}", "CLEAR CACHE"],
    "SingleInsertQuery InsertIntoTable": ["INSERT INTO {t} BY NAME SELECT 600 AS id"],
    "InsertIntoReplaceWhere InsertIntoReplaceBooleanCond": [
        "INSERT INTO {t} REPLACE WHERE id = 600 SELECT 600, 'z', 1, NULL, NULL"],
    "InsertOverwriteTable": ["INSERT OVERWRITE {t} (id, v) SELECT id, v FROM {t} WHERE id < 99"],
    "MultiInsertQuery": ["FROM (SELECT 601 AS id, 'x' AS v) INSERT INTO {t} (id, v) SELECT id, v "
                         "INSERT INTO {t} (id, v) SELECT id + 1, v"],
    "MergeIntoTable": [
        "MERGE WITH SCHEMA EVOLUTION INTO {t} t USING (SELECT 2 AS id, 'z' AS v, 1 AS extra) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED BY SOURCE AND t.id > 600 "
        "THEN DELETE"],
    "VisitExecuteImmediate DeleteFromTable": ["EXECUTE IMMEDIATE 'DELETE FROM {t} WHERE id = 600'"],
    "UpdateTable": ["UPDATE {t} SET s.a = 5 WHERE id = 2"],
    "TruncateTable": ["TRUNCATE TABLE {t}"],
}
#: Statements of Spark's parser that Spark or Iceberg refuses, so that nothing changes.
NOT_TAKEN = {
    "SetTableSerDe": "ALTER TABLE {t} SET SERDE 'x'",
    "AddTablePartition": "ALTER TABLE {t} ADD PARTITION (n = 9)",
    "RenameTablePartition": "ALTER TABLE {t} PARTITION (n = 1) RENAME TO PARTITION (n = 2)",
    "DropTablePartitions": "ALTER TABLE {t} DROP PARTITION (n = 1)",
    "SetTableLocation": "ALTER TABLE {t} SET LOCATION '/x'",
    "RenameTable": "ALTER TABLE {t} RENAME TO lake.db.other",
    "RecoverPartitions": "ALTER TABLE {t} RECOVER PARTITIONS",
    "RepairTable": "MSCK REPAIR TABLE {t}",
    "LoadData": "LOAD DATA INPATH '/x' INTO TABLE {t}",
    "Analyze": "ANALYZE TABLE {t} COMPUTE STATISTICS",
    "CreateIndex": "CREATE INDEX i ON {t} (id)",
    "DropIndex": "DROP INDEX i ON {t}",
    "AddTableConstraint": "ALTER TABLE {t} ADD CONSTRAINT p CHECK (id > 0)",
    "DropTableConstraint": "ALTER TABLE {t} DROP CONSTRAINT p",
    "AlterClusterBy AlterTableClusterBy ClusterBy": "ALTER TABLE {t} CLUSTER BY (id)",
    "AddTableColumns": "ALTER TABLE {t} ADD COLUMN w INT DEFAULT 5",
    "AlterTableAlterColumn": "ALTER TABLE {t} ALTER COLUMN n SET DEFAULT 7",
    "Call": "CALL lake.system.migrate('{t}')",
}
#: Rules of statements that tests/iceberg_cases.py and tests/iceberg_change_cases.py have.
ELSEWHERE = {"HiveReplaceColumns", "ReplaceTable", "DropTable"}
#: Procedures, and the errors of the next reading.
PROCEDURES = {
    "ancestors_of": ("('{t}')", None),
    "create_changelog_view": ("(table => '{t}')", None),
    "compute_table_stats": ("('{t}')", None),
    "compute_partition_stats": ("('{t}')", None),
    "rewrite_data_files": (
        "(table => '{t}', strategy => 'sort', sort_order => 'v DESC', "
        "options => map('rewrite-all', 'true'))", None),
    "rewrite_manifests": ("('{t}', false)", None),
    "rewrite_position_delete_files": ("('{t}')", None),
    "rewrite_table_path": ("('{t}', '{d}', '/elsewhere')", None),
    "remove_orphan_files": ("(table => '{t}', dry_run => true)", None),
    "add_files": ("(table => '{t}', source_table => '`parquet`.`{f}`')", None),
    "register_table": ("('lake.db.registered', '{d}/metadata/v1.metadata.json')", None),
    "snapshot": ("('{t}', 'lake.db.snapshot_of_t')", "refused"),
    "migrate": ("('{t}')", "refused"),
    "rollback_to_snapshot": ("('{t}', {s})", "set back"),
    "set_current_snapshot": ("('{t}', {s})", "set back"),
    "rollback_to_timestamp": ("('{t}', TIMESTAMP '{c}')", "set back"),
    "cherrypick_snapshot": ("('{t}', {n})", None),
    "publish_changes": ("('{t}', 'w1')", None),
    "fast_forward": ("('{t}', 'main', 'b')", None),
    "expire_snapshots": ("(table => '{t}', older_than => TIMESTAMP '2999-01-01 00:00:00', "
                         "retain_last => 1)", None),
}
#: Iceberg's types, and the errors of a source of a table with such a column.
TYPES = {
    "BOOLEAN": None, "INTEGER": None, "LONG": None, "FLOAT": None, "DOUBLE": None, "DATE": None,
    "TIMESTAMP": None, "STRING": None, "BINARY": None, "DECIMAL": None, "STRUCT": None,
    "LIST": None, "MAP": None, "VARIANT": None,
    "UUID": "UUIDType.get", "FIXED": "FixedType.ofLength", "UNKNOWN": "UnknownType.get",
    "GEOMETRY": "GeometryType.crs84", "GEOGRAPHY": "GeographyType.crs84",
    "TIME": "TimeType.get", "TIMESTAMP_NANO": "TimestampNanoType.withZone",
}


def java_class(spark, name):
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return spark._jvm.java.lang.Class.forName(name, True, loader)


def opened(spark, table):
    """A table as an object of the JVM."""
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        spark._jsparkSession, table)


def test_all_properties_statements_procedures_and_types_have_an_entry(spark):
    fields = java_class(spark, "org.apache.iceberg.TableProperties").getFields()
    keys = {
        field.get(None) for field in fields if field.getType().getSimpleName() == "String"
        and not re.search("_DEFAULT|_MODE_(NONE|HASH|RANGE)$", field.getName())
    }
    known = {"schema.name-mapping.default"} | REFUSED | OTHERS | {
        name for group in GROUPS.values() for name in group
    }
    missing = {
        key for key in keys - known
        if not (key.endswith(".") and any(name.startswith(key) for name in known))
    }
    assert missing == set()
    parser = "org.apache.spark.sql.catalyst.parser.extensions.IcebergSqlExtensionsParser"
    assert rules(spark, parser) == STATEMENTS.keys()
    statements = " ".join([*TAKEN, *NOT_TAKEN, *ELSEWHERE]).split()
    missing = rules(spark, "org.apache.spark.sql.catalyst.parser.SqlBaseParser") - set(statements)
    assert missing - NO_TABLES == set()
    procedures = java_class(spark, "org.apache.iceberg.spark.procedures.SparkProcedures")
    names = procedures.getMethod("names", None).invoke(None, None)
    assert set(names) == PROCEDURES.keys()
    kinds = java_class(spark, "org.apache.iceberg.types.Type$TypeID").getEnumConstants()
    assert {str(kind) for kind in kinds} == TYPES.keys()
    own = spark._jvm.org.apache.iceberg.MetadataColumns
    names = [field.get(None).name() for field in java_class(
        spark, "org.apache.iceberg.MetadataColumns").getFields()
        if field.getType().getSimpleName() == "NestedField"]
    assert {name for name in [*names, "_partition"] if own.isMetadataColumn(name)} >= RESERVED
    codecs = java_class(spark, "org.apache.iceberg.TableMetadataParser$Codec").getEnumConstants()
    assert {str(codec) for codec in codecs} == {"NONE", "GZIP"}


def changed(followed, number):
    """Change rows. The sources read the changes and not the whole table."""
    followed.run(
        f"UPDATE {{t}} SET v = 'u{number}' WHERE id = {number % 4 + 1}",
        f"INSERT INTO {{t}} (id, v) VALUES ({100 + number}, NULL), ({100 + number}, 'x')",
        f"DELETE FROM {{t}} WHERE id = {99 + number} AND v IS NULL",
    )
    both(followed)


def test_each_property_and_rows_after_it(spark, table, tmp_path, monkeypatch):
    followed = Followed(
        spark, table, "id INT NOT NULL, v STRING, n INT", "'a', 1",
        properties="PARTITIONED BY (n) TBLPROPERTIES ('format-version' = '2')",
    )
    for number, (name, group) in enumerate(GROUPS.items()):
        if number % 2:  # as over Connect
            monkeypatch.setattr(metadata, "iceberg_metadata", lambda *_: None)
        listed = ", ".join(
            f"'{key}' = '{value.replace('{d}', str(tmp_path))}'" for key, value in group.items()
        )
        followed.run(*alter(f"SET TBLPROPERTIES ({listed})"))
        both(followed)
        if name == "any schema":  # Spark takes no UPDATE or DELETE with it
            followed.run("INSERT INTO {t} SELECT 99 AS id, 'x' AS v, 1 AS n")
            both(followed)
        if name in ("any schema", "staged"):
            followed.run(*alter(f"UNSET TBLPROPERTIES ('{next(iter(group))}')"))
            both(followed)
        changed(followed, number)
        monkeypatch.undo()


def test_properties_that_no_user_sets(spark, table):
    followed = Followed(spark, table, "id INT, v STRING, n INT", "'a', 1")
    for name in sorted(REFUSED | {"write.metadata.path"}):
        with contextlib.suppress(PySparkException, Py4JError):
            followed.run(*alter(f"SET TBLPROPERTIES ('{name}' = '/x')"))
        both(followed)
    # Iceberg cannot write with these properties, and its tables are read.
    followed.run(*alter("SET TBLPROPERTIES ('write.location-provider.impl' = 'no.Class')"))
    both(followed)


def test_statements_of_iceberg(spark, table):
    followed = Followed(
        spark, table, "id INT NOT NULL, v STRING, n INT, d DATE, s STRUCT<a: INT NOT NULL> "
        "NOT NULL", "'a', 1, DATE'2024-01-31', named_struct('a', 1)",
        properties="TBLPROPERTIES ('format-version' = '2')")
    followed.run(*alter("ADD COLUMN w INT"))
    both(followed)
    for number, statements in enumerate(STATEMENTS.values()):
        followed.run(*statements)
        both(followed)
        followed.run(
            f"UPDATE {{t}} SET v = 'u{number}' WHERE id = {number % 4}",
            f"INSERT INTO {{t}} SELECT {100 + number} AS id, 'x', {number}, d, s "
            f"{', 1' if number < 5 else ''} FROM {{t}} LIMIT 1",
            f"DELETE FROM {{t}} WHERE id = {99 + number}",
        )
        both(followed)
    followed.run("INSERT INTO {t} SELECT 999, 'x', 1, d, s FROM {t} LIMIT 1")
    both(followed)
    followed.run(*alter("REPLACE BRANCH main AS OF VERSION {s}"))
    followed.refused("set back.*on_gap='snapshot'")
    assert [type(change) for change in followed.read("snapshot")] == [Whole]


def test_statements_of_spark(spark, table):
    followed = Followed(
        spark, table, "id INT NOT NULL, v STRING, n INT, s STRUCT<a: INT NOT NULL>",
        "'a', 1, named_struct('a', 1)")
    for statement in NOT_TAKEN.values():
        with pytest.raises((PySparkException, Py4JError)):
            followed.run(statement)
    both(followed)
    for number, statements in enumerate(TAKEN.values()):
        followed.run(*statements)
        both(followed)
        changed(followed, number)


def test_procedures(spark, table, tmp_path):
    files = tmp_path / "files"
    spark.range(50, 53).selectExpr("CAST(id AS INT) AS id", "'f' AS v").write.parquet(str(files))
    followed = Followed(spark, table, "id INT, v STRING", "'a'", "PARTITIONED BY (bucket(2, id))")
    for number, (name, (call, outcome)) in enumerate(PROCEDURES.items()):
        begin = followed.offsets["refuse"]["snapshot"]
        (clock,) = spark.sql(f"SELECT committed_at FROM {table}.snapshots WHERE snapshot_id = "
                             f"{begin}").collect()
        if name == "add_files":
            followed.run(*alter("DROP PARTITION FIELD bucket(2, id)"))
        if outcome == "set back":
            followed.run(f"INSERT INTO {{t}} VALUES ({200 + number}, 'set back')")
            both(followed)
        if name in ("cherrypick_snapshot", "publish_changes"):
            followed.run(*alter("SET TBLPROPERTIES ('write.wap.enabled' = 'true')"))
            spark.conf.set("spark.wap.id", "w1" if name == "publish_changes" else "w0")
            followed.run(f"INSERT INTO {{t}} VALUES ({300 + number}, 'staged')")
            spark.conf.unset("spark.wap.id")
            both(followed)
            assert (300 + number, "staged") not in followed.rows["refuse"]
        if name == "fast_forward":
            followed.run(*alter("CREATE BRANCH b"),
                         f"INSERT INTO {{t}}.branch_b VALUES ({300 + number}, 'staged')")
            both(followed)
        newest = spark.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at DESC")
        call = (
            call.replace("{d}", opened(spark, table).location()).replace("{f}", str(files))
            .replace("{s}", str(begin)).replace("{n}", str(newest.first().snapshot_id))
            .replace("{c}", str(clock.committed_at + timedelta(milliseconds=1)))
        )
        if outcome == "refused":
            with pytest.raises((PySparkException, Py4JError)):
                followed.run(f"CALL lake.system.{name}{call}")
        else:
            followed.run(f"CALL lake.system.{name}{call}")
        if outcome == "set back":
            followed.refused("set back.*on_gap='snapshot'")
            assert [type(change) for change in followed.read("snapshot")] == [Whole]
            followed.open("refuse")
        else:
            both(followed)
        if name in ("cherrypick_snapshot", "publish_changes", "fast_forward"):
            assert (300 + number, "staged") in followed.rows["refuse"]
        followed.run(f"UPDATE {{t}} SET v = 'u{number}' WHERE id = {number % 4}",
                     f"INSERT INTO {{t}} VALUES ({100 + number}, NULL)")
        both(followed)


@pytest.mark.parametrize("kind", [kind for kind, maker in TYPES.items() if maker])
def test_types_that_sql_does_not_make(spark, table, kind):
    """Each is read, or refused by name; SQL makes the others."""
    method, _, name = TYPES[kind].partition(".")
    spark.sql(f"CREATE TABLE {table} (id INT) USING iceberg "
              "TBLPROPERTIES ('format-version' = '3')")
    maker = getattr(getattr(spark._jvm.org.apache.iceberg.types.Types, method), name)
    column_type = maker(3) if kind == "FIXED" else maker()
    if kind in ("TIME", "TIMESTAMP_NANO"):
        source = iceberg(table)
        source.columns(spark)
        opened(spark, table).updateSchema().addColumn("x", column_type).commit()
        match = f"Spark cannot read Iceberg table {table} .*time.*Drop the column"
        with pytest.raises(SourceError, match=match):
            source.read(spark, None)
        with pytest.raises(SourceError, match=match):
            iceberg(table).columns(spark)
        opened(spark, table).updateSchema().deleteColumn("x").commit()
        assert source.read(spark, None) is not None
        return
    opened(spark, table).updateSchema().addColumn("x", column_type).commit()
    with Dataflow(spark, runner="local") as flow:
        try:
            rows = flow.source("rows", iceberg(table)).keep("rows")
        except DiffError as error:
            assert kind in ("GEOMETRY", "GEOGRAPHY", "UNKNOWN"), error
            assert re.search(f"\\bx\\b.*({kind.lower()}|void)", str(error)), error
            return
        text = {"UUID": "'f79c3e09-677c-4bbd-a479-3f349cb785e7'", "FIXED": "X'010203'"}
        flow.catch_up()
        spark.sql(f"INSERT INTO {table} (id) VALUES (1)")
        if kind in text:
            spark.sql(f"INSERT INTO {table} VALUES (2, {text[kind]})")
        flow.catch_up()
        spark.sql(f"UPDATE {table} SET id = 3 WHERE id = 1")
        flow.catch_up()
        assert rows_of(spark, rows.at()) == rows_of(spark, table)


#: Types of SQL that change in Iceberg, or that have extreme values.
VALUES = {
    "TINYINT": "1Y", "SMALLINT": "-1S", "CHAR(5)": "'a'", "VARCHAR(5)": "'a'", "VOID": "NULL",
    "STRING COLLATE UTF8_LCASE": "'aA'", "TIMESTAMP_LTZ": "TIMESTAMP'9999-12-31 23:59:59.999999'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ'0001-01-01 00:00:00'", "DATE": "DATE'9999-12-31'",
    "DECIMAL(38, 38)": "-0.99999999999999999999999999999999999999BD",
    "FLOAT": "CAST('-Infinity' AS FLOAT)", "BIGINT": "-9223372036854775808",
    "STRING": "'\\u0000\\'\"日本\\n'", "BINARY": "X''",
}


@pytest.mark.parametrize("file_format", ["parquet", "avro", "orc"])
def test_extreme_values(spark, table, file_format):
    types = {kind: value for kind, value in VALUES.items()
             if not (kind == "VOID" and file_format != "parquet")}
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(types))
    followed = Followed(
        spark, table, f"id INT, {columns}", ", ".join(types.values()),
        f"TBLPROPERTIES ('format-version' = '3', 'write.format.default' = '{file_format}')")
    followed.run(f"INSERT INTO {{t}} VALUES (8, {', '.join(types.values())}), "
                 f"(9, {', '.join('NULL' for _ in types)})")
    both(followed)
    followed.run("DELETE FROM {t} WHERE id IN (1, 9)", "UPDATE {t} SET c0 = 6 WHERE id = 8")
    both(followed)


def test_columns_that_iceberg_reserves(spark, table):
    spark.sql(f"CREATE TABLE {table} (id INT, v STRING) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a')")
    source = iceberg(table)
    source.columns(spark)
    reading = source.read(spark, None)
    names = sorted(RESERVED)
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({', '.join(f'{name} INT' for name in names)})")
    with pytest.raises(Py4JError, match="reserved for Iceberg"):
        spark.table(table).collect()
    for number, name in enumerate(names):
        reason = f"reserves: {', '.join(names[number:])}[.]"
        with pytest.raises(SourceError, match=reason) as raised:
            source.read(spark, reading.offset)
        with pytest.raises(SourceError, match=reason):
            iceberg(table).columns(spark)
        remedy = re.search(r"ALTER TABLE .* TO", str(raised.value))[0]
        spark.sql(f"{remedy} fine{number}")
    spark.sql(f"INSERT INTO {table} (id, v) VALUES (2, 'b')")
    (_, came) = source.read(spark, reading.offset).changes
    assert applied({}, Reading({}, [came])) == {(2, "b"): 1}


def test_another_name_mapping_is_a_gap(spark, table, tmp_path):
    """A mapping changes the rows of files without ids, and writes no snapshot."""
    files = tmp_path / "files"
    spark.range(50, 53).selectExpr(
        "CAST(id AS INT) AS id", "CAST(7 AS INT) AS n").write.parquet(str(files))
    followed = Followed(spark, table, "id INT, n INT", "1")
    followed.run(f"CALL lake.system.add_files('{{t}}', '`parquet`.`{files}`')")
    both(followed)

    def gap():
        followed.refused("has another schema.name-mapping.default.*on_gap='snapshot'")
        assert [type(change) for change in followed.read("snapshot")] == [Whole]
        followed.open("refuse")

    swapped = json.dumps([{"field-id": 1, "names": ["n"]}, {"field-id": 2, "names": ["id"]}])
    followed.run(*alter(f"SET TBLPROPERTIES ('schema.name-mapping.default' = '{swapped}')"))
    gap()
    assert (7, 50) in followed.rows["refuse"]
    followed.run("DELETE FROM {t} WHERE n = 51")
    both(followed)
    # Iceberg adds the name of a new column to the mapping.
    followed.run(*alter("ADD COLUMN w INT"), "INSERT INTO {t} VALUES (9, 9, 9)")
    both(followed)
    followed.run(*alter("UNSET TBLPROPERTIES ('schema.name-mapping.default')"))
    gap()
    own = json.dumps([{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["n"]}])
    followed.run(*alter(f"SET TBLPROPERTIES ('schema.name-mapping.default' = '{own}')"))
    gap()
    assert (50, 7, None) in followed.rows["refuse"]


@pytest.mark.parametrize("mode", ["delete", "update", "merge"])
def test_merge_on_read_of_each_kind(spark, table, mode):
    """A source refuses rows that a delete file removes."""
    followed = Followed(
        spark, table, "id INT, v STRING, n INT", "'a', 1",
        properties=f"TBLPROPERTIES ('format-version' = '3', 'write.{mode}.mode' = 'merge-on-read')",
    )
    followed.run({
        "delete": "DELETE FROM {t} WHERE id = 2",
        "update": "UPDATE {t} SET v = 'u' WHERE id = 2",
        "merge": "MERGE INTO {t} t USING (SELECT 2 AS id) s ON t.id = s.id "
                 "WHEN MATCHED THEN UPDATE SET v = 'm'",
    }[mode])
    followed.refused("on_gap='snapshot'")
    assert [type(change) for change in followed.read("snapshot")] == [Whole]
