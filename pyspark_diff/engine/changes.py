"""What differs between a program that has run and one that was written anew, in words.

What a node does is compared part by part, by its fingerprint. A node that does the same to
something else has not changed: what that is made of has, and is named instead.
"""

from __future__ import annotations

from collections import Counter
from typing import Mapping, Sequence

from pyspark_diff.engine.description import PYTHON
from pyspark_diff.engine.fingerprint import Fingerprint
from pyspark_diff.engine.plan import BlueprintContent
from pyspark_diff.engine.program import Program
from pyspark_diff.operators.arrange import Output
from pyspark_diff.operators.node import Constant, Input, Keyed, Node

#: Parts of nodes that are many.
_PLURAL = frozenset({"aggregates", "columns", "expressions", "names", "rows", "settings", "sums"})
#: How collections begin that users keep.
_KEPT = "kept collection"


class Changes:
    """What differs between a plan and a program, in words."""

    def __init__(
        self, plan: BlueprintContent, pairs: Mapping[int, Node], written: Program,
        prints: Mapping[Node, Fingerprint], names: Mapping[Node, str],
    ):
        self._plan, self._pairs, self._written = plan, pairs, written
        self._prints, self._names = prints, names

    def called(self, number: int) -> str:
        """What users know a node by that is run for its own sake."""
        of = [one for one in self._plan.written if one.runs == number]
        for one in of:
            if one.name is not None:
                return _named(one.name)
        return next((one.told for one in of if one.told.startswith(_KEPT)),
                    of[0].told if of else self._plan.nodes[number].kind)

    def reasons(self, sinks: Sequence[int], added: Sequence[Node]) -> tuple[str, ...]:
        """All of it."""
        gone = [self.called(number) for number in self._plan.sinks if number not in sinks]
        new = [
            _named(self._names[sink]) if sink in self._names else called(sink) for sink in added
        ]
        found, function = self._nodes(bool(set(new) & set(gone)))
        if function and self._plan.python != PYTHON:
            found.append(
                f"functions are compared as Python has compiled them: that was Python "
                f"{self._plan.python} and is {PYTHON}, so that they may differ in nothing else"
            )
        for text in dict.fromkeys(new):
            found.append(f"{text} is made anew" if text in gone else f"{text} is new")
        found += [f"{text} is no longer in the program" for text in dict.fromkeys(gone)
                  if text not in new]
        return tuple(dict.fromkeys(found))

    def _nodes(self, every: bool) -> tuple[list[str], bool]:
        """What differs node by node, and whether that is a function.

        With ``every``, also those that have come or gone: something is made anew because of them.
        """
        # Two of before that are one now: the second has nobody left.
        again = {node: place for place, node in reversed(list(self._pairs.items()))}
        stay = set(again.values())
        new = [node for node in self._written.nodes if node not in again and not is_plain(node)]
        old = [
            one for place, one in enumerate(self._plan.written)
            if place not in stay and not one.plain
        ]
        # What is the same by itself differs in what it is made of only.
        ours = Counter(_parts(self._prints[node].parts) for node in new)
        theirs = Counter(_parts(one.parts) for one in old)
        here, there = ours - theirs, theirs - ours
        left = []
        for one in old:
            if there[_parts(one.parts)] > 0:
                there[_parts(one.parts)] -= 1
                left.append(one)
        found: list[str] = []
        function = False
        for node in new:
            parts = self._prints[node].parts
            if here[_parts(parts)] <= 0:
                continue
            here[_parts(parts)] -= 1
            like = [one for one in left if one.parts.get("kind") == parts["kind"]]
            if not like:
                if every:
                    found.append(f"{called(node)} is new")
                continue
            one = min(like, key=lambda other: len(_differing(other.parts, parts)))
            left.remove(one)
            differs = _differing(one.parts, parts)
            function |= bool({"function", "expression"} & set(differs))
            verb = "differs" if differs[1:] == [] and differs[0] not in _PLURAL else "differ"
            found.append(f"{called(node)} changed: its {' and '.join(differs)} {verb}")
        if every:
            found += [f"{one.told} is no longer in the program" for one in left]
        if every and not found:
            found = [
                f"{called(node)} is made of something else" for node in new
                if all(source in again for source in node.inputs)
            ]
        return found, function


def _parts(parts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(parts.items()))


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [part for part in sorted({*old, *new}) if old.get(part) != new.get(part)]


def _named(name: str) -> str:
    return f"{_KEPT} {name!r}"


def called(node: Node) -> str:
    """A written node, as messages call it."""
    if isinstance(node, Input) and not isinstance(node, Constant):
        return f"input {node.name!r}"
    if isinstance(node, Output):
        return f"{_KEPT} ({node.schema.describe()})"
    return f"{node!r}"


def is_plain(node: Node) -> bool:
    """Whether a node only serves others, or users know it under another name."""
    return isinstance(node, Output) or isinstance(node, Keyed) and node.kernel is None
