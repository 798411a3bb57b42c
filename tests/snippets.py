"""The snippets of a page of the documentation: run one after the other, as a reader runs them.

A block of text right below a snippet is its output, line by line; the lines of one snippet may come
in another order, as the rows of one time do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOKS = DOCS.parent / "examples" / "notebooks"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_page(name: str, printed: Callable[[], str], scope: dict[str, object]) -> None:
    """Run the snippets of a page in a scope.

    Parameters
    ----------
    name : str
        Of the page, in docs/.
    printed : callable
        Gives what was printed since it was called last.
    scope : dict
        The names that there are.
    """
    text = (DOCS / name).read_text(encoding="utf-8")
    blocks = list(_BLOCK.finditer(text))
    assert any(block[1] == "python" for block in blocks), f"{name} has no snippet"
    for block, after in zip(blocks, [*blocks[1:], None]):
        if block[1] != "python":
            continue
        # So that an error points into the page.
        line = text.count("\n", 0, block.start(2))
        exec(compile("\n" * line + block[2], str(DOCS / name), "exec"), scope)  # noqa: S102
        shown = printed()
        if after is None or after[1] != "text" or text[block.end():after.start()].strip():
            continue
        expected = [line_of.rstrip() for line_of in after[2].splitlines() if line_of.strip()]
        actual = [line_of.rstrip() for line_of in shown.splitlines() if line_of.strip()]
        assert sorted(actual) == sorted(expected), f"{name}:{line}: it prints\n{shown}"


class Widgets:
    """A stand-in for ``dbutils`` of Databricks, whose widgets have values or their defaults."""

    def __init__(self, values: dict[str, str]):
        self.values, self.defaults = values, dict[str, str]()
        self.widgets = self

    def text(self, name: str, default: str) -> None:
        self.defaults[name] = default

    def get(self, name: str) -> str:
        return self.values.get(name, self.defaults[name])


def run_notebook(name: str, dbutils: Widgets | None = None) -> list[list[tuple]]:
    """Run the cells of a notebook; returns the rows of all displayed frames in order."""
    header, source = (NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8").split("\n", 1)
    assert header == "# Databricks notebook source"
    shown: list[list[tuple]] = []
    scope: dict[str, object] = {
        "display": lambda frame: shown.append(sorted(map(tuple, frame.collect())))}
    if dbutils is not None:
        scope["dbutils"] = dbutils
    for cell in source.split("\n# COMMAND ----------\n"):
        exec(compile(cell, name, "exec"), scope)  # noqa: S102
    return shown
