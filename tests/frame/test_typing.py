"""Type checkers know the methods of frames and their results in a user's program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_diff

ROOT = Path(pyspark_diff.__file__).parent.parent

#: A program. A line has an error iff it ends with a comment with the code of the error.
PROGRAM = '''
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from pyspark_diff import Dataflow, DiffFrame, Loop


def reach(edges: DiffFrame, roots: DiffFrame) -> DiffFrame:
    return roots.iterate(
        lambda nodes: nodes.toDF("src").join(edges, "src").select("dst").union(roots).distinct()
    )


def two(edges: DiffFrame, loop: Loop) -> DiffFrame:
    with loop as inside:
        nodes = inside.variable(edges.select("src"))
        nodes.nosuch()  # attr-defined
        nodes.set(nodes.distinct())
        return inside.leave(nodes)


with Dataflow(SparkSession.builder.getOrCreate()) as flow:
    edges, edges_in = flow.input("edges", "src long, dst long")
    edges.nosuch()  # attr-defined
    edges.src  # attr-defined
    column: Column = edges["src"]
    edges["src"].nosuch()  # operator
    some: DiffFrame = edges[["src", "dst"]][edges["src"] > 1]
    name: str = edges["src"]  # assignment
    edges_in.nosuch()  # attr-defined
    edges_in.insert([(1, 2)])
    edges_in.upsert([(1, 2)])  # attr-defined
    people, people_in = flow.input("people", "id long, name string", key=["id"])
    people.nosuch()  # attr-defined
    people_in.upsert([(1, "a")])
    people_in.update([(1, "a")])  # attr-defined
    flow.constant([(1,)], "n int").nosuch()  # attr-defined
    columns: list[str] = edges.columns
    groups = edges.groupBy("src")
    groups.nosuch()  # attr-defined
    degrees: DiffFrame = groups.agg(F.count("*").alias("degree")).where("degree > 1")
    number: int = edges.count()  # assignment
    edges.join(degrees, "src", how="left").alias("a").hint("broadcast").nosuch()  # attr-defined
    edges.union(degrees).top_k(3, "src").inspect(print).nosuch()  # attr-defined
    edges.join(edges.at(0), "src").nosuch()  # attr-defined
    edges.join(3, "src")  # arg-type
    edges.select("src").union("src")  # arg-type
    rows: list[object] = list(reach(edges, edges.select("src")).at(0).collect())
    done: bool = two(edges, flow.loop(name="two")).probe().done()
    flow.loop().nosuch()  # attr-defined
'''


#: The codes of mypy, and their equivalents of pyright.
PYRIGHT = {
    "attr-defined": "reportAttributeAccessIssue",
    "assignment": "reportAssignmentType",
    "arg-type": "reportArgumentType",
    "operator": "reportCallIssue",
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def wanted(names=None):
    """The numbers of the lines with an error, and its code."""
    lines = [
        (number, line.rpartition("# ")[2])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# " in line
    ]
    return [(number, (names or {}).get(code, code)) for number, code in lines]


def test_pyright_tells_wrong_programs_from_right(path):
    """With the rules of pyright. The package basedpyright comes with its own Node.js."""
    (path.parent / "pyrightconfig.json").write_text(json.dumps({
        "typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "include": [path.name],
    }))
    result = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable,
         "--project", str(path.parent)],
        cwd=path.parent, capture_output=True, text=True,
    )
    assert result.stdout.lstrip().startswith("{"), result.stdout + result.stderr
    diagnostics = json.loads(result.stdout)["generalDiagnostics"]
    actual = [
        (item["range"]["start"]["line"] + 1, item.get("rule")) for item in diagnostics
        if item["severity"] == "error"
    ]
    assert sorted(actual) == wanted(PYRIGHT), result.stdout


def test_mypy_tells_wrong_programs_from_right(path):
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "setup.cfg", "--hide-error-context",
         "--no-error-summary", str(path)],
        cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True,
    )
    matches = re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]$", result.stdout, re.MULTILINE)
    actual = [(int(number), code) for number, code in matches]
    assert actual == wanted(), result.stdout + result.stderr
