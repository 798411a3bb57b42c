"""Fetches the texts of the queries of TPC-H and TPC-DS, unless they are there: see ci/sql_coverage.

    the folder is there  =>  it has all texts of the one archive with this digest

Ivy, which is part of Spark, fetches the archive of Spark's test classes, which has them.
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
from zipfile import ZipFile

DIGEST = "810bef6fd568e1626aad7354a1161e9e5ac629fbc55ba0a9a4e3cec8c06376eb"
VERSION = "4.2.0"
FOLDERS = ("tpch", "tpcds")
IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="pyspark_diff" module="sql"/>
<configurations><conf name="default"/></configurations>
<dependencies><dependency org="org.apache.spark" name="spark-sql_2.13" rev="{VERSION}"
transitive="false" conf="default->master"><artifact name="spark-sql_2.13" type="jar" ext="jar"
m:classifier="tests"/></dependency></dependencies></ivy-module>
"""


def main(java: str, folder: Path) -> None:
    """Make the folder, if it is not there."""
    if folder.is_dir():
        return
    print("fetching the texts of queries", file=sys.stderr)
    spec = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or str(Path(spec.origin).parent if spec else "")
    (ivy,) = (Path(home) / "jars").glob("ivy-*.jar")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work, new = Path(name), Path(name) / "sql"
        (work / "ivy.xml").write_text(IVY, encoding="utf-8")
        done = subprocess.run(
            [java, "-jar", str(ivy), "-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml"),
             "-types", "jar", "-retrieve", f"{work}/[artifact].[ext]"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        archive = work / "spark-sql_2.13.jar"
        if not archive.is_file() or hashlib.sha256(archive.read_bytes()).hexdigest() != DIGEST:
            print(done.stdout[-3000:], file=sys.stderr)
            sys.exit("error: the texts could not be fetched, or are not those of this digest")
        with ZipFile(archive) as opened:
            for entry in opened.namelist():
                if entry.startswith(tuple(f"{top}/" for top in FOLDERS)) and entry.endswith(".sql"):
                    opened.extract(entry, new)
        shutil.move(new, folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
