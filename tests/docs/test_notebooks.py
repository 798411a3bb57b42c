"""The notebooks of the examples run, cell by cell, in one session, and show current outputs.

tests/delta_cases.py runs the notebook that needs a Spark with Delta.
"""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from snippets import DOCS, NOTEBOOKS, Widgets, run_notebook

PROGRAM = DOCS.parent / "ci" / "notebooks.py"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.py")), ids=lambda path: path.stem)
def test_what_is_shown_is_of_these_cells(path):
    spec = importlib.util.spec_from_file_location("notebooks", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    text = path.with_suffix(".ipynb").read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    actual = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert actual == program.cells(path.read_text(encoding="utf-8")), "run ci/notebooks"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert sum(output["output_type"] == "stream" for output in outputs) >= 2
    assert not any(output["output_type"] == "error" for output in outputs)
    assert not re.search(r'[" =](/tmp|/home|/root|/work|/Users)\b', text)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.py")), ids=lambda path: path.stem)
def test_it_starts_with_widgets_a_volume_and_doctor(path):
    text = path.read_text(encoding="utf-8")
    begin = text[:text.index("doctor(") + 7]
    assert begin.index("utilities.widgets.get(") < begin.index('"/Volumes/')
    assert "Dataflow(" not in begin and "flow.input" not in begin


@pytest.mark.parametrize("widgets", [False, True])
def test_first_steps(spark, tmp_path, widgets, capsys):
    values = Widgets({"root": str(tmp_path / "root")}) if widgets else None
    first, corrected, changed = run_notebook("first_steps", values)
    assert capsys.readouterr().out
    if values is not None:
        assert values.defaults == {"root": "/Volumes/main/default/pyspark_diff/first_steps"}
        assert (tmp_path / "root").is_dir()
    assert first == [("north", 5), ("south", 7)]
    assert corrected == [("north", 8), ("south", 7)]
    assert changed == [("north", 5, 1, -1), ("north", 8, 1, 1)]


def test_graphs_and_loops(spark):
    hops, cut, parts = run_notebook("graphs_and_loops")
    assert hops == [(node, node - 1) for node in range(1, 7)]
    assert cut == [(node, node - 1, 1, -1) for node in (4, 5, 6)]
    assert parts == [(1, 3), (4, 3), (10, 3)]
