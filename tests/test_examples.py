"""The examples run as their users run them: with python, and with spark-submit."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parent.parent


def run(*command, cwd, text=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=cwd, env=environment, input=text, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def updates(text):
    """Lines such as ``(2, 1) 5 -1``, as a dictionary from (record, time) to the sum of diffs."""
    found = {}
    for degree, count, time, diff in re.findall(r"\((\d+), (\d+)\) (\d+) ([+-]\d+)", text):
        key = (int(degree), int(count), int(time))
        found[key] = found.get(key, 0) + int(diff)
    return {key: diff for key, diff in found.items() if diff}


@pytest.fixture
def edge_list(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("from,to\n1,2\n1,3\n2,3\n3,1\n")
    return str(path)


def test_degrees_shows_every_update_and_batches_change_nothing(tmp_path):
    script = str(ROOT / "examples" / "degrees.py")
    graph = ("--nodes", "6", "--edges", "12", "--rounds", "6")
    single = run(sys.executable, script, *graph, "--batch", "1", cwd=tmp_path)
    whole = run(sys.executable, script, *graph, "--batch", "6", cwd=tmp_path)
    assert updates(single) == updates(whole)
    assert (tmp_path / "degrees.png").stat().st_size > 5000
    # 12 edges: the degrees of the nodes add up to them at the end as well.
    end = single.split("at the end:")[1]
    rows = re.findall(r"^\s+(\d+)\s+(\d+)$", end, flags=re.MULTILINE)
    assert sum(int(degree) * int(count) for degree, count in rows) == 12


def test_degrees_with_spark_submit_on_a_file(tmp_path, edge_list):
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    script = str(ROOT / "examples" / "degrees.py")
    out = run(submit, "--master", "local[2]", script, "--input", edge_list, "--rounds", "0",
              cwd=tmp_path)
    assert updates(out) == {(2, 1, 0): 1, (1, 2, 0): 1}


def test_degrees_with_progress_on_a_larger_graph(tmp_path):
    script = str(ROOT / "examples" / "degrees.py")
    out = run(sys.executable, script, "--nodes", "1000", "--edges", "5000", "--rounds", "2000",
              "--batch", "500", cwd=tmp_path)
    assert "loaded 5,000 edges" in out and "2,000 rounds" in out


def test_flights_agree_with_plain_spark(tmp_path):
    pytest.importorskip("matplotlib")
    script = str(ROOT / "examples" / "degrees.py")
    out = run(sys.executable, script, "--flights", cwd=tmp_path)
    assert "327,346 flights" in out
    assert out.count("agrees") == 5 and "DIFFERS" not in out
    assert "the same updates as in one go: yes" in out


def test_skip_level_shows_every_update_and_batches_change_nothing(tmp_path):
    script = str(ROOT / "examples" / "skip_level.py")
    company = ("--people", "20", "--changes", "19", "--check")
    single = run(sys.executable, script, *company, "--batch", "1", cwd=tmp_path)
    whole = run(sys.executable, script, *company, cwd=tmp_path)
    assert updates(single) == updates(whole)
    assert "20 pairs, the same" in single and "20 pairs, the same" in whole
    found = updates(single)
    # Person 2 leaves 1 for 0, and with it 5, whom it manages.
    assert (found[1, 5, 2], found[0, 5, 2]) == (-1, 1)
    # Person 7 leaves 3, whom 1 manages, for 2.
    assert (found[1, 7, 7], found[0, 7, 7]) == (-1, 1)


@pytest.mark.slow
def test_skip_level_with_spark_submit(tmp_path):
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    script = str(ROOT / "examples" / "skip_level.py")
    out = run(submit, "--master", "local[2]", script, "--people", "3", "--changes", "0",
              cwd=tmp_path)
    assert updates(out) == {(0, 0, 0): 1, (0, 1, 0): 1, (0, 2, 0): 1}


@pytest.mark.slow
def test_skip_level_with_progress_agrees_with_plain_spark(tmp_path):
    script = str(ROOT / "examples" / "skip_level.py")
    out = run(sys.executable, script, "--people", "5000", "--changes", "2000", "--batch", "500",
              "--check", cwd=tmp_path)
    assert "loaded 5,000 people" in out and "2,000 changes" in out and "4 batches" in out
    assert "5,000 pairs, the same" in out


def test_skip_level_takes_changes_that_are_typed(tmp_path):
    script = str(ROOT / "examples" / "skip_level.py")
    lines = ["who 5", "move 5 1", "who 5", "add 8 5", "who 8", "remove 5", "who 8",
             # Nothing of these may stop it.
             "", "move", "move 5 1", "move x 1", "add 8 1", "remove -1", "jump 3", "who 8 9",
             f"move 8 {2**63}", "move 7 7", "quit", "move 1 1"]
    out = run(sys.executable, script, "--people", "8", "--interactive", cwd=tmp_path,
              text="\n".join(lines))
    assert updates(out) == {
        (1, 5, 3): -1, (0, 5, 3): 1, (1, 8, 6): 1, (1, 8, 9): -1, (0, 5, 9): -1,
        (1, 7, 12): -1, (7, 7, 12): 1,
    }
    answers = re.findall(r"^  (\w+) \([\d.]+ ms\)$", out, flags=re.MULTILINE)
    assert answers == ["1", "0", "1", "nobody"]
    assert out.count("updates in") == 4 and out.count("error:") == 8
