"""Fetches the jars of a table format for tests, unless they are there: ci/delta_jars, ci/iceberg.

    a folder of the jars is there  =>  it has all of them, with these very bytes

Ivy, which is part of Spark, fetches them from Maven Central. The list here leaves out the jars that
Spark has itself: to resolve it again takes half a minute and 74 MB.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

#: By format the organisation, module, version, and SHA-256 of each jar.
JARS = {"delta": (
    ("io.delta", "delta-spark_4.2_2.13", "4.4.0",
     "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
    ("io.delta", "delta-storage", "4.4.0",
     "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    ("io.delta", "delta-kernel-api", "4.4.0",
     "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
    ("io.delta", "delta-kernel-defaults", "4.4.0",
     "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"),
    ("io.delta", "delta-kernel-unitycatalog", "4.4.0",
     "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"),
    ("io.unitycatalog", "unitycatalog-client", "0.6.0",
     "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19"),
    ("io.unitycatalog", "unitycatalog-hadoop", "0.6.0",
     "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150"),
), "iceberg": (
    ("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0",
     "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"),
)}
DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" transitive="false" conf="default->master"/>'
IVY = """<ivy-module version="2.0"><info organisation="pyspark_diff" module="jars"/>
<configurations><conf name="default"/></configurations><dependencies>{}</dependencies></ivy-module>
"""


def main(java: str, folder: Path, format: str) -> None:
    """Make the folder, if it is not there or not right."""
    jars = JARS[format]
    if is_right(folder, jars):
        return
    print(f"fetching the jars of {format}", file=sys.stderr)
    spec = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or str(Path(spec.origin).parent if spec else "")
    (ivy,) = (Path(home) / "jars").glob("ivy-*.jar")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work, new = Path(name), Path(name) / "jars"
        listed = "".join(DEPENDENCY.format(*jar[:3]) for jar in jars)
        (work / "ivy.xml").write_text(IVY.format(listed), encoding="utf-8")
        done = subprocess.run(
            [java, "-jar", str(ivy), "-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml"),
             "-types", "jar", "-retrieve", f"{new}/[artifact]-[revision].[ext]"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        if not is_right(new, jars):
            print(done.stdout[-3000:], file=sys.stderr)
            sys.exit(f"error: the jars of {format} were not fetched, or have other bytes")
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)


def is_right(folder: Path, jars: Sequence[tuple[str, str, str, str]]) -> bool:
    """Whether a folder has the jars, and nothing else."""
    wanted = {f"{name}-{version}.jar": digest for _, name, version, digest in jars}
    if not folder.is_dir() or {path.name for path in folder.iterdir()} != wanted.keys():
        return False
    return all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        for name, digest in wanted.items()
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
