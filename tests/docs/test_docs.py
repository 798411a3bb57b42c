"""The pages of the documentation: their snippets run, and they are complete."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import warnings

import pytest
import pyspark_diff
from pyspark_diff import errors
from pyspark_diff.query.refusals import CODES
from snippets import DOCS, run_page

ROOT = DOCS.parent
#: Pages with snippets for a Spark with Delta or for a cluster. tests/delta_cases.py, view_cases.py
#: and test_cluster_page.py run the snippets.
ELSEWHERE = {"how-to/delta.md", "how-to/views.md", "how-to/clusters.md"}
PAGES = sorted(
    str(page.relative_to(DOCS)) for folder in ("tutorial", "how-to")
    for page in (DOCS / folder).glob("*.md")
    if "```python" in page.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ELSEWHERE])
def test_snippets_of_a_page_run(spark, capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scope = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pyspark_diff.StaleWarning)
        run_page(name, lambda: capsys.readouterr().out, scope)
    assert scope["spark"] is spark


def test_nav_names_each_page_once():
    named = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    there = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted(there)


def test_reference_has_all_public_names():
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)}
    for module in (pyspark_diff, pyspark_diff.graphs, *map(
        importlib.import_module, ("pyspark_diff.sources", "pyspark_diff.sinks")
    )):
        left_out = set(module.__all__) - shown - {"graphs"}
        assert not left_out, f"docs/reference has nothing of {module.__name__}.{left_out}"


def test_page_of_faults_has_all_errors():
    text = (DOCS / "how-to/faults.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+Error)`", text))
    kinds = {
        name for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.DiffError)
    }
    assert kinds <= named, f"how-to/faults.md does not describe {kinds - named}"
    assert {name for name in named if hasattr(pyspark_diff, name)} == kinds


def test_limits_have_the_codes_of_the_package_and_no_others():
    text = (DOCS / "limits.md").read_text(encoding="utf-8")
    tables = [part.splitlines() for part in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    tables = [table for table in tables if table[0].startswith(("| code |", "| error |"))]
    assert len(tables) == 3
    cells = [line.split("|")[1].strip() for table in tables for line in table
             if line.startswith("| ")]
    shown = {cell.strip("`") for cell in cells} - {"code", "error", "–"}
    kinds = {name for name in shown if hasattr(errors, name)}
    assert shown - kinds == {*CODES, *pyspark_diff.REASONS}
    assert {cell for cell in cells if "`" not in cell} == {"code", "error", "–"}


@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="mkdocs is not installed")
def test_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pictures_are_those_of_their_script(tmp_path):
    """Compare the texts only: another version of matplotlib may draw other paths."""
    pytest.importorskip("matplotlib")
    script = shutil.copy(DOCS / "assets/model_pictures.py", tmp_path)
    subprocess.run([sys.executable, script], check=True, timeout=300)
    drawn = {path.name: texts_of(path) for path in tmp_path.glob("*.svg")}
    assert drawn == {name: texts_of(DOCS / "assets" / name) for name in drawn}
    page = (DOCS / "model.md").read_text(encoding="utf-8")
    of_page = {"updates.svg", "times.svg", "frontier.svg"}
    assert {f"assets/{name}" for name in of_page} <= set(re.findall(r"\((assets/\S+)\)", page))
    assert drawn.keys() == of_page | {"change.svg"}


def texts_of(picture):
    return re.findall(r"<text .*?>(.*?)</text>", picture.read_text(encoding="utf-8"), re.DOTALL)
