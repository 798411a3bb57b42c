"""The page of a dataflow: one file, safe for all names. Its creation runs no work."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest

from pyspark_diff import Dataflow, graphs


def _steps(path):
    return json.loads(re.search(r"const steps=(.*),closed=", path.read_text()).group(1))


def test_a_page_has_the_steps_and_asks_for_nothing(spark, tmp_path):
    path = tmp_path / "x.html"
    with Dataflow(spark, runner="local", buckets=2) as flow:
        edges, edges_in = flow.input("</script><b>", "src long, dst long")
        graphs.connected_components(edges).keep()
        flow.report(path)
        assert [step["step"] for step in _steps(path)] == [0]
        for time in (1, 2):
            edges_in.insert([(time, time + 1)])
            flow.advance_to(time)
        flow.report(path)
    steps = _steps(path)
    assert len(steps) == 2 and all(step["seconds"] > 0 for step in steps)
    assert any(operator["loops"] for operator in steps[-1]["operators"])
    assert sum(operator["rows_in"] for operator in steps[-1]["operators"])
    text = path.read_text()
    assert text.count("</script>") == 1 and "src=" not in text and "@import" not in text
    assert [file.name for file in tmp_path.iterdir()] == ["x.html"]


def test_a_missing_folder_is_said(spark, tmp_path):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        flow.input("edges", "src long, dst long")[0].keep()
        with pytest.raises(FileNotFoundError, match="create it"):
            flow.report(tmp_path / "missing" / "x.html")


def _balanced(text, opens, closes):
    return sum(map(opens, text.splitlines())) == sum(map(closes, text.splitlines()))


def test_a_plot_is_mermaid_and_draws_what_dot_can(spark, monkeypatch):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        edges, _ = flow.input('a "b" <c>', "src long, dst long")
        graphs.connected_components(edges).keep()
        plot = flow.plot()
        text = str(plot)
        nodes = re.findall(r"^n(\d+)\W", text, re.MULTILINE)
        assert set(re.findall(r"n(\d+)", text)) == set(nodes) and "-->" in text
        assert 'subgraph' in text and "<" not in text
        assert _balanced(text, lambda s: s.startswith("subgraph"), lambda s: s == "end")
        assert plot.dot.count("{") == plot.dot.count("}")
        operators = flow.explain().operators
        loops = [variable for variable in operators if variable.feedback is not None]
        # A loop of all nodes, and a loop of the labels that remain.
        assert [variable.operator for variable in loops] == ["variable", "variable"]
        for variable in loops:
            assert f"n{variable.feedback} -. next .-> n{variable.number}\n" in text
            assert f"n{variable.feedback} -> n{variable.number} [style=dashed" in plot.dot
        monkeypatch.setattr("shutil.which", lambda name: None)
        assert plot.svg() is None and "<pre>flowchart TD" in plot._repr_html_()
        assert plot._repr_mimebundle_() == {"text/plain": text, "text/vnd.mermaid": text}


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium is there")
def test_a_browser_draws_the_page(spark, tmp_path):
    path = tmp_path / "x.html"
    with Dataflow(spark, runner="local", buckets=2) as flow:
        edges, edges_in = flow.input("</script><b>", "src long, dst long")
        graphs.connected_components(edges).keep()
        edges_in.insert([(1, 2)])
        flow.advance_to(1)
        flow.report(path)
        names = [operator.name for operator in flow.explain().operators]
    drawn = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()],
        capture_output=True, encoding="utf-8", timeout=120, check=True,
    ).stdout
    assert all(f">{html.escape(name, quote=False)}<" in drawn for name in names)
    assert drawn.count("<rect") >= len(names) and drawn.count("<tr>") >= 11
    # The feedback arrows of two loops: of all nodes, and of the labels that remain.
    assert drawn.count('class="back"') == 2 and drawn.count('class="round"') > 5
