"""Which versions of Spark the library runs on; asked once for each session, before anything else.

    oldest <= version < beyond   =>  nothing is said
    version < oldest             =>  refused at once: what is missing would be met in the first step
    version >= beyond            =>  one warning, since nobody has tried it
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from weakref import WeakSet

import pyspark
from pyspark.sql import SparkSession

from pyspark_diff.errors import SchemaError

#: Spark 4.1 has `DataFrame.repartitionById`.
OLDEST = (4, 1)
BEYOND = (4, 4)

_logger = logging.getLogger("pyspark_diff")
_checked: WeakSet[SparkSession] = WeakSet()


def check_installed() -> None:
    """Check the PySpark of this process.

    Raises
    ------
    RuntimeError
        If it is too old.
    """
    check(pyspark.__version__)


def check_session(spark: SparkSession) -> None:
    """Check a session's Spark, which with Connect is the server's.

    Raises
    ------
    RuntimeError
        If it is too old.
    SchemaError
        If it is no session.
    """
    if not hasattr(spark, "createDataFrame"):
        raise SchemaError(
            f"a Spark session is wanted, and this is a {type(spark).__name__}: make one with "
            "pyspark_diff.session()"
        )
    if spark not in _checked:
        check_installed()
        check(spark.version)
        _checked.add(spark)


@lru_cache(maxsize=None)
def check(version: str) -> None:
    """Check a version; what is said of it is said once."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return  # a vendor's own way of counting
    found = int(numbers[1]), int(numbers[2])
    which = f"{OLDEST[0]}.{OLDEST[1]} to {BEYOND[0]}.{BEYOND[1] - 1}"
    if found < OLDEST:
        raise RuntimeError(
            f"this is Spark {version}; pyspark_diff runs on {which}. Install one of these: "
            f'pip install "pyspark_diff[spark]", or a newer runtime of the cluster'
        )
    if found >= BEYOND:
        _logger.warning(
            "this is Spark %s; pyspark_diff has been tried on %s only", version, which
        )
