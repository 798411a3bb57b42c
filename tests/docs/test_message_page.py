"""The page of all error messages has those of the sources."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("messages", ROOT / "ci" / "messages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_messages_of_the_sources(generator):
    written = generator.PAGE.read_text(encoding="utf-8")
    assert written == generator.page(), "a message has changed: run ci/messages"
    assert written.count("\n* ") > 400


def test_values_become_an_ellipsis(generator):
    source = (
        "def f(x):\n"
        "    raise SchemaError(f'the column {x!r} is missing. ' + g(x) + \" Add it\")\n"
        "    raise ValueError('the number is negative')\n"
        "    raise SchemaError(message)\n"
        "    raise Unfit('a reason, and no error of users')\n"
    )
    assert list(generator.messages(source)) == [
        ("SchemaError", "the column … is missing. … Add it"),
        ("ValueError", "the number is negative"),
    ]
