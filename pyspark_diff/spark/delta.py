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

from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.schema import quoted

#: The remedy for a table that has features that this Delta does not know.
UPGRADE = (
    "Start Spark with a version of Delta that knows them and with the catalog of the table, or "
    "remove them there with ALTER TABLE ... DROP FEATURE"
)
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


def unknown_feature(error: BaseException) -> str | None:
    """The words of Delta for a table that needs more than this Delta; None for other errors.

    Examples
    --------
    >>> unknown_feature(ValueError("[DELTA_UNSUPPORTED_FEATURES_FOR_READ] Unsupported Delta read "
    ...     "feature: table \\"t\\" requires new."))
    'Unsupported Delta read feature: table "t" requires new'
    """
    text = in_words(error)
    if "dynamodb" in text.lower():  # Delta looks for this coordinator in any case.
        return "it has coordinated commits, and this session has no coordinator"
    found = _UNKNOWN.search(text)
    return None if found is None else text[found.end():].splitlines()[0].strip().rstrip(".")


#: An error of an unknown feature begins like this.
_UNKNOWN = re.compile(
    r"\[?DELTA_(UNSUPPORTED_FEATURES_FOR_\w+|INVALID_PROTOCOL_VERSION|\w*CATALOG_MANAGED\w*|"
    r"FEATURES_PROTOCOL_METADATA_MISMATCH|"
    r"UNSUPPORTED_WRITES_WITHOUT_COORDINATOR|\w*REDIRECT\w*)\]?:?\s*"
)
_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_MISSING = frozenset({"DELTA_MISSING_DELTA_TABLE", "TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND"})
