"""The explained mutants: each is of a line that the library still has."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_explained_mutants_are_of_lines_that_exist():
    text = (ROOT / "tests" / "mutants_explained.tsv").read_text(encoding="utf-8")
    lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    assert len({tuple(line[:3]) for line in lines}) == len(lines)
    for module, before, after, reason in lines:
        source = (ROOT / "pyspark_diff" / module).read_text(encoding="utf-8").splitlines()
        # A change of several lines has them in one.
        assert before in " ".join(line.strip() for line in source), (module, before)
        assert before != after and reason.endswith(".")
