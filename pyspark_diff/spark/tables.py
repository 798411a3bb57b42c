"""Spark tables, bucketed and sorted by a key: checked names, and writing without a shuffle.

::

    frame is partitioned by pmod(hash(key), P), and n divides P or P divides n
        =>  no row of it moves when it is written in n buckets

Spark checks the name of a table after it has written its files, and would write them outside of the
warehouse: so no name gets there that could not be a table's.
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

#: Formats that know no buckets: a column of these holds the bucket instead, and is a partition.
UNBUCKETED = frozenset({"delta", "iceberg", "hudi"})
#: What that column is called.
BUCKET = "_bucket"

_PART = re.compile(r"[A-Za-z0-9_]{1,128}")


def checked_table(name: object) -> str:
    """A name of a table, quoted: one to three parts of letters, digits and underscores.

    Raises
    ------
    SchemaError
        If it is no such name.

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
    frame : DataFrame
    name : str
    by : sequence of str
        Columns of the key; without any there are no buckets.
    buckets : int
    placed : int or None
        In so many buckets by the same key its partitions are; None if they are not, zero if it is
        small and they do not matter.
    mode : {"error", "overwrite"}
    format : str
    path : str, optional
        Where the files go, instead of the warehouse.
    bucket_column : str, optional
        A column for the bucket, by which the table is partitioned, instead of buckets of Spark.

    Raises
    ------
    StorageError
        If there is a table of that name, or there are files where its own would be.
    """
    spark, table = frame.sparkSession, checked_table(name)
    if mode not in ("error", "overwrite"):
        raise ValueError(f"mode is {mode!r}; give 'error' or 'overwrite'")
    if not frame.columns:
        raise SchemaError("a collection without columns cannot be a table; add one")
    if mode == "error" and spark.catalog.tableExists(table):
        raise StorageError(
            f"there is a table {name} already, and nothing was written. Give another name, or "
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
                f"the table has a column {column_of_bucket!r} already, which is the name of that "
                "of the buckets; give another one with bucket_column=..."
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
            f"there are files where those of table {name} would be, of a table that the catalog "
            "does not know: without a metastore Spark forgets its tables when it ends. Nothing was "
            f"written. Remove them, or give a path=... of its own: {error}"
        ) from error


def read_table(spark: SparkSession, name: str) -> DataFrame:
    """A table, without the column of its buckets if it has one that says so by its name.

    Raises
    ------
    SchemaError
        If that is no name of a table.
    StorageError
        If there is none of that name.
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
