"""The examples of all docstrings run, and print the documented output."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
from pyspark.sql import functions as F

import pyspark_diff

MODULES = [
    pyspark_diff.__name__,
    *(module.name for module in pkgutil.walk_packages(
        pyspark_diff.__path__, f"{pyspark_diff.__name__}."
    )),
]

#: Modules that use features outside Spark Connect.
CLASSIC = {
    "pyspark_diff.sources.streams": pytest.mark.classic_only(
        "foreachBatch runs in a process of the server, which has no dataflow"
    ),
    "pyspark_diff.spark.jvm": pytest.mark.classic_only("is about the JVM"),
    "pyspark_diff.spark.task_jobs": pytest.mark.classic_only("these jobs are RDDs"),
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=CLASSIC[name]) if name in CLASSIC else name for name in MODULES
])
def test_examples(spark, name):
    module = importlib.import_module(name)
    known = {"spark": spark, "F": F, "DiffFrame": pyspark_diff.DiffFrame}
    result = doctest.testmod(module, extraglobs=known)
    assert result.failed == 0


def test_examples_are_found(spark):
    # A module of each kind has examples, so that the test above does not pass on nothing.
    for name in ("frame.diffframe", "kernels.consolidate", "times"):
        module = importlib.import_module(f"pyspark_diff.{name}")
        assert sum(len(test.examples) for test in doctest.DocTestFinder().find(module)) > 1
