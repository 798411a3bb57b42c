"""The text of the project: no room reads worse than before, and a class name is unique.

    rate of a room <= its ceiling in ci/prose_ceilings.tsv,  and ceilings are only lowered
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: A sentence for each fault that ci/prose counts.
FAULTY = {
    "'what is ...' in place of a noun": "The step reads what is kept in the state.",
    "'of which', 'of those', 'of what'": "The files, of which some are old, are deleted.",
    "a sentence that starts with a pronoun or 'Of'": "Those files are deleted.",
    "'where' in place of 'if' or 'when'": "Where the key is null, the row is dropped.",
    "'whoever', 'somebody', 'nobody'": "A file that nobody reads is deleted.",
    "'tell' in place of 'report' or 'describe'": "The log tells the number of rows.",
    "'stand' in place of 'is'": "The manifest stands in the store.",
    "'beside' or 'behind'": "The footer lies behind the rows.",
    "'as it is', 'as they were'": "The table is returned as it is.",
    "more than 32 words": "The step reads " + "a row and " * 12 + "a row.",
}


@pytest.fixture(scope="module")
def prose():
    spec = importlib.util.spec_from_file_location("prose", ROOT / "ci" / "prose.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["prose"]


def test_no_room_is_above_its_ceiling(prose):
    limits, rooms = prose.ceilings(), prose.counts()[0]
    above = {
        name: (round(count.rate, 1), count.names) for name, count in rooms.items()
        if count.rate > limits.get(name, (4, 0))[0] or count.names > limits.get(name, (4, 0))[1]
    }
    assert not above, f"ci/prose --show 40 PATH prints the sentences; above the ceilings: {above}"
    assert set(limits) == set(rooms)


def test_each_fault_has_a_sentence(prose):
    assert set(FAULTY) == {*prose.FAULTS, f"more than {prose.WORDS_MAX} words"}
    for name, sentence in FAULTY.items():
        assert prose.faults(sentence) == [name]
    assert not prose.faults("The step reads new updates with a time before the frontier.")


def test_code_and_examples_do_not_count(prose):
    source = (
        '"""Return `what is kept` of a step.\n\n>>> print("what is kept of it")\n"""\n'
        "x = 1  # Of it\n"
    )
    texts = [text for _, text in prose.python_texts(source)]
    assert texts == ["Return `what is kept` of a step.\n\n", "Of it"]
    page = "A page of\ntwo lines.\n\n```\nwhat is code\n```\n| a cell | of those |\n* an item\n"
    assert [text.strip() for _, text in prose.markdown_texts(page)] == [
        "A page of\ntwo lines.", "a cell", "of those", "an item"]
    for code in ("SELECT a FROM b" + " JOIN c" * 20, "python program.py" + " --option" * 40):
        assert not list(prose.sentences(f"{code}\n"))
    assert prose.empty_names("found = 1\nrows = 2\ndef told(): pass\n") == 2


def test_a_ceiling_is_only_lowered(prose):
    count = prose.Count(1000, Counter({"'stand' in place of 'is'": 5}), 3)
    assert prose.lowered({"a": count}, {}) == {"a": (5.0, 3)}
    assert prose.lowered({"a": count}, {"a": (4.0, 9)}) == {"a": (4.0, 3)}
    assert prose.lowered({"a": count}, {"a": (9.0, 1)}) == {"a": (5.0, 1)}


def test_class_names_are_unique():
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "pyspark_diff").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert not shared, "a class name exists once: use a term that says which one is meant"
