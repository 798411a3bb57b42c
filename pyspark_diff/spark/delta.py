"""Delta tables by name or by path, as SQL gives them.

    a path  =  the table delta.`path`

so that one way to read, to write and to ask serves both. Nothing of Delta is imported: it is on
Spark's class path, or it is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pyspark_diff.spark.schema import quoted

#: What a session needs.
SETUP = (
    "start Spark with --packages io.delta:delta-spark_4.2_2.13:4.4.0, "
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)


@dataclass(frozen=True)
class DeltaTable:
    """The id of a table, which it keeps until it is replaced, its properties and partitions."""

    id: str
    properties: Mapping[str, str]
    partitions: list[str]


def identifier(table: str | PathLike[str]) -> str:
    """A table as SQL names it.

    Parameters
    ----------
    table : str or path
        A name, in backticks where it has to be; or a path, which is a `Path` or has a slash
        outside of backticks.

    Examples
    --------
    >>> identifier("shop.orders"), identifier("/data/orders"), identifier("s3://shop/my orders")
    ('shop.orders', 'delta.`/data/orders`', 'delta.`s3://shop/my orders`')
    >>> identifier("delta.`/data/orders`"), identifier("/data/`new`/orders")
    ('delta.`/data/orders`', 'delta.`/data/``new``/orders`')
    """
    if isinstance(table, str) and "/" not in _QUOTED.sub("", table):
        return table
    path = str(table)
    return f"delta.{quoted(path if '://' in path else str(Path(path).absolute()))}"


def delta_table(spark: SparkSession, name: str) -> DeltaTable | None:
    """What a table is now; None if there is no such table.

    Raises
    ------
    ValueError
        If it is no Delta table, or Spark knows nothing of Delta.
    """
    if "DeltaCatalog" not in (spark.conf.get("spark.sql.catalog.spark_catalog", None) or ""):
        raise ValueError(f"this Spark session knows no Delta tables: {SETUP}")
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {name}")
        (row,) = detail.select("format", "id", "properties", "partitionColumns").collect()
    except AnalysisException as error:
        if error.getCondition() in _MISSING:
            return None
        raise
    if row.format != "delta":
        raise ValueError(f"{name} is a table of format {row.format}, and not of Delta")
    return DeltaTable(row.id, row.properties, list(row.partitionColumns))


def latest_version(spark: SparkSession, name: str) -> int:
    """The number of the last commit of a table."""
    (row,) = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").select("version").collect()
    return int(row.version)


_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_MISSING = frozenset({"DELTA_MISSING_DELTA_TABLE", "TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND"})
