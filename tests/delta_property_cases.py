"""All properties and features of the Delta of this session, and all statements of its parsers.

    a source:  the rows before  +  the changes since  =  the table, by its files and by Spark

    a sink:    the table  =  the collection, or an error of the reason and nothing was written

Delta and Spark list their properties, features and statements. A new one fails the first test
until it has an entry here.
"""

from __future__ import annotations

import re
from collections import Counter

import delta_session
import pytest
from delta_cases import rows_of
from delta_change_cases import COLUMNS, GROUPS, WRITTEN, Readers, change, run
from delta_session import MODULES
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pyspark_diff import Dataflow, SinkError, SourceError
from pyspark_diff.sinks import delta_history, delta_merge

spark, table = delta_session.spark, delta_session.table
#: Properties of the tables of the sinks; the second kind has no change feed.
TABLES = {
    "feed": {"delta.enableChangeDataFeed": "true"},
    "no feed": {"delta.enableDeletionVectors": "false"},
    "mapped": {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "false"},
}


def properties(**values):
    """A statement that sets properties; names with dots come in a dictionary."""
    more = values.pop("more", {})
    listed = ", ".join(f"'delta.{name}' = '{value}'" for name, value in {**values, **more}.items())
    return f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})"


def enabled(names):
    return [properties(more={f"feature.{name}": "supported"}) for name in names.split()]


def refused(condition, *statements):
    """Statements that Delta refuses, so that nothing changes."""
    def fails(spark, folder):
        for statement in statements:
            # Delta's errors of its own classes have no class in Python.
            with pytest.raises((PySparkException, Py4JError)) as raised:
                spark.sql(statement.replace("{t}", f"delta.`{folder}`"))
            message = f"{getattr(raised.value, 'getCondition', str)()} {raised.value}"
            assert condition in message, (statement, message[:500])

    fails.statements = statements
    return fails


def manifest(spark, folder):
    """A manifest, which Delta refuses for a table with deletion vectors."""
    try:
        spark.sql(f"GENERATE symlink_format_manifest FOR TABLE delta.`{folder}`")
    except PySparkException as error:
        assert "DELTA_UNSUPPORTED_GENERATE_WITH_DELETION_VECTORS" in str(error)


DAYS = "interval 2 days"
#: One change for each property: in a table with a change feed, without one, or with mapped columns.
PROPERTIES = {
    "feed": [
        change(properties(
            checkpointInterval="1", checkpointRetentionDuration=DAYS, logRetentionDuration=DAYS,
            deletedFileRetentionDuration=DAYS, sampleRetentionDuration=DAYS,
            setTransactionRetentionDuration=DAYS, enableExpiredLogCleanup="false",
            enableFullRetentionRollback="false", more={
                "checkpoint.writeStatsAsJson": "false", "checkpoint.writeStatsAsStruct": "true",
                "dropFeatureTruncateHistory.retentionDuration": DAYS,
            })),
        change(properties(
            autoOptimize="true", randomizeFilePrefixes="true", randomPrefixLength="3",
            isolationLevel="Serializable", dataSkippingNumIndexedCols="1",
            dataSkippingStatsColumns="id", dataSkippingStringPrefixLength="1", more={
                "autoOptimize.autoCompact": "true", "autoOptimize.optimizeWrite": "true",
                "parquet.format.version": "2.12.0",
            })),
        change(properties(
            castIcebergTimeType="true", ignoreIcebergBucketPartition="true",
            ignoreProtocolDefaults="true", minReaderVersion="3", minWriterVersion="7",
            inCommitTimestampEnablementTimestamp="1", inCommitTimestampEnablementVersion="1",
            more={"universalFormat.iceberg.atomicConversion.supported": "true"})),
        change(properties(enableMaterializePartitionColumnsFeature="true",
                          writePartitionColumnsToParquet="true")),
        change(properties(enableVariantShredding="true", enableTypeWidening="true",
                          requireCheckpointProtectionBeforeVersion="2")),
        change(properties(enableInCommitTimestamps="true", checkpointPolicy="v2")),
        change(properties(enableRowTracking="true")),
        change(properties(enableRowTracking="false"), properties(rowTrackingSuspended="true")),
        change(refused("DELTA_CANNOT_MODIFY_TABLE_PROPERTY",
                       properties(more={"columnMapping.maxColumnId": "9"})),
               refused("", properties(more={"redirectReaderWriter-preview": "{}"}),
                       properties(more={"redirectWriterOnly-preview": "{}"})),
               refused("MUST_SET_ALL_COORDINATED_COMMITS_CONFS",
                       properties(more={"coordinatedCommits.commitCoordinator-preview": "x"}),
                       properties(more={"coordinatedCommits.commitCoordinatorConf-preview": "{}"})),
               refused("DELTA_CONF_OVERRIDE_NOT_SUPPORTED_IN_COMMAND",
                       properties(more={"coordinatedCommits.tableConf-preview": "{}"})),
               refused("DELTA_UNKNOWN_CONFIGURATION", properties(unknown="x"))),
        change(properties(appendOnly="true"), sink="APPEND_ONLY|append",
               undo=[properties(appendOnly="false")]),
        change("ALTER TABLE {t} UNSET TBLPROPERTIES (delta.checkpointInterval, "
               "delta.dataSkippingNumIndexedCols, delta.dataSkippingStatsColumns, "
               "delta.appendOnly, delta.enableInCommitTimestamps, delta.rowTrackingSuspended)"),
    ],
    "no feed": [
        change(properties(more={"compatibility.symlinkFormatManifest.enabled": "true"}),
               "GENERATE symlink_format_manifest FOR TABLE {t}"),
        change(properties(more={"compatibility.symlinkFormatManifest.enabled": "false"}),
               properties(enableDeletionVectors="true")),
        change(properties(enableChangeDataCapture="true")),
        change(properties(enableChangeDataCapture="false"),
               properties(enableChangeDataFeed="true")),
        change(properties(enableChangeDataFeed="false"), properties(
            checkpointInterval="1", setTransactionRetentionDuration="interval 0 seconds",
            enableRowTracking="true", randomizeFilePrefixes="true", checkpointPolicy="v2")),
        change(properties(more={"columnMapping.mode": "name"})),
    ],
    "mapped": [
        change(properties(enableIcebergCompatV1="true")),
        change(properties(enableIcebergCompatV1="false"), properties(enableIcebergCompatV2="true")),
        change(properties(more={"universalFormat.enabledFormats": "iceberg"})),
        change(refused("", properties(enableIcebergCompatV3="true"))),
    ],
}
FEATURES = {
    "feed": [
        change(*enabled("appendOnly changeDataFeed invariants deletionVectors timestampNtz")),
        change(*enabled("vacuumProtocolCheck")),
        change(*enabled("allowColumnDefaults checkConstraints domainMetadata generatedColumns "
                        "identityColumns inCommitTimestamp rowTracking v2Checkpoint")),
        change(*enabled("columnMapping typeWidening materializePartitionColumns "
                        "checkpointProtection variantType variantShredding")),
        change(*enabled("variantType-preview variantShredding-preview typeWidening-preview")),
        change(*enabled("geospatial geospatial-dev")),
        change(refused("CLUSTERING_TABLE_FEATURE_NOT_ALLOWED", *enabled("clustering")),
               refused("DELTA_ADAPTIVE_METADATA", *enabled("adaptiveMetadata-preview")),
               refused("CatalogOwned", *enabled("catalogManaged"))),
        change(*enabled("coordinatedCommits-preview")),
    ],
    "no feed": [change(*enabled("icebergCompatV1 icebergCompatV2 icebergCompatV3"))],
}
NOT_FOR_DELTA = "NOT_SUPPORTED_COMMAND_FOR_V2_TABLE"
#: Groups of statements by their rules in the parsers of Spark and Delta.
STATEMENTS = {
    "AddTableColumns": change("ALTER TABLE {t} ADD COLUMNS (w INT)", sink=COLUMNS),
    "HiveReplaceColumns": change(
        "ALTER TABLE {t} REPLACE COLUMNS (id INT, v STRING COMMENT 'y', n INT)",
        sink=WRITTEN.format("REPLACE COLUMNS")),
    "RenameTableColumn DropTableColumns SetTableSerDe AddTablePartition RenameTablePartition "
    "DropTablePartitions SetTableLocation RenameTable RecoverPartitions RepairTable LoadData "
    "Analyze CreateIndex DropIndex AddTableConstraint InsertIntoReplaceUsing "
    "AlterTableSyncIdentity Clone":
        change(
            refused("", "ALTER TABLE {t} RENAME COLUMN v TO x", "ALTER TABLE {t} DROP COLUMN v",
                    "CREATE TABLE {t} SHALLOW CLONE {t}"),
            refused("SET_LOCATION", "ALTER TABLE {t} SET LOCATION '/x'"),
            refused("SCHEMA_NOT_FOUND", "ALTER TABLE {t} RENAME TO u"),
            refused("PARTITION", "ALTER TABLE {t} ADD PARTITION (n = 9)",
                    "ALTER TABLE {t} PARTITION (n = 1) RENAME TO PARTITION (n = 2)",
                    "ALTER TABLE {t} DROP PARTITION (n = 1)"),
            refused("NOT_SUPPORTED_COMMAND_FOR_V2_TABLE", "ALTER TABLE {t} SET SERDE 'x'",
                    "ALTER TABLE {t} RECOVER PARTITIONS", "MSCK REPAIR TABLE {t}",
                    "LOAD DATA INPATH '/x' INTO TABLE {t}", "ANALYZE TABLE {t} COMPUTE STATISTICS"),
            refused("LEGACY", "CREATE INDEX i ON {t} (id)", "DROP INDEX i ON {t}"),
            refused("TABLE_OPERATION", "ALTER TABLE {t} ADD CONSTRAINT p PRIMARY KEY (id)",
                    "INSERT INTO {t} REPLACE USING (id) SELECT 1 AS id, 'z' AS v, 1 AS n"),
            refused("IDENTITY", "ALTER TABLE {t} ALTER COLUMN id SYNC IDENTITY")),
    "SetTableProperties UnsetTableProperties HiveChangeColumn AlterTableCollation CommentTable "
    "CreateTable Generate Convert VacuumTable CacheTable": change(
        "ALTER TABLE {t} SET TBLPROPERTIES (own = 'x')",
        "ALTER TABLE {t} UNSET TBLPROPERTIES (own, nothing)",
        "ALTER TABLE {t} CHANGE COLUMN v v STRING COMMENT 'x'",
        "ALTER TABLE {t} DEFAULT COLLATION UTF8_LCASE", "COMMENT ON TABLE {t} IS 'x'",
        "CREATE TABLE IF NOT EXISTS {t} (x INT) USING delta",
        manifest, "CONVERT TO DELTA {t}",
        "VACUUM {t} DRY RUN", "CACHE TABLE {t}"),
    "RefreshTable UncacheTable ClearCache AlterTableDropFeature DropTableConstraint ReorgTable":
        change("REFRESH TABLE {t}", "UNCACHE TABLE {t}", "CLEAR CACHE",
               properties(enableRowTracking="true"), "ALTER TABLE {t} DROP FEATURE rowTracking",
               "ALTER TABLE {t} ADD CONSTRAINT c CHECK (id < 1000)",
               "ALTER TABLE {t} DROP CONSTRAINT c",
               "REORG TABLE {t} APPLY (UPGRADE UNIFORM (ICEBERG_COMPAT_VERSION = 2))"),
    "VisitExecuteImmediate SingleInsertQuery InsertIntoTable": change(
        "EXECUTE IMMEDIATE \"DELETE FROM {t} WHERE id = {n}\"",
        "INSERT INTO {t} BY NAME SELECT 600 AS id", sink=WRITTEN.format("DELETE")),
    "MultiInsertQuery MergeIntoTable": change(
        "FROM (SELECT 600 AS id, 'x' AS v, 1 AS n) INSERT INTO {t} SELECT id, v, n "
        "INSERT INTO {t} SELECT id + 1, v, n",
        "MERGE WITH SCHEMA EVOLUTION INTO {t} t USING (SELECT {n} AS id, 'z' AS v, 7 AS n) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED BY SOURCE THEN DELETE",
        sink=WRITTEN.format("WRITE")),
}
#: Rules that tests/delta_change_cases.py has, and a part of a statement there.
CHANGES = {
    "AlterTableAlterColumn": "ALTER COLUMN v COMMENT", "AlterClusterBy": "CLUSTER BY (n)",
    "AlterTableClusterBy": "CLUSTER BY NONE", "ClusterBy": "CLUSTER BY (id, n)",
    "TruncateTable": "TRUNCATE TABLE", "DeleteFromTable": "DELETE FROM",
    "UpdateTable": "UPDATE {t}",
    "InsertOverwriteTable": "INSERT OVERWRITE", "InsertIntoReplaceBooleanCond": "REPLACE WHERE",
    "Restore": "RESTORE TABLE", "OptimizeTable": "OPTIMIZE {t} ZORDER BY",
    "ReplaceTable": "REPLACE TABLE {t} (id", "DropTable": "DROP",
}
#: Rules of statements that read, or that are about other objects than a table that exists.
OTHERS = set("""
    AlterViewQuery AlterViewSchemaBinding AnalyzeTables Call CloseCursorStatement CommentNamespace
    CreateFunction CreateMetricView CreateNamespace CreatePipelineDataset
    CreatePipelineInsertIntoFlow CreateTableLike CreateTempViewUsing CreateUserDefinedFunction
    CreateVariable CreateView DeclareCursorStatement DescribeDeltaDetail DescribeDeltaHistory
    DescribeFunction DescribeNamespace DescribeProcedure DescribeQuery DescribeRelation DmlStatement
    DropFunction DropNamespace DropVariable DropView Explain FailNativeCommand FetchCursorStatement
    InsertOverwriteDir InsertOverwriteHiveDir ManageResource OpenCursorStatement PassThrough
    RefreshFunction RefreshResource SetCatalog SetNamespaceCollation SetNamespaceLocation
    SetNamespaceProperties ShowCatalogs ShowCollations ShowColumns ShowCreateTable
    ShowCurrentNamespace ShowFunctions ShowNamespaces ShowPartitions ShowProcedures
    ShowTableExtended ShowTables ShowTblProperties ShowViews StatementDefault
    UnsetNamespaceProperties Use UseNamespace
""".split())


def listed(spark, owner, method):
    """The entries of a map of a Scala object."""
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    name = f"org.apache.spark.sql.delta.{owner}$"
    module = spark._jvm.java.lang.Class.forName(name, True, loader)
    entries = getattr(module.getField("MODULE$").get(None), method)().iterator()
    while entries.hasNext():
        yield entries.next()._2()


def rules(spark, parser):
    """The rules of a parser for a statement, or for a part that decides its kind."""
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    names_of = {}
    for rule in spark._jvm.java.lang.Class.forName(parser, True, loader).getClasses():
        if rule.getSuperclass() is not None:
            base = rule.getSuperclass().getSimpleName()
            names_of.setdefault(base, set()).add(rule.getSimpleName().removesuffix("Context"))
    bases = "StatementContext", "DmlStatementNoWithContext", "InsertIntoContext"
    return set().union(*(names_of.get(base, set()) for base in bases))


def named(groups, prefix):
    """The names of properties in some changes that begin in this way."""
    texts = [
        text for changes in groups.values() for probe in changes for statement in probe.statements
        for text in getattr(statement, "statements", [statement])
    ]
    return set(re.findall(f"'{re.escape(prefix)}([^']+)'", " ".join(texts)))


def test_all_properties_features_and_statements_have_an_entry(spark):
    keys = {config.key() for config in listed(spark, "DeltaConfigs", "getAllConfigs")}
    assert keys == {f"delta.{name}" for name in named(PROPERTIES, "delta.")} - {"delta.unknown"}
    features = {feature.name() for feature in listed(
        spark, "TableFeature", "allSupportedFeaturesMap")}
    assert features == named(FEATURES, "delta.feature.")
    statements = rules(spark, "org.apache.spark.sql.catalyst.parser.SqlBaseParser")
    statements |= rules(spark, "io.delta.sql.parser.DeltaSqlBaseParser")
    known = {rule for rules in STATEMENTS for rule in rules.split()} | CHANGES.keys()
    assert not known & OTHERS
    assert statements - known - OTHERS == set()
    texts = [
        text for _, changes in GROUPS.values() for probe in changes for text in probe.statements
        if isinstance(text, str)
    ]
    assert [part for part in CHANGES.values() if not any(part in text for text in texts)] == []


def current(spark, folder):
    """The rows of a history that are in the collection."""
    return rows_of(spark, spark.table(f"delta.`{folder}`").where("is_current").select(
        "id", "v", "n"))


def probed(spark, tmp_path, options, changes, files):
    """Run the changes on the tables of two sinks, and read the first table.

    Parameters
    ----------
    options : dict
        Properties of the tables.
    changes : list of Change
    files : bool
        Whether the sinks write files without Spark, if they can.
    """
    folder, past = tmp_path / "merged", tmp_path / "history"
    with Dataflow(spark, runner="local") as flow, pytest.MonkeyPatch.context() as patch:
        if not files:
            patch.setattr(MODULES[1], "delta_files", lambda *_: None)
        rows, feed = flow.input("rows", "id int, v string, n int", key="id")
        rows.keep("rows")
        rows.sink("merged", delta_merge(folder, key="id", properties=options))
        rows.sink("history", delta_history(past, key="id", properties=options))
        feed.upsert([(-1, "a", 1), (-2, "b", 1), (-3, "c", 1), (1, "d", 1)])
        flow.advance_to(1)
        readers = Readers(spark, folder)
        for number, probe in enumerate(changes, 1):
            key, about = ((), "id")[number % 2], probe.statements
            begin = len(list((folder / "_delta_log").glob("*.json"))) - 1
            run(spark, probe.statements, folder, begin, -2)
            is_readable = probe.source is None or "on_gap" in probe.source
            before = readers.rows() if is_readable else None
            readers.follow(probe.source, probe, key, before)
            if probe.sink is None:
                run(spark, probe.statements, past, begin, -2)
            feed.upsert([(number, "new", number), (-1, None, number), (-2, "b", number)])
            feed.delete([number - 2] if number > 2 else [])
            if probe.sink is None:
                flow.advance_to(number + 2)
            else:
                with pytest.raises(SinkError, match=f"(?s){probe.sink}"):
                    flow.advance_to(number + 2)
                if not probe.undo:
                    return
                assert readers.rows() == before, about
                run(spark, probe.undo, folder, begin, number)
                flow.step()
            expected = Counter(map(tuple, flow["rows"].at().collect()))
            assert readers.rows() == expected, about
            assert current(spark, past) == expected, about
            try:
                readers.follow(None, probe, key, expected)
            except SourceError:
                assert probe.source is not None, about
                readers.begin()


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROPERTIES)
def test_properties(spark, tmp_path, kind):
    probed(spark, tmp_path, TABLES[kind], PROPERTIES[kind], kind != "mapped")


@pytest.mark.slow
@pytest.mark.parametrize("kind", FEATURES)
def test_features(spark, tmp_path, kind):
    probed(spark, tmp_path, TABLES[kind], FEATURES[kind], True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["feed", "no feed"])
def test_statements(spark, tmp_path, kind):
    probed(spark, tmp_path, TABLES[kind], list(STATEMENTS.values()), kind == "feed")


#: Properties of a partitioned table that change the folders and columns of its files.
PARTITIONED = {
    "written": {"delta.writePartitionColumnsToParquet": "true"},
    "materialized": {"delta.enableMaterializePartitionColumnsFeature": "true"},
    "random": {"delta.randomizeFilePrefixes": "true", "delta.randomPrefixLength": "1"},
    "legacy feed": {"delta.enableChangeDataCapture": "true"},
    "Iceberg": {"delta.columnMapping.mode": "name", "delta.enableIcebergCompatV1": "true"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTITIONED)
@pytest.mark.parametrize("feed", [True, False])
def test_files_of_partitioned_tables(spark, tmp_path, name, feed):
    options = {**PARTITIONED[name], "delta.enableChangeDataFeed": str(feed).lower()}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    target = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {target} (id INT, v STRING, n INT) USING delta "
              f"PARTITIONED BY (n) TBLPROPERTIES ({listed})")
    spark.sql(f"INSERT INTO {target} SELECT CAST(id AS INT), 's', CAST(id % 3 AS INT) "
              "FROM range(0, 12, 1, 1)")
    readers = Readers(spark, tmp_path / "t")
    for number in range(2):
        spark.sql(f"""
            MERGE INTO {target} t
            USING (SELECT CAST(id * 3 + {number} AS INT) AS id FROM range(0, 6, 1, 1)) s
            ON t.id = s.id WHEN MATCHED AND t.id % 2 = 0 THEN DELETE
            WHEN MATCHED THEN UPDATE SET v = concat(v, '!'), n = n + 1
            WHEN NOT MATCHED THEN INSERT (id, v, n) VALUES (s.id, NULL, NULL)
        """)
        readers.follow(None, name, ((), "id")[number], readers.rows())
    spark.sql(f"OPTIMIZE {target}")
    readers.follow(None, name, (), readers.rows())
