"""Folders of files as sinks: the changes, with a partition for each epoch, or the collection.

A repeated epoch replaces its earlier output, so a target contains each epoch once.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.dataflow.sink import Epoch, Sink
from pyspark_diff.errors import SchemaError
from pyspark_diff.spark.frames import check_format, column, literal_path

#: The column by which a change log is partitioned.
EPOCH = "epoch"


def change_log(path: str, *, format: str = "parquet", replace: bool = False) -> Sink:
    """All changes of a collection, each once: its columns, time, diff, and the epoch as partition.

    Parameters
    ----------
    path : str
        A folder, empty or missing. A reader may see a part of an epoch during its write; earlier
        epochs are complete.
    format : str
        A format that Spark writes: ``"parquet"``, ``"orc"``, ``"json"``.
    replace : bool
        Whether an existing log may be replaced, if the collection is another one since: its
        program was changed, or its store is a new one.

    Raises
    ------
    SchemaError
        If the collection has a column ``epoch``.
    SinkError
        The step raises it if the folder has files that this sink has not written.

    Examples
    --------
    >>> import tempfile
    >>> from pyspark_diff import Dataflow
    >>> folder = tempfile.mkdtemp() + "/log"
    >>> with Dataflow(spark) as flow:
    ...     words, words_in = flow.input("words", "word string")
    ...     _ = words.count().sink("counts", change_log(folder))
    ...     for time in range(2):
    ...         words_in.insert([("a",)])
    ...         _ = flow.advance_to(time + 1)
    >>> log = spark.read.parquet(folder)
    >>> sorted(tuple(row) for row in log.select("epoch", "word", "count", "diff").collect())
    [(1, 'a', 1, 1), (2, 'a', 1, -1), (2, 'a', 2, 1)]
    """
    return _ChangeLog(path, format, replace)


def snapshot(path: str, *, format: str = "parquet", replace: bool = False) -> Sink:
    """The whole collection, written anew after each step that changes it.

    The cost is the size of the collection. A reader during the write sees a part of the rows or
    none: with concurrent readers use `delta_merge`.

    Parameters
    ----------
    path : str
        A folder.
    format : str
        A format that Spark writes.
    replace : bool
        Whether an existing table with other columns may be replaced.

    Raises
    ------
    SinkError
        The step raises it if the folder has a table with other columns.

    Examples
    --------
    >>> import tempfile
    >>> from pyspark_diff import Dataflow
    >>> folder = tempfile.mkdtemp() + "/counts"
    >>> with Dataflow(spark) as flow:
    ...     words, words_in = flow.input("words", "word string")
    ...     _ = words.count().sink("counts", snapshot(folder))
    ...     for time in range(2):
    ...         words_in.insert([("a",)])
    ...         _ = flow.advance_to(time + 1)
    >>> spark.read.parquet(folder).collect()
    [Row(word='a', count=2)]
    """
    return _FolderSnapshot(path, format, replace)


class _FolderSink(Sink):
    def __init__(self, path: str, format: str, replace: bool):
        self._path, self._format, self._replace = path, format, replace

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        check_format(self._format, schema)

    def _existing(self, spark: SparkSession) -> DataFrame | None:
        """The table in the folder, if any."""
        try:
            # Spark logs a warning of eighty lines for one missing folder, and none for two.
            path = literal_path(self._path)
            spark.read.format(self._format).load([path, path])
            table = spark.read.format(self._format).load(path)
            return table if table.columns else None
        except AnalysisException as error:
            if error.getCondition() in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
                return None
            raise

    def _refuse(self, what: str) -> SchemaError:
        return SchemaError(
            f"{self._path!r} holds {what}, which this sink has not written: give it another folder,"
            " or let it be replaced, replace=True. Nothing was written"
        )


class _ChangeLog(_FolderSink):
    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        super().check(schema, spark)
        if EPOCH in map(str.lower, schema.names):
            raise SchemaError(
                f"a change log has a column {EPOCH!r} of its own: give that of the collection "
                "another name, toDF or withColumnRenamed"
            )

    def write(self, epoch: Epoch) -> None:
        if EPOCH in (epoch.time.lower(), epoch.diff.lower()):
            raise SchemaError(
                f"a change log has a column {EPOCH!r} of its own, which is the name of a time or "
                "diff here. Give the dataflow other names, time=... or diff=..."
            )
        if epoch.is_first and not self._replace:
            there = self._existing(epoch.spark)
            if there is not None:
                # A failed attempt at this epoch may have written a part.
                names = [*epoch.schema.names, epoch.time, epoch.diff, EPOCH]
                if there.columns != names:
                    raise self._refuse(f"a table of the columns {', '.join(there.columns)}")
                others = there.where(column(EPOCH) != epoch.number).select(EPOCH).first()
                if others is not None:
                    raise self._refuse(f"epoch {others[0]} of a log")
        changes = epoch.changes.withColumn(EPOCH, F.lit(epoch.number))
        writer = changes.write.format(self._format).partitionBy(EPOCH).mode("overwrite")
        how = "static" if epoch.is_first else "dynamic"
        writer.option("partitionOverwriteMode", how).save(self._path)

    def __repr__(self) -> str:
        return f"change_log({self._path!r}, format={self._format!r})"


class _FolderSnapshot(_FolderSink):
    writes_snapshots = True

    def write(self, epoch: Epoch) -> None:
        if epoch.is_first and not self._replace:
            there = self._existing(epoch.spark)
            if there is not None and there.columns != epoch.schema.names:
                raise self._refuse(f"a table of the columns {', '.join(there.columns)}")
        epoch.snapshot().write.format(self._format).mode("overwrite").save(self._path)

    def __repr__(self) -> str:
        return f"snapshot({self._path!r}, format={self._format!r})"
