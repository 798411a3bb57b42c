"""Spark's errors of an expression, in terms of the user's columns.

Spark analyses expressions over frames that also have columns of the library: time and diff, and the
columns of handles. No message suggests such a column::

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

#: PySpark's loggers for errors of the analysis: of a column, and of SQL text.
LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

#: The columns that Spark suggests, and the plan at the end of a message.
_SUGGESTED = re.compile(r"(Did you mean one of the following\? )\[([^\]]*)\]")
_PLAN = re.compile(r";\s*\n.*", re.DOTALL)


@contextmanager
def unlogged() -> Iterator[None]:
    """Do not log failed analyses: the caller only tests whether an analysis succeeds.

    Other threads log as before.
    """
    with _filtered(lambda _: False):
        yield


@contextmanager
def suggesting(columns: Iterable[str]) -> Iterator[None]:
    """Let errors of the analysis suggest these columns only, and show no plan.

    Raises
    ------
    SchemaError
        If several columns have the name, also in another case.
    """
    listed = list(columns)

    def rewritten(record: logging.LogRecord) -> bool:
        if _SUGGESTED.search(str(record.msg)):
            record.msg = _suggesting(str(record.msg), listed)
        return True

    try:
        with _filtered(rewritten):
            yield
    except AnalysisException as error:
        name = (error.getMessageParameters() or {}).get("objectName", "")
        name = name.rpartition("`.`")[2].strip("`").replace("``", "`")
        matches = [column for column in listed if column.lower() == name.lower()]
        if len(matches) > 1:
            raise SchemaError(
                f"{name!r} names more than one column: {', '.join(matches)} (names are compared "
                "without case). Rename one with toDF(...) or withColumnRenamed(...), or name each "
                "side by alias, as in a.alias(\"l\").join(b.alias(\"r\"), ...).select(\"l.x\")"
            ) from error
        # The texts of the exception: on classic, and on Connect.
        for where in ("_desc", "_message"):
            text = getattr(error, where, None)
            if isinstance(text, str) and _SUGGESTED.search(text):
                setattr(error, where, _suggesting(text, listed))
        raise


@contextmanager
def _filtered(passes: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Filter the log records of failed analyses of this thread."""
    asking = threading.get_ident()

    def filtered(record: logging.LogRecord) -> bool:
        return threading.get_ident() != asking or passes(record)

    # PySpark's own class has to make the loggers: plain loggers of these names would break the
    # errors of the analysis.
    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(filtered)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(filtered)


def _suggesting(text: str, columns: list[str]) -> str:
    """The message with suggestions of some columns.

    Examples
    --------
    >>> text = "Did you mean one of the following? [`src`, `__diff`]. SQLSTATE: 42703;\\n'Project"
    >>> _suggesting(text, ["src", "dst"])
    'Did you mean one of the following? [`src`]. SQLSTATE: 42703'
    """

    def chosen(match: re.Match[str]) -> str:
        named = dict.fromkeys("`" + name.replace("`", "``") + "`" for name in columns)
        suggested = [name for name in match.group(2).split(", ") if name in named]
        return f"{match.group(1)}[{', '.join(suggested or list(named)[:5])}]"

    return _PLAN.sub("", _SUGGESTED.sub(chosen, text))
