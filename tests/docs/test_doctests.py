"""Every example in a docstring runs, and shows what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
from pyspark.sql import functions as F

import pyspark_diff

MODULES = [
    pyspark_diff.__name__,
    *(found.name for found in pkgutil.walk_packages(
        pyspark_diff.__path__, f"{pyspark_diff.__name__}."
    )),
]

#: Those of what a client of Connect does not have.
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
    # One of each kind: without them the test above would pass on nothing.
    for name in ("frame.diffframe", "kernels.consolidate", "times"):
        module = importlib.import_module(f"pyspark_diff.{name}")
        assert sum(len(test.examples) for test in doctest.DocTestFinder().find(module)) > 1
