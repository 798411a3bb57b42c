"""The small table that a notebook shows for an object, made without a job."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def as_html(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table with a title.

    Examples
    --------
    >>> as_html("a < b", ["name"], [["x"]])
    '<table><caption>a &lt; b</caption><tr><th>name</th></tr><tr><td>x</td></tr></table>'
    """
    lines = [_line(head, "th"), *(_line(row, "td") for row in rows)]
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def _line(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
