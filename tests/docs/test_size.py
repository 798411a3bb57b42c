"""The sizes of modules and functions: a listed number may only decrease.

    lines of a module   <= MODULE_LINES
    lines of a function <= FUNCTION_LINES  or its number in LONG_FUNCTIONS, without its docstring

The complexity of functions is a limit of flake8, in setup.cfg.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pyspark_diff

PACKAGE = Path(pyspark_diff.__file__).parent
MODULE_LINES, FUNCTION_LINES = 600, 80

LONG_FUNCTIONS = {
    "kernels/indexed_join.py _join": 150,
    "kernels/indexed_replay.py _replay": 91,
    "kernels/key_replay.py walk": 140,
    "kernels/quantiles.py _at_places": 84,
    "kernels/ranking.py replay_first": 83,
    "kernels/window_replay.py replay": 88,
    "query/plan_expressions.py renamed": 96,
    "query/text_reader.py select": 114,
}


def function_lines(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The name of each function, and its lines without the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            text = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - text


def sources() -> dict[str, str]:
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
    }


def test_no_module_is_too_long():
    lines = {name: source.count("\n") for name, source in sources().items()}
    assert {name: count for name, count in lines.items() if count > MODULE_LINES} == {}


def test_no_function_is_longer_than_its_ceiling():
    lines = {
        f"{name} {function}": count for name, source in sources().items()
        for function, count in sorted(function_lines(ast.parse(source)), key=lambda each: each[1])
    }
    assert LONG_FUNCTIONS.keys() <= lines.keys()
    assert {
        name: count for name, count in lines.items()
        if count > LONG_FUNCTIONS.get(name, FUNCTION_LINES)
    } == {}


def test_docstrings_do_not_count():
    tree = ast.parse('def f():\n    """A text\n    of two lines."""\n    return 1\n')
    assert list(function_lines(tree)) == [("f", 2)]
