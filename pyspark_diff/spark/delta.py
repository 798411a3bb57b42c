"""Delta tables by name or by path, in the form of SQL.

    a path  =  the table delta.`path`

So one way to read, to write and to look up serves both. The module imports nothing of Delta, which
is on Spark's class path or absent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from pyspark_diff.spark.causes import in_words
from pyspark_diff.spark.jvm_tables import folder_of
from pyspark_diff.spark.schema import quoted

#: The remedy for a table that has features that this Delta does not know.
UPGRADE = (
    "Start Spark with a version of Delta that knows them and with the catalog of the table, or "
    "remove them there with ALTER TABLE ... DROP FEATURE"
)
#: The remedy for a table whose commits only its catalog knows.
CATALOG = "Start Spark with the catalog that manages it, and give its name in this catalog"
#: The setup of a session that uses Delta.
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
        A name, in backticks if SQL needs them; or a path, which is a `Path` or has a slash outside
        of backticks.

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
    """The present state of a table; None if the table is absent.

    Raises
    ------
    ValueError
        If it is no Delta table, or the session has no Delta.
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
    if "dynamodb" in text.lower():  # Delta always looks for this coordinator.
        return "it has coordinated commits, and this session has no coordinator"
    match = _UNKNOWN.search(text)
    return None if match is None else text[match.end():].splitlines()[0].strip().rstrip(".")


def refusal(spark: SparkSession, name: str, error: BaseException) -> tuple[str, str] | None:
    """The reason and the remedy for a table that needs more than this Delta; None for other errors.
    """
    reason = unknown_feature(error)
    if reason is None:
        return None
    if "CATALOG_MANAGED" in str(error):
        return reason, CATALOG
    target = redirect_target_in_log(spark, name) if "redirect" in reason else None
    if target is None:
        return reason, UPGRADE
    reason = f"it redirects its readers and writers to {target} ({reason})"
    return reason, f"{UPGRADE}; or name the other table, {target!r}"


def redirect_target(properties: Mapping[str, str]) -> str | None:
    r"""The path of the table to which a redirect in some properties leads; None if there is none.

    Examples
    --------
    >>> redirect_target({"delta.redirectWriterOnly-preview":
    ...     '{"type": "PathBasedRedirect", "spec": "{\\"destPath\\": \\"/new\\"}"}'})
    '/new'
    """
    for name, text in properties.items():
        if name.startswith(REDIRECT):
            return next((str(value) for key, value in _json_pairs(text) if key in _TARGETS), None)
    return None


def redirect_target_in_log(spark: SparkSession, name: str) -> str | None:
    """The path to which a table that Delta cannot open redirects its readers; None if unknown.

    Only the log has it. Over Connect, the folder of the log is unknown.
    """
    folder = folder_of(spark, name, "delta")
    if folder is None:
        return None
    try:
        lines = spark.read.text(f"{folder}/_delta_log", pathGlobFilter="*.json")
        lines = lines.where(lines["value"].contains(REDIRECT))
        newest = lines.orderBy(lines["_metadata.file_name"].desc()).limit(1).collect()
    except PySparkException:
        return None
    pairs = dict(_json_pairs(newest[0].value)) if newest else {}
    return redirect_target({key: text for key, text in pairs.items() if isinstance(text, str)})


def _json_pairs(value: object) -> Iterator[tuple[str, object]]:
    """The keys and values of JSON, also of JSON in its texts."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _json_pairs(inner)


#: The properties of a table that redirects its readers or writers begin like this.
REDIRECT = "delta.redirect"
#: The keys of the path in such a property; versions of Delta have the one or the other.
_TARGETS = frozenset({"destPath", "tablePath"})
#: An error of an unknown feature begins like this.
_UNKNOWN = re.compile(
    r"\[?DELTA_(UNSUPPORTED_FEATURES_FOR_\w+|INVALID_PROTOCOL_VERSION|\w*CATALOG_MANAGED\w*|"
    r"FEATURES_PROTOCOL_METADATA_MISMATCH|"
    r"UNSUPPORTED_WRITES_WITHOUT_COORDINATOR|\w*REDIRECT\w*)\]?:?\s*"
)
_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_MISSING = frozenset({"DELTA_MISSING_DELTA_TABLE", "TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND"})
