"""The benchmark of TPC-H from text measures both forms of a query, and compares their answers."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
FOLDER = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.classic_only("a benchmark of local dataflows")


@pytest.fixture
def tpch(monkeypatch):
    # Other tests import programs of the same names from other examples.
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    names = [path.stem for path in FOLDER.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("tpch")
    monkeypatch.setattr(module, "REPEATS", 1)
    monkeypatch.setattr(module, "CHANGED", 3)
    yield module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def options(tpch, tmp_path):
    return argparse.Namespace(
        scale=0.01, cache=tpch.CACHE, deletes=False, json=str(tmp_path / "texts.json")
    )


def test_both_forms_are_measured_and_right(spark, tpch, options):
    tpch.compare_texts(spark, [6], options)
    results = json.loads(Path(options.json).read_text())
    row, total = results["queries"]
    assert (row["query"], total["query"], results["scale"]) == (6, "sum", 0.01)
    assert row["right"] and total["right"]
    for what, unit in (("load", "seconds"), ("change", "ms")):
        operators, text = (row[f"{what}_{unit}_{form}"] for form in ("operators", "text"))
        assert operators > 0 and row[f"{what}_ratio"] == pytest.approx(text / operators, abs=0.1)


def test_another_answer_of_a_text_ends_the_run(spark, tpch, options, monkeypatch):
    def write(answers, schemas):
        for name, schema in schemas.items():
            answers.flow.input(name, schema)
        answers.flow.sql("SELECT sum(l_quantity) AS revenue FROM lineitem").keep("q06")

    monkeypatch.setattr(tpch.Texts, "_write", write)
    with pytest.raises(SystemExit, match="differs from DuckDB's"):
        tpch.compare_texts(spark, [6], options)


def test_a_sum_compares_the_sums(tpch):
    rows = [
        {"load_seconds_operators": 2.0, "load_seconds_text": 3.0, "change_ms_operators": 1.0,
         "change_ms_text": 1.0, "right": True},
        {"load_seconds_operators": 2.0, "load_seconds_text": 2.0, "change_ms_operators": 3.0,
         "change_ms_text": 1.0, "right": False},
    ]
    total = tpch.text_sum(rows)
    assert (total["load_ratio"], total["change_ratio"], total["right"]) == (1.25, 0.5, False)
