"""Several executors: their answers, and the loss of one in the middle of a step, twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Seconds after which a program hangs; a slow machine may take minutes for it.
HANGS = 1800


def run(program, *arguments, folder):
    """Run a program of the tests in its own process, with its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / program), *map(str, arguments)],
        cwd=folder, env=environment, capture_output=True, text=True,
        timeout=HANGS,
    )
    return done.stdout, done.stdout + done.stderr[-3000:]


@pytest.mark.slow
def test_executors_are_killed_in_the_middle_of_a_step(tmp_path):
    output, log = run("cluster_program.py", tmp_path, folder=tmp_path)
    assert "right after the loss of two executors" in output, log
    assert not list(tmp_path.glob("pyspark_diff-*"))


@pytest.mark.slow
def test_graphs_and_loops_on_executors_in_other_time_zones(tmp_path):
    output, log = run("cluster_answers.py", 1000, 1003, folder=tmp_path)
    assert "algorithms and 3 loops are right" in output, log
