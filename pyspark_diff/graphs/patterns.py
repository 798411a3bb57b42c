"""The pattern of a motif: the edges that have to exist between nodes, and those that must not.

    pattern ::= term (";" term)*
    term    ::= edge | "!" edge | node
    edge    ::= node "-[" name? "]->" node | node "<-[" name? "]-" node
    node    ::= "(" name? ")"

The language is that of GraphFrames' ``find``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from pyspark_diff.errors import SchemaError

_NAME = re.compile(r"[A-Za-z0-9_]+")
_SPACE = re.compile(r"\s*")
_SPACES = re.compile(r"\s")
_EXAMPLE = "a pattern is like '(a)-[e]->(b); !(b)-[]->(a)'"


@dataclass(frozen=True)
class EdgeTerm:
    """An edge of a pattern; None for an end or an edge without a name."""

    src: str | None
    edge: str | None
    dst: str | None
    negated: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its ends, each once."""
        return tuple(dict.fromkeys(end for end in (self.src, self.dst) if end is not None))


@dataclass(frozen=True)
class Motif:
    """The parts of a pattern.

    Parameters
    ----------
    terms : tuple of EdgeTerm
    names : tuple of str
        All names in the order of their first use.
    nodes : tuple of str
        The names of nodes.
    """

    terms: tuple[EdgeTerm, ...]
    names: tuple[str, ...]
    nodes: tuple[str, ...]


def parsed(pattern: str) -> Motif:
    """The motif that a pattern describes.

    Raises
    ------
    SchemaError
        If the text is no pattern, with the position of the fault.

    Examples
    --------
    >>> from pyspark_diff.graphs.patterns import parsed
    >>> for term in parsed("(a)-[e]->(b); !(b)-[]->()").terms:
    ...     print(term)
    EdgeTerm(src='a', edge='e', dst='b', negated=False)
    EdgeTerm(src='b', edge=None, dst=None, negated=True)
    """
    if not isinstance(pattern, str):
        raise SchemaError(f"{_EXAMPLE}, and this is a {type(pattern).__name__}")
    return _Parser(pattern).motif()


class _Parser:
    """A parser of a pattern, with its position as state."""

    def __init__(self, pattern: str):
        self._text, self._at = pattern, 0
        #: The kind of each name: node or edge.
        self._kinds: dict[str, str] = {}

    def motif(self) -> Motif:
        terms = [self._term()]
        while self._skipped(";"):
            terms.append(self._term())
        if self._at < len(self._text):
            self._refuse("expected ';' or the end")
        nodes = tuple(name for name, kind in self._kinds.items() if kind == "node")
        return Motif(tuple(filter(None, terms)), tuple(self._kinds), nodes)

    def _term(self) -> EdgeTerm | None:
        """A term; None for a node alone, which has only its name."""
        negated, start = self._skipped("!"), self._at
        first = self._node()
        backwards = self._skipped("<-")
        if not backwards and not self._skipped("-"):
            if negated:
                self._refuse("expected '-[': only edges can be negated")
            if first is None:
                self._refuse("'()' alone matches all: name the node, or give it an edge", start)
            return None
        self._need("[")
        begin = self._at
        edge = self._name("edge")
        if edge is not None and negated:
            self._refuse("an edge that must not exist has no name: write '[]'", begin)
        self._need("]")
        self._need("-" if backwards else "->")
        second = self._node()
        if first is edge is second is None:
            self._refuse("'()-[]->()' has no name: name a node or the edge", start)
        ends = (second, first) if backwards else (first, second)
        return EdgeTerm(ends[0], edge, ends[1], negated)

    def _node(self) -> str | None:
        self._need("(")
        name = self._name("node")
        self._need(")")
        return name

    def _name(self, kind: str) -> str | None:
        match = _NAME.match(self._text, self._at)
        if match is None:
            return None
        name = match.group()
        if name.startswith("__"):
            self._refuse("names that start with '__' are reserved: take another name")
        similar = next((n for n in self._kinds if n.lower() == name.lower()), name)
        if similar != name:
            self._refuse(f"{name!r} and {similar!r} differ in case alone: take another name")
        before = self._kinds.get(name, kind)
        if before != kind:
            self._refuse(f"{name!r} is the name of a node and of an edge: take another one")
        if kind == "edge" and name in self._kinds:
            self._refuse(f"{name!r} is the name of another edge: take another one")
        self._kinds[name] = kind
        self._at = match.end()
        self._skip()
        return name

    def _skipped(self, mark: str) -> bool:
        """Whether some characters come next; if so, the parser skips them."""
        self._skip()
        there = self._text.startswith(mark, self._at)
        if there:
            self._at += len(mark)
            self._skip()
        return there

    def _need(self, mark: str) -> None:
        if not self._skipped(mark):
            self._refuse(f"expected {mark!r}")

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at

    def _refuse(self, why: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        there = repr(self._text[at]) if at < len(self._text) else "the end"
        raise SchemaError(
            f"the pattern goes wrong at character {at + 1}, {there}: {why}\n"
            f"    {_SPACES.sub(' ', self._text)}\n    {' ' * at}^\n{_EXAMPLE}"
        )
