"""The library prints nothing, and does not change the logging of other code."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F

from pyspark_diff import Dataflow
from pyspark_diff.expressions import analysis

ROOT = Path(__file__).parents[2]

JOINS = """
import sys
from pyspark.sql import functions as F
from pyspark_diff import Dataflow, session
spark = session(master="local[1]", cores=None)
spark.range(1).collect()
for stream in sys.stdout, sys.stderr:
    print("from here on", file=stream, flush=True)
with Dataflow(spark) as flow:
    left, _ = flow.input("left", "k long, x long, s string")
    right, _ = flow.input("right", "k long, y int, z string")
    ways = "inner", "left", "left_semi"
    for number, on in enumerate((
        F.expr("l.k = r.k and l.x < r.y"),
        F.expr("l.k = r.k and x + 1 = y"),
        [F.expr("l.k") == F.expr("r.k"), F.col("s") == F.col("z")],
        F.expr("upper(l.s) <=> upper(r.z)"),
        (F.col("l.x") == F.col("r.y")) & (F.col("l.k") > F.col("y")),
        F.expr("l.k = r.k and l.s like r.z"),
    )):
        # All ways by one condition, and one way by each of the others.
        for how in ways if number == 0 else ways[number % 3:][:1]:
            left.alias("l").join(right.alias("r"), on, how)
"""


@pytest.mark.slow
def test_joins_print_nothing():
    ran = subprocess.run(
        [sys.executable, "-c", JOINS],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    for text in ran.stdout, ran.stderr:
        assert text.partition("from here on\n")[2] == ""


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The names of PySpark's loggers, one for each failed analysis that they log."""
    names: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names.append(record.name)

    handler = Keep()
    loggers = [PySparkLogger.getLogger(name) for name in analysis.LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    yield names
    for logger in loggers:
        logger.removeHandler(handler)
        assert not logger.filters and not logger.disabled


def test_the_errors_of_others_are_logged_as_ever(spark, logged):
    texts = {"DataFrameQueryContextLogger": F.col("none"), "SQLQueryContextLogger": F.expr("none")}

    def fail() -> None:
        for column in texts.values():
            with pytest.raises(AnalysisException):
                spark.range(1).select(column).schema

    with Dataflow(spark) as flow:
        left, _ = flow.input("left", "k long")
        right, _ = flow.input("right", "k long")
        left.alias("l").join(right.alias("r"), F.expr("l.k") == F.expr("r.k"))
        assert logged == []
        # The user's own mistake is logged.
        with pytest.raises(AnalysisException):
            left.alias("l").join(right.alias("r"), F.expr("l.k") == F.expr("r.none"))
    assert logged == ["SQLQueryContextLogger"]
    fail()
    assert logged[1:] == list(texts)
    with analysis.unlogged():
        fail()
        assert len(logged) == 3
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    assert logged[3:] == list(texts)
