"""Spark tables, bucketed and sorted by a key: checked names, and writing without a shuffle.

::

    frame is partitioned by pmod(hash(key), P), and n divides P or P divides n
        =>  writing it in n buckets moves no row

Spark checks the name of a table after it has written its files, and would write them outside of the
warehouse. So `checked_table` refuses wrong names before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_diff.errors import SchemaError, StorageError
from pyspark_diff.spark.frames import column

#: Formats without buckets: their tables are partitioned by a column of the bucket instead.
UNBUCKETED = frozenset({"delta", "iceberg", "hudi"})
#: The name of that column.
BUCKET = "_bucket"

_PART = re.compile(r"[A-Za-z0-9_]{1,128}")


def checked_table(name: object) -> str:
    """A name of a table, quoted: one to three parts of letters, digits and underscores.

    Raises
    ------
    SchemaError
        If the text is no such name.

    Examples
    --------
    >>> checked_table("shop.`daily`")
    '`shop`.`daily`'
    """
    parts = name.split(".") if isinstance(name, str) else []
    plain = [p[1:-1] if len(p) > 2 and p[0] == p[-1] == "`" else p for p in parts]
    if not 1 <= len(plain) <= 3 or not all(map(_PART.fullmatch, plain)):
        raise SchemaError(
            f"{name!r} is no name of a table: one to three parts of letters, digits and '_', with "
            "dots between them, such as 'shop.orders'"
        )
    return ".".join(f"`{part}`" for part in plain)


def save_table(
    frame: DataFrame, name: str, by: Sequence[str], buckets: int, *, placed: int | None,
    mode: str, format: str, path: str | None, bucket_column: str | None,
) -> None:
    """Write a frame as a table.

    Parameters
    ----------
    by : sequence of str
        Columns of the key; without columns the table has no buckets.
    placed : int or None
        The number of buckets by the same key that are the partitions of the frame; None if its
        partitions are no buckets, zero if it is small and gets one partition.
    mode : {"error", "overwrite"}
    path : str, optional
        The folder of the files, instead of the warehouse.
    bucket_column : str, optional
        A column for the bucket that partitions the table, instead of buckets of Spark.

    Raises
    ------
    StorageError
        If the table exists, or its folder has other files.
    """
    spark, table = frame.sparkSession, checked_table(name)
    if mode not in ("error", "overwrite"):
        raise ValueError(f"mode is {mode!r}; give 'error' or 'overwrite'")
    if not frame.columns:
        raise SchemaError("a collection without columns cannot be a table; add one")
    if mode == "error" and spark.catalog.tableExists(table):
        raise StorageError(
            f"the table {name} exists already, and nothing was written. Give another name, or "
            "mode='overwrite'"
        )
    column_of_bucket = bucket_column or (BUCKET if format.lower() in UNBUCKETED else None)
    if placed == 0:
        frame = frame.coalesce(1)
    elif by and (placed is None or (placed % buckets and buckets % placed)):
        frame = frame.repartition(buckets, *map(column, by))
    if by and column_of_bucket is not None:
        if column_of_bucket.lower() in map(str.lower, frame.columns):
            raise SchemaError(
                f"the table has a column {column_of_bucket!r} already, which is the name of the "
                "column of buckets. Give another name with bucket_column=..."
            )
        bucket = F.pmod(F.hash(*map(column, by)), F.lit(buckets))
        frame = frame.withColumn(column_of_bucket, bucket)
    writer = frame.write.format(format).mode(mode)
    if by and column_of_bucket is not None:
        writer = writer.partitionBy(column_of_bucket)
    elif by:
        writer = writer.bucketBy(buckets, *by).sortBy(*by)
    if path is not None:
        writer = writer.option("path", path)
    try:
        writer.saveAsTable(table)
    except PySparkException as error:
        if error.getCondition() != "LOCATION_ALREADY_EXISTS":
            raise
        raise StorageError(
            f"the folder of table {name} has files of a table that the catalog does not know, as "
            "Spark without a metastore forgets its tables. Nothing was written. "
            f"Remove the files, or give another folder with path=...: {error}"
        ) from error


def read_table(spark: SparkSession, name: str) -> DataFrame:
    """A table, without its column of buckets, which has the name `BUCKET`.

    Raises
    ------
    SchemaError
        If the text is no name of a table.
    StorageError
        If the table is absent.
    """
    table = checked_table(name)
    if not spark.catalog.tableExists(table):
        raise StorageError(
            f"there is no table {name}. Without a metastore Spark forgets its tables when it ends; "
            "save it again, or name it with its database"
        )
    frame = spark.table(table)
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    return frame.drop(BUCKET) if kinds.get(BUCKET) == T.IntegerType() else frame
