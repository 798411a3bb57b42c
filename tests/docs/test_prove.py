"""The draw of ci/prove: twenty slices have each case once."""

from pathlib import Path
from types import SimpleNamespace

import drawn
from conftest import long_tests
from drawn import SLICES, failed_examples, is_drawn, note_failure


JOIN = "tests/operators/test_joins.py::test_join"


def case(number):
    return SimpleNamespace(
        nodeid=f"{JOIN}[{number}]", path=SimpleNamespace(stem="test_joins"),
        get_closest_marker=lambda name: True)


def test_twenty_slices_have_each_case_once():
    for number in range(500):
        item = case(number)
        assert sum(is_drawn(item, str(part)) for part in range(SLICES)) == 1
        assert is_drawn(item, "all")
    assert drawn.slice_of(f"{JOIN}[1]") == drawn.slice_of(case(1).nodeid)


def test_failures_are_noted_once(tmp_path):
    path = tmp_path / "failed.txt"
    note_failure("a[b c]", 7, 10, path)
    note_failure("a[b c]", 8, 10, path)
    assert failed_examples(path) == {"a[b c]": (7, 10)}


def test_each_long_test_is_there():
    for line in sorted(long_tests()):
        file, _, name = line.partition("::")
        (path,) = Path(__file__).parents[1].glob(f"*/{file}.py")
        text = path.read_text(encoding="utf-8")
        assert f"def {name}(" in text, f"tests/long_tests.txt names {line}, which is gone"
