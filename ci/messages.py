"""Write the page of all error messages: see ci/messages.

    a message of the page  =  the text of an error in the sources, with … in place of each value

tests/docs/test_message_page.py compares the page with the sources, and bounds the sentences of a
message and their words.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pyspark_diff import errors

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "messages.md"
VALUE = "…"
_HEAD = """# Messages

The messages of all errors, by their class, with … in place of each value. [Errors](errors.md)
describes the classes, and [Recovering from faults](../how-to/faults.md) the ways to continue.
`ci/messages` writes this page from the sources.
"""


def text_of(node: ast.expr) -> str:
    """The text of an expression, with … in place of each part that is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return VALUE


def messages(source: str) -> Iterator[tuple[str, str]]:
    """The class and the text of each error that a source makes with a text of its own."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            name, text = node.func.id, " ".join(text_of(node.args[0]).split())
            public = isinstance(getattr(errors, name, None), type)
            if (public or name in ("TypeError", "ValueError")) and re.search("[a-z]{3}", text):
                yield name, text


def sentences(text: str) -> list[str]:
    """The sentences of a message; an ellipsis in code ends none."""
    return re.split(r"(?<=[^.][.?!])\s+", text)


def words(sentence: str) -> int:
    """The number of words of a sentence; signs and values are none."""
    return sum(bool(re.search("[A-Za-z]", word)) for word in sentence.split())


def page() -> str:
    """The text of the page."""
    classes: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "pyspark_diff").rglob("*.py")):
        for name, text in messages(path.read_text(encoding="utf-8")):
            classes[name].add(re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text))
    parts = [_HEAD]
    for name in sorted(classes):
        parts.append(f"\n## {name}\n\n" + "".join(f"* {text}\n" for text in sorted(classes[name])))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
