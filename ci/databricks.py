"""Runs a program with clients of Databricks against an open-source server: see ci/databricks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import connect_server  # noqa: E402

PARTS = ("imports", "driver", "executors", "SQL", "store", "examples")
HANGS = 1800
#: Some examples keep views of Delta tables.
DELTA = {
    "spark.jars": ",".join(map(str, sorted(Path(os.environ["DELTA_JARS"]).glob("*.jar")))),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": 1,
}


def results(environment: Path) -> dict[str, str]:
    """The results of the parts of the program in one environment, with its version."""
    python = str(environment / "bin" / "python")
    # The server's workers run functions of the client, so they have its Python.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    with tempfile.TemporaryDirectory() as folder, \
            connect_server.server(Path(folder) / "server", DELTA) as (address, _):
        done = subprocess.run(
            [python, str(ROOT / "tests" / "databricks_program.py"), address],
            env={**connect_server.no_client(os.environ), "PYTHONPATH": str(ROOT)},
            cwd=folder,
            capture_output=True, text=True, timeout=HANGS,
        )
    print(done.stdout, done.stderr, file=sys.stderr)
    lines = [line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line]
    return {name: text for name, text in lines if name in ("version", *PARTS)}


def main() -> int:
    right = True
    print("| databricks-connect | reports | " + " | ".join(PARTS) + " |")
    print("|---" * (len(PARTS) + 2) + "|")
    for environment in map(Path, sys.argv[1:]):
        result = results(environment)
        cells = [result.get(part, "did not run") for part in PARTS]
        right = right and cells == ["right"] * len(PARTS)
        version = environment.name.removeprefix(".venv-databricks-")
        print("| " + " | ".join([version, result.get("version", ""), *cells]) + " |", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
