"""Thresholds are fields of one value: no test patches a number of a module.

    a name in upper case is patched in a test  ⟹  no module of the package has a number of this name
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import pyspark_diff
from pyspark_diff import thresholds
from pyspark_diff.thresholds import Thresholds

PACKAGE = Path(pyspark_diff.__file__).parent
TESTS = Path(__file__).parents[1]
UPPER = re.compile(r"_?[A-Z][A-Z0-9_]*")

#: Numbers that are no thresholds, with the reason why a test sets them.
OTHERS = {
    "PROTOCOL": "the version of a protocol, which another jar may not have",
    "RANK_UNIT": "the unit of ranks, whose sums leave 64 bits in a small graph if it is large",
    "UNIT": "the same of `pagerank`",
}


def numbers() -> set[str]:
    """The names in upper case that are numbers in a module of the package."""
    names = set()
    for module in pkgutil.walk_packages(pyspark_diff.__path__, "pyspark_diff."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if number and UPPER.fullmatch(name):
                    names.add(name)
    return names


def patched(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each attribute in upper case that a source sets or patches."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith(("setattr", "patch", "patch.object")):
                for argument in node.args[:2]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield node.lineno, argument.value.rpartition(".")[2]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_no_test_patches_a_number_of_a_module():
    constants = numbers() - OTHERS.keys()
    assert "NAMED" in constants
    wrong = [
        f"{path.relative_to(TESTS)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, name in patched(path.read_text(encoding="utf-8")) if name in constants
    ]
    assert not wrong, "make it a field of Thresholds, and set it with thresholds.using"


@pytest.mark.parametrize("source", [
    "monkeypatch.setattr(module, 'NAMED', 1)",
    "monkeypatch.setattr('pyspark_diff.operators.checked.NAMED', 1)",
    "with mock.patch.object(module, 'NAMED', 1): pass",
    "with mock.patch('pyspark_diff.operators.checked.NAMED', 1): pass",
    "module.NAMED = 1",
    "for module.NAMED in (0, 1): pass",
])
def test_each_way_of_patching_is_noticed(source):
    assert list(patched(source)) == [(1, "NAMED")]


def test_each_threshold_is_read():
    read = re.compile(r"\b(?:thresholds\.current|limits)\.(\w+)")
    names = {
        name for path in PACKAGE.rglob("*.py")
        for name in read.findall(path.read_text(encoding="utf-8"))
    }
    assert {field.name for field in fields(Thresholds)} - names == set()


def test_thresholds_are_of_all_and_end_with_their_context():
    before = thresholds.current
    with thresholds.using(merge_rows_min=3, chunk_rows=5) as used:
        assert thresholds.current is used
        with thresholds.using(chunk_rows=7):
            assert (thresholds.current.merge_rows_min, thresholds.current.chunk_rows) == (3, 7)
        assert thresholds.current is used
    assert thresholds.current is before
    with pytest.raises(TypeError, match="nosuch"), thresholds.using(nosuch=1):
        pass
    with pytest.raises(ZeroDivisionError), thresholds.using(chunk_rows=1):
        raise ZeroDivisionError
    assert thresholds.current is before
