"""Fetches Delta's jars for the tests, unless they are there: see ci/delta_jars.

    a folder of the jars is there  =>  it has all of them, with these very bytes

Ivy, which is part of Spark, fetches them from Maven Central. Those that Spark has itself are left
out, so they are listed here rather than found: finding them takes half a minute and 74 MB.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

#: Organisation, module, version, and the SHA-256 of the jar.
JARS = (
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
)
DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" transitive="false" conf="default->master"/>'
IVY = """<ivy-module version="2.0"><info organisation="pyspark_diff" module="delta"/>
<configurations><conf name="default"/></configurations><dependencies>{}</dependencies></ivy-module>
"""


def main(java: str, folder: Path) -> None:
    """Make the folder, if it is not there or not right."""
    if is_right(folder):
        return
    print("fetching Delta's jars", file=sys.stderr)
    spec = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or str(Path(spec.origin).parent if spec else "")
    (ivy,) = (Path(home) / "jars").glob("ivy-*.jar")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work, new = Path(name), Path(name) / "jars"
        listed = "".join(DEPENDENCY.format(*jar[:3]) for jar in JARS)
        (work / "ivy.xml").write_text(IVY.format(listed), encoding="utf-8")
        done = subprocess.run(
            [java, "-jar", str(ivy), "-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml"),
             "-types", "jar", "-retrieve", f"{new}/[artifact]-[revision].[ext]"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        if not is_right(new):
            print(done.stdout[-3000:], file=sys.stderr)
            sys.exit("error: Delta's jars could not be fetched, or are not what they should be")
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)


def is_right(folder: Path) -> bool:
    """Whether a folder has the jars, and nothing else."""
    wanted = {f"{name}-{version}.jar": digest for _, name, version, digest in JARS}
    if not folder.is_dir() or {path.name for path in folder.iterdir()} != wanted.keys():
        return False
    return all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        for name, digest in wanted.items()
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
