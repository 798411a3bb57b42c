"""Several executors, and the loss of one in the middle of a step, twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Seconds after which a program hangs; a slow machine may take minutes for it.
HANGS = 1800


@pytest.mark.slow
def test_executors_are_killed_in_the_middle_of_a_step(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "cluster_program.py"), str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=HANGS,
    )
    assert "right after the loss of two executors" in done.stdout, done.stdout + done.stderr[-3000:]
    assert not list(tmp_path.glob("pyspark_diff-*"))
