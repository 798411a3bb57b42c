"""The tests of scala-bridge/ that are written in Scala, run by ci/build_bridge's own jars."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import algebra_cases
import pyspark
import pytest

from pyspark_diff.spark import bridge

JARS = sorted((Path(__file__).parents[2] / "build" / "scala-bridge").glob("tests_*.jar"))


@pytest.mark.skipif(not JARS, reason="ci/build_bridge has not been run")
def test_scala():
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    spark = Path(pyspark.__file__).parent / "jars" / "*"
    path = os.pathsep.join(map(str, [*sorted(bridge.JARS.glob("*.jar")), *JARS, spark]))
    done = subprocess.run(
        [java, "-cp", path, "pysparkdiff.BridgeTests", str(algebra_cases.FILE)],
        capture_output=True, text=True, timeout=120,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert done.stdout.count("ok  ") >= 13
