"""The pattern of a motif: which edges there are to be between which nodes, and which not.

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
    """An edge of a pattern; what has no name is None."""

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
    """What a pattern says.

    Parameters
    ----------
    terms : tuple of EdgeTerm
    names : tuple of str
        All names in the order in which they first come.
    nodes : tuple of str
        Those of nodes.
    """

    terms: tuple[EdgeTerm, ...]
    names: tuple[str, ...]
    nodes: tuple[str, ...]


def parsed(pattern: str) -> Motif:
    """The motif that a pattern describes.

    Raises
    ------
    SchemaError
        If it is none, with the place where it goes wrong.

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
    """A reader of a pattern that knows where it is."""

    def __init__(self, pattern: str):
        self._text, self._at = pattern, 0
        #: What each name stands for.
        self._kinds: dict[str, str] = {}

    def motif(self) -> Motif:
        terms = [self._term()]
        while self._taken(";"):
            terms.append(self._term())
        if self._at < len(self._text):
            self._refuse("expected ';' or the end")
        nodes = tuple(name for name, kind in self._kinds.items() if kind == "node")
        return Motif(tuple(filter(None, terms)), tuple(self._kinds), nodes)

    def _term(self) -> EdgeTerm | None:
        """A term; None for a node alone, of which there is nothing more to say than its name."""
        negated, start = self._taken("!"), self._at
        first = self._node()
        backwards = self._taken("<-")
        if not backwards and not self._taken("-"):
            if negated:
                self._refuse("expected '-[': what is negated is an edge")
            if first is None:
                self._refuse("'()' alone says nothing: name the node, or give it an edge", start)
            return None
        self._need("[")
        begin = self._at
        edge = self._name("edge")
        if edge is not None and negated:
            self._refuse("an edge that is not there has no name: write '[]'", begin)
        self._need("]")
        self._need("-" if backwards else "->")
        second = self._node()
        if first is edge is second is None:
            self._refuse("'()-[]->()' says nothing: name a node or the edge", start)
        ends = (second, first) if backwards else (first, second)
        return EdgeTerm(ends[0], edge, ends[1], negated)

    def _node(self) -> str | None:
        self._need("(")
        name = self._name("node")
        self._need(")")
        return name

    def _name(self, kind: str) -> str | None:
        found = _NAME.match(self._text, self._at)
        if found is None:
            return None
        name = found.group()
        if name.startswith("__"):
            self._refuse("names that start with '__' are the library's own")
        alike = next((n for n in self._kinds if n.lower() == name.lower()), name)
        if alike != name:
            self._refuse(f"{name!r} and {alike!r} differ in case alone: take another name")
        before = self._kinds.get(name, kind)
        if before != kind:
            self._refuse(f"{name!r} is the name of a node and of an edge: take another one")
        if kind == "edge" and name in self._kinds:
            self._refuse(f"{name!r} is the name of another edge: take another one")
        self._kinds[name] = kind
        self._at = found.end()
        self._skip()
        return name

    def _taken(self, mark: str) -> bool:
        """Whether some characters come next; they are passed then."""
        self._skip()
        there = self._text.startswith(mark, self._at)
        if there:
            self._at += len(mark)
            self._skip()
        return there

    def _need(self, mark: str) -> None:
        if not self._taken(mark):
            self._refuse(f"expected {mark!r}")

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _refuse(self, why: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        there = repr(self._text[at]) if at < len(self._text) else "the end"
        raise SchemaError(
            f"the pattern goes wrong at character {at + 1}, {there}: {why}\n"
            f"    {_SPACES.sub(' ', self._text)}\n    {' ' * at}^\n{_EXAMPLE}"
        )
