"""The matrix of a release: its extras, its Pythons and its program are those of the repository."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import pyspark_diff

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def matrix():
    spec = importlib.util.spec_from_file_location("release_matrix", ROOT / "ci/release_matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_default_is_each_extra_on_each_python(matrix):
    chosen = matrix.arguments([])
    lines = (ROOT / "setup.cfg").read_text().partition("[options.extras_require]")[2]
    names = [line[:-2] for line in lines.partition("\n[")[0].splitlines() if line.endswith(" =")]
    assert chosen.extra == names and {"spark", "connect", "delta", "test"} <= set(names)
    assert chosen.python[0] == "3.10" and chosen.python == sorted(set(chosen.python))
    assert not chosen.matrix


def test_unknown_extra_is_refused(matrix, capsys):
    with pytest.raises(SystemExit):
        matrix.arguments(["--matrix", "--extra", "sparc"])
    assert "invalid choice: 'sparc'" in capsys.readouterr().err


def test_each_requirement_has_spark_once(matrix):
    assert matrix.requirement(Path("w.whl"), "delta") == "w.whl[spark,delta]"
    assert matrix.requirement(Path("w.whl"), "spark") == "w.whl[spark]"


def test_program_is_the_first_of_the_readme(matrix):
    assert "flow.sql(" in matrix.program() and pyspark_diff.__name__ in matrix.program()


def test_python_of_a_version_has_that_version(matrix):
    version = "%d.%d" % sys.version_info[:2]
    assert matrix.python_of(version) is None or Path(matrix.python_of(version)).exists()
    assert matrix.python_of("3.99") is None
