"""The Spark that the library runs on, checked once for each session, before anything else.

    tried versions, 4.1 to 4.3             =>  accepted
    another version with all capabilities  =>  accepted, with one warning
    a capability is missing                =>  refused at once, by its name

The version number of a vendor is no proof: the client of Databricks 17.3 has the number 4.0.0 and
the methods of 4.1.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from weakref import WeakSet

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_diff.errors import SchemaError

#: The oldest version with all capabilities, and the first untried one.
OLDEST = (4, 1)
BEYOND = (4, 4)
#: The methods of a DataFrame that steps use and older versions lack.
METHODS = ("repartitionById", "mapInArrow")

_logger = logging.getLogger("pyspark_diff")
_checked: WeakSet[SparkSession] = WeakSet()


def check_installed() -> None:
    """Check the PySpark of this process.

    Raises
    ------
    RuntimeError
        If it lacks a method that steps need.
    """
    check(pyspark.__version__, tuple(name for name in METHODS if not hasattr(DataFrame, name)))


def check_session(spark: SparkSession) -> None:
    """Check the Spark of a session; with Connect, that of the server.

    Raises
    ------
    RuntimeError
        If it lacks a capability that steps need.
    SchemaError
        If it is no session.
    """
    if not hasattr(spark, "createDataFrame"):
        raise SchemaError(
            f"a Spark session is needed, and this is a {type(spark).__name__}: make one with "
            "pyspark_diff.session()"
        )
    if spark not in _checked:
        check_installed()
        numbers = _numbers(spark.version)
        check(spark.version, missing_in(spark) if numbers and numbers < OLDEST else ())
        _checked.add(spark)


def missing_in(spark: SparkSession) -> tuple[str, ...]:
    """The methods in `METHODS` whose plans a session refuses. Nothing is run.

    Examples
    --------
    >>> missing_in(spark)
    ()
    """
    frame = spark.range(1)
    try:
        frame.repartitionById(1, frame["id"].cast("int")).schema
    except PySparkException:
        return ("repartitionById",)
    return ()


def _numbers(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version; None for a vendor's own scheme."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))


@lru_cache(maxsize=None)
def check(version: str, missing: tuple[str, ...] = ()) -> None:
    """Check a version and its capabilities; warn once of an untried version.

    Parameters
    ----------
    missing : tuple of str
        The methods that it lacks.

    Raises
    ------
    RuntimeError
        If a method is missing.
    """
    tried = f"{OLDEST[0]}.{OLDEST[1]} to {BEYOND[0]}.{BEYOND[1] - 1}"
    if missing:
        raise RuntimeError(
            f"this is Spark {version}, whose DataFrame has no {' and no '.join(missing)}. "
            f"pyspark_diff runs on Spark {tried}. Install one of these: "
            f'pip install "pyspark_diff[spark]", or a newer runtime of the cluster'
        )
    numbers = _numbers(version)
    if numbers is not None and not OLDEST <= numbers < BEYOND:
        _logger.warning(
            "this is Spark %s; it has what pyspark_diff needs, and pyspark_diff has been tried on "
            "%s only", version, tried,
        )
