"""Count constructions that make text hard to read: see ci/prose.

    rate of a room  =  1,000 * faults / words

The text of a room is its docstrings, its comments, the messages of its errors, and its Markdown.
Code, examples and the headings of numpydoc sections do not count. A ceiling for each room is in
ci/prose_ceilings.tsv, and ``--lower`` never raises one.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CEILINGS = ROOT / "ci" / "prose_ceilings.tsv"
#: The messages of the sources, which count there.
GENERATED = "messages.md"
#: The text that has ceilings.
SUBJECTS = (
    "pyspark_diff", "docs", "examples", "README.md", "CONTRIBUTING.md", "tests", "benchmarks", "ci",
    "scala-bridge",
)
#: The subjects whose folders are rooms.
_DIVIDED = ("pyspark_diff", "tests")
WORDS_MAX = 32
#: The goal of each room, in faults per 1,000 words: no ceiling is lower.
GOAL = 4.0

_VERB = (
    "is|are|was|were|has|have|had|it|they|the|an?|its|this|that|these|those|each|one|some|others?|"
    "you|we|he|she|comes?|came|goes|went|may|must|can|could|will|would|does|do|did|makes?|made|"
    "gives?|gave|takes?|took|reads?|needs?|costs?|holds?|runs?|looks?|stands?|stood|lies|lay|"
    "remains|happens|changes|waits"
)
#: The name of each fault with a pattern of the sentences that have it.
FAULTS: dict[str, re.Pattern[str]] = {name: re.compile(pattern) for name, pattern in {
    "'what is ...' in place of a noun": rf"\b[Ww]hat(?:ever)? (?:{_VERB})\b",
    "'of which', 'of those', 'of what'":
        r"\b[Oo]f (?:which|those|these|what|whom|such|all that|them all)\b",
    "a sentence that starts with a pronoun or 'Of'":
        r"(?:^|[.!?:] )(?:What|Whatever|Whoever|Whose|Those|These|Such|Of|Others|The ones?|"
        r"The others?|So many|So much) (?![^.]*\?)",
    "'where' in place of 'if' or 'when'":
        r"(?:^|[.!?:;] )Where (?!to\b)[^.?]*,|"
        r"[,;] where (?:there|it|they|one|nothing|nobody|none|no|that|those|this|what)\b",
    "'whoever', 'somebody', 'nobody'": r"\b(?:[Ww]ho(?:so)?ever|[Ss]omebody|[Nn]obody)\b",
    "'tell' in place of 'report' or 'describe'": r"(?i)\b(?:tells?|told|telling)\b(?! apart)",
    "'stand' in place of 'is'": r"(?i)\b(?:stands|stood|standing)\b(?!-?alone)",
    "'beside' or 'behind'": r"(?i)\b(?:besides?|behind)\b",
    "'as it is', 'as they were'": r"\bas (?:it|they) (?:is|are|was|were|stands?|stood)\b",
}.items()}
#: Identifiers that name nothing of the field.
EMPTY_NAMES = frozenset(
    "alike apart around beside besides every found given held kept made of one put seen standing "
    "taken tell told within".split()
)
_SECTIONS = re.compile(
    r"(?:Parameters|Returns|Yields|Raises|Notes|Examples?|See Also|-{3,}|>>>|\||#|"
    r"SELECT |WITH \w+ AS|python |spark-submit )"
)
_ITEM = re.compile(r"\s*(?:[-*+]|\d+\.|#+|>) ")


@dataclass
class Count:
    """The words and faults of a room, and the identifiers that name nothing."""

    words: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    names: int = 0

    @property
    def rate(self) -> float:
        """Faults per 1,000 words."""
        return 1000 * sum(self.faults.values()) / max(self.words, 1)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text with a word in place of each piece of code."""
    for paragraph in re.split(r"\n\s*\n", re.sub(r"`+[^`]*`+", "code", text)):
        line = " ".join(paragraph.split())
        if not _SECTIONS.match(line):
            parts = re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(])", line)
            yield from (part for part in parts if len(part.split()) > 2)


def faults(sentence: str) -> list[str]:
    """The names of the faults of a sentence."""
    words = len(sentence.split())
    long = [f"more than {WORDS_MAX} words"] if words > WORDS_MAX else []
    return [name for name, pattern in FAULTS.items() if pattern.search(sentence)] + long


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring, message of an error, and block of comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, re.sub(r">>>.*?(?=\n\s*\n|\Z)", "", text, flags=re.S)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            strings = (
                part.value for part in ast.walk(node.exc)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )
            yield node.lineno, "".join(strings)
    block: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append(token)
        elif block and token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            yield block[0].start[0], " ".join(part.string.lstrip("#: ") for part in block)
            block = []


def markdown_texts(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each paragraph, item of a list, and cell of a table."""
    is_code, begin, lines = False, 1, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        fence, row = line.strip().startswith("```"), line.strip().startswith("|")
        if lines and (fence or row or not line.strip() or _ITEM.match(line)):
            yield begin, "\n".join(lines)
            lines = []
        is_code ^= fence
        if is_code or fence or not line.strip():
            continue
        if row:
            yield from ((number, cell) for cell in line.strip().strip("|").split("|"))
            continue
        begin = begin if lines else number
        lines.append(_ITEM.sub("", line, count=1).replace("**", ""))


def empty_names(source: str) -> int:
    """The number of assignments and definitions with a name of `EMPTY_NAMES`."""
    total = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            total += node.name.strip("_") in EMPTY_NAMES
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            total += node.id.strip("_") in EMPTY_NAMES
    return total


def files(subjects: Iterable[str]) -> Iterator[Path]:
    """The Python and Markdown files of folders, and the named files."""
    for subject in subjects:
        path = ROOT / subject
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (
            file for file in inside if file.suffix in (".py", ".md") and file.name != GENERATED
        )


def room(path: Path) -> str:
    """The name under which the text of a file counts."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] in _DIVIDED and len(parts) > 2 else parts[0]


def counts(subjects: Iterable[str] = SUBJECTS) -> tuple[dict[str, Count], list[str]]:
    """The count of each room, and a line for each sentence with a fault."""
    rooms: dict[str, Count] = defaultdict(Count)
    lines = []
    for path in files(subjects):
        count, source = rooms[room(path)], path.read_text(encoding="utf-8")
        texts = python_texts if path.suffix == ".py" else markdown_texts
        for number, text in texts(source):
            for sentence in sentences(text):
                count.words += len(sentence.split())
                names = faults(sentence)
                count.faults.update(names)
                if names:
                    where = f"{path.relative_to(ROOT)}:{number}"
                    lines.append(f"{where}: {sentence[:160]}\n    ({'; '.join(names)})")
        if path.suffix == ".py":
            count.names += empty_names(source)
    return dict(rooms), lines


def ceilings(path: Path = CEILINGS) -> dict[str, tuple[float, int]]:
    """The highest rate of each room, and its highest number of identifiers that name nothing."""
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return {name: (float(rate), int(names)) for name, rate, names in rows}


def lowered(
    rooms: Mapping[str, Count], limits: Mapping[str, tuple[float, int]],
) -> dict[str, tuple[float, int]]:
    """The ceilings that follow from counts: those of the rooms, none higher than before."""
    result = {}
    for name, count in rooms.items():
        # Rounded up, as the rate of the room must not be above its own ceiling.
        rate, names = max(GOAL, int(count.rate * 10 + 0.999) / 10), count.names
        old_rate, old_names = limits.get(name, (rate, names))
        result[name] = (min(rate, old_rate), min(names, old_names))
    return result


def main(arguments: list[str] | None = None) -> None:
    """Print the rate of each room, and lower its ceiling on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", default=list(SUBJECTS), help="from the root")
    parser.add_argument("--show", type=int, default=0, help="print so many sentences")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings")
    options = parser.parse_args(arguments)
    rooms, lines = counts(options.paths)
    for name, count in sorted(rooms.items(), key=lambda item: -item[1].rate):
        print(f"{count.rate:6.1f} per 1,000 of {count.words:6,} words, {count.names:4} names  "
              f"{name}")
    print(*lines[:options.show], sep="\n", end="\n" if options.show else "")
    if options.lower:
        limits = ceilings() if CEILINGS.exists() else {}
        rows = {**limits, **lowered(rooms, limits)}
        text = "".join(f"{name}\t{rate}\t{names}\n" for name, (rate, names) in sorted(rows.items()))
        CEILINGS.write_text(f"room\trate\tnames\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
