"""The page about clusters: its script, its probe and its `spark-submit` run on two executors."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from snippets import DOCS

PAGE = (DOCS / "how-to/clusters.md").read_text(encoding="utf-8")
#: Seconds: the script installs all packages of the library and compiles its kernels.
LIMIT = 1800


def block(language, word):
    """The only block of a language that has a word."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (text,) = [text for text in blocks if word in text]
    return text


@pytest.mark.slow
@pytest.mark.classic_only("starts a cluster of its own")
def test_the_script_and_the_probe_run_on_two_executors(tmp_path):
    place = tmp_path / "environment"
    (tmp_path / "install.sh").write_text(block("bash", "venv"))
    (tmp_path / "probe.py").write_text(block("python", "doctor"))
    submit = block("bash", "--master yarn")
    submit = submit.replace("/opt/pyspark_diff", str(place))
    submit = submit.replace("--master yarn", "--master 'local-cluster[2,1,1024]'")
    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV"))
    }
    environment |= {
        "LIBRARY": DOCS.parent.as_uri(), "PLACE": str(place), "PYTHON": sys.executable,
    }
    for command in (["bash", "install.sh"], ["bash", "-euc", submit]):
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT,
        )
        assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    assert run.stdout.endswith(block("text", "north"))
    assert str(place) in run.stdout
