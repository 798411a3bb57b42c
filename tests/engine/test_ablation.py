"""Each fast path that benchmarks/ablation.py disables exists, and the answer without it is equal.

    answer of a workload without a path  =  its answer with all paths
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pyspark_diff import thresholds
from pyspark_diff.thresholds import Thresholds

FOLDER = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.classic_only("reads the shown rows of local workloads")


@pytest.fixture
def ablation(monkeypatch):
    # Examples have programs of the same names, which other tests import.
    monkeypatch.syspath_prepend(str(FOLDER))
    names = [path.stem for path in FOLDER.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("ablation")
    for name in names:
        sys.modules.pop(name, None)


def test_a_path_is_disabled_within_its_block(ablation):
    def value_of(name):
        if name in Thresholds.__dataclass_fields__:
            return getattr(thresholds.current, name)
        return getattr(*ablation._owner(name))

    for path, patches in ablation.PATHS.items():
        before = [value_of(name) for name, _ in patches]
        with ablation.without(path):
            assert all(value_of(name) is value for name, value in patches)
        assert [value_of(name) for name, _ in patches] == before


def test_the_answer_does_not_depend_on_a_path(ablation, spark, tmp_path):
    workload = ablation.BfsWorkload(spark, str(tmp_path), 0.002)
    rows = list(ablation.ablated(workload, ["integer loop", "memory"], 1))
    assert [row["without"] for row in rows] == ["nothing", "integer loop", "memory"]
    assert rows[0]["cpu_ratio"] == 1 and all(row["cpu_seconds"] > 0 for row in rows)


def test_another_answer_is_an_error(ablation, spark, tmp_path, monkeypatch):
    answers = iter([0, 1, 2])

    class Changing(ablation.Workload):
        def run(self):
            return 1.0, 1.0, next(answers)

    with pytest.raises(SystemExit, match="without 'memory' the answer is another one"):
        list(ablation.ablated(Changing(spark, str(tmp_path), 1), ["memory"], 1))
