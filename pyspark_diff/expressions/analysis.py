"""What Spark says of a wrong expression, told in terms of what a user has written.

Expressions are analysed over frames with columns of the library's own beside the user's: time and
diff, and those that handles stand for. No message suggests one of these::

    suggested ⊆ the columns of the collection
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable, Iterable

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from pyspark_diff.errors import SchemaError

#: Where PySpark logs errors of the analysis: of a column, and of SQL text.
LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

#: The columns that Spark suggests, and the plan that it shows at the end.
_SUGGESTED = re.compile(r"(Did you mean one of the following\? )\[([^\]]*)\]")
_PLAN = re.compile(r";\s*\n.*", re.DOTALL)


@contextmanager
def unlogged() -> Iterator[None]:
    """PySpark logs each failed analysis, and here it is only asked whether one succeeds.

    What other threads log meanwhile is logged.
    """
    with _filtered(lambda _: False):
        yield


@contextmanager
def suggesting(columns: Iterable[str]) -> Iterator[None]:
    """Errors of the analysis suggest these columns and no others, and show no plan.

    Raises
    ------
    SchemaError
        If a name is that of several columns, be it in another case.
    """
    listed = list(columns)

    def told(record: logging.LogRecord) -> bool:
        if _SUGGESTED.search(str(record.msg)):
            record.msg = _told(str(record.msg), listed)
        return True

    try:
        with _filtered(told):
            yield
    except AnalysisException as error:
        name = (error.getMessageParameters() or {}).get("objectName", "")
        name = name.rpartition("`.`")[2].strip("`").replace("``", "`")
        alike = [one for one in listed if one.lower() == name.lower()]
        if len(alike) > 1:
            raise SchemaError(
                f"{name!r} names more than one column: {', '.join(alike)} (names are compared "
                "without case). Rename one with toDF(...) or withColumnRenamed(...), or tell them "
                "apart by alias, as in a.alias(\"l\").join(b.alias(\"r\"), ...).select(\"l.x\")"
            ) from error
        # What the exception shows: on classic, and on Connect.
        for where in ("_desc", "_message"):
            text = getattr(error, where, None)
            if isinstance(text, str) and _SUGGESTED.search(text):
                setattr(error, where, _told(text, listed))
        raise


@contextmanager
def _filtered(passes: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """What is done to the records of failed analyses of this thread."""
    asking = threading.get_ident()

    def filtered(record: logging.LogRecord) -> bool:
        return threading.get_ident() != asking or passes(record)

    # Made by PySpark's own class: plain loggers of these names would break all errors of analysis.
    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(filtered)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(filtered)


def _told(text: str, columns: list[str]) -> str:
    """The message with suggestions of some columns.

    Examples
    --------
    >>> text = "Did you mean one of the following? [`src`, `__diff`]. SQLSTATE: 42703;\\n'Project"
    >>> _told(text, ["src", "dst"])
    'Did you mean one of the following? [`src`]. SQLSTATE: 42703'
    """

    def chosen(found: re.Match[str]) -> str:
        named = dict.fromkeys("`" + name.replace("`", "``") + "`" for name in columns)
        given = [name for name in found.group(2).split(", ") if name in named]
        return f"{found.group(1)}[{', '.join(given or list(named)[:5])}]"

    return _PLAN.sub("", _SUGGESTED.sub(chosen, text))
