"""The part of the door to the JVM for tables: folders, metadata and logs of the tables in a
catalog.

Over Connect these functions return None.
"""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_diff.spark.jvm import class_called, items_of, kind_of, scala_sequence, sql_class


def described_table(leaf: Any) -> tuple[str, str] | None:
    """The name and the provider of the table that a leaf of an analysed plan reads.

    A table without a name in the catalog has its path. None for a leaf that reads no table.
    """
    kind = kind_of(leaf)
    if kind == "HiveTableRelation":
        return str(leaf.tableMeta().identifier().unquotedString()), "hive"
    if kind.startswith("DataSourceV2"):
        provider = kind_of(leaf.table()).lower()
        return str(leaf.table().name()), "iceberg" if "iceberg" in str(
            leaf.table().getClass().getName()) else provider
    if kind != "LogicalRelation":
        return None
    entry, relation = leaf.catalogTable(), leaf.relation()
    if entry.isDefined():
        table = entry.get()
        provider = table.provider()
        return (
            str(table.identifier().unquotedString()),
            str(provider.get()).lower() if provider.isDefined() else "hive",
        )
    if not hasattr(relation, "location"):
        return None
    paths = [str(path.toString()) for path in items_of(relation.location().rootPaths())]
    provider = "delta" if "Delta" in kind_of(relation) else str(relation.fileFormat().toString())
    return ", ".join(paths), provider.lower()


def iceberg_metadata(spark: SparkSession, name: str) -> str | None:
    """The metadata of an Iceberg table as JSON, from the catalog; None over Connect."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    table = class_called("org.apache.iceberg.spark.Spark3Util").loadIcebergTable(session, name)
    parser = class_called("org.apache.iceberg.TableMetadataParser")
    return str(parser.toJson(table.operations().current()))


def _table_identifier(session: Any, name: str) -> Any:
    """The table of a name in SQL, which may begin with the catalog of Spark itself."""
    parser = session.sessionState().sqlParser()
    parts = [str(part) for part in items_of(parser.parseMultipartIdentifier(name))]
    if len(parts) == 3 and parts[0].lower() == "spark_catalog":
        database = class_called("scala.Option").apply(parts[1])
        return sql_class("catalyst.TableIdentifier")(parts[2], database)
    return parser.parseTableIdentifier(name)


class DeltaLog(NamedTuple):
    """The log of a Delta table: its object in the JVM, and the folder with its commits."""

    log: Any
    folder: str


def delta_log(spark: SparkSession, name: str) -> DeltaLog | None:
    """The log of a Delta table; None over Connect, or if another library implements Delta.

    Parameters
    ----------
    name : str
        The name in SQL.
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    try:
        identifier = _table_identifier(session, name)
        if identifier.database().contains("delta"):
            log = sql_class("delta.DeltaLog").forTable(session, identifier.table())
        else:
            log = sql_class("delta.DeltaLog").forTable(session, identifier)
        return DeltaLog(log, str(log.logPath().toString()))
    except (Py4JError, PySparkException, TypeError):
        return None


def delta_rows(
    table: DeltaLog, version: int, files: Iterable[str], spark: SparkSession
) -> DataFrame:
    """The rows of some files of a Delta table, with the columns of a version.

    Parameters
    ----------
    files : iterable of str
        The actions of the log that add the files.
    """
    log = table.log
    parse = sql_class("delta.actions.Action").fromJson
    added = scala_sequence([parse(text) for text in files])
    more = _defaults(log, "createDataFrame", 3)
    return DataFrame(log.createDataFrame(_delta_snapshot(table, version), added, *more), spark)


def delta_files_of(
    table: DeltaLog, version: int, paths: Iterable[str], spark: SparkSession
) -> list[dict[str, Any]]:
    """The files of a version of a Delta table that have some paths."""
    files = DataFrame(_delta_snapshot(table, version).allFiles().toDF(), spark)
    rows = files.select("path", "partitionValues", "deletionVector").where(
        files["path"].isin(*paths)
    ).collect()
    return [row.asDict(recursive=True) for row in rows]


def delta_id(table: DeltaLog, version: int) -> str:
    """The id of a Delta table at a version."""
    return str(_delta_snapshot(table, version).metadata().id())


def delta_schema(table: DeltaLog, version: int) -> str:
    """The columns of a version of a Delta table, with their metadata, as JSON."""
    return str(_delta_snapshot(table, version).schema().json())


def delta_schemas(
    spark: SparkSession, name: str, versions: Iterable[int]
) -> list[str] | None:
    """The columns of versions of a Delta table; None over Connect, or if its log lacks a version.
    """
    log = delta_log(spark, name)
    if log is None:
        return None
    try:
        return [delta_schema(log, version) for version in versions]
    except (Py4JError, PySparkException):
        return None


def _delta_snapshot(table: DeltaLog, version: int) -> Any:
    return table.log.getSnapshotAt(version, *_defaults(table.log, "getSnapshotAt", 2))


def _defaults(owner: Any, method: str, number: int) -> list[Any]:
    """The default values of a Scala method from a parameter on; their number depends on the
    version."""
    values: list[Any] = []
    while True:
        try:
            values.append(getattr(owner, f"{method}$default${number + len(values)}")())
        except Py4JError:
            return values


def folder_of(spark: SparkSession, name: str, provider: str) -> str | None:
    """The URL of a table's folder; None if the table has another provider, or is unknown in this
    session.

    The function does not read the table, while `DESCRIBE` would.

    Parameters
    ----------
    spark : SparkSession
        A session of Connect has no answer.
    name : str
        The name in SQL; a path is a table whose database is the provider.
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    state = session.sessionState()
    try:
        if state.catalogManager().currentCatalog().name() != "spark_catalog":
            return None
        table = _table_identifier(session, name)
        if table.database().contains(provider):
            path = class_called("org.apache.hadoop.fs.Path")(table.table())
            system = path.getFileSystem(state.newHadoopConf())
            return str(path.makeQualified(system.getUri(), system.getWorkingDirectory()).toUri())
        described = state.catalog().getTableMetadata(table)
        if described.provider().isEmpty() or described.provider().get().lower() != provider:
            return None
        return str(described.location())
    except (Py4JError, PySparkException):  # the table is missing, or in a catalog of another kind
        return None
