"""Windows in SQL text, for a Connect client, which has no parser.

    with_windows_replaced(f"{a} + f(x) OVER (w)", g)  =  f"{a} + {g(f, x, w)}"

The module parses only windows, in the forms of Spark's grammar for expressions, and leaves their
arguments to the server. Text of any other form stays unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Iterator

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|--[^\n]*|/\*.*?\*/)+)|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`"""
    r"""|\w+(?:\.\w+)*|.""", re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_`][\w.`]*$")


@dataclass(frozen=True)
class WindowText:
    """A function over a window, each part as text.

    Parameters
    ----------
    name : str
        The function in lower case.
    order : tuple of (str, bool, bool)
        The columns of the order, whether each is descending, and whether its nulls come last.
    frame : tuple of (bool, str or None, str or None), or None
        Whether limits count rows, and both limits, with None for no limit.
    """

    name: str
    arguments: tuple[str, ...]
    distinct: bool
    nulls_ignored: bool
    filter: str | None
    partition: tuple[str, ...]
    order: tuple[tuple[str, bool, bool], ...]
    frame: tuple[bool, str | None, str | None] | None


def with_windows_replaced(text: str, replacement: Callable[[WindowText, str], str]) -> str:
    """SQL text with its windows replaced.

    Parameters
    ----------
    replacement : callable
        From a window and its text to its replacement. Windows within another window are not passed
        to it.

    Examples
    --------
    >>> text = "x - lag(x, 2) OVER (PARTITION BY k ORDER BY t DESC)"
    >>> with_windows_replaced(text, lambda window, _: f"{window.name}{window.arguments}")
    "x - lag('x', '2')"
    """
    tokens = _Tokens(text)
    windows: list[tuple[int, int, WindowText]] = []
    for over in range(len(tokens)):
        stop = tokens.closed(over + 1) if tokens.word(over, "over") else None
        window = None if stop is None else _window(tokens, over, stop)
        if stop is not None and window is not None:
            # An outer window removes the inner windows, which come first.
            windows = [earlier for earlier in windows if earlier[0] < window[0]]
            if not windows or windows[-1][1] <= window[0]:
                windows.append((window[0], stop, window[1]))
    parts: list[str] = []
    done = 0
    for first, stop, call in windows:
        parts += [tokens.between(done, first), replacement(call, tokens.part(first, stop)), " "]
        done = stop
    return "".join([*parts, tokens.between(done, len(tokens))]).rstrip() if parts else text


class _Tokens:
    """SQL text as a sequence of tokens: words, quoted texts and signs."""

    def __init__(self, text: str):
        self._text = text
        self._found = [m for m in _TOKEN.finditer(text) if m.lastgroup != "space"]

    def __len__(self) -> int:
        return len(self._found)

    def text(self, place: int) -> str:
        """A token; empty outside of the text."""
        return self._found[place].group() if 0 <= place < len(self) else ""

    def word(self, place: int, *words: str) -> bool:
        """Whether a token is one of some words."""
        return self.text(place).lower() in words

    def words(self, place: int, *words: str) -> bool:
        """Whether some words follow each other from a token on."""
        return all(self.word(place + i, word) for i, word in enumerate(words))

    def between(self, first: int, stop: int) -> str:
        """The text from a token up to, and without, another one."""
        begin, end = (
            0 if not at else self._found[at].start() if at < len(self) else len(self._text)
            for at in (first, stop)
        )
        return self._text[begin:end]

    def part(self, first: int, stop: int) -> str:
        """The text from a token up to another one, without the surrounding space."""
        return self._text[self._found[first].start():self._found[stop - 1].end()]

    def closed(self, place: int) -> int | None:
        """The token after the parenthesis that closes one; None without a closing one."""
        if self.text(place) != "(":
            return None
        depth = 0
        for at in range(place, len(self)):
            depth += {"(": 1, ")": -1}.get(self.text(at), 0)
            if not depth:
                return at + 1
        return None

    def opened(self, place: int) -> int:
        """The parenthesis that matches a closing one; -1 without a match."""
        depth = 0
        for at in range(place, -1, -1):
            depth += {")": 1, "(": -1}.get(self.text(at), 0)
            if not depth:
                return at if at < place else -1
        return -1

    def top(self, first: int, stop: int) -> Iterator[int]:
        """The tokens between two that are outside of parentheses and brackets."""
        depth = 0
        for at in range(first, stop):
            depth -= self.text(at) in (")", "]")
            if not depth:
                yield at
            depth += self.text(at) in ("(", "[")

    def listed(self, first: int, stop: int) -> list[tuple[int, int]]:
        """The parts between commas."""
        if first >= stop:
            return []
        commas = [at for at in self.top(first, stop) if self.text(at) == ","]
        return list(zip([first, *(at + 1 for at in commas)], [*commas, stop]))


def _window(tokens: _Tokens, over: int, stop: int) -> tuple[int, WindowText] | None:
    """The first token of a window, and its parts; None for an unknown form."""
    place, ignored, condition = over, False, None
    if tokens.word(place - 1, "nulls") and tokens.word(place - 2, "ignore", "respect"):
        ignored = tokens.word(place - 2, "ignore")
        place -= 2
    begin = tokens.opened(place - 1)
    if tokens.word(begin - 1, "filter") and tokens.word(begin + 1, "where"):
        condition, place = tokens.part(begin + 2, place - 1), begin - 1
        begin = tokens.opened(place - 1)
    if begin < 1 or not _NAME.match(tokens.text(begin - 1)):
        return None
    first, end = begin + 1, place - 1
    distinct = tokens.word(first, "distinct")
    first += distinct
    if end - first > 2 and tokens.words(end - 2, "ignore", "nulls"):
        ignored, end = True, end - 2
    arguments = tuple(tokens.part(*part) for part in tokens.listed(first, end))
    spec = _spec(tokens, over + 2, stop - 1)
    if spec is None:
        return None
    name = tokens.text(begin - 1).replace("`", "").lower()
    return begin - 1, WindowText(name, arguments, distinct, ignored, condition, *spec)


def _spec(tokens: _Tokens, first: int, stop: int) -> tuple[
    tuple[str, ...], tuple[tuple[str, bool, bool], ...],
    tuple[bool, str | None, str | None] | None,
] | None:
    """The specification in the parentheses of a window."""
    begins: dict[str, int] = {}
    for at in tokens.top(first, stop):
        if tokens.word(at, "partition", "distribute") and tokens.word(at + 1, "by"):
            begins.setdefault("partition", at)
        elif tokens.word(at, "order", "sort") and tokens.word(at + 1, "by"):
            begins.setdefault("order", at)
        elif tokens.word(at, "rows", "range") and tokens.word(
            at + 1, "between", "unbounded", "current"
        ) or tokens.word(at, "rows", "range") and tokens.word(stop - 1, "preceding", "following"):
            begins.setdefault("frame", at)
    places = [*begins.values(), stop]
    if places != sorted(places) or places[0] != first:
        return None
    ends = dict(zip(begins, places[1:]))
    partition: tuple[str, ...] = ()
    order: list[tuple[str, bool, bool]] = []
    frame = None
    if "partition" in begins:
        listed = tokens.listed(begins["partition"] + 2, ends["partition"])
        partition = tuple(tokens.part(*part) for part in listed)
    if "order" in begins:
        for start, end in tokens.listed(begins["order"] + 2, ends["order"]):
            last: bool | None = None
            if tokens.word(end - 2, "nulls") and tokens.word(end - 1, "first", "last"):
                last, end = tokens.word(end - 1, "last"), end - 2
            down = tokens.word(end - 1, "desc")
            end -= tokens.word(end - 1, "asc", "desc")
            order.append((tokens.part(start, end), down, down if last is None else last))
    if "frame" in begins:
        start = begins["frame"]
        limits = [(start + 1, stop), None]
        if tokens.word(start + 1, "between"):
            both = [at for at in tokens.top(start + 2, stop) if tokens.word(at, "and")]
            if len(both) != 1:
                return None
            limits = [(start + 2, both[0]), (both[0] + 1, stop)]
        texts = [_limit(tokens, *limit) if limit else "0" for limit in limits]
        if "" in texts:
            return None
        frame = (tokens.word(start, "rows"), *texts)
    return partition, tuple(order), frame  # type: ignore[return-value]


def _limit(tokens: _Tokens, first: int, stop: int) -> str | None:
    """A limit of a frame: None if it is unbounded, an empty text for an unknown form."""
    if tokens.words(first, "current", "row"):
        return "0"
    if tokens.word(first, "unbounded"):
        return None
    if not tokens.word(stop - 1, "preceding", "following") or stop - 1 <= first:
        return ""
    limit = tokens.part(first, stop - 1)
    return f"-({limit})" if tokens.word(stop - 1, "preceding") else limit
