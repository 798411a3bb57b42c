"""A Spark Connect server of the tests' own, in another process, with its log in a file.

The tests with PYSPARK_DIFF_CONNECT=1 share one, each process of theirs; `ci/connect` sets that.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

#: Whether tests are run over Connect.
WANTED = os.environ.get("PYSPARK_DIFF_CONNECT") == "1"

#: By these PySpark takes a process for a client of Connect, once it has been one.
_SET_BY_CONNECT = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")

#: SQL text that the library parses has to be written as columns over Connect.
in_sql_text = pytest.mark.classic_only(
    "SQL text is taken apart, and a client of Connect has no parser"
)

_LOG = """
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""


def no_client(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the settings of Connect, for a program that is no client."""
    return {name: value for name, value in environment.items() if name not in _SET_BY_CONNECT}


@contextmanager
def server(
    folder: Path, conf: Mapping[str, object] = {}, *, level: str = "warn"
) -> Iterator[tuple[str, Path]]:
    """Its address and its log; it ends with the context.

    Parameters
    ----------
    folder : Path
        Where it works, and leaves what it has to leave.
    conf : mapping
    level : str
        From which on it logs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, settings = folder / "server.log", folder / "log4j2.properties"
    settings.write_text(_LOG.format(level=level, file=log))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = {
        "spark.master": "local[2]", "spark.driver.memory": "2g", "spark.ui.enabled": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.python.unix.domain.socket.enabled": True,
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={settings}",
        **conf,
    }
    options = [part for name, value in conf.items() for part in (
        "--conf", f"{name}={str(value).lower() if isinstance(value, bool) else value}")]
    # The server looks for data sources in the Python that it finds, and functions for modules.
    roots = [Path(__file__).parent.parent, Path(__file__).parent, os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(str(root) for root in roots if root)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [submit, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *options,
             "spark-internal"],
            cwd=folder, env={**no_client(os.environ), "PYTHONPATH": path},
            stdout=output, stderr=output,
        )
    try:
        yield f"sc://127.0.0.1:{port}", log
    finally:
        process.terminate()
        process.wait(60)


def session_beside(spark: Any) -> Any:
    """Another session of the same Spark."""
    if not WANTED:
        return spark.newSession()
    return SparkSession.builder.remote(f"sc://{spark.client._builder.endpoint}").create()
