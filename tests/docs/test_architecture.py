"""The reader's guide: its files and functions exist, and an update calls them in its order."""

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
#: A path of one update through more files is too long to follow.
MOST_FILES = 12


def rows(title):
    """Return the files and functions in the first table of functions below a heading."""
    section = re.split(f"\n##+ {title}\n", GUIDE)[1].split("\n#")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", section, flags=re.MULTILINE)


def functions(file):
    """Return the names of all functions in a file of the package."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def calls(act):
    """Return the files and functions of the package in the order of their first calls."""
    first_calls = {}

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            first_calls.setdefault((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return list(first_calls)


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

        def insert_edge():
            edges_in.insert([(1, 5)])
            edges_in.advance_to(edges_in.time() + 1)
            edges_in.flush()
            flow.step()

        insert_edge()
        called = calls(insert_edge)
    documented = rows("On the driver")
    assert len(dict(documented)) == len(documented) <= MOST_FILES
    way = [call for call in called if call in documented]
    assert way == documented


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
        convert = str if kind == "string" else int

        edges_in.insert([(convert(a), convert(b)) for a, b in ((1, 2), (2, 3), (3, 4))])
        edges_in.advance_to(1)
        edges_in.flush()
        first = calls(flow.step)
        edges_in.insert([(convert(3), convert(5))])
        edges_in.advance_to(2)
        edges_in.flush()
        # The first step chooses the form of a loop.
        called = {*calls(flow.step), *(first if kind == "long" else ())}
    assert set(rows(title)) <= called
