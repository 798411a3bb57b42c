"""Delta tables as sources and sinks: the cases of tests/delta_cases.py, in a Spark of their own.

What makes a session know Delta is settled when its Spark starts, and changes how every query is
planned. So the session that all other tests share does not have it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "delta_cases.py"
#: Where ci/delta_jars puts them.
JARS = Path(os.environ.get("DELTA_JARS") or Path(sys.prefix) / "delta")
#: Seconds after which they hang.
HANGS = 900
NAMES = [
    pytest.param(node.name, marks=pytest.mark.slow) if any(
        ast.unparse(one) == "pytest.mark.slow" for one in node.decorator_list
    ) else node.name
    for node in ast.parse(CASES.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, request):
    """What became of each case that is to run: nothing if it is right, or what was said."""
    names = [item.callspec.params["name"] for item in request.session.items
             if item.path == request.path]
    assert list(JARS.glob("delta-spark_*.jar")), f"no jars in {JARS}: run ci/delta_jars"
    report = tmp_path_factory.mktemp("delta") / "report.xml"
    environment = {**os.environ, "DELTA_JARS": str(JARS)}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         "-m", "slow or not slow", f"--junitxml={report}",
         *(f"{CASES}::{name}" for name in names)],
        env=environment, capture_output=True, text=True, timeout=HANGS,
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "").partition("[")[0]
        found[name] = found.get(name, "") + "".join(
            part.text or "" for part in case if part.tag in ("failure", "error")
        )
    return found


@pytest.mark.parametrize("name", NAMES)
def test_case(outcomes, name):
    assert outcomes[name] == "", outcomes[name]
