"""The notebooks of the examples run, cell by cell, in one session."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples" / "notebooks").glob("*.py"))
SEPARATOR = "\n# COMMAND ----------\n"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(spark, path):
    header, source = path.read_text().split("\n", 1)
    assert header == "# Databricks notebook source"
    shown: list[list[tuple]] = []

    def display(frame):
        shown.append(sorted(tuple(row) for row in frame.collect()))

    names = {"display": display}
    for cell in source.split(SEPARATOR):
        exec(compile(cell, str(path), "exec"), names)
    assert shown and all(shown)
    if path.stem == "first_steps":
        assert shown[0] == [("north", 5), ("south", 7)]
        assert shown[1] == [("north", 8), ("south", 7)]
