"""The reader's guide: each file and function that it names is there, and an update goes so."""

import ast
import re
import sys
from pathlib import Path

import pytest

import pyspark_diff
from pyspark_diff import Dataflow

PACKAGE = Path(pyspark_diff.__file__).parent
ROOT = PACKAGE.parent
GUIDE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
#: More files than this, and the path of one update is too long to follow.
MOST_FILES = 12


def rows(title):
    """Files and functions in the first table of functions below a heading."""
    section = re.split(f"\n##+ {title}\n", GUIDE)[1].split("\n#")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", section, flags=re.MULTILINE)


def functions(file):
    """Names of all functions in a file of the package."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def calls(act):
    """Files and functions of the package in the order in which they are first called."""
    found = {}

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            found.setdefault((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return list(found)


def test_what_the_guide_names_is_there():
    named = re.findall(r"`([\w/]+\.py)`", GUIDE)
    assert len(named) > 30
    missing = [name for name in named
               if not (PACKAGE / name).exists() and not (PACKAGE.parent / name).exists()]
    assert missing == []
    for file, function in re.findall(r"`([\w/]+\.py)` \| `(\w+)`", GUIDE):
        assert function in functions(file), f"{file} has no {function}"
    for file, function in re.findall(r"`([\w/]+\.py)`\s?\(?,? ?\(?`(\w+)`\)", GUIDE):
        assert function in functions(file), f"{file} has no {function}"


def test_worked_examples_name_files_and_their_classes():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("## Worked examples\n")[1].split("\n## ")[0]
    titles = re.findall(r"^\*\*(.*?):\*\*", section, flags=re.MULTILINE)
    assert titles == ["An aggregate", "A source", "A graph algorithm"]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", section, flags=re.MULTILINE)
    assert len(rows) == 21
    for files, text in rows:
        paths = [
            next((path for path in (PACKAGE / name, ROOT / name) if path.exists()), None)
            for name in re.findall(r"`(.*?)`", files)
        ]
        assert None not in paths, files
        sources = "".join(path.read_text(encoding="utf-8") for path in paths)
        for name in re.findall(r"`(_?[A-Z]\w+)`", text):
            assert re.search(rf"\b{name}\b", sources), f"{files}: {name}"


def test_an_update_takes_the_way_of_the_guide(spark):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        edges, edges_in = flow.input("edges", "src long, dst long")
        edges.select("src").count().inspect(lambda *update: None)

        def one():
            edges_in.insert([(1, 5)])
            edges_in.advance_to(edges_in.time() + 1)
            edges_in.flush()
            flow.step()

        one()
        found = calls(one)
    told = rows("On the driver")
    assert len(dict(told)) == len(told) <= MOST_FILES
    way = [call for call in found if call in told]
    assert way == told


@pytest.mark.parametrize("kind, title", [
    ("string", "In a loop"), ("long", "In a loop on numbers"),
])
def test_an_update_takes_the_way_of_the_guide_in_a_loop(spark, kind, title):
    with Dataflow(spark, runner="local", buckets=1) as flow:
        edges, edges_in = flow.input("edges", f"src {kind}, dst {kind}")
        roots = edges.where("src = '1'" if kind == "string" else "src = 1").select("src").distinct()
        reached = roots.iterate(
            lambda x: x.join(edges, "src").select("dst").toDF("src").union(roots).distinct()
        )
        reached.inspect(lambda *update: None)
        made = str if kind == "string" else int

        edges_in.insert([(made(a), made(b)) for a, b in ((1, 2), (2, 3), (3, 4))])
        edges_in.advance_to(1)
        edges_in.flush()
        first = calls(flow.step)
        edges_in.insert([(made(3), made(5))])
        edges_in.advance_to(2)
        edges_in.flush()
        # The form of a loop is worked out once.
        found = {*calls(flow.step), *(first if kind == "long" else ())}
    assert set(rows(title)) <= found
