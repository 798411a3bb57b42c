"""The page of all error messages has those of the sources, and a message is short.

    sentences of a message <= SENTENCES_MAX,  words of a sentence <= WORDS_MAX
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The cause, the finding and the remedy.
SENTENCES_MAX = 3
WORDS_MAX = 25


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("messages", ROOT / "ci" / "messages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_messages_of_the_sources(generator):
    written = generator.PAGE.read_text(encoding="utf-8")
    assert written == generator.page(), "a message has changed: run ci/messages"
    assert written.count("\n* ") > 600


def test_a_message_is_three_short_sentences(generator):
    long = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / "pyspark_diff").rglob("*.py")
        for _, text in generator.messages(path.read_text(encoding="utf-8"))
        for parts in [generator.sentences(text)]
        if len(parts) > SENTENCES_MAX or max(map(generator.words, parts)) > WORDS_MAX
    }
    assert not long, f"more than {SENTENCES_MAX} sentences, or {WORDS_MAX} words in one: {long}"


def test_an_ellipsis_and_a_point_in_code_end_no_sentence(generator):
    text = "input … has no column. Read flow.sql(...) again, with extract(... FROM x). Or open it"
    assert generator.sentences(text) == [
        "input … has no column.", "Read flow.sql(...) again, with extract(... FROM x).",
        "Or open it",
    ]
    assert [generator.words(part) for part in generator.sentences(text)] == [4, 7, 3]


def test_values_become_an_ellipsis(generator):
    source = (
        "def f(x):\n"
        "    raise SchemaError(f'the column {x!r} is missing. ' + g(x) + \" Add it\")\n"
        "    raise ValueError('the number is negative')\n"
        "    raise SchemaError(message)\n"
        "    return InvalidTimeError('the time is null')\n"
        "    raise Unfit('a reason, and no error of users')\n"
    )
    assert list(generator.messages(source)) == [
        ("SchemaError", "the column … is missing. … Add it"),
        ("ValueError", "the number is negative"),
        ("InvalidTimeError", "the time is null"),
    ]
