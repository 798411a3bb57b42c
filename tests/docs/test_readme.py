"""The README's examples run, and print the documented output."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_examples_run(spark, capsys):
    spark.createDataFrame([], "x int")  # activates this session, if another file started one
    query, first, usual, second, loop = blocks("python")
    exec(query, {})  # noqa: S102 - the point of the test
    shown = re.findall(r"(north|south) *\| *(\d+)", capsys.readouterr().out)
    assert sorted(shown) == [("north", "25"), ("south", "7")]
    # Each example has a separate scope, as a copy in a new program.
    exec(first, {})  # noqa: S102
    # The order of the rows of one time depends on the number of cores.
    shown, expected = capsys.readouterr().out, blocks("text")[0]
    assert sorted(shown.splitlines()) == sorted(expected.splitlines())
    exec(usual, {})  # noqa: S102
    shown = re.findall(r"(north|south) *\| *(\d+)", capsys.readouterr().out)
    assert [sorted(shown[:2]), sorted(shown[2:4]), shown[4:]] == [
        [("north", "15"), ("south", "7")], [("north", "10"), ("south", "5")], [("north", "1")],
    ]
    scope = {}
    exec(second, scope)  # noqa: S102
    assert scope["spark"] is spark
    shown = capsys.readouterr().out
    assert "|  1|    2|   0|   1|" in shown
    assert "|  1|    1|\n" in shown
    exec(loop, {})  # noqa: S102
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "Row(start='home', km=0) 0 1", "Row(start='lake', km=4) 0 1",
        "Row(start='lake', km=4) 1 -1", "Row(start='lake', km=9) 1 1",
        "Row(start='mill', km=2) 0 1",
    ]


def test_first_screen_has_definition_query_picture_and_commands():
    lines = README.read_text(encoding="utf-8").splitlines()[:40]
    parts = "pyspark_diff is ", "```python", "![", "materialized_view", "```bash"
    places = [next(n for n, line in enumerate(lines) if part in line) for part in parts]
    assert places == sorted(places)
    definition = " ".join(lines[2:places[1]])
    assert len(re.findall(r"\.(?:\s|$)", definition)) == 2


def test_first_example_is_ten_lines():
    code = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(code) == 10


def test_exactly_two_set_up_commands():
    commands = [line.split()[0] for line in blocks("bash")[0].splitlines()]
    assert commands == ["ci/demo", "ci/test"]


@pytest.mark.parametrize("name", [
    "ci/damage", "ci/demo", "ci/durability", "ci/faults", "ci/mutants", "ci/nights", "ci/prove",
    "ci/test", "ci/views", ".ci/run",
])
def test_commands_are_executable(name):
    assert (README.parent / name).stat().st_mode & 0o111


def test_ci_runs_the_readme_test_command_and_then_the_proofs():
    lines = (README.parent / ".ci/run").read_text().splitlines()
    commands = [line for line in lines if "bash " in line and not line.startswith("#")]
    assert len(commands) == 2 and "ci/prove" in commands[1]
    assert "ci/test\"" in commands[0]  # without arguments


def test_links_lead_somewhere():
    paths = re.findall(r"\]\((?!http)([^)#]+)", README.read_text())
    assert paths
    assert [path for path in paths if not (README.parent / path).exists()] == []
