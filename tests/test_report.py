"""The page of a dataflow: one file, whatever names there are in it, and nothing is run for it."""

from __future__ import annotations

import json
import re

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
        assert [one["step"] for one in _steps(path)] == [0]
        for time in (1, 2):
            edges_in.insert([(time, time + 1)])
            flow.advance_to(time)
        flow.report(path)
    steps = _steps(path)
    assert len(steps) == 2 and all(one["seconds"] > 0 for one in steps)
    assert any(one["loops"] for one in steps[-1]["operators"])
    assert sum(one["rows_in"] for one in steps[-1]["operators"])
    text = path.read_text()
    assert text.count("</script>") == 1 and "src=" not in text and "@import" not in text
    assert [file.name for file in tmp_path.iterdir()] == ["x.html"]


def test_a_missing_folder_is_said(spark, tmp_path):
    with Dataflow(spark, runner="local", buckets=2) as flow:
        flow.input("edges", "src long, dst long")[0].keep()
        with pytest.raises(FileNotFoundError, match="create it"):
            flow.report(tmp_path / "missing" / "x.html")
