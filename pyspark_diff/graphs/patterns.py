"""The pattern of a motif: the edges that have to exist between nodes, and those that must not.

    pattern ::= term (";" term)*
    term    ::= edge | "!" edge | node
    edge    ::= node "-[" label "]->" node | node "<-[" label "]-" node
              | node "-[" label "]-" node  | node "<-[" label "]->" node
    label   ::= name? ("*" hops (".." hops)?)?
    node    ::= "(" name? ")"

The language is that of GraphFrames' ``find``. An edge without a direction, and a range of hops,
have several alternatives, and each choice among them is a branch of the motif.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from typing import NoReturn

from pyspark_diff.errors import SchemaError

_NAME = re.compile(r"[A-Za-z0-9_]+")
_NUMBER = re.compile(r"[0-9]+")
_SPACE = re.compile(r"\s*")
_SPACES = re.compile(r"\s")
#: The largest number of hops: each is a join.
MOST_HOPS = 32
#: The largest number of branches: each is a program of its own.
MOST_BRANCHES = 64
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
    branches : tuple of tuple of EdgeTerm
        The matches of a pattern are those of all its branches together.
    names : tuple of str
        All names in the order of their first use.
    nodes : tuple of str
        The names of nodes.
    between : frozenset of str
        The names of nodes between the hops of an edge: a branch has some of them.
    """

    branches: tuple[tuple[EdgeTerm, ...], ...]
    names: tuple[str, ...]
    nodes: tuple[str, ...]
    between: frozenset[str] = frozenset()


def parsed(pattern: str) -> Motif:
    """The motif that a pattern describes.

    Raises
    ------
    SchemaError
        If the text is no pattern, with the position of the fault.

    Examples
    --------
    >>> from pyspark_diff.graphs.patterns import parsed
    >>> for term in parsed("(a)-[e]->(b); !(b)-[]->()").branches[0]:
    ...     print(term)
    EdgeTerm(src='a', edge='e', dst='b', negated=False)
    EdgeTerm(src='b', edge=None, dst=None, negated=True)
    """
    if not isinstance(pattern, str):
        raise SchemaError(f"{_EXAMPLE}, and this is a {type(pattern).__name__}")
    return _PatternParser(pattern).motif()


class _PatternParser:
    """A parser of a pattern, with its position as state."""

    def __init__(self, pattern: str):
        self._text, self._at = pattern, 0
        #: The kind of each name: node or edge.
        self._kinds: dict[str, str] = {}
        #: The position of the edge that a generated name of an edge belongs to.
        self._lengths: dict[str, int] = {}
        #: The ends of the path that a generated name of a node belongs to. An end without a name is
        #: another node in each path, so its path's position represents it.
        self._between: dict[str, tuple[str | int, str | int]] = {}

    def motif(self) -> Motif:
        terms = [self._term()]
        while self._skipped(";"):
            terms.append(self._term())
        if self._at < len(self._text):
            self._refuse("expected ';' or the end")
        nodes = tuple(name for name, kind in self._kinds.items() if kind == "node")
        number = prod(map(len, terms))
        if number > MOST_BRANCHES:
            self._refuse(
                f"the terms have {number} combinations of lengths and directions, and at most "
                f"{MOST_BRANCHES} are possible: find parts of the pattern, and join them", 0)
        branches = tuple(tuple(chain(*parts)) for parts in product(*terms))
        return Motif(branches, tuple(self._kinds), nodes, frozenset(self._between))

    def _term(self) -> list[tuple[EdgeTerm, ...]]:
        """The alternatives of a term; a node alone has only its name."""
        negated, start = self._skipped("!"), self._at
        first = self._node()
        backwards = self._skipped("<-")
        if not backwards and not self._skipped("-"):
            if negated:
                self._refuse("expected '-[': only edges can be negated")
            if first is None:
                self._refuse("'()' alone matches all: name the node, or give it an edge", start)
            return [()]
        self._need("[")
        begin = self._at
        edge = self._word()
        hops = self._hops()
        if edge is not None and negated:
            self._refuse("an edge that must not exist has no name: write '[]'", begin)
        if hops is not None and negated:
            self._refuse("an edge that must not exist has one hop: write '[]'", begin)
        if edge is not None and hops is None and not backwards:
            self._add(edge, "edge", begin)
        self._need("]")
        forwards = self._skipped("->")
        if not forwards and not self._skipped("-"):
            self._need("-" if backwards else "->")
        both = backwards and forwards
        if both and negated:
            self._refuse("an edge that must not exist has one direction, or none: '-[]-'", start)
        if both and edge is not None and hops is not None:
            self._refuse("paths in both directions have no name: write '[*2]'", begin)
        if edge is not None and hops is None and backwards:
            for name in (f"{edge}1", f"{edge}2") if both else (edge,):
                self._add(name, "edge", begin)
        self._need("(")
        at_second, second = self._at, self._word()
        self._need(")")
        if first is edge is second is None:
            self._refuse("'()-[]->()' has no name: name a node or the edge", start)
        ways = self._alternatives(first, second, edge, hops, begin, backwards, forwards)
        if second is not None:
            self._add_node(second, at_second)
        if not negated:
            return ways
        # None of the alternatives may exist.
        terms = (term for way in ways for term in way)
        return [tuple(replace(term, negated=True) for term in terms)]

    def _alternatives(
        self, first: str | None, second: str | None, edge: str | None,
        hops: tuple[int, int] | None, begin: int, backwards: bool, forwards: bool,
    ) -> list[tuple[EdgeTerm, ...]]:
        """The alternatives of an edge between two nodes."""
        there, back = (first, second), (second, first)
        if not backwards and not forwards:
            return self._ways(*there, edge, hops, begin) + self._ways(*back, edge, hops, begin)
        if not (backwards and forwards):
            return self._ways(*(back if backwards else there), edge, hops, begin)
        names = (None, None) if edge is None else (f"{edge}1", f"{edge}2")
        return [
            outgoing + incoming
            for outgoing in self._ways(*there, names[0], hops, begin)
            for incoming in self._ways(*back, names[1], hops, begin)
        ]

    def _hops(self) -> tuple[int, int] | None:
        """The least and the greatest number of hops; None for an edge."""
        start = self._at
        if not self._skipped("*"):
            return None
        least = most = self._number()
        if self._skipped(".."):
            most = self._number()
        if not 1 <= least <= most:
            self._refuse("the number of hops is at least 1, and a range goes up", start)
        if most > MOST_HOPS:
            self._refuse(f"an edge has at most {MOST_HOPS} hops", start)
        return least, most

    def _number(self) -> int:
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            self._refuse("expected a number of hops: '*2', or '*1..3'")
        self._at = match.end()
        self._skip()
        return int(match.group())

    def _ways(
        self, src: str | None, dst: str | None, edge: str | None, hops: tuple[int, int] | None,
        at: int,
    ) -> list[tuple[EdgeTerm, ...]]:
        """The alternatives of an edge in one direction, the longest one first."""
        if hops is None:
            return [(EdgeTerm(src, edge, dst),)]
        least, most = hops
        nodes = [f"_{src or ''}{dst or ''}{number}" for number in range(1, most)]
        edges = [None if edge is None else f"_{edge}{number}" for number in range(1, most + 1)]
        own = (at if src is None else src, at if dst is None else dst)
        for between in nodes:
            if between in self._kinds and between not in self._between:
                self._refuse(f"{between!r} is another node: take other names", at)
            if self._between.setdefault(between, own) != own:
                advice = "take other names" if None not in (src, dst) else "name their ends"
                self._refuse(f"{between!r} is a node between two pairs: {advice}", at)
        for number, name in enumerate(edges):
            if name is not None and self._lengths.get(name) != at:
                self._add(name, "edge", at)
                self._lengths[name] = at
            if number < len(nodes) and nodes[number] not in self._kinds:
                self._add(nodes[number], "node", at)
        ways = []
        for count in range(most, least - 1, -1):
            ends = [src, *nodes[: count - 1], dst]
            ways.append(tuple(map(EdgeTerm, ends, edges, ends[1:])))
        return ways

    def _node(self) -> str | None:
        self._need("(")
        start, name = self._at, self._word()
        if name is not None:
            self._add_node(name, start)
        self._need(")")
        return name

    def _add_node(self, name: str, at: int) -> None:
        if name in self._between:
            self._refuse(f"{name!r} is a node between others: take another name", at)
        self._add(name, "node", at)

    def _word(self) -> str | None:
        match = _NAME.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        self._skip()
        return match.group()

    def _add(self, name: str, kind: str, at: int) -> None:
        """Note the use of a name."""
        if name.startswith("__"):
            self._refuse("names that start with '__' are reserved: take another name", at)
        similar = next((n for n in self._kinds if n.lower() == name.lower()), name)
        if similar != name:
            self._refuse(f"{name!r} and {similar!r} differ in case alone: take another name", at)
        before = self._kinds.get(name, kind)
        if before != kind:
            self._refuse(f"{name!r} is the name of a node and of an edge: take another one", at)
        if kind == "edge" and name in self._kinds:
            self._refuse(f"{name!r} is the name of another edge: take another one", at)
        self._kinds[name] = kind

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
