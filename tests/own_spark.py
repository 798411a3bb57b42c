"""Test cases that need a Spark of their own: pytest runs them in another process.

The table formats of a session are fixed when its Spark starts, and change the plan of every query.
So the session that all other tests share does not have it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_diff.spark.session import session

#: Seconds after which they hang.
HANGS = int(os.environ.get("PYSPARK_DIFF_HANGS", "900"))


def names_of(cases: Path) -> list[object]:
    """The tests of a file, as parameters; those that are slow there are slow here."""
    return [
        pytest.param(node.name, marks=pytest.mark.slow) if any(
            ast.unparse(decorator) == "pytest.mark.slow" for decorator in node.decorator_list
        ) else node.name
        for node in ast.parse(cases.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def spark_of(
    name: str, folder: Path, conf: Mapping[str, object]
) -> Iterator[SparkSession]:
    """The session of this process, which ends with it."""
    spark = session(name, master="local[2]", memory="2g", conf={
        **conf,
        "spark.sql.shuffle.partitions": 2,
        # Queries over five rows are not worth compiling.
        "spark.sql.codegen.wholeStage": False,
        "spark.ui.enabled": False,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    })
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


def outcomes_of(
    cases: Mapping[str, Path], folder: Path, environment: Mapping[str, str],
    python: str = sys.executable,
) -> dict[str, str]:
    """The outcome of each test: empty if it passed, or the text of its failure.

    Parameters
    ----------
    cases : mapping of str to Path
        The tests, and the files that have them.
    folder : Path
        A new one.
    environment : mapping of str to str
    python : str
    """
    report = folder / "report.xml"
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         "-m", "slow or not slow", f"--junitxml={report}",
         *(f"{file}::{name}" for name, file in cases.items())],
        env={**inherited, **environment}, capture_output=True, text=True, timeout=HANGS,
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    failures: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "").partition("[")[0]
        failures[name] = failures.get(name, "") + "".join(
            part.text or "" for part in case if part.tag in ("failure", "error")
        )
    return failures
