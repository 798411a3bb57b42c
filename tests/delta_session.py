"""Fixtures of all files of Delta's cases: a Spark with Delta, tables, and both readers."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from own_spark import spark_of

MODULES = [importlib.import_module(f"pyspark_diff.{room}.delta") for room in ("sources", "sinks")]


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    jars = sorted(map(str, Path(os.environ["DELTA_JARS"]).glob("*.jar")))
    yield from spark_of("delta tests", folder, {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": False,
        # Fifty, which is Delta's own, are for logs of millions of files.
        "spark.databricks.delta.snapshotPartitions": 1,
        # The same for the tasks that list the files of a table.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": 2,
        # Statements over a few rows take a quarter less CPU time without compiled expressions.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    })


@pytest.fixture
def table(spark, request):
    """The name of a table that is not there yet."""
    name = "".join(letter for letter in request.node.name if letter.isalnum())
    yield f"t_{name}"
    spark.sql(f"DROP TABLE IF EXISTS t_{name}")


@pytest.fixture(params=["files", "Spark"])
def reads_files(request, monkeypatch):
    """Whether tables are read and merged into without Spark, which must make no difference."""
    if request.param == "Spark":
        for module in MODULES:
            monkeypatch.setattr(module, "delta_files", lambda *_: None)
    return request.param == "files"
